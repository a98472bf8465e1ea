#include "engine.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace soapstone {

namespace {

constexpr int32_t forever = INT32_MAX;

}  // namespace

bool Engine::play(Method method, int64_t limit, const Bounds& bounds) {
  const size_t num_slots = graph_.pool.tasks.size();
  state_.resize(num_slots);
  end_.resize(num_slots);
  position_.resize(num_slots, -1);
  old_ready_.resize(num_slots);
  old_end_.resize(num_slots);
  if (++play_ == 0) throw std::overflow_error("too many plays");
  num_served_ = 0;
  suffix_.clear();
  noted_.clear();
  cut_ = 0;
  int64_t change = 0;
  if (method != Method::full && !order_.empty()) {
    change = first_change();
    const auto at = std::lower_bound(order_.begin(), order_.end(), change,
                                     [&](int32_t slot, int64_t time) { return old_ready_[slot] < time; });
    cut_ = static_cast<int32_t>(at - order_.begin());
    if (cut_ == 0 || cut_ == static_cast<int32_t>(order_.size())) cut_ = change = 0;
  }
  start(cut_);
  makespan_ = cut_ == 0 ? 0 : latest_[cut_ - 1];
  if (method == Method::delta && !order_.empty()) return sweep(limit, bounds);
  const int64_t until = order_.empty() ? 4 * bounds.bound() : old_makespan_;
  calendar_.reset(change, until, order_.empty() ? state_.size() : order_.size() - cut_, state_.size());
  seed(cut_);
  return serve_all(limit, bounds);
}

// No task that the change adds, removes or moves is ready before this.
int64_t Engine::first_change() const {
  int64_t first = first_backward_;
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) first = std::min(first, old_ready_[slot]);
  for (const auto& [begin, count] : graph_.fresh())
    for (int32_t slot = begin; slot < begin + count; ++slot)
      if (graph_.pool.waiting[slot] == 0) return 0;
  for (const int32_t tensor : graph_.rerouted()) {
    const int32_t op = graph_.graph.tensors[tensor].producer;
    if (graph_.is_changing(op)) continue;
    const auto& state = graph_.ops[op];
    for (int32_t part = 0; part < state.layout->num_parts; ++part)
      if (const int32_t slot = state.block->arrival(*state.layout, part); slot >= 0)
        first = std::min(first, old_end_[slot]);
  }
  return first;
}

// The resources as they are before the task at `cut` is served.
void Engine::start(int32_t cut) {
  const size_t num_resources = graph_.work.size();
  int32_t from = 0;
  left_ = graph_.work;
  const auto after = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), cut,
                                      [](int32_t at, const Checkpoint& point) { return at < point.position; });
  if (after == checkpoints_.begin()) {
    free_.assign(num_resources, 0);
  } else {
    const Checkpoint& point = *(after - 1);
    from = point.position;
    free_ = point.free;
    for (size_t i = 0; i < num_resources; ++i) left_[i] -= point.served[i];
  }
  replay(from, cut);
}

void Engine::replay(int32_t from, int32_t to) {
  int64_t end;
  for (int32_t i = from; i < to; ++i) serve(graph_.pool.tasks[order_[i]], old_ready_[order_[i]], INT64_MAX, end);
}

// What waits at `cut`: all that is ready at the start, or for all of whose predecessors the times are known.
void Engine::seed(int32_t cut) {
  if (cut == 0) {
    graph_.each_slot([&](int32_t slot) {
      if (graph_.pool.waiting[slot] > 0) return;
      state_[slot] = {0, 0, play_};
      calendar_.push(look(slot));
    });
    return;
  }
  const auto reached = far_reach();
  for (int32_t i = 0; i < cut; ++i) {
    if (reach_[i] < cut) continue;
    const Task& task = graph_.pool.tasks[order_[i]];
    const int64_t end = old_end_[order_[i]];
    for (int32_t k = 0; k < task.num_next; ++k) {
      const int32_t slot = task.next[k];
      if (position_[slot] < 0 || position_[slot] >= cut) give(slot, end);
    }
  }
  for (const auto& [position, reach] : reached) reach_[position] = reach;
}

