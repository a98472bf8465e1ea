// A parameter's pieces: its elements grouped by who holds them.
#pragma once

#include "geometry/boxes.hpp"
#include "support/index.hpp"

namespace soapstone {

// The same boxes, read by some parts that run on some devices.
struct Reading {
  const std::vector<Box>* boxes;
  std::vector<std::pair<int32_t, Part>> parts;  // with whatever names their op
  std::vector<Device> devices;                  // increasing
};

struct Piece {
  std::vector<Device> holders;  // increasing
  std::vector<Box> boxes;       // disjoint, in the parameter's factoring
  int64_t elements = 0;
  std::vector<std::pair<int32_t, Part>> parts;  // that read any of it
};

// How many of a piece's elements one of its holders keeps where they share it: the same for all but the last, which may
// have fewer or none.
int64_t share_of(int64_t elements, size_t num_holders, size_t holder);

// Ordered by each piece's first element. No two readings have the same boxes.
std::vector<Piece> pieces_of(const std::vector<Reading>& readings);

// Fewer and larger boxes of the same elements.
void join(std::vector<Box>& boxes);

}  // namespace soapstone
