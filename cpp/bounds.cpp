#include "bounds.hpp"

#include <algorithm>
#include <stdexcept>

namespace soapstone {

// Fills the tails behind a backward, its combine and its finish; returns what follows once the op can begin backward.
int64_t Bounds::backward(const TaskGraph& graph, int32_t op) {
  const auto& state = graph.ops[op];
  const auto& least = state.block->least;
  int64_t tail = 0;
  for (const auto& [tensor, reader] : graph.reads(op)) {
    const int64_t weight = graph.flows[tensor]->weight_backward[reader];
    if (weight != uncounted) tail = std::max(tail, weight + head_backward_[graph.graph.tensors[tensor].producer]);
  }
  for (const auto& [group, place] : graph.groups_of_op[op]) {
    const int64_t weight = graph.syncs[group]->weights[place];
    if (weight != uncounted) tail = std::max(tail, weight + tails_[graph.sync_tail()]);
  }
  tails_[graph.tail_of(op, role_backward)] = tail;
  int64_t head = tail + least[role_backward];
  if (!state.layout->combines) return head;
  tails_[graph.tail_of(op, role_combine_backward)] = head;
  head += least[role_combine_backward];
  if (state.block->finish_backward.empty()) return head;
  tails_[graph.tail_of(op, role_finish_backward)] = head;
  return head + least[role_finish_backward];
}

int64_t Bounds::forward(const TaskGraph& graph, int32_t op) {
  const auto& state = graph.ops[op];
  const auto& least = state.block->least;
  const bool finishes = !state.block->finish_forward.empty();
  int64_t tail = graph.graph.ops[op].backward ? head_backward_[op] : 0;
  for (const auto& output : graph.graph.ops[op].outputs) {
    if (finishes && state.layout->copies > 1) break;  // some copy may have no reader
    const auto& readers = graph.graph.tensors[output.tensor].readers;
    const auto& weights = graph.flows[output.tensor]->weight_forward;
    for (size_t i = 0; i < readers.size(); ++i)
      if (weights[i] != uncounted) tail = std::max(tail, weights[i] + head_forward_[readers[i].first]);
  }
  if (state.layout->combines) {
    if (finishes) {
      tails_[graph.tail_of(op, role_finish_forward)] = tail;
      tail += least[role_finish_forward];
    }
    tails_[graph.tail_of(op, role_combine_forward)] = tail;
    tail += least[role_combine_forward];
  }
  tails_[graph.tail_of(op, role_forward)] = tail;
  return tail + least[role_forward];
}

bool Bounds::hold(const TaskGraph& graph, int64_t limit) {
  const auto num_ops = static_cast<int32_t>(graph.graph.ops.size());
  tails_.assign(graph.sync_tail() + 1, 0);
  head_backward_.assign(num_ops, 0);
  head_forward_.assign(num_ops, 0);
  double total = 0;
  for (const int64_t work : graph.work) total += static_cast<double>(work);
  if (total > static_cast<double>(int64_t{1} << 61)) throw std::invalid_argument("an iteration takes over 2^61 ns");
  bound_ = *std::max_element(graph.work.begin(), graph.work.end());
  if (bound_ > limit) return false;
  int64_t update = INT64_MAX;
  for (int32_t device = 0; device < graph.machine.topology.num_devices(); ++device)
    if (graph.has_update(device)) update = std::min(update, graph.update_time(device));
  if (update != INT64_MAX) tails_[graph.sync_tail()] = update;
  for (int32_t op = 0; op < num_ops; ++op)
    if (graph.graph.ops[op].backward) head_backward_[op] = backward(graph, op);
  for (int32_t op = num_ops; op-- > 0;) {
    head_forward_[op] = forward(graph, op);
    bound_ = std::max(bound_, head_forward_[op]);
  }
  return bound_ <= limit;
}

}  // namespace soapstone
