#include "tasks/listing.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "support/sorting.hpp"

namespace soapstone {

Listing::Listing(const Graph& graph, Machine machine, const Times& times, const Strategy& strategy)
    : graph_(graph, std::move(machine), times, {.thorough = true}) {
  graph_.begin(strategy);
  graph_.list(*this);
  sort_rows();
}

void Listing::add(Slot slot, TaskRow row) {
  const Task& task = graph_.pool.tasks[slot];
  row.key = task.key;
  row.latency = task.latency;
  if (task.num_holds > 0) row.holds.push_back(task.first);
  if (task.num_holds > 1) row.holds.insert(row.holds.end(), task.holds + 1, task.holds + task.num_holds);
  tasks.push_back(std::move(row));
  slots_.push_back(slot);
}

int32_t Listing::add_flow(FlowRow row, Slot forward, Slot backward) {
  const auto number = static_cast<int32_t>(flows.size());
  flow_[{row.tensor, row.part, row.device}] = number;
  flows.push_back(std::move(row));
  transfers_.emplace_back(forward, backward);
  return number;
}

void Listing::sort_rows() {
  std::vector<int32_t> order(tasks.size());
  row_of_.assign(graph_.pool.tasks.size(), -1);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return tasks[a].key < tasks[b].key; });
  std::vector<TaskRow> sorted;
  std::vector<Slot> slots;
  sorted.reserve(tasks.size());
  for (const int32_t i : order) {
    row_of_[slots_[i]] = static_cast<int32_t>(sorted.size());
    slots.push_back(slots_[i]);
    sorted.push_back(std::move(tasks[i]));
  }
  tasks = std::move(sorted);
  slots_ = std::move(slots);
  for (size_t row = 0; row < tasks.size(); ++row) {
    const Task& task = graph_.pool.tasks[slots_[row]];
    for (int32_t i = 0; i < task.num_next; ++i)
      if (auto& after = tasks[row_of_[task.next[i]]].after; after.empty() || after.back() != static_cast<int32_t>(row))
        after.push_back(static_cast<int32_t>(row));
  }
  for (size_t flow = 0; flow < flows.size(); ++flow) {
    const auto [forward, backward] = transfers_[flow];
    if (forward != none) flows[flow].forward = row_of_[forward];
    if (backward != none) flows[flow].backward = row_of_[backward];
  }
}

Fetch Listing::fetch(OpIndex op, Part part, int32_t input) const {
  const auto& reader = graph_.ops.at(op);
  const int32_t tensor = graph_.graph.ops.at(op).inputs.at(input).tensor;
  const auto& share = reader.layout->inputs[input];
  const auto& read = share.boxes[share.of_part.at(part)];
  Fetch result{hull(read), {}};
  if (!graph_.flows[tensor]) return result;
  const auto& [source, item_size, read_size, grad, factoring, producer, output, readers] = graph_.graph.tensors[tensor];
  const auto& made = graph_.ops[producer].layout->outputs[output];
  for (const OutputPart from : made.of_part.indices()) {
    std::vector<Box> shared;
    for (const auto& a : made.boxes[made.of_part[from]])
      for (const auto& b : read)
        if (auto both = intersect(a, b)) shared.push_back(std::move(*both));
    if (shared.empty()) continue;
    const int32_t flow = flow_.at({tensor, from, reader.configuration.devices[part]});
    result.flows.emplace_back(flow, std::move(shared));
  }
  return result;
}

std::vector<Piece> Listing::pieces(int32_t tensor) const {
  for (size_t group = 0; group < graph_.syncs.groups().size(); ++group) {
    const auto& tensors = graph_.syncs.groups()[group].tensors;
    const auto at = std::find(tensors.begin(), tensors.end(), tensor);
    if (at == tensors.end()) continue;
    auto result = *graph_.syncs[group]->pieces[at - tensors.begin()];
    for (auto& piece : result) join(piece.boxes);
    return result;
  }
  return {};
}

}  // namespace soapstone
