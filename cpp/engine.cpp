#include "engine.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace soapstone {

namespace {

constexpr int32_t forever = INT32_MAX;

}  // namespace

bool Engine::play(Method method, int64_t limit, const Bounds& bounds) {
  const size_t num_slots = graph_.pool.tasks.size();
  served_.resize(num_slots);
  touched_.resize(num_slots + 1);  // one more, which is written to in vain
  position_.resize(num_slots, -1);
  old_ready_.resize(num_slots);
  old_end_.resize(num_slots);
  if (++play_ == 0) forget_plays();
  num_served_ = 0;
  num_skipped_ = 0;
  suffix_.clear();
  noted_.clear();
  cut_ = 0;
  int64_t change = 0;
  if (method != Method::full && !order_.empty()) {
    change = waits_for_nothing() ? 0 : method == Method::delta ? first_touch() : first_change(-1);
    const auto at = std::lower_bound(order_.begin(), order_.end(), change,
                                     [&](int32_t slot, int64_t time) { return old_ready_[slot] < time; });
    cut_ = static_cast<int32_t>(at - order_.begin());
    if (cut_ == 0 || cut_ == static_cast<int32_t>(order_.size())) cut_ = change = 0;
  }
  start(cut_);
  makespan_ = cut_ == 0 ? 0 : latest_[cut_ - 1];
  if (method == Method::delta && !order_.empty()) return sweep(limit, bounds);
  calendar_.reset(change, std::max(old_makespan_, bounds.bound()), num_slots);
  bool in_time = seed(cut_, change), done = false;
  if (in_time) done = cut_ > 0 && cut_ <= loss_ ? serve_in_two(limit, bounds, in_time) : serve_all(limit, bounds);
  restore();
  return in_time ? done : play(Method::full, limit, bounds);
}

// Forward up to the loss, and backward from where it is not as it was; `in_time` says whether nothing comes before
// that.
bool Engine::serve_in_two(int64_t limit, const Bounds& bounds, bool& in_time) {
  const int32_t loss = order_[loss_];
  if (loss != graph_.loss() || !graph_.meets_at_loss()) return serve_all(limit, bounds);
  const int64_t change = std::min(first_change(loss_), old_makespan_);
  const auto at = std::lower_bound(order_.begin() + loss_ + 1, order_.end(), change,
                                   [&](int32_t slot, int64_t time) { return old_ready_[slot] < time; });
  const auto to = static_cast<int32_t>(at - order_.begin());
  stop_ = loss;
  const bool forward = serve_all(limit, bounds);
  stop_ = -1;
  if (!forward) return false;
  const Task& task = graph_.pool.tasks[loss];
  const int64_t end = served_[loss].end, shift = end - old_end_[loss];
  if (to <= loss_ + 1 || makespan_ > end || !calendar_.is_empty()) {
    give(task.next, task.num_next, end);
    return serve_all(limit, bounds);
  }
  const Middle middle{suffix_.size(), noted_.size()};
  calendar_.reset(change + shift, std::max(old_makespan_ + shift, bounds.bound()), served_.size());
  in_time = skip(to, change);
  if (!in_time || !serve_all(limit, bounds)) return false;
  splice(loss_ + 1, to, middle, shift);
  return true;
}

// Goes from the loss to a position of the old order, all between as it was. False where something is ready earlier.
bool Engine::skip(int32_t to, int64_t change) {
  const int32_t loss = order_[loss_];
  const int64_t shift = served_[loss].end - old_end_[loss];
  const std::vector<Resource> at_loss = resources_;
  start(loss_ + 1);
  served_more_.resize(resources_.size());
  for (size_t i = 0; i < resources_.size(); ++i) served_more_[i] = resources_[i].left - at_loss[i].left;
  start(to);
  for (size_t i = 0; i < resources_.size(); ++i) {
    resources_[i].free += shift;
    resources_[i].left -= served_more_[i];
  }
  makespan_ = std::max(makespan_, latest_[to - 1] + shift);
  num_skipped_ = to - loss_ - 1;
  return give_from(loss_, to, shift, change);
}

