#include "machine/link.hpp"

#include <stdexcept>

namespace soapstone {
namespace {

using Wide = unsigned __int128;

int64_t quotient(Wide amount, Wide by) {
  const Wide found = (amount + by - 1) / by;
  if (found > static_cast<Wide>(largest_whole)) throw std::invalid_argument("a message takes longer than 2^53 ns");
  return static_cast<int64_t>(found);
}

}  // namespace

int64_t proportion(int64_t amount, int64_t part, int64_t whole) {
  return quotient(static_cast<Wide>(amount) * static_cast<Wide>(part), static_cast<Wide>(whole));
}

// In integers: double rounding would make holds depend on how it is written.
int64_t wire_time(double bandwidth, int64_t bytes, int64_t times, int64_t parts) {
  const Wide work = static_cast<Wide>(times) * static_cast<Wide>(bytes) * 1'000'000'000u;
  const Wide rate = static_cast<Wide>(parts) * static_cast<uint64_t>(bandwidth);
  return quotient(work, rate);
}

}  // namespace soapstone
