// What one op takes from another, whoever else reads it.
#pragma once

#include "geometry/layouts.hpp"

namespace soapstone {

struct Need {
  int32_t maker, source;       // the part that has it and that part's device, the reader's own where it has a copy
  int32_t device;              // of the readers
  std::vector<int32_t> parts;  // of the reader
  Box hull;
};

// Of a tensor's reader number `reader`: one for each output part and device that reads it.
std::vector<Need> needs_of(Layouts&, const Graph&, int32_t tensor, int32_t reader, const Configuration& made,
                           const Configuration& read);

}  // namespace soapstone