// Puts what was skipped among what was served.
void Engine::splice(int32_t from, int32_t to, const Middle& middle, int64_t shift) {
  std::vector<Checkpoint> points;
  for (const auto& point : checkpoints_) {
    if (point.position < from || point.position >= to) continue;
    points.push_back(point);
    points.back().position += cut_ + static_cast<int32_t>(middle.suffix) - from;
    for (size_t i = 0; i < resources_.size(); ++i) {
      points.back().resources[i].free += shift;
      points.back().resources[i].left += served_more_[i];
    }
  }
  noted_.insert(noted_.begin() + static_cast<ptrdiff_t>(middle.noted), points.begin(), points.end());
  suffix_.insert(suffix_.begin() + static_cast<ptrdiff_t>(middle.suffix), order_.begin() + from, order_.begin() + to);
  for (int32_t i = from; i < to; ++i) served_[order_[i]] = {old_ready_[order_[i]] + shift, old_end_[order_[i]] + shift};
}

void Engine::restore() {
  for (size_t i = 0; i < num_touched_; ++i) graph_.pool.states[touched_[i]] = {0, graph_.pool.waiting[touched_[i]], 0};
  num_touched_ = 0;
}

int64_t Engine::first_input(const std::vector<int32_t>& ops) const {
  int64_t first = INT64_MAX;
  for (const int32_t op : ops) {
    for (const int32_t slot : graph_.block_before(op).forward) first = std::min(first, old_ready_[slot]);
    bool all_wait = false;  // some input is read by every part
    for (const auto& [tensor, reader] : graph_.reads(op)) {
      all_wait |= graph_.flows[tensor]->arrival_forward[reader] != uncounted;
      const int32_t producer = graph_.graph.tensors[tensor].producer;
      if (!graph_.is_changing(producer)) first = std::min(first, first_arrival(producer));
    }
    if (!all_wait) return 0;
  }
  return first == INT64_MAX ? 0 : first;
}

int64_t Engine::first_arrival(int32_t op) const {
  const auto& state = graph_.ops[op];
  int64_t first = INT64_MAX;
  for (int32_t part = 0; part < state.layout->num_parts; ++part)
    if (const int32_t slot = state.block->arrival(*state.layout, part); slot >= 0)
      first = std::min(first, old_end_[slot]);
  return first;
}

// Whether a gradient sum or an update has lost all that it waited for.
bool Engine::waits_for_nothing() const {
  for (const int32_t group : graph_.regrouped())
    for (const auto& bucket : graph_.syncs[group]->tasks->buckets)
      if (graph_.pool.waiting[bucket.slot] == 0) return true;
  for (int32_t device = 0; device < graph_.machine.topology.num_devices(); ++device)
    if (graph_.has_update(device) && graph_.pool.waiting[device] == 0) return true;
  return false;
}

// Before this not even the end of a task that now has other successors. What the change touches in backward comes
// behind all of forward.
int64_t Engine::first_touch() const {
  const auto back = std::find_if(order_.begin(), order_.end(),
                                 [&](int32_t slot) { return phase_of(graph_.pool.tasks[slot].key) != forward_phase; });
  int64_t first = back == order_.end() ? INT64_MAX : old_ready_[*back];
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) first = std::min(first, old_ready_[slot]);
  for (const auto& [begin, count] : graph_.fresh())
    for (int32_t slot = begin; slot < begin + count; ++slot)
      if (graph_.pool.waiting[slot] == 0) return 0;
  for (const int32_t tensor : graph_.rerouted()) {
    const int32_t op = graph_.graph.tensors[tensor].producer;
    if (!graph_.is_changing(op)) first = std::min(first, first_arrival(op));
  }
  return first;
}

