#include "engines/timeline.hpp"

#include <algorithm>

#include "engines/engine.hpp"

namespace soapstone {

namespace {

// Serves a row's holds, and says when the first of them starts.
int64_t start_holds(const TaskRow& row, int64_t ready, By<Resource, int64_t>& free, int64_t* hold_start) {
  int64_t start = row.holds.empty() ? ready : INT64_MAX;
  for (const auto& [resource, duration] : row.holds) {
    *hold_start = std::max(ready, free[resource]);
    free[resource] = *hold_start + duration;
    start = std::min(start, *hold_start++);
  }
  return start;
}

}  // namespace

Timeline timeline_of(Listing& listing) {
  TaskGraph& graph = listing.graph();
  By<Resource, int64_t> free(graph.machine.topology.num_resources());
  Bounds bounds;
  bounds.hold(graph, nullptr, 0, {free, free}, INT64_MAX);
  Engine engine(graph);
  engine.play(Method::full, INT64_MAX, bounds);

  const size_t num_rows = listing.tasks.size();
  Timeline timeline;
  for (auto* column : {&timeline.ready, &timeline.start, &timeline.end}) column->resize(num_rows);
  std::vector<size_t> first_hold(num_rows + 1);
  for (size_t row = 0; row < num_rows; ++row) first_hold[row + 1] = first_hold[row] + listing.tasks[row].holds.size();
  timeline.hold_start.resize(first_hold.back());
  timeline.order.reserve(num_rows);
  engine.each([&](Slot slot, int64_t ready, int64_t end) {
    const int32_t row = listing.row_of(slot);
    timeline.order.push_back(row);
    timeline.ready[row] = ready;
    timeline.end[row] = end;
    timeline.start[row] = start_holds(listing.tasks[row], ready, free, timeline.hold_start.data() + first_hold[row]);
  });
  timeline.makespan = engine.makespan();
  return timeline;
}

}  // namespace soapstone
