// A tensor's transfers as tasks, and who waits for whom: the maker's parts, the transfers and the readers.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "tasks/flow_builder.hpp"

namespace soapstone {

void FlowBuilder::join(int32_t tensor, FlowBlock& block, const FlowBlock* before) {
  begin(tensor, block);
  find_shortcuts();
  add_transfers(before);
  if (block.backward.size() < tensor_->readers.size()) block.backward.resize(tensor_->readers.size());
  connect();
  connect_gradients();
  point(block);
}

// Transfers look into their block for what they hold and who waits for them.
void FlowBuilder::point(const FlowBlock& block) {
  int32_t at = 0;
  const auto look = [&](Slot slot, const Trip& trip) {
    Task& task = graph_.pool.tasks[slot];
    const int32_t end = block.next_end[slot - block.begin];
    task.holds = block.holds.data() + trip.begin;
    task.next = block.next.data() + at;
    task.num_next = end - at;
    at = end;
  };
  for (const auto& flow : block.flows)
    if (flow.moves()) look(flow.forward, flow.there);
  for (const auto& flow : block.flows)
    if (flow.moves() && flow.returns) look(flow.backward, flow.back);
}

// The same messages as before are the same tasks, where the op that makes them is the same: then whoever else reads a
// part reads the same of it.
bool FlowBuilder::moves_alike(const FlowBlock& before) const {
  if (graph_.ops.is_changing(tensor_->producer)) return false;
  auto old = before.flows.begin();
  const auto next = [&] { return old = std::find_if(old, before.flows.end(), std::mem_fn(&Flow::moves)); };
  for (const auto& flow : block_->flows) {
    if (!flow.moves()) continue;
    if (next() == before.flows.end() || flow.part != old->part || flow.device != old->device ||
        flow.source != old->source || flow.bytes != old->bytes || flow.returns != old->returns)
      return false;
    ++old;
  }
  return next() == before.flows.end();
}

void FlowBuilder::add_holds(Flow& flow, bool back) {
  auto& holds = block_->holds;
  auto& trip = back ? flow.back : flow.there;
  const Device from = back ? flow.device : flow.source, to = back ? flow.source : flow.device;
  trip.begin = static_cast<int32_t>(holds.size());
  graph_.machine.topology.transfer(from, to, flow.bytes, holds);
  trip.end = static_cast<int32_t>(holds.size());
}

void FlowBuilder::add_transfers(const FlowBlock* before) {
  int32_t count = 0;
  for (const auto& flow : block_->flows) count += flow.moves() + (flow.moves() && flow.returns);
  block_->count = count;
  block_->begin = before && moves_alike(*before) ? before->begin : graph_.pool.take(count);
  Slot slot = block_->begin;
  for (const bool back : {false, true})
    for (auto& flow : block_->flows) {
      if (!flow.moves() || (back && !flow.returns)) continue;
      add_holds(flow, back);
      const uint64_t key =
          graph_.key(back, tensor_->producer, Kind::transfer, tensor_->output, flow.part.value, flow.device.value);
      (back ? flow.backward : flow.forward) = slot;
      graph_.pool.write(slot++, key, graph_.transfer_tail(index_, back), block_->holds, back ? flow.back : flow.there);
    }
}

void FlowBuilder::find_all_shortcuts() {
  const auto& tensors = graph_.graph.tensors;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (tensors[tensor].source != Source::op) continue;
    const auto& readers = tensors[tensor].readers;
    std::map<OpIndex, int32_t> index;
    for (size_t i = 0; i < readers.size(); ++i) index.try_emplace(readers[i].first, static_cast<int32_t>(i));
    for (size_t after = 0; after < readers.size(); ++after)
      for (const auto& [other, reader] : graph_.reads[readers[after].first])
        if (const auto before = index.find(tensors[other].producer); before != index.end())
          shortcuts_[tensor].push_back({before->second, static_cast<int32_t>(after), other, reader});
  }
}

void FlowBuilder::find_shortcuts() {
  const auto& shortcuts = shortcuts_[index_];
  between_.clear();
  for (const auto& shortcut : shortcuts)
    between_.push_back(&graph_.layouts.between(shortcut.tensor, shortcut.reader, *reader(shortcut.before).layout,
                                               *reader(shortcut.after).layout));
  first_shortcut_.assign(tensor_->readers.size() + 1, 0);
  for (const auto& shortcut : shortcuts) ++first_shortcut_[shortcut.after + 1];
  std::partial_sum(first_shortcut_.begin(), first_shortcut_.end(), first_shortcut_.begin());
}

