// What blocks add to a task graph's totals, and what follows from those.
#include "tasks/totals.hpp"

#include <algorithm>

#include "tasks/taskgraph.hpp"

namespace soapstone {

Totals::Totals(size_t num_resources, size_t num_devices)
    : work(num_resources), before(num_resources), after(num_resources), compute(num_devices), elements(num_devices) {
  for (auto* column : {&memory.parameters, &memory.gradients, &memory.saved, &memory.made, &memory.buckets})
    column->resize(num_devices);
}

void TaskGraph::count(const Block& block, int64_t sign) {
  const auto add = [&](std::vector<int64_t>& to, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) to[block.holds[i].resource] += sign * block.holds[i].duration;
  };
  add(totals.before, 0, block.num_before);
  add(totals.work, 0, block.holds.size());
  add(totals.after, block.first_after, block.holds.size());
}

void TaskGraph::count(int32_t op, const OpState& state, int64_t sign) {
  count(static_cast<const Block&>(*state.block), sign);
  for (int32_t part = 0; part < state.layout->num_parts; ++part) {
    const int32_t device = state.configuration.devices[part];
    for (const auto* slots :
         {&state.block->forward, &state.block->finish_forward, &state.block->finish_backward, &state.block->backward})
      if (!slots->empty() && (*slots)[part] >= 0)
        totals.compute[device] += sign * pool.tasks[(*slots)[part]].first.duration;
    totals.memory.saved[device] += sign * state.layout->saved[part];
    totals.memory.made[device] += sign * state.layout->made[part];
  }
  count_largest(op, state, sign);
}

void TaskGraph::count_largest(int32_t op, const OpState& state, int64_t sign) {
  const auto num_devices = static_cast<size_t>(machine.topology.num_devices());
  for (int32_t part = 0; part < state.layout->num_parts; ++part) {
    const int32_t device = state.configuration.devices[part];
    auto& largest = largest_[op * num_devices + device];
    largest = sign < 0 ? 0 : std::max(largest, state.layout->working[part]);
    transient_known_[device] = false;
  }
}

void TaskGraph::count(const FlowBlock& block, int64_t sign) {
  const auto add = [&](std::vector<int64_t>& to, const std::vector<Hold>& sums) {
    for (const auto& [resource, duration] : sums) {
      to[resource] += sign * duration;
      totals.work[resource] += sign * duration;
    }
  };
  add(totals.before, block.before);
  add(totals.after, block.after);
  for (size_t device = 0; device < block.made.size(); ++device) totals.memory.made[device] += sign * block.made[device];
}

void TaskGraph::count(const SyncGroup& group, const SyncBlock& block, int64_t sign) {
  count(*block.tasks, sign);
  for (size_t i = 0; i < group.tensors.size(); ++i)
    for (const auto& piece : *block.pieces[i])
      for (const int32_t device : piece.holders) {
        const int64_t bytes = piece.elements * graph.tensors[group.tensors[i]].item_size;
        totals.memory.parameters[device] += sign * bytes;
        if (!group.grad) continue;
        totals.memory.gradients[device] += sign * bytes;
        totals.elements[device] += sign * piece.elements;
      }
  for (const auto& bucket : block.tasks->buckets)
    for (const int32_t device : bucket.holders) totals.memory.buckets[device] += sign * bucket.bytes;
}

void TaskGraph::set_updates() {
  for (int32_t device = 0; device < machine.topology.num_devices(); ++device) {
    const int64_t duration = machine.update_time(device, totals.elements[device]);
    auto& task = pool.tasks[device];
    totals.work[device] += duration - task.first.duration;
    totals.after[device] += duration - task.first.duration;
    task.first = {device, duration};
    task.num_holds = 1;
    task.tail = no_tail();
  }
}

int64_t TaskGraph::lasting(int32_t device, int64_t num_states) const {
  return totals.memory.parameters[device] + (1 + num_states) * totals.memory.gradients[device] +
         totals.memory.saved[device] + totals.memory.made[device] + totals.memory.buckets[device];
}

std::vector<int64_t> TaskGraph::memory_bound(int64_t num_states) {
  std::vector<int64_t> bound = transient();
  for (size_t device = 0; device < bound.size(); ++device) bound[device] += lasting(device, num_states);
  return bound;
}

bool TaskGraph::surely_fits(const std::vector<int64_t>& limit, int64_t num_states) const {
  int64_t largest = 0;
  for (const auto& op : ops)
    largest = std::max(largest, *std::max_element(op.layout->working.begin(), op.layout->working.end()));
  for (size_t device = 0; device < limit.size(); ++device)
    if (lasting(device, num_states) + largest > limit[device]) return false;
  return true;
}

const std::vector<int64_t>& TaskGraph::transient() {
  const auto num_devices = static_cast<size_t>(machine.topology.num_devices());
  for (size_t device = 0; device < num_devices; ++device) {
    if (transient_known_[device]) continue;
    transient_[device] = 0;
    for (size_t op = 0; op < ops.size(); ++op)
      transient_[device] = std::max(transient_[device], largest_[op * num_devices + device]);
    transient_known_[device] = true;
  }
  return transient_;
}

}  // namespace soapstone
