// What a task keeps busy: a device or one direction of a link, for so long.
#pragma once

#include <cstdint>

namespace soapstone {

struct Hold {
  int32_t resource;
  int64_t duration;  // ns
};

}  // namespace soapstone
