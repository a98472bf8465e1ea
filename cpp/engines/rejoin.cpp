// Where a play rejoins the old one: what is left to serve is what was left there, and whatever it waits for comes later
// or earlier by the same shift. From then on every task does, so the rest is known without being served.
//
// What ended before now holds nothing back, whenever it did. Updates are left out, since a change moves gradients from
// device to device: where they come last on their devices, their times follow from those of all others.
#include <algorithm>

#include "engines/engine.hpp"

namespace soapstone {

// Asked before a task is served. Where it does, the side knows how it ends: what it takes at least, and its updates.
bool Engine::rejoins(Side& side, const Ready& next, const Bounds& bounds) {
  const size_t num_served = side.order.size();
  side.next_look = num_served + 1 + num_served / (2 * thrift_);
  const Moment now{position_[next.slot], next.ready, next.ready - old_ready_[next.slot]};
  if (now.position < 0 || is_update(next.slot) || !shifted_lately(side, now)) return false;
  if (side.settled < 0) find_settled(side);
  if (now.position < side.settled) {
    side.next_look = std::max<size_t>(side.next_look, num_served + side.settled - now.position);
    return false;
  }
  side.next_look += num_served / thrift_;  // a closer look costs more, the more was served
  if (!resources_rejoin(side, now) || !tasks_rejoin(side, now)) return false;
  if (side.part == Part::before_loss) {
    const int32_t loss = order_[loss_];
    side.least = std::max(side.least, old_end_[loss] + now.shift + bounds.tail(graph_.pool.tasks[loss].tail));
  } else {
    if (!serve_updates(side, now)) return false;
    side.least = std::max(side.least, side.latest);
  }
  side.rest = now;
  return true;
}

// The last few tasks tell cheaply whether a closer look may be worth while.
bool Engine::shifted_lately(const Side& side, const Moment& now) const {
  if (std::ssize(side.order) < glance_) return false;
  return std::all_of(side.order.end() - glance_, side.order.end(), [&](int32_t slot) {
    return position_[slot] >= 0 && served_[slot].ready - old_ready_[slot] == now.shift;
  });
}

// From which position on nothing is gone or has other successors than before, and how many new tasks the side has. A
// reader's forward keeps its successors, but for those that it shares with a changed op's task.
void Engine::find_settled(Side& side) {
  const bool all = side.part == Part::all, forward = side.part == Part::before_loss;
  side.settled = side.begin;
  const auto see = [&](int32_t begin, int32_t count) {
    for (int32_t slot = begin; slot < begin + count; ++slot)
      if (position_[slot] < side.end) side.settled = std::max(side.settled, position_[slot] + 1);
  };
  const auto see_op = [&](int32_t op) { see(graph_.ops[op].block->begin, graph_.ops[op].block->count); };
  for (const auto& [begin, count] : graph_.gone()) see(begin, count);
  for (const int32_t tensor : graph_.rerouted()) {
    see_op(graph_.graph.tensors[tensor].producer);
    see(graph_.flows[tensor]->begin, graph_.flows[tensor]->count);
    if (!forward)
      for (const auto& [reader, input] : graph_.graph.tensors[tensor].readers) see_op(reader);
  }
  if (!forward)
    for (const int32_t group : graph_.regrouped())
      for (const int32_t op : graph_.groups[group].ops) see_op(op);
  side.num_fresh = 0;
  for (const auto& [begin, count] : graph_.fresh())
    for (int32_t slot = begin; slot < begin + count; ++slot)
      side.num_fresh += all || (phase_of(graph_.pool.tasks[slot].key) == forward_phase) == forward;
}

bool Engine::resources_rejoin(Side& side, const Moment& now) {
  serve_to(old_resources_, now.position);
  for (size_t i = 0; i < old_resources_.size(); ++i) {
    const int64_t old = std::max(old_resources_[i].free, now.time - now.shift);
    if (std::max(side.resources[i].free, now.time) != old + now.shift) return false;
  }
  return true;
}

// Whether just the old tasks before the position were served, less those that are gone, and all new ones; and whether
// every end that others wait for is shifted, or past in both plays. Sums give to updates alone. Where an update is
// gone, the old play cannot be followed any more.
bool Engine::tasks_rejoin(const Side& side, const Moment& now) const {
  const int64_t old_time = now.time - now.shift;
  const auto is_sum = [&](int32_t slot) { return phase_of(graph_.pool.tasks[slot].key) == sync_phase; };
  if (now.shift != 0 && side.given > std::min(now.time, old_time)) return false;
  size_t num_old = 0;
  for (const int32_t slot : side.order) {
    const int64_t end = served_[slot].end;
    if (position_[slot] < 0) {
      if (end > now.time && !is_sum(slot)) return false;
      continue;
    }
    if (position_[slot] >= now.position || is_update(slot)) return false;
    ++num_old;
    const bool agrees = end == old_end_[slot] + now.shift || (end <= now.time && old_end_[slot] <= old_time);
    if (!agrees && !is_sum(slot)) return false;
  }
  size_t num_gone = 0;
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) {
      if (position_[slot] < side.begin || position_[slot] >= side.end) continue;
      ++num_gone;
      if (is_update(slot) || (old_end_[slot] > old_time && !is_sum(slot))) return false;
    }
  return num_old + num_gone == static_cast<size_t>(now.position - side.begin) &&
         side.order.size() - num_old == side.num_fresh;
}

