#include "engines/timeline.hpp"

#include <algorithm>
#include <cassert>

#include "engines/engine.hpp"

namespace soapstone {

namespace {

// Rows with their times, as they are served.
class Recorder {
 public:
  Recorder(Listing& listing, Timeline& timeline)
      : listing_(listing), timeline_(timeline), resources_(at_start(listing.graph().machine.topology)) {
    const size_t num_rows = listing.tasks.size();
    for (auto* column : {&timeline.ready, &timeline.start, &timeline.end}) column->resize(num_rows);
    first_hold_.resize(num_rows + 1);
    for (size_t row = 0; row < num_rows; ++row)
      first_hold_[row + 1] = first_hold_[row] + listing.tasks[row].holds.size();
    timeline.hold_start.resize(first_hold_.back());
    timeline.order.reserve(num_rows);
  }

  // Returns its end.
  int64_t serve(int32_t row, int64_t ready) {
    const Task& task = listing_.graph().pool.tasks[listing_.slot_of(row)];
    int64_t first = task.num_holds == 0 ? ready : INT64_MAX, end = ready;
    int64_t* hold_start = timeline_.hold_start.data() + first_hold_[row];
    soapstone::serve(task, ready, resources_, [&](const Hold& hold, int64_t start) {
      *hold_start++ = start;
      first = std::min(first, start);
      end = std::max(end, start + hold.duration);
    });
    timeline_.order.push_back(row);
    timeline_.ready[row] = ready;
    timeline_.start[row] = first;
    timeline_.end[row] = end + task.latency;
    timeline_.makespan = std::max(timeline_.makespan, timeline_.end[row]);
    return timeline_.end[row];
  }

 private:
  Listing& listing_;
  Timeline& timeline_;
  By<Resource, Progress> resources_;
  std::vector<size_t> first_hold_;
};

void play(Listing& listing, Recorder& recorder) {
  TaskGraph& graph = listing.graph();
  const By<Resource, int64_t> none_idle(graph.machine.topology.num_resources());
  Bounds bounds;
  bounds.hold(graph, nullptr, 0, {none_idle, none_idle}, INT64_MAX);
  Engine engine(graph);
  engine.play(Method::full, INT64_MAX, bounds);
  engine.each([&](Slot slot, int32_t microbatch, int64_t ready, int64_t end) {
    const int32_t first = listing.row_of(slot);
    const int32_t row = listing.tasks[first].occurs == Occurrence::each ? listing.row_of(slot, microbatch) : first;
    [[maybe_unused]] const int64_t own = recorder.serve(row, ready);
    assert(own == end);
  });
}

}  // namespace

Timeline timeline_of(Listing& listing) {
  Timeline timeline;
  Recorder recorder(listing, timeline);
  play(listing, recorder);
  return timeline;
}

}  // namespace soapstone
