#include "engines/timeline.hpp"

#include <algorithm>
#include <cassert>
#include <queue>
#include <stdexcept>
#include <tuple>

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
    const Hold* hold = listing_.tasks[row].holds.data();
    soapstone::serve(task, ready, resources_, [&](int64_t start) {
      *hold_start++ = start;
      first = std::min(first, start);
      end = std::max(end, start + hold++->duration);
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

void play_once(Listing& listing, Recorder& recorder) {
  TaskGraph& graph = listing.graph();
  const By<Resource, int64_t> none_idle(graph.machine.topology.num_resources());
  Bounds bounds;
  bounds.hold(graph, nullptr, 0, {none_idle, none_idle}, INT64_MAX);
  Engine engine(graph);
  engine.play(Method::full, INT64_MAX, bounds);
  engine.each([&](Slot slot, int64_t ready, int64_t end) {
    [[maybe_unused]] const int64_t own = recorder.serve(listing.row_of(slot), ready);
    assert(own == end);
  });
}

// Of what is ready at the same time, backward comes before forward, then the earlier microbatch.
struct ReadyRow {
  int64_t ready;
  uint64_t rank;  // by phase and microbatch
  uint64_t key;
  int32_t row;

  static ReadyRow of(const Listing& listing, int32_t row, int64_t ready) {
    const TaskRow& task = listing.tasks[row];
    const uint64_t phase = phase_of(task.key);
    const uint64_t turn = phase == forward_phase ? backward_phase : phase == backward_phase ? forward_phase : phase;
    return {ready, turn << 32 | static_cast<uint32_t>(task.microbatch), task.key, row};
  }
  bool operator>(const ReadyRow& other) const {
    return std::tie(ready, rank, key) > std::tie(other.ready, other.rank, other.key);
  }
};

// By a heap, since rows are more than the tasks that engines know.
void play_microbatches(Listing& listing, Recorder& recorder) {
  const size_t num_rows = listing.tasks.size();
  std::vector<int32_t> waiting(num_rows), begin(num_rows + 1), next;
  for (size_t row = 0; row < num_rows; ++row) {
    waiting[row] = static_cast<int32_t>(listing.tasks[row].after.size());
    for (const int32_t before : listing.tasks[row].after) ++begin[before + 1];
  }
  for (size_t row = 0; row < num_rows; ++row) begin[row + 1] += begin[row];
  next.resize(begin.back());
  std::vector<int32_t> at(begin.begin(), begin.end() - 1);
  for (size_t row = 0; row < num_rows; ++row)
    for (const int32_t before : listing.tasks[row].after) next[at[before]++] = static_cast<int32_t>(row);
  std::priority_queue<ReadyRow, std::vector<ReadyRow>, std::greater<>> queue;
  for (size_t row = 0; row < num_rows; ++row)
    if (waiting[row] == 0) queue.push(ReadyRow::of(listing, static_cast<int32_t>(row), 0));
  std::vector<int64_t> ready(num_rows);
  size_t num_served = 0;
  for (; !queue.empty(); ++num_served) {
    const ReadyRow now = queue.top();
    queue.pop();
    const int64_t end = recorder.serve(now.row, now.ready);
    for (int32_t i = begin[now.row]; i < begin[now.row + 1]; ++i) {
      ready[next[i]] = std::max(ready[next[i]], end);
      if (--waiting[next[i]] == 0) queue.push(ReadyRow::of(listing, next[i], ready[next[i]]));
    }
  }
  if (num_served < num_rows) throw std::invalid_argument("tasks of different microbatches wait for one another");
}

}  // namespace

Timeline timeline_of(Listing& listing) {
  Timeline timeline;
  Recorder recorder(listing, timeline);
  if (listing.num_microbatches == 1)
    play_once(listing, recorder);
  else
    play_microbatches(listing, recorder);
  return timeline;
}

}  // namespace soapstone
