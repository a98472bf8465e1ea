#include "machine/machine.hpp"

#include <algorithm>
#include <cmath>

namespace soapstone {

int64_t Machine::update_time(Device device, int64_t elements) const {
  if (elements == 0) return 0;
  const double nanoseconds = update_ns_per_element[device] * static_cast<double>(elements);
  return update_overhead + std::max<int64_t>(std::llround(nanoseconds), 1);
}

}  // namespace soapstone
