#include "machine/link.hpp"

#include <stdexcept>
#include <string>

namespace soapstone {

// In integers: double rounding would make holds depend on how it is written.
int64_t wire_time(double bandwidth, int64_t bytes, int64_t times, int64_t parts) {
  using Wide = unsigned __int128;
  const Wide work = static_cast<Wide>(times) * static_cast<Wide>(bytes) * 1'000'000'000u;
  const Wide rate = static_cast<Wide>(parts) * static_cast<uint64_t>(bandwidth);
  const Wide time = (work + rate - 1) / rate;
  if (time > static_cast<Wide>(largest_whole)) {
    throw std::invalid_argument("a message of " + std::to_string(bytes) + " bytes takes longer than 2^53 ns");
  }
  return static_cast<int64_t>(time);
}

}  // namespace soapstone
