#include "bounds/least_times.hpp"

#include <algorithm>
#include <utility>

namespace soapstone {

void LeastTimes::begin(const TaskGraph& graph) {
  ops_.resize(graph.ops.size());
  tensors_.resize(graph.flows.size());
  places_.resize(graph.flows.size());
  for (size_t tensor = 0; tensor < places_.size(); ++tensor)
    if (graph.flows[tensor]) places_[tensor].resize(graph.graph.tensors[tensor].readers.size());
  for (const OpIndex op : graph.ops.indices()) {
    forward_.begin.push_back(static_cast<int32_t>(forward_.edges.size()));
    backward_.begin.push_back(static_cast<int32_t>(backward_.edges.size()));
    for (const auto& output : graph.graph.ops[op].outputs) {
      const auto begin = static_cast<int32_t>(forward_.edges.size());
      for (const auto& [reader, input] : graph.graph.tensors[output.tensor].readers)
        forward_.edges.push_back({reader, uncounted});
      tensors_[output.tensor] = {op, begin, static_cast<int32_t>(forward_.edges.size()), false};
    }
    for (const auto& [tensor, reader] : graph.reads[op]) {
      places_[tensor][reader] = static_cast<int32_t>(backward_.edges.size());
      backward_.edges.push_back({graph.graph.tensors[tensor].producer, uncounted});
    }
  }
  forward_.begin.push_back(static_cast<int32_t>(forward_.edges.size()));
  backward_.begin.push_back(static_cast<int32_t>(backward_.edges.size()));
  for (const OpIndex op : graph.ops.indices()) {
    update_op(graph, op);
    update_sum(graph, op);
  }
  for (size_t tensor = 0; tensor < places_.size(); ++tensor)
    if (graph.flows[tensor]) update_tensor(graph, static_cast<int32_t>(tensor));
}

void LeastTimes::update(TaskGraph& graph) {
  if (ops_.empty()) return begin(graph);
  const auto both = [](auto& before, const auto& now, auto visit) {
    std::for_each(before.begin(), before.end(), visit);
    std::for_each(now.begin(), now.end(), visit);
    before = now;
  };
  both(changed_, graph.changes().ops, [&](OpIndex op) { update_op(graph, op); });
  both(rerouted_, graph.changes().tensors, [&](int32_t tensor) { update_tensor(graph, tensor); });
  both(regrouped_, graph.changes().groups, [&](int32_t group) {
    for (const OpIndex op : graph.syncs.groups()[group].ops) update_sum(graph, op);
  });
  for (const int32_t tensor : graph.changes().unrouted()) forget_messages(graph, tensor);
}

void LeastTimes::update_op(const TaskGraph& graph, OpIndex op) {
  const auto& [configuration, layout, block] = graph.ops[op];
  const bool finishes = !block->finish_forward.empty();
  ops_[op] = {block->least, ops_[op].sum, layout->combines, finishes, layout->copies > 1};
}

void LeastTimes::update_sum(const TaskGraph& graph, OpIndex op) {
  int64_t& sum = ops_[op].sum = uncounted;
  for (const auto& [group, place] : graph.syncs.groups_of(op)) sum = std::max(sum, graph.syncs[group]->weights[place]);
}

void LeastTimes::update_tensor(const TaskGraph& graph, int32_t tensor) {
  const auto& block = *graph.flows[tensor];
  auto& weights = tensors_[tensor];
  weights.moves = !block.before.empty();
  for (size_t i = 0; i < places_[tensor].size(); ++i) {
    forward_.edges[weights.begin + i].weight = block.weight_forward[i];
    backward_.edges[places_[tensor][i]].weight = block.weight_backward[i];
  }
}

// All that is known of them is who surely sends any, and who surely receives any.
void LeastTimes::forget_messages(TaskGraph& graph, int32_t tensor) {
  for (size_t i = 0; i < places_[tensor].size(); ++i) {
    const auto& between = graph.between(tensor, static_cast<int32_t>(i));
    auto& edge = forward_.edges[tensors_[tensor].begin + i];
    const bool gives = graph.graph.tensors[tensor].grad && graph.graph.ops[edge.op].backward;
    edge.weight = between.all_met ? 0 : uncounted;
    backward_.edges[places_[tensor][i]].weight = gives && between.all_reached ? 0 : uncounted;
  }
}

}  // namespace soapstone
