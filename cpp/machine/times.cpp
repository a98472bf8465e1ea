#include "machine/times.hpp"

#include <stdexcept>

namespace soapstone {

Times::Times(const Graph& graph, By<OpIndex, OpIndex> alike)
    : graph_(graph), alike_(std::move(alike)), known_(graph.ops.size()) {
  if (alike_.size() != known_.size()) throw std::invalid_argument("every op has times of its own or another's");
  for (const OpIndex op : alike_)
    if (!op.is_below(known_.size())) throw std::invalid_argument("there is no such op");
}

void Times::set(OpIndex op, const Degrees& degrees, int32_t kind, std::vector<PartTimes> times) {
  if (times.size() != extents(op, degrees).distinct.size())
    throw std::invalid_argument("an op needs one time for each of its distinct extents");
  known_[alike_.at(op)][{degrees, kind}] = std::move(times);
}

bool Times::has(OpIndex op, const Degrees& degrees, int32_t kind) const {
  return known_[alike_.at(op)].contains({degrees, kind});
}

const std::vector<PartTimes>& Times::of(OpIndex op, const Degrees& degrees, int32_t kind) const {
  const auto& known = known_[alike_[op]];
  const auto at = known.find({degrees, kind});
  if (at == known.end()) throw std::invalid_argument("an op has no times for its degrees on a kind of device");
  return at->second;
}

}  // namespace soapstone
