#include "geometry/configuration.hpp"

#include <algorithm>

#include "support/sorting.hpp"

namespace soapstone {

std::vector<Device> devices_of(const Configuration& configuration, std::span<const int32_t> parts) {
  std::vector<Device> devices;
  devices.reserve(parts.size());
  for (const int32_t part : parts) devices.push_back(configuration.devices[part]);
  sort_unique(devices);
  return devices;
}

int32_t giver_of(const Configuration& configuration, int32_t output_part, int32_t copies, Device device) {
  const int32_t first = output_part * copies;
  const auto* devices = configuration.devices.data() + first;
  const auto* own = std::find(devices, devices + copies, device);
  return own == devices + copies ? first : first + static_cast<int32_t>(own - devices);
}

}  // namespace soapstone
