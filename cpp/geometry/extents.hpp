// The sizes that an op's parts have: uneven cuts give a few, which many parts share.
#pragma once

#include "geometry/configuration.hpp"
#include "geometry/opgraph.hpp"

namespace soapstone {

struct Extents {
  std::vector<std::vector<int64_t>> distinct;  // one size a dim
  By<Part, int32_t> of_part;                   // which of them each has
};

Extents extents_of(const Op&, const Degrees&);

}  // namespace soapstone
