#include "tasks/listing.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "support/sorting.hpp"

namespace soapstone {

Listing::Listing(const Graph& graph, Machine machine, const Times& times, const Strategy& strategy, int32_t count)
    : num_microbatches(count), graph_(graph, std::move(machine), times, {.thorough = true, .num_microbatches = count}) {
  graph_.begin(strategy);
  occurrences_ = occurrences(graph_);
  graph_.list(*this);
  sort_rows();
  if (count > 1) repeat();
  link_rows();
}

void Listing::add(Slot slot, TaskRow row) {
  const Task& task = graph_.pool.tasks[slot];
  row.key = task.key;
  row.occurs = occurrences_[slot];
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
  std::iota(order.begin(), order.end(), 0);
  const auto group = [&](int32_t i) { return num_microbatches > 1 ? tasks[i].occurs : Occurrence::each; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return group(a) != group(b) ? group(a) < group(b) : tasks[a].key < tasks[b].key;
  });
  std::vector<TaskRow> sorted;
  std::vector<Slot> slots;
  sorted.reserve(tasks.size());
  for (const int32_t i : order) {
    slots.push_back(slots_[i]);
    sorted.push_back(std::move(tasks[i]));
  }
  tasks = std::move(sorted);
  slots_ = std::move(slots);
  row_of_.assign(graph_.pool.tasks.size(), -1);
  for (size_t row = 0; row < tasks.size(); ++row) {
    row_of_[slots_[row]] = static_cast<int32_t>(row);
    tasks[row].first = static_cast<int32_t>(row);
  }
  const auto count = [&](Occurrence what) {
    return static_cast<int32_t>(
        std::count_if(tasks.begin(), tasks.end(), [&](const TaskRow& row) { return row.occurs == what; }));
  };
  num_each_ = count(Occurrence::each);
  num_first_ = count(Occurrence::first);
}

// The rows of the other microbatches, between those of the first one and those that are for all.
void Listing::repeat() {
  const int32_t begin = num_first_, end = begin + num_each_, more = (num_microbatches - 1) * num_each_;
  std::vector<TaskRow> lasts(std::make_move_iterator(tasks.begin() + end), std::make_move_iterator(tasks.end()));
  const std::vector<Slot> last_slots(slots_.begin() + end, slots_.end());
  tasks.resize(end);
  slots_.resize(end);
  tasks.reserve(end + more + lasts.size());
  for (int32_t microbatch = 1; microbatch < num_microbatches; ++microbatch)
    for (int32_t row = begin; row < end; ++row) {
      tasks.push_back(tasks[row]);
      tasks.back().microbatch = microbatch;
      slots_.push_back(slots_[row]);
    }
  for (size_t i = 0; i < lasts.size(); ++i) {
    row_of_[last_slots[i]] = lasts[i].first = static_cast<int32_t>(tasks.size());
    lasts[i].microbatch = num_microbatches - 1;
    tasks.push_back(std::move(lasts[i]));
    slots_.push_back(last_slots[i]);
  }
}

int32_t Listing::row_of(Slot slot, int32_t microbatch) const {
  const int32_t row = row_of_[slot];
  if (row < 0 || microbatch == 0) return row;
  return tasks[row].occurs == Occurrence::each ? row + microbatch * num_each_ : -1;
}

void Listing::link_rows() {
  const auto add = [&](int32_t from, int32_t to) {
    if (auto& after = tasks[to].after; after.empty() || after.back() != from) after.push_back(from);
  };
  for (size_t row = 0; row < tasks.size(); ++row) {
    const Task& task = graph_.pool.tasks[slots_[row]];
    for (int32_t i = 0; i < task.num_next; ++i) {
      const int32_t next = row_of_[task.next[i]];
      const bool is_for_all = tasks[next].occurs == Occurrence::last;
      const int32_t own = is_for_all ? next : row_of(task.next[i], tasks[row].microbatch);
      if (own >= 0) add(static_cast<int32_t>(row), own);
      if (is_for_all || tasks[row].occurs != Occurrence::first) continue;
      for (int32_t later = 1; later < num_microbatches; ++later)  // what is done once is done for all
        if (const int32_t other = row_of(task.next[i], later); other >= 0) add(static_cast<int32_t>(row), other);
    }
  }
  if (num_microbatches > 1)
    for (const auto& [from, to, lag] : lagged_edges(graph_))
      for (int32_t i = lag; i < num_microbatches; ++i) add(row_of(from, i - lag), row_of(to, i));
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
