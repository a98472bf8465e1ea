#include "tasks/proposal.hpp"

#include <utility>

#include "support/sorting.hpp"
#include "tasks/flows.hpp"

namespace soapstone {

namespace {

constexpr size_t many_flows = 64;  // cost more than bounds do

}  // namespace

Proposal::Proposal(TaskGraph& graph, const Changes& changes) : graph_(graph) {
  try {
    graph_.change(changes);
  } catch (...) {
    graph_.rollback();
    throw;
  }
}

Proposal::~Proposal() {
  if (open_) graph_.rollback();
}

void Proposal::commit() {
  graph_.commit();
  open_ = false;
}

void TaskGraph::change(const Changes& changes) {
  layouts_.forget();
  before_ = totals;
  met_before_ = meets_;
  changes_.clear();
  for (const auto& [op, configuration] : changes) {
    auto state = configured(op, configuration);
    count(op, ops[op], -1);
    count(op, state, 1);
    std::swap(ops[op], state);
    undo_.ops.emplace_back(op, std::move(state));
    changes_.ops.push_back(op);
    changing_[op] = true;
  }
}

// The changed ops' neighbours: the tensors and groups whose blocks are replaced.
void TaskGraph::find_reach() {
  for (const auto& [op, old] : undo_.ops) {
    for (const auto* operands : {&graph.ops[op].inputs, &graph.ops[op].outputs})
      for (const auto& operand : *operands)
        if (graph.tensors[operand.tensor].source == Source::op) changes_.tensors.push_back(operand.tensor);
    for (const auto& [group, place] : groups_of_op[op]) changes_.groups.push_back(group);
  }
  sort_unique(changes_.tensors);
  sort_unique(changes_.groups);
}

void TaskGraph::relink(int32_t op, bool differs) {
  if (!differs || relinking_[op]) return;
  relinking_[op] = true;
  relinked_.push_back(op);
}

void TaskGraph::regroup() {
  find_reach();
  for (const int32_t group : changes_.groups) {
    auto block = find_syncs(group);
    count(groups[group], *syncs[group], -1);
    count(groups[group], *block, 1);
    std::swap(syncs[group], block);
    undo_.syncs.emplace_back(group, std::move(block));
  }
  set_updates();
  for (const int32_t tensor : changes_.tensors) count(*flows[tensor], -1);
  meets_ = surely_meets();
}

bool TaskGraph::route(int64_t limit, const Idle& idle) {
  flow_builder_->set_limit(limit, &idle, meets_);
  size_t num_flows = 0;
  while (num_flows < many_flows && !changes_.unrouted().empty()) {
    const int32_t tensor = changes_.unrouted()[0];
    auto block = spare_flows_.take();
    const bool fits = flow_builder_->find(tensor, *block);
    if (fits) count(*block, 1);
    num_flows += block->flows.size();
    std::swap(flows[tensor], block);
    undo_.flows.emplace_back(tensor, std::move(block));
    ++changes_.num_routed;
    if (!fits) return false;
  }
  if (changes_.unrouted().empty()) meets_ = meets_now();
  return true;
}

void TaskGraph::replaced(const Block& old, const Block& block) {
  changes_.gone.push_back({old.begin, old.count});
  changes_.fresh.push_back({block.begin, block.count});
}

void TaskGraph::link() {
  undo_.linked = true;
  relinked_.clear();
  std::fill(relinking_.begin(), relinking_.end(), false);
  for (const auto& [op, old] : undo_.ops) {
    replaced(*old.block, *ops[op].block);
    relink(op, true);
    pool.unlink(old.next->slots);
  }
  for (const auto& [tensor, old] : undo_.flows) replace_flows(tensor, *old);
  for (const auto& [group, old] : undo_.syncs) replace_syncs(group, *old);
  for (int32_t device = 0; device < machine.topology.num_devices(); ++device) {
    if (before_.elements[device] == totals.elements[device]) continue;
    changes_.updates.push_back(device);
    if (before_.elements[device] == 0) changes_.fresh.push_back({device, 1});
    if (totals.elements[device] == 0) changes_.gone.push_back({device, 1});
  }
  if (exit_ >= 0 && changing_[exit_])
    for (int32_t op = 0; op < static_cast<int32_t>(ops.size()); ++op) relink(op, has_idle(op));
  for (const int32_t op : relinked_) {
    auto next = make_next(op);
    if (!changing_[op]) {
      changes_.rewired.push_back({ops[op].block->begin, ops[op].block->count});
      pool.unlink(ops[op].next->slots);
      undo_.next.emplace_back(op, std::move(ops[op].next));
    }
    pool.link(next->slots);
    ops[op].next = std::move(next);
    point_to_next(op);
  }
}

void TaskGraph::replace_flows(int32_t tensor, const FlowBlock& old) {
  auto& block = *flows[tensor];
  flow_builder_->join(tensor, block, &old);
  if (block.shares(old))
    changes_.rewired.push_back({block.begin, block.count});
  else
    replaced(old, block);
  pool.unlink(old.next);
  pool.link(block.next);
  relink(graph.tensors[tensor].producer,
         old.forward != block.forward || old.read != block.read || old.returns != block.returns);
  for (size_t i = 0; i < graph.tensors[tensor].readers.size(); ++i)
    relink(graph.tensors[tensor].readers[i].first, old.backward[i] != block.backward[i]);
}

void TaskGraph::replace_syncs(int32_t group, const SyncBlock& old) {
  join_syncs(group);
  const auto& block = *syncs[group];
  for (size_t i = 0; i < groups[group].ops.size(); ++i) relink(groups[group].ops[i], old.edges[i] != block.edges[i]);
  if (old.tasks == block.tasks) return;
  replaced(*old.tasks, *block.tasks);
  pool.unlink(old.tasks->next);
  pool.link(block.tasks->next);
}

void TaskGraph::Undo::clear() {
  ops.clear();
  flows.clear();
  syncs.clear();
  next.clear();
  linked = false;
}

void TaskGraph::commit() {
  for (auto& [op, state] : undo_.ops) {
    drop(state);
    changing_[op] = false;
  }
  for (auto& [tensor, block] : undo_.flows) drop(std::move(block), *flows[tensor]);
  for (auto& [group, block] : undo_.syncs) drop(std::move(block), *syncs[group]);
  for (auto& [op, next] : undo_.next) spare_next_.give(std::move(next));
  undo_.clear();
}

void TaskGraph::drop(OpState& state) {
  pool.give_back(*state.block);
  spare_ops_.give(std::move(state.block));
  spare_next_.give(std::move(state.next));
}

// One of two blocks of a tensor.
void TaskGraph::drop(std::unique_ptr<FlowBlock> block, const FlowBlock& other) {
  if (!block->shares(other)) pool.give_back(*block);
  spare_flows_.give(std::move(block));
}

void TaskGraph::drop(std::unique_ptr<SyncBlock> block, const SyncBlock& other) {
  if (block->tasks != other.tasks) pool.give_back(*block->tasks);
  spare_syncs_.give(std::move(block));
}

void TaskGraph::rollback() {
  if (undo_.linked) unlink();
  for (auto& [op, old] : undo_.ops) {
    count_largest(op, ops[op], -1);
    count_largest(op, old, 1);
    std::swap(ops[op], old);
    drop(old);
    changing_[op] = false;
  }
  for (auto& [tensor, old] : undo_.flows) {
    std::swap(flows[tensor], old);
    drop(std::move(old), *flows[tensor]);
  }
  for (auto& [group, old] : undo_.syncs) {
    std::swap(syncs[group], old);
    drop(std::move(old), *syncs[group]);
  }
  totals.elements = before_.elements;
  set_updates();
  totals = before_;
  meets_ = met_before_;
  undo_.clear();
}

void TaskGraph::unlink() {
  for (const int32_t op : relinked_) pool.unlink(ops[op].next->slots);
  for (const auto& [tensor, block] : undo_.flows) {
    pool.unlink(flows[tensor]->next);
    pool.link(block->next);
    if (block->shares(*flows[tensor])) flow_builder_->point(*block);
  }
  for (const auto& [group, block] : undo_.syncs) {
    if (block->tasks == syncs[group]->tasks) continue;
    pool.unlink(syncs[group]->tasks->next);
    pool.link(block->tasks->next);
  }
  for (const auto& [op, old] : undo_.ops) pool.link(old.next->slots);
  for (auto& [op, old] : undo_.next) {
    std::swap(ops[op].next, old);
    spare_next_.give(std::move(old));
    point_to_next(op);
    pool.link(ops[op].next->slots);
  }
}

}  // namespace soapstone