// Tasks with other successors than before reach as far as can be; returns what stood there.
std::vector<std::pair<int32_t, int32_t>> Engine::far_reach() {
  std::vector<std::pair<int32_t, int32_t>> before;
  for (const int32_t op : graph_.relinked()) {
    const auto& block = *graph_.ops[op].block;
    for (int32_t slot = block.begin; slot < block.begin + block.count; ++slot)
      if (position_[slot] >= 0 && position_[slot] < cut_)
        before.emplace_back(position_[slot], std::exchange(reach_[position_[slot]], forever));
  }
  return before;
}

inline void Engine::give(int32_t slot, int64_t end) {
  State& state = state_[slot];
  if (state.play != play_) state = {0, graph_.pool.waiting[slot], play_};
  state.ready = std::max(state.ready, end);
  if (--state.waiting == 0) calendar_.push(look(slot));
}

bool Engine::hopeless(int64_t now, int64_t limit) const {
  for (size_t i = 0; i < free_.size(); ++i)
    if (std::max(free_[i], now) + left_[i] > limit) return true;
  return false;
}

bool Engine::serve_all(int64_t limit, const Bounds& bounds) {
  const auto every = static_cast<int32_t>(std::max<size_t>(256, 2 * free_.size()));
  const auto look_up = [&](int32_t slot) { return look(slot); };
  Ready next;
  while (calendar_.pop(next, look_up)) {
    if (num_served_++ % every == 0) {
      if (hopeless(next.ready, limit)) return false;
      checkpoint(cut_ + static_cast<int32_t>(num_served_) - 1);
    }
    const Task& task = graph_.pool.tasks[next.slot];
    int64_t end;
    if (!serve(task, next.ready, limit, end) || bounds.tail(task.tail) > limit - end) return false;
    end_[next.slot] = end;
    suffix_.push_back(next.slot);
    makespan_ = std::max(makespan_, end);
    for (int32_t i = 0; i < task.num_next; ++i) give(task.next[i], end);
  }
  return makespan_ <= limit;
}

void Engine::checkpoint(int32_t position) {
  Checkpoint point{position, free_, graph_.work};
  for (size_t i = 0; i < point.served.size(); ++i) point.served[i] -= left_[i];
  noted_.push_back(std::move(point));
}

void Engine::adopt() {
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) position_[slot] = -1;
  order_.resize(cut_);
  order_.insert(order_.end(), suffix_.begin(), suffix_.end());
  latest_.resize(order_.size());
  for (size_t i = cut_; i < order_.size(); ++i) {
    const int32_t slot = order_[i];
    position_[slot] = static_cast<int32_t>(i);
    old_ready_[slot] = state_[slot].ready;
    old_end_[slot] = end_[slot];
    latest_[i] = std::max(i == 0 ? 0 : latest_[i - 1], end_[slot]);
  }
  while (!checkpoints_.empty() && checkpoints_.back().position >= cut_) checkpoints_.pop_back();
  std::move(noted_.begin(), noted_.end(), std::back_inserter(checkpoints_));
  noted_.clear();
  old_makespan_ = makespan_;
  const auto back = std::find_if(order_.begin(), order_.end(),
                                 [&](int32_t slot) { return graph_.pool.tasks[slot].key >> 62 != forward_phase; });
  first_backward_ = back == order_.end() ? INT64_MAX : old_ready_[*back];
  reach_.assign(order_.size(), -1);
  for (size_t i = 0; i < order_.size(); ++i) {
    const Task& task = graph_.pool.tasks[order_[i]];
    for (int32_t k = 0; k < task.num_next; ++k) reach_[i] = std::max(reach_[i], position_[task.next[k]]);
  }
  inverted_ = false;
  drop();
}

}  // namespace soapstone
