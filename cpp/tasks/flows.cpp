#include "tasks/flows.hpp"

#include "support/sorting.hpp"
#include "tasks/flow_builder.hpp"
#include "tasks/listing.hpp"

namespace soapstone {

namespace {

constexpr size_t many_flows = 64;  // cost more than bounds do

}  // namespace

FlowBlocks::FlowBlocks(TaskGraph& graph)
    : graph_(graph), blocks_(graph.graph.tensors.size()), builder_(std::make_unique<FlowBuilder>(graph)) {}

FlowBlocks::~FlowBlocks() = default;

void FlowBlocks::make(const ChangeSet& changes) {
  for (const int32_t tensor : changes.tensors)
    if (blocks_[tensor]) count(*blocks_[tensor], -1);
}

bool FlowBlocks::route(ChangeSet& changes, int64_t limit, const Idle* idle) {
  builder_->set_limit(limit, idle, graph_.loss.separates());
  size_t num_flows = 0;
  while (num_flows < many_flows && !changes.unrouted().empty()) {
    const int32_t tensor = changes.unrouted()[0];
    auto block = spare_.take();
    const bool fits = builder_->find(tensor, *block);
    if (fits) count(*block, 1);
    num_flows += block->flows.size();
    std::swap(blocks_[tensor], block);
    replaced_.emplace_back(tensor, std::move(block));
    ++changes.num_routed;
    if (!fits) return false;
  }
  return true;
}

void FlowBlocks::count(const FlowBlock& block, int64_t sign) {
  auto& totals = graph_.totals;
  const int64_t times = sign * graph_.num_microbatches;
  totals.num_flows += sign * static_cast<int64_t>(block.flows.size());
  const auto add = [&](By<Resource, int64_t>& to, const std::vector<Hold>& sums) {
    for (const auto& [resource, launch, duration] : sums) {
      to[resource] += times * duration;
      totals.work[resource] += times * duration;
    }
  };
  add(totals.before, block.before);
  add(totals.after, block.after);
  for (const Device device : block.made.indices()) totals.memory.made[device] += sign * block.made[device];
}

void FlowBlocks::join(ChangeSet& changes) {
  for (const auto& [tensor, old] : replaced_) {
    auto& block = *blocks_[tensor];
    builder_->join(tensor, block, old.get());
    graph_.pool.link(block.next);
    if (!old) {
      changes.fresh.push_back(block.run());
      continue;
    }
    graph_.pool.unlink(old->next);
    mark_relinked(tensor, *old);
    if (block.shares(*old)) {
      changes.rewired.push_back(block.run());
      continue;
    }
    changes.gone.push_back(old->run());
    changes.fresh.push_back(block.run());
  }
}

void FlowBlocks::mark_relinked(int32_t index, const FlowBlock& old) {
  const auto& block = *blocks_[index];
  const auto& tensor = graph_.graph.tensors[index];
  if (old.forward != block.forward || old.read != block.read || old.returns != block.returns)
    graph_.successors.mark(tensor.producer);
  for (size_t i = 0; i < tensor.readers.size(); ++i)
    if (old.backward[i] != block.backward[i]) graph_.successors.mark(tensor.readers[i].first);
}

void FlowBlocks::commit() {
  for (auto& [tensor, old] : replaced_) drop(std::move(old), blocks_[tensor].get());
  replaced_.clear();
}

void FlowBlocks::rollback(const ChangeSet& changes) {
  for (auto& [tensor, old] : replaced_) {
    std::swap(blocks_[tensor], old);  // `old` is the new one from here on
    const FlowBlock* block = blocks_[tensor].get();
    if (changes.linked) graph_.pool.unlink(old->next);
    if (changes.linked && block) {
      graph_.pool.link(block->next);
      if (block->shares(*old)) builder_->point(*block);
    }
    drop(std::move(old), block);
  }
  replaced_.clear();
}

// One of two blocks of a tensor, which may share their tasks.
void FlowBlocks::drop(std::unique_ptr<FlowBlock> block, const FlowBlock* other) {
  if (!block) return;
  if (!other || !block->shares(*other)) graph_.pool.give_back(*block);
  spare_.give(std::move(block));
}

void FlowBlocks::add_edges(OpIndex op, std::vector<Edge>& edges) const {
  const auto add = [&](const std::vector<Edge>& more) { edges.insert(edges.end(), more.begin(), more.end()); };
  for (const auto& output : graph_.graph.ops[op].outputs) add(blocks_[output.tensor]->forward);
  for (const auto& [tensor, reader] : graph_.reads[op]) add(blocks_[tensor]->backward[reader]);
}

void FlowBlocks::add_slots(std::vector<SlotRun>& runs) const {
  for (const auto& block : blocks_)
    if (block) runs.push_back(block->run());
}

void FlowBlocks::list(Listing& listing) const {
  for (size_t tensor = 0; tensor < blocks_.size(); ++tensor)
    if (blocks_[tensor]) list_tensor(static_cast<int32_t>(tensor), listing);
}

void FlowBlocks::list_tensor(int32_t index, Listing& listing) const {
  const auto& block = *blocks_[index];
  const auto& tensor = graph_.graph.tensors[index];
  const auto rank = static_cast<ptrdiff_t>(num_dims(tensor.factoring));
  for (size_t i = 0; i < block.flows.size(); ++i) {
    const auto& flow = block.flows[i];
    const auto* hull = block.hulls.data() + static_cast<ptrdiff_t>(i) * rank;
    FlowRow row{index, flow.part, flow.device, flow.source, {hull, hull + rank}, -1, -1, {}};
    for (const auto& [reader, part] : block.readers_of(i)) row.readers.emplace_back(tensor.readers[reader].first, part);
    sort_unique(row.readers);
    const int32_t number = listing.add_flow(std::move(row), flow.forward, flow.backward);
    for (const bool backward : {false, true}) {
      const Slot slot = backward ? flow.backward : flow.forward;
      if (slot == none) continue;
      TaskRow task;
      task.kind = Kind::transfer;
      task.op = tensor.producer;
      task.part = flow.part.value;
      task.backward = backward;
      task.bytes = flow.bytes;
      task.flow = number;
      task.devices = {backward ? flow.device : flow.source, backward ? flow.source : flow.device};
      listing.add(slot, std::move(task));
    }
  }
}

}  // namespace soapstone