// Nothing behind a position of the old order that the change adds, removes or moves is ready before this, as long as
// all before the position ends when it did. The first of the new tasks waits for old ones alone, and for all of them.
int64_t Engine::first_change(int32_t position) {
  int64_t first = INT64_MAX;
  const auto is_behind = [&](int32_t slot) { return position_[slot] > position; };
  const auto each = [](const std::vector<std::pair<int32_t, int32_t>>& runs, auto visit) {
    for (const auto& [begin, count] : runs)
      for (int32_t slot = begin; slot < begin + count; ++slot) visit(slot);
  };
  each(graph_.gone(), [&](int32_t slot) {
    if (is_behind(slot)) first = std::min(first, old_ready_[slot]);
  });
  for (const int32_t device : graph_.reupdated())
    if (is_behind(device)) first = std::min(first, old_ready_[device]);
  each(graph_.fresh(), [&](int32_t slot) { served_[slot].ready = graph_.pool.waiting[slot] == 0 ? 0 : -1; });
  each(graph_.rewired(), [&](int32_t slot) {
    if (!is_behind(slot)) return;
    const Task& task = graph_.pool.tasks[slot];
    for (const int32_t next : std::span(task.next, task.num_next)) {
      if (position_[next] < 0)
        served_[next].ready = std::max(served_[next].ready, old_end_[slot]);
      else if (is_behind(next) && old_ready_[next] < old_end_[slot])
        first = std::min(first, old_ready_[next]);
    }
  });
  each(graph_.fresh(), [&](int32_t slot) {
    if (served_[slot].ready >= 0) first = std::min(first, served_[slot].ready);
    const Task& task = graph_.pool.tasks[slot];
    for (const int32_t next : std::span(task.next, task.num_next))
      if (is_behind(next)) first = std::min(first, old_ready_[next]);
  });
  return first;
}

// The resources as they are before the task at `cut` is served.
void Engine::start(int32_t cut) {
  int32_t from = 0;
  const auto after = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), cut,
                                      [](int32_t at, const Checkpoint& point) { return at < point.position; });
  if (after == checkpoints_.begin()) {
    resources_.assign(graph_.totals.work.size(), {0, 0});
  } else {
    from = (after - 1)->position;
    resources_ = (after - 1)->resources;
  }
  for (size_t i = 0; i < resources_.size(); ++i) resources_[i].left = graph_.totals.work[i] - resources_[i].left;
  replay(from, cut);
}

void Engine::replay(int32_t from, int32_t to) {
  int64_t end;
  for (int32_t i = from; i < to; ++i) serve(graph_.pool.tasks[order_[i]], old_ready_[order_[i]], INT64_MAX, end);
}

// What waits at `cut`: all that is ready at the start, or for all of whose predecessors the times are known.
bool Engine::seed(int32_t cut, int64_t change) {
  if (cut > 0) return give_from(0, cut, 0, change);
  graph_.each_slot([&](int32_t slot) {
    if (graph_.pool.waiting[slot] == 0) calendar_.push(slot);
  });
  return true;
}

// What the tasks at some positions of the old order give to those that come behind, had all been so much later. False
// where something is ready before the change: it lost one that it waited for.
bool Engine::give_from(int32_t begin, int32_t end, int64_t shift, int64_t change) {
  const auto reached = far_reach(end);
  bool in_time = true;
  for (int32_t i = begin; in_time && i < end; ++i) {
    if (reach_[i] < end) continue;
    const Task& task = graph_.pool.tasks[order_[i]];
    const int64_t ended = old_end_[order_[i]] + shift;
    for (const int32_t next : std::span(task.next, task.num_next)) {
      if (position_[next] >= 0 && position_[next] < end) continue;
      const auto& state = graph_.pool.states[next];
      in_time = state.waiting > 1 || std::max(state.ready, ended) >= change + shift;
      if (!in_time) break;
      give(&next, 1, ended);
    }
  }
  for (const auto& [position, reach] : reached) reach_[position] = reach;
  return in_time;
}

// Tasks with other successors than before reach as far as can be; returns what stood there.
std::vector<std::pair<int32_t, int32_t>> Engine::far_reach(int32_t cut) {
  std::vector<std::pair<int32_t, int32_t>> before;
  for (const auto& [begin, count] : graph_.rewired())
    for (int32_t slot = begin; slot < begin + count; ++slot)
      if (position_[slot] >= 0 && position_[slot] < cut)
        before.emplace_back(position_[slot], std::exchange(reach_[position_[slot]], forever));
  return before;
}

