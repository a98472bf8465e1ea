// What one op takes from another, whoever else reads it.
#pragma once

#include <span>

#include "geometry/layouts.hpp"

namespace soapstone {

struct Need {
  Part maker;               // that has it
  Device source;            // that part's, the reader's own where it has a copy
  Device device;            // of the readers
  std::vector<Part> parts;  // of the reader
  Box hull;
};

// Finds them, and keeps its memory for the next time.
class Needs {
 public:
  // Of a tensor's reader number `reader`: one for each output part and device that reads it. Good until the next call.
  std::span<const Need> of(Layouts&, const Graph&, int32_t tensor, int32_t reader, const Configuration& made,
                           const Configuration& read);

 private:
  void add(Device);

  std::vector<Need> needs_;  // the first `num_` are in use
  size_t num_ = 0;
  By<Device, size_t> after_last_;  // 1 + the place of a device's last need, 0 where it has none
};

}  // namespace soapstone
