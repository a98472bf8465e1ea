// What a task keeps busy: a device or one direction of a link, for so long. A device may have a host, a thread that
// launches its work one by one and runs ahead of it.
#pragma once

#include <cstdint>

#include "support/index.hpp"

namespace soapstone {

// Every device is a resource of the same number, and the first resources are devices.
constexpr Resource resource_of(Device device) { return Resource(device.value); }
constexpr Device device_of(Resource resource) { return Device(resource.value); }

struct Hold {
  constexpr Hold(Resource of, int64_t busy, int32_t launching = 0) : resource(of), launch(launching), duration(busy) {}

  bool is_busy() const { return duration > 0 || launch == 0; }

  Resource resource;
  int32_t launch;    // ns of the device's host; where it launches but the duration is 0, the device is not kept busy
  int64_t duration;  // ns
};

}  // namespace soapstone