// Counted without a jump: which tasks are seen first, and which are ready now, is hard to predict.
inline void Engine::give(const int32_t* slots, int32_t count, int64_t end) {
  if (due_.size() < static_cast<size_t>(count)) due_.resize(2 * count);
  size_t num_due = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t slot = slots[i];
    auto& state = graph_.pool.states[slot];
    touched_[num_touched_] = slot;
    num_touched_ += state.ready == 0;
    state.ready = std::max(state.ready, end);
    due_[num_due] = slot;
    num_due += --state.waiting == 0;
  }
  for (size_t i = 0; i < num_due; ++i) {
    __builtin_prefetch(&graph_.pool.tasks[due_[i]]);
    calendar_.push(due_[i]);
  }
}

bool Engine::hopeless(int64_t now, int64_t limit) const {
  for (const auto& [free, left] : resources_)
    if (left > 0 && std::max(free, now) + left > limit) return true;
  return false;
}

bool Engine::serve_all(int64_t limit, const Bounds& bounds) {
  const auto every = static_cast<int32_t>(std::max<size_t>(256, 2 * resources_.size()));
  int32_t until_check = 1;
  Ready next;
  while (calendar_.pop(next)) {
    ++num_served_;
    if (--until_check == 0) {
      if (hopeless(next.ready, limit)) return false;
      checkpoint(cut_ + num_skipped_ + static_cast<int32_t>(num_served_) - 1);
      until_check = every;
    }
    const Task& task = graph_.pool.tasks[next.slot];
    int64_t end;
    if (!serve(task, next.ready, limit, end) || bounds.tail(task.tail) > limit - end) return false;
    served_[next.slot] = {next.ready, end};
    suffix_.push_back(next.slot);
    makespan_ = std::max(makespan_, end);
    if (next.slot == stop_) return true;
    give(task.next, task.num_next, end);
  }
  return makespan_ <= limit;
}

void Engine::checkpoint(int32_t position) {
  Checkpoint point{position, resources_};
  for (size_t i = 0; i < resources_.size(); ++i) point.resources[i].left = graph_.totals.work[i] - resources_[i].left;
  noted_.push_back(std::move(point));
}

// Where all tasks before the loss end by its end, and all behind it are ready from then on.
void Engine::find_loss() {
  loss_ = -1;
  if (!graph_.meets_at_loss()) return;
  const int32_t position = position_[graph_.loss()];
  const int64_t end = old_end_[order_[position]];
  const bool parts = static_cast<size_t>(position) + 1 < order_.size() && latest_[position] == end &&
                     old_ready_[order_[position + 1]] >= end;
  if (parts) loss_ = position;
}

void Engine::adopt() {
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) position_[slot] = -1;
  order_.resize(cut_);
  order_.insert(order_.end(), suffix_.begin(), suffix_.end());
  latest_.resize(order_.size());
  far_reach(cut_);
  for (size_t i = cut_; i < order_.size(); ++i) {
    const int32_t slot = order_[i];
    position_[slot] = static_cast<int32_t>(i);
    old_ready_[slot] = served_[slot].ready;
    old_end_[slot] = served_[slot].end;
    latest_[i] = std::max(i == 0 ? 0 : latest_[i - 1], served_[slot].end);
  }
  while (!checkpoints_.empty() && checkpoints_.back().position >= cut_) checkpoints_.pop_back();
  std::move(noted_.begin(), noted_.end(), std::back_inserter(checkpoints_));
  noted_.clear();
  old_makespan_ = makespan_;
  reach_.resize(order_.size(), forever);
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i < static_cast<size_t>(cut_) && reach_[i] < cut_) continue;
    reach_[i] = -1;
    const Task& task = graph_.pool.tasks[order_[i]];
    for (int32_t k = 0; k < task.num_next; ++k) reach_[i] = std::max(reach_[i], position_[task.next[k]]);
  }
  find_loss();
  inverted_ = false;
  drop();
}

}  // namespace soapstone
