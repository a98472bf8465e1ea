// A parameter's pieces: its elements grouped by who holds them.
#pragma once

#include <map>

#include "geometry.hpp"

namespace soapstone {

struct Piece {
  std::vector<int32_t> holders;  // increasing
  std::vector<Box> boxes;        // disjoint, in the parameter's factoring
  int64_t elements = 0;
};

// `reads` maps a device to the boxes that it reads. Ordered by each piece's first element.
std::vector<Piece> pieces_of(const std::map<int32_t, std::vector<Box>>& reads);

}  // namespace soapstone
