// An op's own tasks: a part's forward and backward, and where parts combine, the combine and what finishes after it.
#include <algorithm>

#include "tasks/taskgraph.hpp"

namespace soapstone {

namespace {

// The first of the parts of one output part that runs on each part's device.
void find_first_on_device(const Layout& layout, const std::vector<int32_t>& devices, std::vector<int32_t>& result) {
  result.resize(layout.num_parts);
  for (int32_t part = 0; part < layout.num_parts; ++part) {
    int32_t first = part / layout.copies * layout.copies;
    while (devices[first] != devices[part]) ++first;
    result[part] = first;
  }
}

}  // namespace

void OpBlock::clear() {
  holds.clear();
  for (auto* slots :
       {&first_on_device, &forward, &finish_forward, &finish_backward, &backward, &combine_forward, &combine_backward})
    slots->clear();
  least = {};
}

int32_t OpBlock::arrival(const Layout& layout, int32_t part) const {
  if (!layout.combines) return forward[part];
  return finish_forward.empty() ? combine_forward[layout.group_of[part]] : finish_forward[part];
}

int32_t OpBlock::sink(const Layout& layout, int32_t part) const {
  if (!layout.combines) return backward[part];
  return finish_backward.empty() ? combine_backward[layout.group_of[part]] : finish_backward[part];
}

// Writes the tasks of one role after the other and keeps the least time of each.
class OpBuilder {
 public:
  OpBuilder(TaskGraph& graph, int32_t op, const TaskGraph::OpState& state, OpBlock& block, int32_t count)
      : graph_(graph), op_(op), state_(state), block_(block), writer_(graph.pool, block, count) {}

  void computes(Role role, int64_t PartTimes::* time, std::vector<int32_t>& slots) {
    const auto& [configuration, layout, unused, next] = state_;
    const bool finish = role == role_finish_forward || role == role_finish_backward;
    const bool back = role >= role_finish_backward;
    int64_t& least = block_.least[role];
    const Kind kind = back ? Kind::backward : Kind::forward;
    slots.assign(layout->num_parts, -1);
    least = INT64_MAX;
    const std::vector<PartTimes>* times = nullptr;
    int32_t known_kind = -1;
    for (int32_t part = 0; part < layout->num_parts; ++part) {
      if (finish && block_.first_on_device[part] != part) continue;
      const int32_t device = configuration.devices[part];
      if (const int32_t device_kind = graph_.machine.kinds[device]; device_kind != known_kind) {
        times = &graph_.times_.of(op_, layout->degrees, device_kind);
        known_kind = device_kind;
      }
      const int64_t duration = std::max<int64_t>((*times)[layout->extents.of_part[part]].*time, 1);
      block_.holds.push_back({device, duration});
      slots[part] = writer_.add(graph_.key(back, op_, kind, finish, part, device), 0, graph_.tail_of(op_, role)).slot;
      least = std::min(least, duration);
    }
  }

  void combines(Role role, std::vector<int32_t>& slots) {
    const auto& layout = *state_.layout;
    const bool back = role == role_combine_backward;
    int64_t& least = block_.least[role];
    least = INT64_MAX;
    for (size_t group = 0; group < layout.groups.size(); ++group) {
      const auto devices = devices_of(state_.configuration, layout.groups[group]);
      const int64_t latency = graph_.machine.topology.all_reduce(devices, layout.combine_bytes[group], block_.holds);
      const uint64_t key = graph_.key(back, op_, Kind::combine, 0, static_cast<int64_t>(group), 0);
      const auto [slot, time] = writer_.add(key, latency, graph_.tail_of(op_, role));
      slots.push_back(slot);
      least = std::min(least, time);
    }
  }

  void finish() { writer_.finish(); }

