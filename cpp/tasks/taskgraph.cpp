#include "tasks/taskgraph.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "support/sorting.hpp"
#include "tasks/flows.hpp"

namespace soapstone {

TaskGraph::TaskGraph(const Graph& of, Machine on, const Times& times, bool thorough)
    : graph(of),
      machine(std::move(on)),
      pool(machine.topology.num_devices()),
      totals(machine.topology.num_resources(), machine.topology.num_devices()),
      ops(graph.ops.size()),
      flows(graph.tensors.size()),
      thorough_(thorough),
      layouts_(graph),
      times_(times),
      reads_(graph.ops.size()),
      shortcuts_(graph.tensors.size()),
      changing_(graph.ops.size()),
      relinking_(graph.ops.size()),
      largest_(graph.ops.size() * machine.topology.num_devices()),
      transient_(machine.topology.num_devices()),
      transient_known_(machine.topology.num_devices()),
      before_(totals),
      flow_builder_(std::make_unique<FlowBuilder>(*this)) {
  for (const auto& tensor : graph.tensors)
    if (tensor.source == Source::op && tensor.producer < 0)
      throw std::invalid_argument("no op makes one of the tensors");
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor)
    for (size_t i = 0; i < graph.tensors[tensor].readers.size(); ++i)
      if (graph.tensors[tensor].source == Source::op)
        reads_[graph.tensors[tensor].readers[i].first].emplace_back(tensor, i);
  find_exit();
  make_groups();
  syncs.resize(groups.size());
  if (!thorough) find_shortcuts();
  for (int32_t device = 0; device < machine.topology.num_devices(); ++device)
    pool.tasks[device].key = pack_key(update_phase, 0, Kind::update, 0, 0, device);
}

TaskGraph::~TaskGraph() = default;

void TaskGraph::find_exit() {
  int32_t count = 0;
  for (size_t op = 0; op < graph.ops.size(); ++op) {
    const auto& outputs = graph.ops[op].outputs;
    const auto is_read = [&](const Operand& output) { return !graph.tensors[output.tensor].readers.empty(); };
    if (std::any_of(outputs.begin(), outputs.end(), is_read)) continue;
    exit_ = ++count == 1 ? static_cast<int32_t>(op) : -1;
  }
}

void TaskGraph::find_shortcuts() {
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (graph.tensors[tensor].source != Source::op) continue;
    const auto& readers = graph.tensors[tensor].readers;
    std::map<int32_t, int32_t> index;
    for (size_t i = 0; i < readers.size(); ++i) index.try_emplace(readers[i].first, static_cast<int32_t>(i));
    for (size_t after = 0; after < readers.size(); ++after)
      for (const auto& [other, reader] : reads_[readers[after].first])
        if (const auto before = index.find(graph.tensors[other].producer); before != index.end())
          shortcuts_[tensor].push_back({before->second, static_cast<int32_t>(after), other, reader});
  }
}

uint64_t TaskGraph::key(bool backward, int64_t op, Kind kind, int64_t slot, int64_t major, int64_t minor) const {
  const int64_t order = backward ? static_cast<int64_t>(graph.ops.size()) - 1 - op : op;
  return pack_key(backward ? backward_phase : forward_phase, order, kind, slot, major, minor);
}

void TaskGraph::begin(const std::vector<Configuration>& strategy) {
  if (strategy.size() != graph.ops.size()) throw std::invalid_argument("a strategy has one configuration an op");
  for (size_t op = 0; op < ops.size(); ++op) {
    ops[op] = configured(static_cast<int32_t>(op), strategy[op]);
    count(static_cast<int32_t>(op), ops[op], 1);
  }
  flow_builder_->set_limit(INT64_MAX, nullptr, false);
  for (size_t tensor = 0; tensor < flows.size(); ++tensor) {
    if (graph.tensors[tensor].source != Source::op) continue;
    flows[tensor] = spare_flows_.take();
    flow_builder_->find(static_cast<int32_t>(tensor), *flows[tensor]);
    flow_builder_->join(static_cast<int32_t>(tensor), *flows[tensor], nullptr);
    count(*flows[tensor], 1);
    pool.link(flows[tensor]->next);
  }
  for (size_t group = 0; group < groups.size(); ++group) {
    syncs[group] = find_syncs(static_cast<int32_t>(group));
    join_syncs(static_cast<int32_t>(group));
    count(groups[group], *syncs[group], 1);
    pool.link(syncs[group]->tasks->next);
  }
  for (size_t op = 0; op < ops.size(); ++op) {
    ops[op].next = make_next(static_cast<int32_t>(op));
    point_to_next(static_cast<int32_t>(op));
    pool.link(ops[op].next->slots);
  }
  set_updates();
  meets_ = meets_now();
}

void TaskGraph::check(const Op& op, const Configuration& configuration) const {
  if (configuration.degrees.size() != op.dims.size()) throw std::invalid_argument("an op has one degree a dim");
  int64_t num_parts = 1;
  for (size_t i = 0; i < op.dims.size(); ++i) {
    const int32_t degree = configuration.degrees[i];
    if (degree < 1 || degree > op.dims[i].size) throw std::invalid_argument("an op's degree is out of range");
    num_parts *= degree;
    if (num_parts > most_parts) throw std::invalid_argument("an op has more than 2^18 parts");
  }
  if (configuration.devices.size() != static_cast<size_t>(num_parts))
    throw std::invalid_argument("a configuration names one device a part");
  for (const int32_t device : configuration.devices)
    if (device < 0 || device >= machine.topology.num_devices()) throw std::invalid_argument("there is no such device");
}

