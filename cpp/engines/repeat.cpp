#include "engines/repeat.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <tuple>

namespace soapstone {

namespace {

constexpr size_t between_looks = 256;  // tasks, after which what is left is added up on all resources

uint64_t rank_of(uint64_t key, int32_t microbatch) {
  const uint64_t phase = phase_of(key);
  const uint64_t turn = phase == forward_phase ? backward_phase : phase == backward_phase ? forward_phase : phase;
  return turn << 32 | static_cast<uint32_t>(microbatch);
}

}  // namespace

bool Repeat::Turn::operator>(const Turn& other) const {
  return std::tie(ready, rank, key) > std::tie(other.ready, other.rank, other.key);
}

std::pair<int32_t, int32_t> Repeat::microbatches_of(Slot slot) const {
  switch (occurrences_[slot]) {
    case Occurrence::first:
      return {0, 1};
    case Occurrence::last:
      return {last(), last() + 1};
    default:
      return {0, last() + 1};
  }
}

bool Repeat::run(int64_t limit, const Bounds& bounds) {
  prepare();
  size_t num_tasks = 0;
  for (const SlotRun& run : runs_)
    for (const Slot slot : run.slots()) {
      const auto [begin, end] = microbatches_of(slot);
      num_tasks += end - begin;
      for (int32_t i = begin; i < end; ++i)
        if (states_[place(slot, i)].waiting == 0) push(slot, i);
    }
  order_.reserve(num_tasks);
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const Turn turn = queue_.back();
    queue_.pop_back();
    if (order_.size() % between_looks == 0) least_ = std::max(least_, least_at(turn.ready));
    if (!serve(turn, limit, bounds)) return false;
    give_all(turn);
  }
  if (order_.size() < num_tasks) throw std::invalid_argument("tasks of different microbatches wait for one another");
  return true;
}

void Repeat::prepare() {
  num_slots_ = graph_.pool.tasks.size();
  runs_ = graph_.slots();
  occurrences_ = occurrences(graph_);
  queue_.clear();
  order_.clear();
  makespan_ = least_ = 0;
  resources_ = at_start(graph_.machine.topology);
  count_waiting();
  find_lagged();
  count_work();
}

// What is done once, after the last microbatch, waits for all of them.
void Repeat::count_waiting() {
  const int32_t count = graph_.num_microbatches;
  states_.assign(count * num_slots_, {});
  for (const SlotRun& run : runs_)
    for (const Slot slot : run.slots()) {
      const auto [begin, end] = microbatches_of(slot);
      for (int32_t i = begin; i < end; ++i) states_[place(slot, i)].waiting += graph_.pool.waiting[slot];
      if (occurrences_[slot] != Occurrence::each) continue;
      const Task& task = graph_.pool.tasks[slot];
      for (int32_t i = 0; i < task.num_next; ++i)
        if (occurrences_[task.next[i]] == Occurrence::last) states_[place(task.next[i], last())].waiting += count - 1;
    }
}

void Repeat::find_lagged() {
  const auto edges = lagged_edges(graph_);
  lagged_begin_.assign(num_slots_ + 1, 0);
  for (const LaggedEdge& edge : edges) ++lagged_begin_[edge.from + 1];
  for (size_t i = 0; i < num_slots_; ++i) lagged_begin_[Slot(i + 1)] += lagged_begin_[Slot(i)];
  lagged_.resize(edges.size());
  By<Slot, int32_t> at(lagged_begin_);
  for (const auto& [from, to, lag] : edges) {
    lagged_[at[from]++] = {to, lag};
    for (int32_t i = lag; i < graph_.num_microbatches; ++i) ++states_[place(to, i)].waiting;
  }
}

void Repeat::count_work() {
  left_.assign(resources_.size(), 0);
  for (const SlotRun& run : runs_)
    for (const Slot slot : run.slots()) {
      const auto [begin, end] = microbatches_of(slot);
      graph_.pool.tasks[slot].each_hold(
          [&](const Hold& hold) { left_[hold.resource] += (end - begin) * hold.duration; });
    }
}

int64_t Repeat::least_at(int64_t now) const {
  int64_t least = 0;
  for (const Resource i : left_.indices())
    if (left_[i] > 0) least = std::max(least, std::max(resources_[i].free, now) + left_[i]);
  return least;
}

bool Repeat::serve(const Turn& turn, int64_t limit, const Bounds& bounds) {
  const Task& task = graph_.pool.tasks[turn.slot];
  int64_t end = turn.ready;
  soapstone::serve(task, turn.ready, resources_, [&](const Hold& hold, int64_t start) {
    end = std::max(end, start + hold.duration);
    if (!hold.is_busy()) return;
    left_[hold.resource] -= hold.duration;
    least_ = std::max(least_, start + hold.duration + left_[hold.resource]);
  });
  end += task.latency;
  least_ = std::max(least_, end + bounds.tail(task.tail));
  if (least_ > limit) return false;
  states_[place(turn.slot, turn.microbatch())].end = end;
  order_.emplace_back(turn.slot, turn.microbatch());
  makespan_ = std::max(makespan_, end);
  return true;
}

void Repeat::give_all(const Turn& turn) {
  const int32_t now = turn.microbatch();
  const Task& task = graph_.pool.tasks[turn.slot];
  const int64_t end = states_[place(turn.slot, now)].end;
  for (int32_t i = 0; i < task.num_next; ++i) {
    const Slot next = task.next[i];
    const auto [first, past] = microbatches_of(next);
    if (occurrences_[next] == Occurrence::last)
      give(next, last(), end);
    else if (occurrences_[turn.slot] == Occurrence::first)  // what is done once is done for all
      for (int32_t later = first; later < past; ++later) give(next, later, end);
    else if (now < past)
      give(next, now, end);
  }
  for (int32_t i = lagged_begin_[turn.slot]; i < lagged_begin_[turn.slot + 1]; ++i)
    if (now + lagged_[i].lag <= last()) give(lagged_[i].to, now + lagged_[i].lag, end);
}

void Repeat::give(Slot slot, int32_t microbatch, int64_t end) {
  State& state = states_[place(slot, microbatch)];
  state.ready = std::max(state.ready, end);
  if (--state.waiting == 0) push(slot, microbatch);
}

void Repeat::push(Slot slot, int32_t microbatch) {
  const uint64_t key = graph_.pool.tasks[slot].key;
  queue_.push_back({states_[place(slot, microbatch)].ready, rank_of(key, microbatch), key, slot});
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

}  // namespace soapstone