// Where the readers of a flow stand, which come in increasing order.
void FlowBuilder::look_at(std::span<const Reader> readers) {
  if (between_.empty()) return;
  in_flow_.assign(tensor_->readers.size(), std::span<const Reader>());
  for (const Reader& at : readers) {
    auto& own = in_flow_[at.reader];
    own = own.empty() ? std::span(&at, 1) : std::span(own.data(), own.size() + 1);
  }
}

// A reader that reads what another reader of the same flow makes waits for that one anyway.
bool FlowBuilder::follows(const Reader& reading, bool back) const {
  for (int32_t i = first_shortcut_[reading.reader]; i < first_shortcut_[reading.reader + 1]; ++i) {
    const auto& [before, after, tensor, input] = shortcuts_[index_][i];
    if (back && !(gives_[before] && graph_.graph.tensors[tensor].grad)) continue;
    const auto& share = reader(after).layout->inputs[graph_.graph.tensors[tensor].readers[input].second];
    const auto& maker = *reader(before).layout;
    const auto& made = maker.outputs[graph_.graph.tensors[tensor].output];
    for (const Reader& at : in_flow_[before])
      if (between_[i]->meet(made.of_part[maker.output_of(at.part)], share.of_part[reading.part])) return true;
  }
  return false;
}

// Readers wait for the task after which the part is whole on its source, or for its transfer.
void FlowBuilder::connect() {
  for (size_t i = 0; i < block_->flows.size(); ++i) {
    const auto& flow = block_->flows[i];
    const Slot arrival = maker_->block->arrival(*maker_->layout, flow.maker);
    const auto readers = block_->readers_of(i);
    look_at(readers);
    if (flow.moves()) block_->forward.push_back({arrival, flow.forward});
    for (const Reader& at : readers) {
      if (follows(at, false)) continue;
      const Slot slot = reader(at.reader).block->forward[at.part];
      if (flow.moves())
        block_->next.push_back(slot);
      else
        block_->forward.push_back({arrival, slot});
    }
    if (flow.moves()) block_->next_end.push_back(static_cast<int32_t>(block_->next.size()));
  }
}

// Of the flows of an output part, from `flow` on: the one with the lowest device of those that return, or -1.
int32_t FlowBuilder::first_return(size_t flow) const {
  int32_t first = -1;
  for (size_t i = flow; i < block_->flows.size() && block_->flows[i].part == block_->flows[flow].part; ++i)
    if (block_->flows[i].returns && (first < 0 || block_->flows[i].device < block_->flows[first].device))
      first = static_cast<int32_t>(i);
  return first;
}

// A copy takes the gradient of those who read it; copies without one begin backward with the first that has one.
void FlowBuilder::find_sinks(const Flow& flow, bool first) {
  const auto& finish = maker_->block->finish_backward;
  sinks_.assign(1, maker_->block->sink(*maker_->layout, flow.maker));
  if (!first || finish.empty()) return;
  const auto& layout = *maker_->layout;
  for (const Part part : range(layout.first_copy(flow.part), layout.first_copy(flow.part + 1)))
    if (!block_->returns[part] && finish[part] != none) sinks_.push_back(finish[part]);
}

// The part's backward waits for its readers' gradients, or for the transfer of their sum.
void FlowBuilder::connect_gradients() {
  int32_t first = -1;
  for (size_t i = 0; i < block_->flows.size(); ++i) {
    const auto& flow = block_->flows[i];
    if (i == 0 || flow.part != block_->flows[i - 1].part) first = first_return(i);
    if (!flow.returns) continue;
    find_sinks(flow, static_cast<int32_t>(i) == first);
    const auto readers = block_->readers_of(i);
    look_at(readers);
    for (const Reader& at : readers) {
      if (!gives_[at.reader] || follows(at, true)) continue;
      const Slot slot = reader(at.reader).block->backward[at.part];
      auto& edges = block_->backward[at.reader];
      if (flow.moves())
        edges.push_back({slot, flow.backward});
      else
        for (const Slot sink : sinks_) edges.push_back({slot, sink});
    }
    if (!flow.moves()) continue;
    block_->next.insert(block_->next.end(), sinks_.begin(), sinks_.end());
    block_->next_end.push_back(static_cast<int32_t>(block_->next.size()));
  }
}

}  // namespace soapstone
