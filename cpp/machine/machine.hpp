// The machines, and what an optimizer does on them.
#pragma once

#include "machine/topology.hpp"

namespace soapstone {

struct Machine {
  Topology topology;  // its own, since a topology serves one thread
  By<Device, int32_t> kinds;
  By<Device, double> update_ns_per_element;
  int64_t update_overhead = 0, bucket_bytes = 0;
  int32_t groups_ahead = 0;  // how far ahead of their use weights are gathered, in groups of some bucket_bytes

  // Nanoseconds that a device takes to update so many elements; none for none.
  int64_t update_time(Device device, int64_t elements) const;
};

}  // namespace soapstone
