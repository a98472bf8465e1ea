#include "tasks/timeline.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace soapstone {
namespace {

// Keys increase with rows, so (ready, row) orders as (ready, key) does.
struct Event {
  int64_t ready;
  int32_t row;
};

struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return a.ready != b.ready ? a.ready > b.ready : a.row > b.row;
  }
};

struct Successors {
  std::vector<int32_t> begin, rows;
};

[[noreturn]] void fail(size_t row, const std::string& what) {
  throw std::invalid_argument("row " + std::to_string(row) + " of the task list " + what);
}

void check_begin(const std::vector<int32_t>& begin, size_t num_rows, size_t num_entries, const char* name) {
  const bool spans = begin.size() == num_rows + 1 && begin.front() == 0 && begin.back() >= 0 &&
                     static_cast<size_t>(begin.back()) == num_entries;
  if (!spans || !std::is_sorted(begin.begin(), begin.end())) {
    throw std::invalid_argument(std::string(name) + " must rise from 0 to the number of entries in rows + 1 steps");
  }
}

// Returns the time that the row takes when nothing stands in its way, summed over its holds.
int64_t check_row(const TaskList& tasks, size_t row) {
  const int64_t latency = tasks.latency[row];
  int64_t longest = 0, total = latency;
  if (latency < 0) fail(row, "has a negative latency");
  for (int32_t i = tasks.hold_begin[row]; i < tasks.hold_begin[row + 1]; ++i) {
    const Hold& hold = tasks.holds[i];
    if (hold.resource < 0 || hold.resource >= tasks.num_resources) fail(row, "holds a resource out of range");
    if (hold.duration < 0) fail(row, "has a negative hold");
    if (__builtin_add_overflow(total, hold.duration, &total)) fail(row, "takes longer than 2^63 ns");
    longest = std::max(longest, hold.duration);
  }
  if (longest + latency < 1) fail(row, "takes no time; every task takes at least 1 ns");
  return total;
}

// No time of the timeline exceeds the sum of all durations, so one check here keeps the loop free of overflow.
void check(const TaskList& tasks) {
  const size_t n = tasks.keys.size();
  if (tasks.num_resources < 0) throw std::invalid_argument("num_resources is negative");
  if (tasks.latency.size() != n) throw std::invalid_argument("a task list needs one latency a key");
  check_begin(tasks.hold_begin, n, tasks.holds.size(), "hold_begin");
  check_begin(tasks.predecessor_begin, n, tasks.predecessors.size(), "predecessor_begin");
  int64_t total = 0;
  for (size_t row = 0; row < n; ++row) {
    if (row > 0 && tasks.keys[row] <= tasks.keys[row - 1]) fail(row, "does not increase in key");
    if (__builtin_add_overflow(total, check_row(tasks, row), &total)) fail(row, "brings the sum above 2^63 ns");
  }
  for (const int32_t row : tasks.predecessors) {
    if (row < 0 || static_cast<size_t>(row) >= n) throw std::invalid_argument("a predecessor is out of range");
  }
}

Successors invert(const TaskList& tasks) {
  const size_t n = tasks.keys.size();
  Successors successors{std::vector<int32_t>(n + 1), std::vector<int32_t>(tasks.predecessors.size())};
  std::vector<int32_t>& begin = successors.begin;
  for (const int32_t row : tasks.predecessors) ++begin[row];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  for (size_t row = n; row-- > 0;) {
    for (int32_t i = tasks.predecessor_begin[row]; i < tasks.predecessor_begin[row + 1]; ++i) {
      successors.rows[--begin[tasks.predecessors[i]]] = static_cast<int32_t>(row);
    }
  }
  return successors;
}

std::vector<int32_t> count_predecessors(const TaskList& tasks) {
  std::vector<int32_t> count(tasks.keys.size());
  for (size_t row = 0; row < count.size(); ++row) {
    count[row] = tasks.predecessor_begin[row + 1] - tasks.predecessor_begin[row];
  }
  return count;
}

// All are ready at 0 and rows increase, so this is a heap as it stands.
std::vector<Event> first_events(const std::vector<int32_t>& waiting) {
  std::vector<Event> events;
  events.reserve(waiting.size());
  for (size_t row = 0; row < waiting.size(); ++row) {
    if (waiting[row] == 0) events.push_back({0, static_cast<int32_t>(row)});
  }
  return events;
}

Timeline blank(const TaskList& tasks) {
  const size_t n = tasks.keys.size();
  Timeline timeline;
  timeline.ready.resize(n);
  timeline.start.resize(n);
  timeline.end.resize(n);
  timeline.hold_start.resize(tasks.holds.size());
  timeline.order.reserve(n);
  return timeline;
}

void serve(const TaskList& tasks, int32_t row, std::vector<int64_t>& free, Timeline& timeline) {
  const int64_t ready = timeline.ready[row];
  const int32_t first = tasks.hold_begin[row], last = tasks.hold_begin[row + 1];
  int64_t start = first == last ? ready : INT64_MAX;
  int64_t served = ready;
  for (int32_t i = first; i < last; ++i) {
    const Hold& hold = tasks.holds[i];
    const int64_t begin = std::max(ready, free[hold.resource]);
    timeline.hold_start[i] = begin;
    free[hold.resource] = begin + hold.duration;
    start = std::min(start, begin);
    served = std::max(served, begin + hold.duration);
  }
  timeline.start[row] = start;
  timeline.end[row] = served + tasks.latency[row];
}

// A row that waits for itself: walking back over unserved predecessors must come round within n steps.
[[noreturn]] void fail_cycle(const TaskList& tasks, const std::vector<int32_t>& waiting) {
  const size_t n = waiting.size();
  size_t row = std::find_if(waiting.begin(), waiting.end(), [](int32_t w) { return w > 0; }) - waiting.begin();
  for (size_t step = 0; step < n; ++step) {
    int32_t i = tasks.predecessor_begin[row];
    while (waiting[tasks.predecessors[i]] == 0) ++i;
    row = tasks.predecessors[i];
  }
  fail(row, "waits for itself: its predecessors form a cycle");
}

}  // namespace

Timeline play(const TaskList& tasks) {
  check(tasks);
  const size_t n = tasks.keys.size();
  const Successors successors = invert(tasks);
  std::vector<int64_t> free(tasks.num_resources);
  std::vector<int32_t> waiting = count_predecessors(tasks);  // of these, the unserved
  std::vector<Event> heap = first_events(waiting);
  Timeline timeline = blank(tasks);
  while (!heap.empty()) {
    const int32_t row = heap.front().row;
    std::pop_heap(heap.begin(), heap.end(), Later{});
    heap.pop_back();
    timeline.order.push_back(row);
    serve(tasks, row, free, timeline);
    const int64_t end = timeline.end[row];
    timeline.makespan = std::max(timeline.makespan, end);
    for (int32_t i = successors.begin[row]; i < successors.begin[row + 1]; ++i) {
      const int32_t next = successors.rows[i];
      timeline.ready[next] = std::max(timeline.ready[next], end);
      if (--waiting[next] > 0) continue;
      heap.push_back({timeline.ready[next], next});
      std::push_heap(heap.begin(), heap.end(), Later{});
    }
  }
  if (timeline.order.size() < n) fail_cycle(tasks, waiting);
  return timeline;
}

}  // namespace soapstone