 private:
  TaskGraph& graph_;
  int32_t op_;
  const TaskGraph::OpState& state_;
  OpBlock& block_;
  BlockWriter writer_;
};

std::unique_ptr<OpBlock> TaskGraph::make_op_block(int32_t op, const OpState& state) {
  const auto& layout = *state.layout;
  const bool back = graph.ops[op].backward;
  const bool finishes = layout.combines && graph.ops[op].combine.finish;
  auto block = spare_ops_.take();
  find_first_on_device(layout, state.configuration.devices, block->first_on_device);
  int32_t count = layout.num_parts + static_cast<int32_t>(layout.groups.size());
  if (finishes)
    for (int32_t part = 0; part < layout.num_parts; ++part) count += block->first_on_device[part] == part;
  OpBuilder builder(*this, op, state, *block, back ? 2 * count : count);
  builder.computes(role_forward, &PartTimes::forward, block->forward);
  if (layout.combines) builder.combines(role_combine_forward, block->combine_forward);
  block->num_before = block->holds.size();
  if (finishes) builder.computes(role_finish_forward, &PartTimes::finish_forward, block->finish_forward);
  if (op != exit_) block->num_before = block->holds.size();
  block->first_after = block->num_before;
  if (back) {
    if (finishes) builder.computes(role_finish_backward, &PartTimes::finish_backward, block->finish_backward);
    if (layout.combines) builder.combines(role_combine_backward, block->combine_backward);
    builder.computes(role_backward, &PartTimes::backward, block->backward);
  }
  builder.finish();
  return block;
}

// Whether a part finishes a copy that nobody reads.
bool TaskGraph::is_idle(int32_t op, int32_t part) const {
  const auto& finish = ops[op].block->finish_forward;
  const auto& outputs = graph.ops[op].outputs;
  return !finish.empty() && finish[part] >= 0 &&
         std::none_of(outputs.begin(), outputs.end(), [&](const auto& out) { return flows[out.tensor]->read[part]; });
}

bool TaskGraph::has_idle(int32_t op) const {
  for (int32_t part = 0; part < ops[op].layout->num_parts; ++part)
    if (is_idle(op, part)) return true;
  return false;
}

// Edges inside an op, and from what finishes a copy that nobody reads to the loss: all of forward comes before it. A
// task's gradient comes back after its readers, so where it does, it need not wait for the task as such.
void TaskGraph::inner_edges(int32_t op, std::vector<Edge>& edges) const {
  const auto& layout = *ops[op].layout;
  const auto& block = *ops[op].block;
  const bool back = graph.ops[op].backward;
  const auto returned = [&](int32_t begin, int32_t end) {
    for (const auto& output : graph.ops[op].outputs)
      for (int32_t part = begin; part < end; ++part)
        if (flows[output.tensor]->returns[part]) return true;
    return false;
  };
  if (!layout.combines) {
    for (int32_t part = 0; back && part < layout.num_parts; ++part)
      if (thorough_ || !returned(part, part + 1)) edges.push_back({block.forward[part], block.backward[part]});
    return;
  }
  const bool finishes = !block.finish_forward.empty();
  for (int32_t part = 0; part < layout.num_parts; ++part) {
    const int32_t group = layout.group_of[part];
    edges.push_back({block.forward[part], block.combine_forward[group]});
    if (back) edges.push_back({block.combine_backward[group], block.backward[part]});
    if (!finishes || block.finish_forward[part] < 0) continue;
    edges.push_back({block.combine_forward[group], block.finish_forward[part]});
    if (exit_ >= 0 && op != exit_ && is_idle(op, part)) edges.push_back({block.finish_forward[part], loss()});
    if (!back) continue;
    edges.push_back({block.finish_backward[part], block.combine_backward[group]});
    // Where another copy's gradient begins it, its device serves it after the copy anyway.
    const int32_t first = part / layout.copies * layout.copies;
    if (!returned(first, first + layout.copies) || (thorough_ && returned(part, part + 1)))
      edges.push_back({block.finish_forward[part], block.finish_backward[part]});
  }
  if (finishes || !back) return;
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    const auto& parts = layout.groups[group];
    const auto is_returned = [&](int32_t part) { return returned(part, part + 1); };
    if (thorough_ || std::none_of(parts.begin(), parts.end(), is_returned))
      edges.push_back({block.combine_forward[group], block.combine_backward[group]});
  }
}

}  // namespace soapstone