// What updates waited for longest, and when their devices had nothing else to do.
void Engine::find_endings() {
  const int32_t num_devices = graph_.machine.topology.num_devices();
  const auto end = static_cast<int32_t>(order_.size());
  int32_t first = end, num_open = 0;
  endings_.assign(num_devices, {});
  for (int32_t device = 0; device < num_devices; ++device) {
    if (position_[device] < 0) continue;
    ++num_open;
    first = std::min(first, position_[device]);
  }
  for (int32_t i = end; num_open > 0 && i-- > 0;) {
    const Task& task = graph_.pool.tasks[order_[i]];
    for (const int32_t next : std::span(task.next, task.num_next)) {
      if (!is_update(next) || endings_[next].giver >= 0 || old_end_[order_[i]] != old_ready_[next]) continue;
      endings_[next].giver = i;
      --num_open;
    }
  }
  latest_other_ = first == 0 ? 0 : latest_[first - 1];
  serve_to(old_resources_, first);
  for (int32_t i = first; i < end; ++i) {
    const int32_t slot = order_[i];
    if (is_update(slot)) continue;
    latest_other_ = std::max(latest_other_, old_end_[slot]);
    graph_.pool.tasks[slot].each_hold([&](const Hold& hold) {
      auto& free = old_resources_[hold.resource].free;
      free = std::max(old_ready_[slot], free) + hold.duration;
      if (is_update(hold.resource) && position_[hold.resource] < i) endings_[hold.resource].is_last = false;
    });
  }
  for (int32_t device = 0; device < num_devices; ++device) endings_[device].free = old_resources_[device].free;
}

// Behind all the rest. False where their times do not follow from those of the old play.
bool Engine::serve_updates(Side& side, const Moment& now) {
  int64_t latest = side.latest;
  side.updates.clear();
  for (int32_t device = 0; device < static_cast<int32_t>(endings_.size()); ++device) {
    if (!graph_.has_update(device)) continue;
    const auto& [giver, free, is_last] = endings_[device];
    if (giver < now.position) return false;
    const int64_t shifted = old_ready_[device] + now.shift;
    const int64_t ready = std::max(graph_.pool.states[device].ready, shifted);
    if (ready == shifted && !changes_update(device)) {
      latest = std::max(latest, old_end_[device] + now.shift);
      continue;
    }
    if (!is_last) return false;
    served_[device] = {ready, std::max(ready, free + now.shift) + graph_.pool.tasks[device].first.duration};
    latest = std::max(latest, served_[device].end);
    side.updates.push_back({ready, graph_.pool.tasks[device].key, device});
  }
  if (latest_other_ + now.shift > latest) {  // what ended last may have been served already, and not be shifted
    if (now.position > 0 && latest_[now.position - 1] >= latest_other_) return false;
    latest = latest_other_ + now.shift;
  }
  std::sort(side.updates.begin(), side.updates.end());
  side.latest = latest;
  return true;
}

// As if it had been served.
void Engine::append_rest(Side& side) {
  const auto& [position, time, shift] = side.rest;
  if (position < 0) return;
  serve_to(old_resources_, position);
  auto point = std::lower_bound(checkpoints_.begin(), checkpoints_.end(), position,
                                [](const Checkpoint& point, int32_t at) { return point.position < at; });
  const auto copy = [&] {
    Checkpoint copy{static_cast<int32_t>(side.order.size()), point->resources, {}, {}};
    for (size_t i = 0; i < copy.resources.size(); ++i) {
      auto& [free, left] = copy.resources[i];
      const bool was_used = free != old_resources_[i].free;  // since the moment of rejoining
      free = was_used ? free + shift : side.resources[i].free;
      left += side.whole[i] - side.resources[i].left - old_resources_[i].left;
    }
    note(side, std::move(copy));
  };
  auto update = side.updates.begin();
  bool updated = false;  // checkpoints behind an update are no longer true
  for (int32_t i = position; i < side.end; ++i) {
    const int32_t slot = order_[i];
    const Ready next{old_ready_[slot] + shift, graph_.pool.tasks[slot].key, slot};
    for (; update != side.updates.end() && *update < next; ++update) {
      side.order.push_back(update->slot);
      updated = true;
    }
    const bool moves = is_update(slot) && std::any_of(side.updates.begin(), side.updates.end(),
                                                      [&](const Ready& update) { return update.slot == slot; });
    updated |= moves;
    for (; point != checkpoints_.end() && point->position == i; ++point)
      if (!updated && side.order.size() >= side.next_note) copy();
    if (moves) continue;
    side.order.push_back(slot);
    served_[slot] = {next.ready, old_end_[slot] + shift};
  }
  for (; update != side.updates.end(); ++update) side.order.push_back(update->slot);
}

}  // namespace soapstone
