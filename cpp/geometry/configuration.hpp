// How one op runs: into how many parts each of its dims is cut, and the device of each part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "support/index.hpp"

namespace soapstone {

using Degrees = std::vector<int32_t>;

struct Configuration {
  Degrees degrees;
  By<Part, Device> devices;

  bool operator==(const Configuration&) const = default;
};

using Strategy = By<OpIndex, Configuration>;

// The devices of some parts, increasing, each once.
std::vector<Device> devices_of(const Configuration&, std::span<const Part> parts);

// The part that gives an output part to a device: the device's own copy, else the first. Each output part is made by
// `copies` parts in a row.
Part giver_of(const Configuration&, OutputPart output, int32_t copies, Device device);

}  // namespace soapstone
