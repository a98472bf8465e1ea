#include "engines/timeline.hpp"

#include <algorithm>

#include "engines/engine.hpp"

namespace soapstone {

namespace {

// Serves a task, writes down when each of its holds starts, and returns the first.
int64_t start_holds(const Task& task, int64_t ready, By<Resource, Progress>& resources, int64_t* hold_start) {
  int64_t first = task.num_holds == 0 ? ready : INT64_MAX;
  serve(task, ready, resources, [&](int64_t start) {
    *hold_start++ = start;
    first = std::min(first, start);
  });
  return first;
}

}  // namespace

Timeline timeline_of(Listing& listing) {
  TaskGraph& graph = listing.graph();
  const By<Resource, int64_t> none_idle(graph.machine.topology.num_resources());
  By<Resource, Progress> resources = at_start(graph.machine.topology);
  Bounds bounds;
  bounds.hold(graph, nullptr, 0, {none_idle, none_idle}, INT64_MAX);
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
    timeline.start[row] =
        start_holds(graph.pool.tasks[slot], ready, resources, timeline.hold_start.data() + first_hold[row]);
  });
  timeline.makespan = engine.makespan();
  return timeline;
}

}  // namespace soapstone
