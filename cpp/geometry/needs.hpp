// What one op takes from another, whoever else reads it.
#pragma once

#include "geometry/layouts.hpp"

namespace soapstone {

struct Need {
  Part maker;               // that has it
  Device source;            // that part's, the reader's own where it has a copy
  Device device;            // of the readers
  std::vector<Part> parts;  // of the reader
  Box hull;
};

// Of a tensor's reader number `reader`: one for each output part and device that reads it.
std::vector<Need> needs_of(Layouts&, const Graph&, int32_t tensor, int32_t reader, const Configuration& made,
                           const Configuration& read);

}  // namespace soapstone
