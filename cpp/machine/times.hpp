// What compute tasks take, set once for each op, its degrees and a kind of device.
#pragma once

#include <map>

#include "geometry/extents.hpp"

namespace soapstone {

// Nanoseconds of one part; `finish_*` are the steps after a combine and count only where there are any.
struct PartTimes {
  int64_t forward = 1, backward = 1, finish_forward = 1, finish_backward = 1;
  int32_t launch_forward = 0, launch_backward = 0, launch_finish_forward = 0, launch_finish_backward = 0;
};

class Times {
 public:
  // `alike` names, by op, the op that it shares its times with: itself, or one with the same dims.
  Times(const Graph& graph, By<OpIndex, OpIndex> alike);

  // One for each of the distinct extents, in their order.
  void set(OpIndex op, const Degrees&, int32_t kind, std::vector<PartTimes> times);
  bool has(OpIndex op, const Degrees&, int32_t kind) const;
  const std::vector<PartTimes>& of(OpIndex op, const Degrees&, int32_t kind) const;
  Extents extents(OpIndex op, const Degrees& degrees) const { return extents_of(graph_.ops.at(op), degrees); }

 private:
  const Graph& graph_;
  By<OpIndex, OpIndex> alike_;
  By<OpIndex, std::map<std::pair<Degrees, int32_t>, std::vector<PartTimes>>> known_;  // of ops that others share
};

}  // namespace soapstone
