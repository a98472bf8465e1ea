#include "tasks/loss.hpp"

#include <algorithm>

#include "tasks/taskgraph.hpp"

namespace soapstone {

Loss::Loss(TaskGraph& graph, bool may_separate) : graph_(graph), may_separate_(may_separate) {
  const auto& ops = graph.graph.ops;
  const auto is_read = [&](const Operand& output) { return !graph.graph.tensors[output.tensor].readers.empty(); };
  int32_t count = 0;
  for (const OpIndex op : ops.indices())
    if (std::none_of(ops[op].outputs.begin(), ops[op].outputs.end(), is_read)) op_ = ++count == 1 ? op : none;
}

Slot Loss::task() const {
  const auto& [configuration, layout, block] = graph_.ops[op_];
  return layout->combines ? block->combine_forward.front() : block->forward.front();
}

void Loss::look_ahead() { separates_ = separated_ && may_separate() && surely_separates(); }

void Loss::look() { separates_ = may_separate() && separates_now(); }

bool Loss::may_separate() const {
  return may_separate_ && op_ != none && graph_.graph.ops[op_].backward &&
         graph_.ops[op_].layout->num_output_parts == 1;
}

bool Loss::surely_separates() {
  const auto& graph = graph_.graph;
  const auto& tensors = graph_.changes().tensors;
  const auto leads_on = [&](const Operand& output) {
    const bool back = graph.ops[graph.tensors[output.tensor].producer].backward;
    if (std::binary_search(tensors.begin(), tensors.end(), output.tensor)) return is_wanted(output.tensor, back);
    return back ? graph_.flows[output.tensor]->all_return : graph_.flows[output.tensor]->all_read;
  };
  for (const int32_t tensor : tensors) {
    const OpIndex op = graph.tensors[tensor].producer;
    const auto& outputs = graph.ops[op].outputs;
    if (op != op_ && std::none_of(outputs.begin(), outputs.end(), leads_on)) return false;
  }
  return graph_.syncs.all_wait();
}

// Whether some reader surely reads every output part, or gives it a gradient.
bool Loss::is_wanted(int32_t tensor, bool back) {
  const auto& readers = graph_.graph.tensors[tensor].readers;
  for (size_t i = 0; i < readers.size(); ++i) {
    if (back && !(graph_.graph.tensors[tensor].grad && graph_.graph.ops[readers[i].first].backward)) continue;
    if (graph_.between(tensor, static_cast<int32_t>(i)).all_met) return true;
  }
  return false;
}

bool Loss::separates_now() const {
  if (!graph_.syncs.all_wait()) return false;
  if (separated_)  // and what the change does not reach still leads on
    return std::all_of(graph_.changes().tensors.begin(), graph_.changes().tensors.end(),
                       [&](int32_t tensor) { return leads_on(graph_.graph.tensors[tensor].producer); });
  for (const OpIndex op : graph_.ops.indices())
    if (!leads_on(op)) return false;
  return true;
}

// Whether an op's output parts are all read, or all get a gradient where it has a backward.
bool Loss::leads_on(OpIndex op) const {
  const auto& outputs = graph_.graph.ops[op].outputs;
  return op == op_ || std::any_of(outputs.begin(), outputs.end(), [&](const Operand& output) {
           const auto& block = *graph_.flows[output.tensor];
           return graph_.graph.ops[op].backward ? block.all_return : block.all_read;
         });
}

}  // namespace soapstone
