#include "geometry/configuration.hpp"

#include <algorithm>

#include "support/sorting.hpp"

namespace soapstone {

std::vector<int32_t> devices_of(const Configuration& configuration, std::span<const int32_t> parts) {
  std::vector<int32_t> devices;
  devices.reserve(parts.size());
  for (const int32_t part : parts) devices.push_back(configuration.devices[part]);
  sort_unique(devices);
  return devices;
}

int32_t giver_of(const Configuration& configuration, int32_t output_part, int32_t copies, int32_t device) {
  const int32_t first = output_part * copies;
  const auto* devices = configuration.devices.data() + first;
  const auto* own = std::find(devices, devices + copies, device);
  return own == devices + copies ? first : first + static_cast<int32_t>(own - devices);
}

}  // namespace soapstone
