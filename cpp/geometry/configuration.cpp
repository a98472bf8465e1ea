#include "geometry/configuration.hpp"

#include <algorithm>

#include "support/sorting.hpp"

namespace soapstone {

std::vector<Device> devices_of(const Configuration& configuration, std::span<const Part> parts) {
  std::vector<Device> devices;
  devices.reserve(parts.size());
  for (const Part part : parts) devices.push_back(configuration.devices[part]);
  sort_unique(devices);
  return devices;
}

Part giver_of(const Configuration& configuration, OutputPart output, int32_t copies, Device device) {
  const Part first(output.value * copies);
  const auto* devices = &configuration.devices[first];
  const auto* own = std::find(devices, devices + copies, device);
  return own == devices + copies ? first : first + static_cast<int32_t>(own - devices);
}

}  // namespace soapstone
