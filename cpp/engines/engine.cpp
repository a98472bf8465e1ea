#include "engines/engine.hpp"

#include <algorithm>
#include <utility>

namespace soapstone {

namespace {

constexpr int32_t forever = INT32_MAX;
constexpr int64_t turn = 256;  // tasks that a side serves before it is the other's turn
constexpr double eager = 8;    // backward, where gradients queue up behind sums: it shows sooner what a change costs

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
  cut_ = 0;
  int64_t change = 0;
  if (method != Method::full && !order_.empty()) {
    change = waits_for_nothing() ? 0 : method == Method::delta ? first_touch() : first_change(-1);
    cut_ = position_at(change);
    if (cut_ == 0 || cut_ == static_cast<int32_t>(order_.size())) cut_ = change = 0;
  }
  const bool in_sides = method == Method::resume && cut_ <= loss_ && has_sides();
  forward_.whole = graph_.totals.work;
  if (in_sides) {
    for (size_t i = 0; i < forward_.whole.size(); ++i)
      forward_.whole[i] = graph_.totals.before[i] + bounds.behind_loss();
    start(forward_, Part::before_loss, cut_, loss_ + 1);
  } else {
    start(forward_, Part::all, cut_, static_cast<int32_t>(order_.size()));
  }
  if (method == Method::full) forward_.next_look = SIZE_MAX;
  if (method == Method::delta && !order_.empty()) return sweep(limit, bounds);
  forward_.calendar.reset(change, std::max(old_makespan_, bounds.bound()), num_slots);
  bool in_time = seed(change), done = false;
  if (in_time) done = in_sides ? serve_sides(limit, bounds, in_time) : serve_some(forward_, INT64_MAX, limit, bounds);
  if (done && !in_sides) append_rest(forward_);
  restore();
  return in_time ? done : play(Method::full, limit, bounds);
}

// The first position of the old order that is ready at a time or later.
int32_t Engine::position_at(int64_t time) const {
  const auto at = std::lower_bound(order_.begin(), order_.end(), time,
                                   [&](int32_t slot, int64_t other) { return old_ready_[slot] < other; });
  return static_cast<int32_t>(at - order_.begin());
}

// Whether the loss parts the tasks as it did before.
bool Engine::has_sides() const { return loss_ >= 0 && graph_.meets_at_loss() && order_[loss_] == graph_.loss(); }

// In turns: each is held against what the other takes at least. Backward is played as if the loss ended when it did;
// `in_time` says whether none of it is ready before its first change.
bool Engine::serve_sides(int64_t limit, const Bounds& bounds, bool& in_time) {
  limit = std::min(limit, INT64_MAX / 2);  // so that nothing overflows
  const int32_t loss = order_[loss_];
  const int64_t change = std::min(first_change(loss_), old_makespan_);
  const int32_t to = std::max(position_at(change), loss_ + 1);
  in_time = start_backward(to, change);
  if (!in_time) return false;
  const int64_t both = old_end_[loss] + bounds.behind_loss();  // forward counts the one of these, backward the other
  forward_.stop = loss;
  forward_.least = std::max(forward_.least, bounds.before_loss() + bounds.behind_loss());
  backward_.least = std::max(backward_.least, both);
  const double num_forward = loss_ + 1 - cut_, num_backward = static_cast<double>(order_.size()) - to;
  while (!forward_.done || !backward_.done) {
    const double forward = forward_.done ? 0 : gain(forward_, both, num_forward);
    const double backward = backward_.done ? 0 : eager * gain(backward_, old_makespan_, num_backward);
    Side& side = backward >= forward ? backward_ : forward_;
    const Side& other = backward >= forward ? forward_ : backward_;
    if (!serve_some(side, other.done ? INT64_MAX : turn, limit + both - other.least, bounds)) return false;
  }
  append_rest(forward_);
  append_rest(backward_);
  join_sides(to);
  return true;
}

// What a side's bound can be expected to rise for each task that it still has to serve: it took so long before.
double Engine::gain(const Side& side, int64_t took, double num_tasks) {
  const auto left = std::max(num_tasks - static_cast<double>(side.order.size()), 1.0);
  return static_cast<double>(std::max<int64_t>(took - side.least, 1)) / left;
}

// From a position of the old order on, all from the loss to there as it was. False where something is ready earlier.
bool Engine::start_backward(int32_t to, int64_t change) {
  const auto& before = graph_.totals_before().before;
  backward_.whole.resize(before.size());
  for (size_t i = 0; i < before.size(); ++i) backward_.whole[i] = graph_.totals.behind[i] + before[i];
  start(backward_, Part::behind_loss, to, static_cast<int32_t>(order_.size()));
  backward_.whole = graph_.totals.work;
  backward_.calendar.reset(change, old_makespan_, served_.size());
  return give_from(backward_, loss_, to, change);
}

// Backward comes behind forward, and between them what was skipped.
void Engine::join_sides(int32_t to) {
  const int64_t shift = served_[order_[loss_]].end - old_end_[order_[loss_]];
  const auto begin = static_cast<int32_t>(forward_.order.size()), num_skipped = to - loss_ - 1;
  const auto later = [&](Checkpoint& point, int32_t by) -> Checkpoint& {
    point.position += by;
    for (auto& resource : point.resources) resource.free += shift;
    return point;
  };
  for (const auto& point : checkpoints_) {
    if (point.position <= loss_ || point.position >= to) continue;
    Checkpoint copy{point.position, point.resources, {}, {}};
    for (size_t i = 0; i < copy.resources.size(); ++i)
      copy.resources[i].left += graph_.totals.before[i] - graph_.totals_before().before[i];
    forward_.noted.push_back(std::move(later(copy, begin - loss_ - 1)));
  }
  for (auto& point : backward_.noted) forward_.noted.push_back(std::move(later(point, begin + num_skipped)));
  const auto add = [&](int32_t slot, const Served& served) {
    forward_.order.push_back(slot);
    served_[slot] = {served.ready + shift, served.end + shift};
  };
  for (int32_t i = loss_ + 1; i < to; ++i) add(order_[i], {old_ready_[order_[i]], old_end_[order_[i]]});
  for (const int32_t slot : backward_.order) add(slot, served_[slot]);
  forward_.latest = backward_.latest + shift;
}

void Engine::restore() {
  for (size_t i = 0; i < num_touched_; ++i) graph_.pool.states[touched_[i]] = {0, graph_.pool.waiting[touched_[i]], 0};
  num_touched_ = 0;
}

int64_t Engine::first_input() {
  int64_t first = INT64_MAX;
  for (const int32_t op : graph_.changed()) {
    for (const int32_t slot : graph_.block_before(op).forward) first = std::min(first, old_ready_[slot]);
    bool all_wait = false;  // some input is read by every part
    for (const auto& [tensor, reader] : graph_.reads(op)) {
      all_wait |= graph_.between(tensor, reader).all_reached;
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

// Nothing that the change touches in backward was ready, or is, any earlier: it waits for a reader of something whose
// maker gets other messages, or for the gradient of a parameter that is summed otherwise, or it is an update.
int64_t Engine::first_return() const {
  int64_t first = INT64_MAX;
  const auto see = [&](int32_t op) {
    if (!graph_.graph.ops[op].backward) return;
    const auto& time = graph_.is_changing(op) ? old_ready_ : old_end_;
    for (const int32_t slot : graph_.block_before(op).backward) first = std::min(first, time[slot]);
  };
  for (const int32_t tensor : graph_.rerouted())
    for (const auto& output : graph_.graph.ops[graph_.graph.tensors[tensor].producer].outputs)
      for (const auto& [op, input] : graph_.graph.tensors[output.tensor].readers) see(op);
  for (const int32_t group : graph_.regrouped())
    for (const int32_t op : graph_.groups[group].ops) see(op);
  for (int32_t device = 0; device < graph_.machine.topology.num_devices(); ++device)
    if (position_[device] >= 0 && changes_update(device)) first = std::min(first, old_ready_[device]);
  return std::min(first, first_update());
}

// An update that loses gradients may be ready earlier than it was, but not before some sum that stays: the first such
// that is found from the end.
int64_t Engine::first_update() const {
  std::vector<bool> loses(graph_.machine.topology.num_devices());
  std::vector<int32_t> gone;
  for (const int32_t group : graph_.regrouped()) {
    if (!graph_.groups[group].grad) continue;
    const SyncBlock& old = graph_.syncs_before(group);
    for (const auto& pieces : old.pieces)
      for (const auto& piece : *pieces)
        for (const int32_t device : piece.holders) loses[device] = true;
    for (const auto& bucket : old.tasks->buckets) gone.push_back(bucket.slot);
  }
  auto num_open = std::count(loses.begin(), loses.end(), true);
  int64_t first = INT64_MAX;
  for (size_t i = order_.size(); num_open > 0 && i-- > static_cast<size_t>(loss_);) {
    const Task& task = graph_.pool.tasks[order_[i]];
    if (phase_of(task.key) != sync_phase || std::find(gone.begin(), gone.end(), order_[i]) != gone.end()) continue;
    for (const int32_t device : std::span(task.next, task.num_next)) {
      if (!loses[device]) continue;
      loses[device] = false;
      --num_open;
      first = std::min(first, old_end_[order_[i]]);
    }
  }
  return num_open > 0 ? old_end_[order_[loss_]] : first;
}

void Engine::find_idle(int64_t first, Idle& idle) {
  idle.before.assign(idle.before.size(), 0);
  idle.behind.assign(idle.behind.size(), 0);
  if (!has_sides()) return;
  const Totals& totals = graph_.totals;
  // What a resource has still to serve is not ready before the change.
  const auto stood = [](const Resource& resource, int64_t change, int64_t served, int64_t work) {
    return (work > served ? std::max(resource.free, change) : resource.free) - served;
  };
  serve_to(forward_.resources, std::min(position_at(first), loss_));
  for (size_t i = 0; i < idle.before.size(); ++i) {
    const auto& resource = forward_.resources[i];
    idle.before[i] = stood(resource, first, resource.left, totals.before[i]);
  }
  const int64_t back = std::min(first_return(), old_makespan_), end = old_end_[order_[loss_]];
  serve_to(backward_.resources, std::max(position_at(back), loss_ + 1));
  for (size_t i = 0; i < idle.behind.size(); ++i) {
    const auto& resource = backward_.resources[i];
    const int64_t served = resource.left - graph_.totals_before().before[i];
    idle.behind[i] = std::max<int64_t>(stood(resource, back, served, totals.behind[i]) - end, 0);
  }
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

// As it is before the task at `begin` is served.
void Engine::start(Side& side, Part part, int32_t begin, int32_t end) {
  side.part = part;
  side.begin = begin;
  side.end = end;
  side.order.clear();
  side.noted.clear();
  side.latest = begin == 0 ? 0 : latest_[begin - 1];
  serve_to(side.resources, begin);
  for (size_t i = 0; i < side.whole.size(); ++i) side.resources[i].left = side.whole[i] - side.resources[i].left;
  side.least = std::max(side.latest, least_at(side, 0));
  side.next_note = 0;
  side.stop = -1;
  side.done = false;
  side.next_look = 0;
  side.given = 0;
  side.settled = -1;
  side.rest.position = -1;
  side.updates.clear();
}

// Resources as they were before the task at `cut` was served; `left` counts what was.
void Engine::serve_to(std::vector<Resource>& resources, int32_t cut) const {
  const Checkpoint* point = checkpoint_at(cut);
  if (point)
    resources = point->resources;
  else
    resources.assign(graph_.totals.work.size(), {0, 0});
  for (int32_t i = point ? point->position : 0; i < cut; ++i) {
    const int32_t slot = order_[i];
    graph_.pool.tasks[slot].each_hold([&](const Hold& hold) {
      Resource& resource = resources[hold.resource];
      resource.free = std::max(old_ready_[slot], resource.free) + hold.duration;
      resource.left += hold.duration;
    });
  }
}

// What waits at the cut: all that is ready at the start, or for all of whose predecessors the times are known.
bool Engine::seed(int64_t change) {
  if (cut_ > 0) return give_from(forward_, 0, cut_, change);
  graph_.each_slot([&](int32_t slot) {
    if (graph_.pool.waiting[slot] == 0) forward_.calendar.push(slot);
  });
  return true;
}

// What the tasks at some positions of the old order give to those that come behind. False where something is ready
// before the change: it lost one that it waited for.
bool Engine::give_from(Side& side, int32_t begin, int32_t end, int64_t change) {
  const auto reached = far_reach(end);
  const Checkpoint* point = checkpoint_at(end);
  const int32_t from = std::max(begin, point ? point->position : 0);
  bool in_time = true;
  const auto give_of = [&](int32_t i) {
    const Task& task = graph_.pool.tasks[order_[i]];
    const int64_t ended = old_end_[order_[i]];
    for (const int32_t next : std::span(task.next, task.num_next)) {
      if (position_[next] >= 0 && position_[next] < end) continue;
      const auto& state = graph_.pool.states[next];
      in_time = in_time && (state.waiting > 1 || std::max(state.ready, ended) >= change);
      if (!in_time) return;
      if (!is_update(next)) side.given = std::max(side.given, ended);
      give(side, &next, 1, ended);
    }
  };
  for (const auto& [position, reach] : reached)
    if (position >= begin && position < from && reach < from) give_of(position);
  if (point) {
    for (const int32_t position : point->reaching)
      if (position >= begin && reach_[position] >= end) give_of(position);
    in_time = in_time && give_updates(side, point->updates, end, change);
  }
  for (int32_t i = from; i < end; ++i)
    if (reach_[i] >= end) give_of(i);
  for (const auto& [position, reach] : reached) reach_[position] = reach;
  return in_time;
}

bool Engine::give_updates(Side& side, const std::vector<Given>& updates, int32_t end, int64_t change) {
  for (int32_t device = 0; device < static_cast<int32_t>(updates.size()); ++device) {
    const auto [count, ready] = updates[device];
    if (count == 0 || position_[device] < end) continue;
    auto& state = graph_.pool.states[device];
    if (state.waiting == count && std::max(state.ready, ready) < change) return false;
    state.waiting -= count - 1;
    give(side, &device, 1, ready);
  }
  return true;
}

const Engine::Checkpoint* Engine::checkpoint_at(int32_t cut) const {
  const auto after = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), cut,
                                      [](int32_t at, const Checkpoint& point) { return at < point.position; });
  return after == checkpoints_.begin() ? nullptr : &*(after - 1);
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
inline void Engine::give(Side& side, const int32_t* slots, int32_t count, int64_t end) {
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
    side.calendar.push(due_[i]);
  }
}

// Of what is left, where nothing is served before `now`.
int64_t Engine::least_at(const Side& side, int64_t now) const {
  int64_t least = 0;
  for (const auto& [free, left] : side.resources) least = std::max(least, std::max(free, now) + left);
  return least;
}

bool Engine::serve_some(Side& side, int64_t count, int64_t limit, const Bounds& bounds) {
  if (side.least > limit) return false;
  Ready next;
  while (count-- > 0) {
    if (!side.calendar.pop(next)) {
      side.done = true;
      break;
    }
    if (side.order.size() >= side.next_note) note_now(side, next.ready);
    if (side.order.size() >= side.next_look && rejoins(side, next, bounds)) {
      side.done = true;
      return side.least <= limit;
    }
    ++num_served_;
    if (!serve(side, next.slot, next.ready, limit, bounds)) return false;
    if (next.slot == side.stop) {
      side.done = true;
      break;
    }
    const Task& task = graph_.pool.tasks[next.slot];
    give(side, task.next, task.num_next, served_[next.slot].end);
  }
  return true;
}

// Now and then: what resources have done so far, and what they have left.
void Engine::note_now(Side& side, int64_t now) {
  side.least = std::max(side.least, least_at(side, now));
  Checkpoint point{static_cast<int32_t>(side.order.size()), side.resources, {}, {}};
  for (size_t i = 0; i < side.whole.size(); ++i) point.resources[i].left = side.whole[i] - side.resources[i].left;
  note(side, std::move(point));
}

void Engine::note(Side& side, Checkpoint point) {
  side.noted.push_back(std::move(point));
  side.next_note = side.order.size() + std::max<size_t>(128, 2 * side.resources.size());
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

void Engine::find_reach() {
  reach_.resize(order_.size(), forever);
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i < static_cast<size_t>(cut_) && reach_[i] < cut_) continue;
    reach_[i] = -1;
    const Task& task = graph_.pool.tasks[order_[i]];
    for (int32_t k = 0; k < task.num_next; ++k) reach_[i] = std::max(reach_[i], position_[task.next[k]]);
  }
}

void Engine::find_reaching() {
  std::vector<int32_t> open;
  std::vector<Given> updates(graph_.machine.topology.num_devices());
  int32_t from = 0;
  for (auto& point : checkpoints_) {
    std::erase_if(open, [&](int32_t position) { return reach_[position] < point.position; });
    for (; from < point.position; ++from) {
      if (reach_[from] < point.position) continue;
      const Task& task = graph_.pool.tasks[order_[from]];
      if (phase_of(task.key) != sync_phase)
        open.push_back(from);
      else if (point.updates.empty())
        for (const int32_t device : std::span(task.next, task.num_next)) {
          ++updates[device].count;
          updates[device].ready = std::max(updates[device].ready, old_end_[order_[from]]);
        }
    }
    point.reaching = open;
    if (point.updates.empty())
      point.updates = updates;
    else  // it stands before the cut, where all is as it was
      updates = point.updates;
  }
}

void Engine::adopt() {
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) position_[slot] = -1;
  order_.resize(cut_);
  order_.insert(order_.end(), forward_.order.begin(), forward_.order.end());
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
  for (auto& point : forward_.noted) {
    point.position += cut_;
    checkpoints_.push_back(std::move(point));
  }
  old_makespan_ = forward_.latest;
  find_reach();
  find_reaching();
  find_loss();
  find_endings();
  inverted_ = false;
  drop();
}

}  // namespace soapstone
