// How one op runs: into how many parts each of its dims is cut, the device of each part, what of its trained parameters
// each of several holders keeps, whether forward is done again for backward, and how many microbatches are in flight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "support/index.hpp"

namespace soapstone {

using Degrees = std::vector<int32_t>;

// What the devices that hold the same piece of a parameter keep of it, beside a share: all; all but the optimizer's
// state; or nothing, and the weights are gathered where they are used.
enum class Shard : int32_t { none, optimizer, all };

struct Configuration {
  Degrees degrees;
  By<Part, Device> devices;
  Shard shard = Shard::none;
  bool recompute = false;
  int32_t in_flight = 0;  // microbatches whose forward is done and whose backward is not; 0: as many as there are

  bool operator==(const Configuration&) const = default;
};

using Strategy = By<OpIndex, Configuration>;

// The devices of some parts, increasing, each once.
std::vector<Device> devices_of(const Configuration&, std::span<const Part> parts);

// The part that gives an output part to a device: the device's own copy, else the first. Each output part is made by
// `copies` parts in a row.
Part giver_of(const Configuration&, OutputPart output, int32_t copies, Device device);

}  // namespace soapstone
