#include "taskgraph.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

namespace soapstone {

namespace {

enum Phase : uint64_t { forward_phase, backward_phase, sync_phase, update_phase };

// phase 2 bits, op 16, kind 3, slot 7, major 18, minor 18.
uint64_t pack(uint64_t phase, int64_t op, Kind kind, int64_t slot, int64_t major, int64_t minor) {
  constexpr int64_t wide = 1 << 18, most_ops = 1 << 16, most_slots = 1 << 7;
  if (op >= most_ops || slot >= most_slots || major >= wide || minor >= wide)
    throw std::invalid_argument(
        "the task graph has more than 2^16 ops, 2^18 parts or devices, or 128 outputs of one op");
  uint64_t key = phase << 16 | static_cast<uint64_t>(op);
  key = key << 3 | static_cast<uint64_t>(kind);
  key = key << 7 | static_cast<uint64_t>(slot);
  key = key << 18 | static_cast<uint64_t>(major);
  return key << 18 | static_cast<uint64_t>(minor);
}

int64_t group_index(const Op& op, const std::vector<int32_t>& degrees, int64_t part) {
  std::vector<int64_t> coordinate(op.dims.size());
  for (size_t i = op.dims.size(); i-- > 0; part /= degrees[i]) coordinate[i] = part % degrees[i];
  int64_t index = 0;
  for (size_t i = 0; i < op.dims.size(); ++i)
    if (!op.dims[i].combinable) index = index * degrees[i] + coordinate[i];
  return index;
}

std::vector<int32_t> sorted_unique(std::vector<int32_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

TaskGraph::TaskGraph(const Graph& graph, const Topology& topology, std::vector<Configuration> strategy,
                     std::vector<std::vector<PartTimes>> times, std::vector<double> update_ns_per_element,
                     int64_t update_overhead, int64_t bucket_bytes)
    : fetches(graph.ops.size()),
      values(graph.ops.size()),
      pieces(graph.tensors.size()),
      groups(graph.ops.size()),
      graph_(graph),
      topology_(topology),
      strategy_(std::move(strategy)),
      times_(std::move(times)),
      update_ns_per_element_(std::move(update_ns_per_element)),
      update_overhead_(update_overhead),
      bucket_bytes_(bucket_bytes),
      layouts_(graph.ops.size()),
      piece_readers_(graph.tensors.size()) {
  for (const auto& tensor : graph.tensors)
    if (tensor.source == Source::op && tensor.producer < 0)
      throw std::invalid_argument("no op makes one of the tensors");
  const auto num_ops = static_cast<int32_t>(graph.ops.size());
  const auto num_tensors = static_cast<int32_t>(graph.tensors.size());
  for (int32_t op = 0; op < num_ops; ++op) lay_out(op);
  for (int32_t op = 0; op < num_ops; ++op) add_forward(op);
  for (int32_t op = 0; op < num_ops; ++op) add_backward(op);
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) add_flows(tensor);
  for (size_t flow = 0; flow < flows.size(); ++flow) {
    connect(static_cast<int32_t>(flow));
    connect_gradient(static_cast<int32_t>(flow));
  }
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) add_pieces(tensor);
  add_syncs();
  add_updates();
  sort_by_key();
}

void TaskGraph::lay_out(int32_t op) {
  const auto& spec = graph_.ops[op];
  const auto& [degrees, devices] = strategy_[op];
  auto& layout = layouts_[op];
  for (size_t i = 0; i < degrees.size(); ++i) {
    layout.num_parts *= degrees[i];
    (spec.dims[i].extra ? layout.copies : layout.num_output_parts) *= degrees[i];
    layout.combines |= spec.dims[i].combinable && degrees[i] > 1;
  }
  layout.group_of.resize(layout.num_parts);
  layout.first_on_device.resize(layout.num_parts);
  if (layout.combines) groups[op].resize(group_index(spec, degrees, layout.num_parts - 1) + 1);
  for (int32_t part = 0; part < layout.num_parts; ++part) {
    layout.group_of[part] = static_cast<int32_t>(group_index(spec, degrees, part));
    if (layout.combines) groups[op][layout.group_of[part]].push_back(part);
    int32_t first = part / layout.copies * layout.copies;
    while (devices[first] != devices[part]) ++first;
    layout.first_on_device[part] = first;
  }
  for (auto* rows : {&layout.forward, &layout.finish_forward, &layout.finish_backward, &layout.backward})
    rows->assign(layout.num_parts, -1);
  layout.combine_forward.assign(groups[op].size(), -1);
  layout.combine_backward.assign(groups[op].size(), -1);
  fetches[op].assign(layout.num_parts, std::vector<Fetch>(spec.inputs.size()));
  values[op].reserve(layout.num_parts);
  for (int32_t part = 0; part < layout.num_parts; ++part)
    values[op].push_back(regions(spec, op_box(spec, strategy_[op].degrees, part)).values);
}

int32_t TaskGraph::push(Task task, uint64_t key) {
  task.key = key;
  tasks.push_back(std::move(task));
  return static_cast<int32_t>(tasks.size()) - 1;
}

// Backward runs the ops the other way round, so ties go to the later op there.
uint64_t TaskGraph::key(const Task& task, int64_t op, int64_t slot, int64_t major, int64_t minor) const {
  const int64_t order = task.backward ? static_cast<int64_t>(graph_.ops.size()) - 1 - op : op;
  return pack(task.backward ? backward_phase : forward_phase, order, task.kind, slot, major, minor);
}

void TaskGraph::add_compute(int32_t op, int32_t part, bool backward, bool finish, int64_t duration,
                            std::vector<int32_t>& rows) {
  const int32_t device = strategy_[op].devices[part];
  Task task;
  task.kind = backward ? Kind::backward : Kind::forward;
  task.op = op;
  task.part = part;
  task.backward = backward;
  task.finish = finish;
  task.devices = {device};
  task.holds = {{device, std::max<int64_t>(duration, 1)}};
  const uint64_t packed = key(task, op, finish, part, device);
  rows[part] = push(std::move(task), packed);
}

void TaskGraph::add_combines(int32_t op, bool backward) {
  const auto& combine = graph_.ops[op].combine;
  auto& layout = layouts_[op];
  for (size_t group = 0; group < groups[op].size(); ++group) {
    Task task;
    task.kind = Kind::combine;
    task.op = op;
    task.part = static_cast<int32_t>(group);
    task.backward = backward;
    for (const int32_t part : groups[op][group]) task.devices.push_back(strategy_[op].devices[part]);
    task.devices = sorted_unique(std::move(task.devices));
    const Box head = regions(graph_.ops[op], op_box(graph_.ops[op], strategy_[op].degrees, groups[op][group][0]))
                         .step_dims[graph_.ops[op].head];
    task.bytes = combine.item_size * combine.factor;
    for (const int32_t dim : combine.dims) task.bytes *= head[dim].size();
    if (combine.gather) task.bytes *= static_cast<int64_t>(groups[op][group].size());
    task.latency = topology_.all_reduce(task.devices, task.bytes, task.holds);
    const uint64_t packed = key(task, op, 0, static_cast<int64_t>(group), 0);
    (backward ? layout.combine_backward : layout.combine_forward)[group] = push(std::move(task), packed);
  }
}

void TaskGraph::add_forward(int32_t op) {
  auto& layout = layouts_[op];
  const bool finishes = layout.combines && graph_.ops[op].combine.finish;
  add_combines(op, false);
  for (int32_t part = 0; part < layout.num_parts; ++part) {
    add_compute(op, part, false, false, times_[op][part].forward, layout.forward);
    if (!layout.combines) continue;
    const int32_t combine = layout.combine_forward[layout.group_of[part]];
    wait_for(combine, layout.forward[part]);
    if (!finishes || layout.first_on_device[part] != part) continue;
    add_compute(op, part, false, true, times_[op][part].finish_forward, layout.finish_forward);
    wait_for(layout.finish_forward[part], combine);
  }
}

void TaskGraph::add_backward(int32_t op) {
  if (!graph_.ops[op].backward) return;
  auto& layout = layouts_[op];
  const bool finishes = layout.combines && graph_.ops[op].combine.finish;
  add_combines(op, true);
  for (int32_t part = 0; part < layout.num_parts; ++part) {
    add_compute(op, part, true, false, times_[op][part].backward, layout.backward);
    if (!layout.combines) {
      wait_for(layout.backward[part], layout.forward[part]);
      continue;
    }
    const int32_t group = layout.group_of[part];
    wait_for(layout.backward[part], layout.combine_backward[group]);
    if (!finishes) wait_for(layout.combine_backward[group], layout.combine_forward[group]);
    if (!finishes || layout.first_on_device[part] != part) continue;
    add_compute(op, part, true, true, times_[op][part].finish_backward, layout.finish_backward);
    wait_for(layout.finish_backward[part], layout.finish_forward[part]);
    wait_for(layout.combine_backward[group], layout.finish_backward[part]);
  }
}

// What a part reads of one input, over the tensor's own dims.
std::vector<Box> TaskGraph::read_boxes(int32_t op, int32_t part, int32_t input) const {
  const auto& reader = graph_.ops[op];
  const auto& [tensor, value] = reader.inputs[input];
  return project(values[op][part][value], reader.values[value], graph_.tensors[tensor].factoring);
}

void TaskGraph::add_flows(int32_t index) {
  const auto& tensor = graph_.tensors[index];
  if (tensor.source != Source::op) return;
  const auto& producer = graph_.ops[tensor.producer];
  const auto& made = strategy_[tensor.producer];
  const auto& layout = layouts_[tensor.producer];
  const int32_t made_value = producer.outputs[tensor.output].value;

  std::vector<std::vector<Box>> owned(layout.num_output_parts);
  for (int32_t part = 0; part < layout.num_output_parts; ++part) {
    const auto& box = values[tensor.producer][static_cast<size_t>(part) * layout.copies][made_value];
    owned[part] = project(box, producer.values[made_value], tensor.factoring);
  }
  std::map<std::pair<int32_t, int32_t>, int32_t> index_of;  // (output part, device) -> flow
  for (const auto& [op, input] : tensor.readers) {
    for (int32_t part = 0; part < layouts_[op].num_parts; ++part) {
      const auto read = read_boxes(op, part, input);
      auto& fetch = fetches[op][part][input];
      fetch.hull = hull(read);
      const int32_t device = strategy_[op].devices[part];
      for (int32_t from = 0; from < layout.num_output_parts; ++from) {
        std::vector<Box> shared;
        for (const auto& a : owned[from])
          for (const auto& b : read)
            if (auto both = intersect(a, b)) shared.push_back(std::move(*both));
        if (shared.empty()) continue;
        const auto [at, fresh] = index_of.try_emplace({from, device}, static_cast<int32_t>(flows.size()));
        if (fresh) {
          const auto* first = made.devices.data() + static_cast<ptrdiff_t>(from) * layout.copies;
          const bool here = std::find(first, first + layout.copies, device) != first + layout.copies;
          flows.push_back({index, from, device, here ? device : *first, {}, -1, -1, {}});
        }
        auto& flow = flows[at->second];
        extend(flow.hull, hull(shared));
        flow.readers.emplace(op, part);
        fetch.flows.emplace_back(at->second, std::move(shared));
      }
    }
  }
}

// The part that makes, or finishes, a flow's output part on its source.
int32_t TaskGraph::part_on_source(const Flow& flow) const {
  const int32_t op = graph_.tensors[flow.tensor].producer;
  int32_t part = flow.part * layouts_[op].copies;
  while (strategy_[op].devices[part] != flow.source) ++part;
  return part;
}

int32_t TaskGraph::add_transfer(int32_t index, bool backward, std::vector<int32_t> after) {
  const auto& flow = flows[index];
  const auto& tensor = graph_.tensors[flow.tensor];
  Task task;
  task.kind = Kind::transfer;
  task.op = tensor.producer;
  task.part = flow.part;
  task.flow = index;
  task.backward = backward;
  task.devices = {flow.source, flow.device};
  if (backward) std::swap(task.devices[0], task.devices[1]);
  task.bytes = volume(flow.hull) * tensor.item_size;
  task.latency = topology_.transfer(task.devices[0], task.devices[1], task.bytes, task.holds);
  task.after = std::move(after);
  const uint64_t packed = key(task, task.op, tensor.output, flow.part, flow.device);
  return push(std::move(task), packed);
}

// Readers wait for the task after which the part is whole on its source, or for its transfer.
void TaskGraph::connect(int32_t index) {
  const auto& layout = layouts_[graph_.tensors[flows[index].tensor].producer];
  const int32_t part = part_on_source(flows[index]);
  int32_t arrival = layout.combines ? layout.finish_forward[part] : layout.forward[part];
  if (arrival < 0) arrival = layout.combine_forward[layout.group_of[part]];
  if (flows[index].source != flows[index].device)
    arrival = flows[index].forward = add_transfer(index, false, {arrival});
  for (const auto& [op, reader] : flows[index].readers) wait_for(layouts_[op].forward[reader], arrival);
}

// The part's backward waits for its readers' gradients, or for the transfer of their sum.
void TaskGraph::connect_gradient(int32_t index) {
  const auto& tensor = graph_.tensors[flows[index].tensor];
  if (!tensor.grad) return;
  const auto& layout = layouts_[tensor.producer];
  const int32_t part = part_on_source(flows[index]);
  int32_t sink = layout.combines ? layout.finish_backward[part] : layout.backward[part];
  if (sink < 0) sink = layout.combine_backward[layout.group_of[part]];
  std::vector<int32_t> given;
  for (const auto& [op, reader] : flows[index].readers)
    if (graph_.ops[op].backward) given.push_back(layouts_[op].backward[reader]);
  if (given.empty()) return;
  if (flows[index].source != flows[index].device)
    given = {flows[index].backward = add_transfer(index, true, std::move(given))};
  for (const int32_t row : given) wait_for(sink, row);
}

void TaskGraph::add_pieces(int32_t index) {
  const auto& tensor = graph_.tensors[index];
  if (tensor.source != Source::parameter) return;
  std::map<int32_t, std::vector<Box>> reads;
  std::vector<std::tuple<int32_t, int32_t, std::vector<Box>>> parts;
  for (const auto& [op, input] : tensor.readers) {
    for (int32_t part = 0; part < layouts_[op].num_parts; ++part) {
      auto boxes = read_boxes(op, part, input);
      auto& fetch = fetches[op][part][input];
      fetch.hull = hull(boxes);
      auto& here = reads[strategy_[op].devices[part]];
      here.insert(here.end(), boxes.begin(), boxes.end());
      parts.emplace_back(op, part, std::move(boxes));
    }
  }
  pieces[index] = pieces_of(reads);
  piece_readers_[index].resize(pieces[index].size());
  for (size_t piece = 0; piece < pieces[index].size(); ++piece)
    for (const auto& [op, part, boxes] : parts) {
      const auto touches = [&](const Box& a) {
        return std::any_of(boxes.begin(), boxes.end(), [&](const Box& b) { return overlap(a, b); });
      };
      if (std::any_of(pieces[index][piece].boxes.begin(), pieces[index][piece].boxes.end(), touches))
        piece_readers_[index][piece].emplace_back(op, part);
    }
}

// Pieces in the order in which backward completes them, cut into buckets of one holder set.
void TaskGraph::add_syncs() {
  std::vector<std::pair<int32_t, int32_t>> parameters;  // (first reader, tensor)
  for (size_t i = 0; i < graph_.tensors.size(); ++i) {
    const auto& tensor = graph_.tensors[i];
    if (tensor.source == Source::parameter && tensor.grad && !tensor.readers.empty())
      parameters.emplace_back(-tensor.readers.front().first, static_cast<int32_t>(i));
  }
  std::sort(parameters.begin(), parameters.end());
  std::vector<std::pair<int32_t, int32_t>> bucket;
  int64_t bytes = 0;
  const auto close = [&] {
    if (!bucket.empty()) add_sync(bucket);
    bucket.clear();
    bytes = 0;
  };
  for (const auto& [order, tensor] : parameters)
    for (size_t i = 0; i < pieces[tensor].size(); ++i) {
      const auto& piece = pieces[tensor][i];
      if (piece.holders.size() < 2) continue;
      const int64_t more = piece.elements * graph_.tensors[tensor].item_size;
      const bool same = !bucket.empty() && pieces[bucket[0].first][bucket[0].second].holders == piece.holders &&
                        graph_.tensors[bucket[0].first].item_size == graph_.tensors[tensor].item_size;
      if (!same || bytes + more > bucket_bytes_) close();
      bucket.emplace_back(tensor, static_cast<int32_t>(i));
      bytes += more;
    }
  close();
}

void TaskGraph::add_sync(const std::vector<std::pair<int32_t, int32_t>>& bucket) {
  const auto& [tensor, first] = bucket[0];
  Task task;
  task.kind = Kind::sync;
  task.op = graph_.tensors[tensor].readers.front().first;
  task.part = first;
  task.backward = true;
  task.devices = pieces[tensor][first].holders;
  task.pieces = bucket;
  for (const auto& [parameter, piece] : bucket) {
    task.bytes += pieces[parameter][piece].elements * graph_.tensors[parameter].item_size;
    for (const auto& [op, part] : piece_readers_[parameter][piece])
      if (graph_.ops[op].backward) task.after.push_back(layouts_[op].backward[part]);
  }
  task.latency = topology_.all_reduce(task.devices, task.bytes, task.holds);
  const int64_t order = static_cast<int64_t>(graph_.ops.size()) - 1 - task.op;
  push(std::move(task), pack(sync_phase, order, Kind::sync, 0, tensor, first));
}

void TaskGraph::add_updates() {
  std::map<int32_t, int64_t> elements;
  std::map<int32_t, std::vector<int32_t>> after;
  for (size_t i = 0; i < graph_.tensors.size(); ++i) {
    if (!graph_.tensors[i].grad) continue;
    for (size_t p = 0; p < pieces[i].size(); ++p) {
      const auto& piece = pieces[i][p];
      for (const int32_t device : piece.holders) elements[device] += piece.elements;
      if (piece.holders.size() == 1)
        for (const auto& [op, part] : piece_readers_[i][p])
          if (graph_.ops[op].backward) after[piece.holders[0]].push_back(layouts_[op].backward[part]);
    }
  }
  for (size_t row = 0; row < tasks.size(); ++row)
    if (tasks[row].kind == Kind::sync)
      for (const int32_t device : tasks[row].devices) after[device].push_back(static_cast<int32_t>(row));
  for (const auto& [device, count] : elements) {
    Task task;
    task.kind = Kind::update;
    task.devices = {device};
    const double nanoseconds = update_ns_per_element_[device] * static_cast<double>(count);
    task.holds = {{device, update_overhead_ + std::max<int64_t>(std::llround(nanoseconds), 1)}};
    task.after = after[device];
    push(std::move(task), pack(update_phase, 0, Kind::update, 0, 0, device));
  }
}

void TaskGraph::sort_by_key() {
  std::vector<int32_t> order(tasks.size()), row(tasks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return tasks[a].key < tasks[b].key; });
  std::vector<Task> sorted;
  sorted.reserve(tasks.size());
  for (size_t i = 0; i < order.size(); ++i) {
    row[order[i]] = static_cast<int32_t>(i);
    sorted.push_back(std::move(tasks[order[i]]));
  }
  for (auto& task : sorted) {
    for (auto& other : task.after) other = row[other];
    task.after = sorted_unique(std::move(task.after));
  }
  for (auto& flow : flows)
    for (auto* transfer : {&flow.forward, &flow.backward})
      if (*transfer >= 0) *transfer = row[*transfer];
  tasks = std::move(sorted);
}

TaskList TaskGraph::list() const {
  TaskList result;
  result.num_resources = topology_.num_resources();
  result.hold_begin.push_back(0);
  result.predecessor_begin.push_back(0);
  for (const auto& task : tasks) {
    result.keys.push_back(task.key);
    result.latency.push_back(task.latency);
    result.holds.insert(result.holds.end(), task.holds.begin(), task.holds.end());
    result.hold_begin.push_back(static_cast<int32_t>(result.holds.size()));
    result.predecessors.insert(result.predecessors.end(), task.after.begin(), task.after.end());
    result.predecessor_begin.push_back(static_cast<int32_t>(result.predecessors.size()));
  }
  return result;
}

}  // namespace soapstone
