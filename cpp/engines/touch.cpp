#include "engines/touch.hpp"

#include <algorithm>
#include <span>

namespace soapstone {

namespace {

template <typename Visit>
void each_slot(const std::vector<SlotRun>& runs, Visit visit) {
  for (const auto& run : runs)
    for (const Slot slot : run.slots()) visit(slot);
}

}  // namespace

bool Touch::has_halves() const {
  return accepted_.loss() != none && graph_.loss.separates() &&
         accepted_.slot(accepted_.loss()) == graph_.loss.task() && accepted_.lead(accepted_.loss() + 1) >= 0;
}

int64_t Touch::first_input() {
  int64_t first = INT64_MAX;
  for (const OpIndex op : graph_.changes().ops) {
    for (const Slot slot : graph_.ops.before(op).forward) first = std::min(first, accepted_.ready(slot));
    bool all_wait = false;  // some input is read by every part
    for (const auto& [tensor, reader] : graph_.reads[op]) {
      all_wait |= graph_.between(tensor, reader).all_reached;
      const OpIndex producer = graph_.graph.tensors[tensor].producer;
      if (!graph_.is_changing(producer)) first = std::min(first, first_arrival(producer));
    }
    if (!all_wait) return 0;
  }
  graph_.gathers.each_changing(graph_.changes(), [&](const GatherBlock& block) {
    if (block.starts_at_once) first = 0;
    for (const Gate& gate : block.gates)
      if (!block.gathers[gate.gather].backward && !graph_.is_changing(gate.op))
        first = std::min(first, first_forward(gate.op));
  });
  return first == INT64_MAX ? 0 : first;
}

int64_t Touch::first_forward(OpIndex op) const {
  int64_t first = INT64_MAX;
  for (const Slot slot : graph_.ops[op].block->forward) first = std::min(first, accepted_.end(slot));
  return first;
}

int64_t Touch::first_arrival(OpIndex op) const {
  const auto& state = graph_.ops[op];
  int64_t first = INT64_MAX;
  for (const Part part : state.layout->parts())
    if (const Slot slot = state.block->arrival(*state.layout, part); slot != none)
      first = std::min(first, accepted_.end(slot));
  return first;
}

// Nothing that the change touches in backward was ready, or is, any earlier: it waits for a reader of something whose
// maker gets other messages, or for the gradient of a parameter that is summed otherwise, or for what a gather waits
// for, or it is an update.
int64_t Touch::first_return() const {
  int64_t first = INT64_MAX;
  const auto see = [&](OpIndex op) {
    if (!graph_.graph.ops[op].backward) return;
    for (const Slot slot : graph_.ops.before(op).backward)
      first = std::min(first, graph_.is_changing(op) ? accepted_.ready(slot) : accepted_.end(slot));
  };
  for (const int32_t tensor : graph_.changes().tensors)
    for (const auto& output : graph_.graph.ops[graph_.graph.tensors[tensor].producer].outputs)
      for (const auto& [op, input] : graph_.graph.tensors[output.tensor].readers) see(op);
  for (const int32_t group : graph_.changes().groups)
    for (const OpIndex op : graph_.syncs.groups()[group].ops) see(op);
  graph_.gathers.each_changing(graph_.changes(), [&](const GatherBlock& block) {
    if (block.waits_for_loss) first = accepted_.loss_end();
    for (const Gate& gate : block.gates)
      if (gate.part != none && block.gathers[gate.gather].backward) see(gate.op);
  });
  for (const Device device : graph_.machine.topology.devices())
    if (const Slot slot = graph_.updates.slot_of(device); accepted_.has(slot) && graph_.updates.is_changing(device))
      first = std::min(first, accepted_.ready(slot));
  return std::min(first, first_update());
}

// An update that loses gradients may be ready earlier than it was, but not before some sum that stays: the first such
// that is found from the end.
int64_t Touch::first_update() const {
  By<Device, bool> loses(graph_.machine.topology.num_devices());
  std::vector<Slot> gone;
  for (const int32_t group : graph_.changes().groups) {
    if (!graph_.syncs.groups()[group].grad) continue;
    const SyncBlock& old = graph_.syncs.before(group);
    for (const auto& pieces : old.pieces)
      for (const auto& piece : *pieces)
        for (const Device device : piece.holders) loses[device] = true;
    for (const auto& bucket : old.tasks->buckets) gone.push_back(bucket.slot);
  }
  auto num_open = std::count(loses.begin(), loses.end(), true);
  int64_t first = INT64_MAX;
  for (Position i = accepted_.past(); num_open > 0 && i-- > accepted_.loss();) {
    const Slot slot = accepted_.slot(i);
    const Task& task = graph_.pool.tasks[slot];
    if (phase_of(task.key) != sync_phase || std::find(gone.begin(), gone.end(), slot) != gone.end()) continue;
    for (const Slot update : std::span(task.next, task.num_next)) {
      const Device device = graph_.updates.device_of(update);
      if (!loses[device]) continue;
      loses[device] = false;
      --num_open;
      first = std::min(first, accepted_.end(slot));
    }
  }
  return num_open > 0 ? accepted_.loss_end() : first;
}

void Touch::find_idle(int64_t first, Idle& idle) {
  idle.before.assign(idle.before.size(), 0);
  idle.after.assign(idle.after.size(), 0);
  if (!has_halves()) return;
  const Totals& totals = graph_.totals;
  // What a resource has still to serve is not ready before the change.
  const auto stood = [](const Progress& progress, int64_t change, int64_t served, int64_t work) {
    return (work > served ? std::max(progress.free, change) : progress.free) - served;
  };
  accepted_.progress_at(std::min(accepted_.position_at(first), accepted_.loss()), progress_);
  for (const Resource i : idle.before.indices())
    idle.before[i] = stood(progress_[i], first, progress_[i].served, totals.before[i]);
  const int64_t back = std::min(first_return(), accepted_.makespan());
  accepted_.progress_at(std::max(accepted_.position_at(back), accepted_.loss() + 1), progress_);
  for (const Resource i : idle.after.indices()) {
    const int64_t served = progress_[i].served - graph_.totals_before().before[i];
    const int64_t idled = stood(progress_[i], back, served, totals.after[i]) - accepted_.loss_end();
    idle.after[i] = std::max<int64_t>(idled, 0);
  }
}

bool Touch::waits_for_nothing() const {
  for (const int32_t group : graph_.changes().groups)
    for (const auto& bucket : graph_.syncs[group]->tasks->buckets)
      if (graph_.pool.waiting[bucket.slot] == 0) return true;
  for (const Device device : graph_.machine.topology.devices())
    if (graph_.updates.is_there(device) && graph_.pool.waiting[graph_.updates.slot_of(device)] == 0) return true;
  return false;
}

// The first of the new tasks waits for accepted ones alone, and for all of them.
int64_t Touch::first_change(Position position) {
  int64_t first = INT64_MAX;
  const auto is_after = [&](Slot slot) { return accepted_.position(slot) > position; };
  known_.resize(graph_.pool.tasks.size());
  const auto note = [&](Slot slot) {
    if (is_after(slot)) first = std::min(first, accepted_.ready(slot));
  };
  each_slot(graph_.changes().gone, note);
  each_slot(graph_.changes().retimed, note);
  each_slot(graph_.changes().fresh, [&](Slot slot) { known_[slot] = graph_.pool.waiting[slot] == 0 ? 0 : -1; });
  each_slot(graph_.changes().rewired, [&](Slot slot) {
    if (!is_after(slot)) return;
    const Task& task = graph_.pool.tasks[slot];
    for (const Slot next : std::span(task.next, task.num_next)) {
      if (!accepted_.has(next))
        known_[next] = std::max(known_[next], accepted_.end(slot));
      else if (is_after(next) && accepted_.ready(next) < accepted_.end(slot))
        first = std::min(first, accepted_.ready(next));
    }
  });
  each_slot(graph_.changes().fresh, [&](Slot slot) {
    if (known_[slot] >= 0) first = std::min(first, known_[slot]);
    const Task& task = graph_.pool.tasks[slot];
    for (const Slot next : std::span(task.next, task.num_next))
      if (is_after(next)) first = std::min(first, accepted_.ready(next));
  });
  return first;
}

}  // namespace soapstone
