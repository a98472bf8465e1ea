#include "engines/rejoin.hpp"

#include <algorithm>
#include <span>

namespace soapstone {

bool Rejoin::rejoins(Stretch& stretch, Look& look, const Ready& next, const Bounds& bounds) {
  const size_t num_served = stretch.order.size();
  look.next = num_served + 1 + num_served / (2 * spacing_);
  Moment now{accepted_.position(next.slot), next.ready, next.ready - accepted_.ready(next.slot)};
  if (now.position == none || graph_.updates.has(next.slot) || !shifted_lately(stretch, now)) return false;
  if (look.settled == none) find_settled(stretch, look);
  if (now.position < look.settled) {
    look.next = std::max<size_t>(look.next, num_served + (look.settled - now.position));
    return false;
  }
  look.next += num_served / spacing_;  // a closer look costs more, the more was served
  if (!resources_rejoin(stretch, now) || !tasks_rejoin(stretch, look, now)) return false;
  if (stretch.half == Half::before_loss) {
    const int64_t tail = bounds.tail(graph_.pool.tasks[accepted_.slot(accepted_.loss())].tail);
    stretch.least = std::max(stretch.least, accepted_.loss_end() + now.shift + tail);
  } else {
    if (!serve_updates(stretch, look, now)) return false;
    stretch.least = std::max(stretch.least, stretch.latest);
  }
  look.rest = now;
  stretch.lead = std::min(stretch.lead, led(accepted_.lead(now.position), now.shift - now.launched));
  return true;
}

// The last few tasks tell cheaply whether a closer look may be worth while.
bool Rejoin::shifted_lately(const Stretch& stretch, const Moment& now) const {
  if (std::ssize(stretch.order) < num_recent_) return false;
  return std::all_of(stretch.order.end() - num_recent_, stretch.order.end(), [&](Slot slot) {
    return accepted_.has(slot) && play_.served[slot].ready - accepted_.ready(slot) == now.shift;
  });
}

// From which position on nothing is gone or has other successors than before, and how many new tasks the stretch has. A
// reader's forward keeps its successors, but for those that it shares with a changed op's task.
void Rejoin::find_settled(const Stretch& stretch, Look& look) const {
  const bool both = stretch.half == Half::both, forward = stretch.half == Half::before_loss;
  look.settled = stretch.begin;
  const auto see = [&](const SlotRun& run) {
    for (const Slot slot : run.slots())
      if (accepted_.position(slot) < stretch.end) look.settled = std::max(look.settled, accepted_.position(slot) + 1);
  };
  const auto see_op = [&](OpIndex op) { see(graph_.ops[op].block->run()); };
  for (const auto& run : graph_.changes().gone) see(run);
  for (const int32_t tensor : graph_.changes().tensors) {
    see_op(graph_.graph.tensors[tensor].producer);
    see(graph_.flows[tensor]->run());
    if (!forward)
      for (const auto& [reader, input] : graph_.graph.tensors[tensor].readers) see_op(reader);
  }
  if (!forward)
    for (const int32_t group : graph_.changes().groups)
      for (const OpIndex op : graph_.syncs.groups()[group].ops) see_op(op);
  graph_.gathers.each_changing(graph_.changes(), [&](const GatherBlock& block) {
    for (const Gate& gate : block.gates) see_op(gate.op);
  });
  look.num_fresh = 0;
  for (const auto& run : graph_.changes().fresh)
    for (const Slot slot : run.slots())
      look.num_fresh += both || (phase_of(graph_.pool.tasks[slot].key) == forward_phase) == forward;
}

// Hosts must be later by the same shift, or so far ahead that none is waited for.
bool Rejoin::resources_rejoin(const Stretch& stretch, Moment& now) {
  accepted_.progress_at(now.position, progress_);
  Launched launched;
  for (const Resource i : progress_.indices()) {
    const int64_t was_free = std::max(progress_[i].free, now.time - now.shift);
    if (std::max(stretch.resources[i].free, now.time) != was_free + now.shift) return false;
    launched.see(stretch.resources[i].launched - progress_[i].launched, graph_.machine.topology.is_device(i));
  }
  now.launched = launched.most;
  return launched.allows(now.shift, accepted_.lead(now.position));
}

// Whether just the accepted tasks before the position were served, less those that are gone, and all new ones; and
// whether every end that others wait for is shifted, or past in both plays. Sums give to updates alone. Where an update
// is gone, the accepted play cannot be followed any more.
bool Rejoin::tasks_rejoin(const Stretch& stretch, const Look& look, const Moment& now) const {
  const int64_t was_time = now.time - now.shift;
  const auto is_sum = [&](Slot slot) { return phase_of(graph_.pool.tasks[slot].key) == sync_phase; };
  if (now.shift != 0 && stretch.given > std::min(now.time, was_time)) return false;
  size_t num_old = 0;
  for (const Slot slot : stretch.order) {
    const int64_t end = play_.served[slot].end;
    if (!accepted_.has(slot)) {
      if (end > now.time && !is_sum(slot)) return false;
      continue;
    }
    if (accepted_.position(slot) >= now.position || graph_.updates.has(slot)) return false;
    ++num_old;
    const int64_t was_end = accepted_.end(slot);
    const bool agrees = end == was_end + now.shift || (end <= now.time && was_end <= was_time);
    if (!agrees && !is_sum(slot)) return false;
  }
  size_t num_gone = 0;
  for (const auto& run : graph_.changes().gone)
    for (const Slot slot : run.slots()) {
      if (accepted_.position(slot) < stretch.begin || accepted_.position(slot) >= stretch.end) continue;
      ++num_gone;
      if (graph_.updates.has(slot) || (accepted_.end(slot) > was_time && !is_sum(slot))) return false;
    }
  return num_old + num_gone == static_cast<size_t>(now.position - stretch.begin) &&
         stretch.order.size() - num_old == look.num_fresh;
}

// What updates waited for longest, and when their devices had nothing else to do.
void Rejoin::commit() {
  const auto& topology = graph_.machine.topology;
  const Position end = accepted_.past();
  Position first = end;
  int32_t num_open = 0;
  endings_.assign(topology.num_devices(), {});
  for (const Device device : topology.devices()) {
    const Slot slot = graph_.updates.slot_of(device);
    if (!accepted_.has(slot)) continue;
    ++num_open;
    first = std::min(first, accepted_.position(slot));
  }
  for (Position i = end; num_open > 0 && i-- > Position(0);) {
    const Task& task = graph_.pool.tasks[accepted_.slot(i)];
    for (const Slot next : std::span(task.next, task.num_next)) {
      if (!graph_.updates.has(next)) continue;
      Ending& ending = endings_[graph_.updates.device_of(next)];
      if (ending.giver != none || accepted_.end(accepted_.slot(i)) != accepted_.ready(next)) continue;
      ending.giver = i;
      --num_open;
    }
  }
  latest_other_ = accepted_.latest_before(first);
  accepted_.progress_at(first, progress_);
  for (const Position i : range(first, end)) {
    const Slot slot = accepted_.slot(i);
    if (graph_.updates.has(slot)) continue;
    latest_other_ = std::max(latest_other_, accepted_.end(slot));
    graph_.pool.tasks[slot].each_hold([&](const Hold& hold) {
      auto& free = progress_[hold.resource].free;
      free = std::max(accepted_.ready(slot), free) + hold.duration;
      if (!topology.is_device(hold.resource)) return;
      const Device device = device_of(hold.resource);
      if (accepted_.position(graph_.updates.slot_of(device)) < i) endings_[device].is_last = false;
    });
  }
  for (const Device device : topology.devices()) endings_[device].free = progress_[resource_of(device)].free;
}

// After all the rest. False where their times do not follow from those of the accepted play.
bool Rejoin::serve_updates(Stretch& stretch, Look& look, const Moment& now) {
  int64_t latest = stretch.latest;
  look.updates.clear();
  for (const Device device : endings_.indices()) {
    if (!graph_.updates.is_there(device)) continue;
    const auto& [giver, free, is_last] = endings_[device];
    if (giver < now.position) return false;
    const Slot slot = graph_.updates.slot_of(device);
    const int64_t shifted = accepted_.ready(slot) + now.shift;
    const int64_t ready = std::max(graph_.pool.states[slot].ready, shifted);
    if (ready == shifted && !graph_.updates.is_changing(device)) {
      latest = std::max(latest, accepted_.end(slot) + now.shift);
      continue;
    }
    const Task& task = graph_.pool.tasks[slot];
    if (!is_last || task.num_next > 0) return false;
    play_.served[slot] = {ready, std::max(ready, free + now.shift) + task.first.duration};
    latest = std::max(latest, play_.served[slot].end);
    look.updates.push_back({ready, task.key, slot});
  }
  if (latest_other_ + now.shift > latest) {  // what ended last may have been served already, and not be shifted
    if (now.position > Position(0) && accepted_.latest_before(now.position) >= latest_other_) return false;
    latest = latest_other_ + now.shift;
  }
  std::sort(look.updates.begin(), look.updates.end());
  stretch.latest = latest;
  return true;
}

// A checkpoint of the accepted play as it is in this one; `progress_` is of the moment of rejoining.
Checkpoint Rejoin::shifted(const Checkpoint& point, const Stretch& stretch, int64_t shift) const {
  Checkpoint copy{Position(stretch.order.size()), point.progress, {}, {}};
  for (const Resource i : copy.progress.indices()) {
    auto& [free, served, launched] = copy.progress[i];
    const bool was_used = free != progress_[i].free;  // since that moment
    free = was_used ? free + shift : stretch.resources[i].free;
    served += stretch.whole[i] - stretch.resources[i].left - progress_[i].served;
    launched += stretch.resources[i].launched - progress_[i].launched;
  }
  return copy;
}

void Rejoin::append_rest(Stretch& stretch, Look& look) {
  const auto& [position, time, shift, launched] = look.rest;
  if (position == none) return;
  accepted_.progress_at(position, progress_);
  const auto& checkpoints = accepted_.checkpoints();
  auto point = std::lower_bound(checkpoints.begin(), checkpoints.end(), position,
                                [](const Checkpoint& point, Position at) { return point.position < at; });
  auto update = look.updates.begin();
  bool updated = false;  // checkpoints after an update are no longer true
  for (const Position i : range(position, stretch.end)) {
    const Slot slot = accepted_.slot(i);
    const Ready next{accepted_.ready(slot) + shift, graph_.pool.tasks[slot].key, slot};
    for (; update != look.updates.end() && *update < next; ++update) {
      stretch.order.push_back(update->slot);
      updated = true;
    }
    const bool moves = graph_.updates.has(slot) && std::any_of(look.updates.begin(), look.updates.end(),
                                                               [&](const Ready& other) { return other.slot == slot; });
    updated |= moves;
    for (; point != checkpoints.end() && point->position == i; ++point)
      if (!updated && stretch.order.size() >= stretch.next_checkpoint)
        Play::add_checkpoint(stretch, shifted(*point, stretch, shift));
    if (moves) continue;
    stretch.order.push_back(slot);
    play_.served[slot] = {next.ready, accepted_.end(slot) + shift};
    play_.leads[slot] = led(accepted_.lead_of(slot), shift - launched);
  }
  for (; update != look.updates.end(); ++update) stretch.order.push_back(update->slot);
}

}  // namespace soapstone