TaskGraph::OpState TaskGraph::configured(int32_t op, const Configuration& configuration) {
  check(graph.ops[op], configuration);
  OpState state{configuration, layouts_.of(op, configuration.degrees), nullptr, nullptr};
  state.block = make_op_block(op, state);
  return state;
}

// An op whose outputs' parts are all read, or all get a gradient where it has a backward.
bool TaskGraph::leads_on(int32_t op) const {
  const auto& outputs = graph.ops[op].outputs;
  return op == exit_ || std::any_of(outputs.begin(), outputs.end(), [&](const Operand& output) {
           const auto& block = *flows[output.tensor];
           return graph.ops[op].backward ? block.all_return : block.all_read;
         });
}

// Whether tasks surely meet at the loss, known before any flow is.
bool TaskGraph::surely_meets() {
  if (!met_before_ || ops[exit_].layout->num_output_parts != 1) return false;
  const auto leads_on = [&](const Operand& output) {
    const bool back = graph.ops[graph.tensors[output.tensor].producer].backward;
    if (std::binary_search(changes_.tensors.begin(), changes_.tensors.end(), output.tensor))
      return is_wanted(output.tensor, back);
    return back ? flows[output.tensor]->all_return : flows[output.tensor]->all_read;
  };
  for (const int32_t tensor : changes_.tensors) {
    const int32_t op = graph.tensors[tensor].producer;
    const auto& outputs = graph.ops[op].outputs;
    if (op != exit_ && std::none_of(outputs.begin(), outputs.end(), leads_on)) return false;
  }
  return std::all_of(undo_.syncs.begin(), undo_.syncs.end(),
                     [&](const auto& old) { return old.second->all_wait && syncs[old.first]->all_wait; });
}

// Whether some reader surely reads every output part, or gives it a gradient.
bool TaskGraph::is_wanted(int32_t tensor, bool back) {
  const auto& readers = graph.tensors[tensor].readers;
  for (size_t i = 0; i < readers.size(); ++i) {
    if (back && !(graph.tensors[tensor].grad && graph.ops[readers[i].first].backward)) continue;
    if (between(tensor, static_cast<int32_t>(i)).all_met) return true;
  }
  return false;
}

const Overlaps& TaskGraph::between(int32_t tensor, int32_t reader) {
  const auto& [op, input] = graph.tensors[tensor].readers[reader];
  return layouts_.between(tensor, reader, *ops[graph.tensors[tensor].producer].layout, *ops[op].layout);
}

const OpBlock& TaskGraph::block_before(int32_t op) const {
  const auto at = std::find_if(undo_.ops.begin(), undo_.ops.end(), [&](const auto& old) { return old.first == op; });
  return at == undo_.ops.end() ? *ops[op].block : *at->second.block;
}

const SyncBlock& TaskGraph::syncs_before(int32_t group) const {
  const auto at =
      std::find_if(undo_.syncs.begin(), undo_.syncs.end(), [&](const auto& old) { return old.first == group; });
  return at == undo_.syncs.end() ? *syncs[group] : *at->second;
}

bool TaskGraph::meets_now() const {
  if (exit_ < 0 || !graph.ops[exit_].backward || ops[exit_].layout->num_output_parts != 1) return false;
  const auto waits = [](const auto& block) { return block->all_wait; };
  if (met_before_)  // and what the change does not reach still does
    return std::all_of(changes_.tensors.begin(), changes_.tensors.end(),
                       [&](int32_t tensor) { return leads_on(graph.tensors[tensor].producer); }) &&
           std::all_of(changes_.groups.begin(), changes_.groups.end(),
                       [&](int32_t group) { return waits(syncs[group]); });
  for (int32_t op = 0; op < static_cast<int32_t>(ops.size()); ++op)
    if (!leads_on(op)) return false;
  return std::all_of(syncs.begin(), syncs.end(), waits) &&
         std::all_of(undo_.syncs.begin(), undo_.syncs.end(), [&](const auto& old) { return waits(old.second); });
}

std::unique_ptr<TaskGraph::Next> TaskGraph::make_next(int32_t op) {
  const auto& block = *ops[op].block;
  edges_.clear();
  inner_edges(op, edges_);
  const auto add = [&](const std::vector<Edge>& more) { edges_.insert(edges_.end(), more.begin(), more.end()); };
  for (const auto& output : graph.ops[op].outputs) add(flows[output.tensor]->forward);
  for (const auto& [tensor, reader] : reads_[op]) add(flows[tensor]->backward[reader]);
  for (const auto& [group, place] : groups_of_op[op]) add(syncs[group]->edges[place]);

  auto next = spare_next_.take();
  next->slots.resize(edges_.size());
  next->end.assign(block.count + 1, 0);
  for (const auto& edge : edges_) ++next->end[edge.from - block.begin + 1];
  std::partial_sum(next->end.begin(), next->end.end(), next->end.begin());
  for (const auto& edge : edges_) next->slots[next->end[edge.from - block.begin]++] = edge.to;
  return next;
}

void TaskGraph::point_to_next(int32_t op) {
  const auto& [slots, end] = *ops[op].next;
  const auto& block = *ops[op].block;
  for (int32_t i = 0, at = 0; i < block.count; at = end[i++]) {
    pool.tasks[block.begin + i].next = slots.data() + at;
    pool.tasks[block.begin + i].num_next = end[i] - at;
  }
}

}  // namespace soapstone
