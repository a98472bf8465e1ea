#include "geometry/extents.hpp"

#include <map>
#include <stdexcept>

namespace soapstone {

Extents extents_of(const Op& op, const Degrees& degrees) {
  if (degrees.size() != op.dims.size()) throw std::invalid_argument("an op has one degree a dim");
  Extents result;
  int64_t num_parts = 1;
  for (const int32_t degree : degrees) num_parts *= degree;
  std::map<std::vector<int64_t>, int32_t> index;
  std::vector<int64_t> extent;
  for (int64_t part = 0; part < num_parts; ++part) {
    extent.clear();
    for (const auto& interval : op_box(op, degrees, part)) extent.push_back(interval.size());
    const auto [at, fresh] = index.try_emplace(extent, static_cast<int32_t>(result.distinct.size()));
    if (fresh) result.distinct.push_back(at->first);
    result.of_part.push_back(at->second);
  }
  return result;
}

}  // namespace soapstone
