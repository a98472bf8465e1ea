// What a task keeps busy: a device or one direction of a link, for so long.
#pragma once

#include <cstdint>

#include "support/index.hpp"

namespace soapstone {

// Every device is a resource of the same number, and the first resources are devices.
constexpr Resource resource_of(Device device) { return Resource(device.value); }
constexpr Device device_of(Resource resource) { return Device(resource.value); }

struct Hold {
  Resource resource;
  int64_t duration;  // ns
};

}  // namespace soapstone
