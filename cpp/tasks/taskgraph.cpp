#include "tasks/taskgraph.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "support/sorting.hpp"
#include "tasks/flows.hpp"

namespace soapstone {

namespace {

constexpr size_t many_flows = 64;  // cost more than bounds do

}  // namespace

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
  idle.before.resize(machine.topology.num_resources());
  idle.behind = idle.before;
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
    for (size_t behind = 0; behind < readers.size(); ++behind)
      for (const auto& [other, reader] : reads_[readers[behind].first])
        if (const auto before = index.find(graph.tensors[other].producer); before != index.end())
          shortcuts_[tensor].push_back({before->second, static_cast<int32_t>(behind), other, reader});
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
  flow_builder_->set_limit(INT64_MAX, false);
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
  meets_ = find_whether_meets();
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

// Whatever throws, take_back puts back what was.
void TaskGraph::change(const std::vector<std::pair<int32_t, Configuration>>& changes) {
  layouts_.forget();
  before_ = totals;
  met_before_ = meets_;
  changed_.clear();
  for (const auto& [op, configuration] : changes) {
    auto state = configured(op, configuration);
    count(op, ops[op], -1);
    count(op, state, 1);
    std::swap(ops[op], state);
    undo_.ops.emplace_back(op, std::move(state));
    changed_.push_back(op);
    changing_[op] = true;
  }
}

// The changed ops' neighbours: the tensors and groups whose blocks are replaced.
void TaskGraph::find_reach() {
  rerouted_.clear();
  regrouped_.clear();
  for (const auto& [op, old] : undo_.ops) {
    for (const auto* operands : {&graph.ops[op].inputs, &graph.ops[op].outputs})
      for (const auto& operand : *operands)
        if (graph.tensors[operand.tensor].source == Source::op) rerouted_.push_back(operand.tensor);
    for (const auto& [group, place] : groups_of_op[op]) regrouped_.push_back(group);
  }
  sort_unique(rerouted_);
  sort_unique(regrouped_);
}

void TaskGraph::relink(int32_t op, bool differs) {
  if (!differs || relinking_[op]) return;
  relinking_[op] = true;
  relinked_.push_back(op);
}

void TaskGraph::regroup() {
  find_reach();
  for (const int32_t group : regrouped_) {
    auto block = find_syncs(group);
    count(groups[group], *syncs[group], -1);
    count(groups[group], *block, 1);
    std::swap(syncs[group], block);
    undo_.syncs.emplace_back(group, std::move(block));
  }
  set_updates();
  for (const int32_t tensor : rerouted_) count(*flows[tensor], -1);
  meets_ = will_meet();
}

bool TaskGraph::route(int64_t limit) {
  flow_builder_->set_limit(limit, meets_);
  size_t num_flows = 0;
  while (num_flows < many_flows && !unrouted().empty()) {
    const int32_t tensor = unrouted()[0];
    auto block = spare_flows_.take();
    const bool fits = flow_builder_->find(tensor, *block);
    if (fits) count(*block, 1);
    num_flows += block->flows.size();
    std::swap(flows[tensor], block);
    undo_.flows.emplace_back(tensor, std::move(block));
    if (!fits) return false;
  }
  if (unrouted().empty()) meets_ = find_whether_meets();
  return true;
}

// An op whose outputs' parts are all read, or all get a gradient where it has a backward.
bool TaskGraph::goes_on(int32_t op) const {
  const auto& outputs = graph.ops[op].outputs;
  return op == exit_ || std::any_of(outputs.begin(), outputs.end(), [&](const Operand& output) {
           const auto& block = *flows[output.tensor];
           return graph.ops[op].backward ? block.all_return : block.all_read;
         });
}

// Whether tasks surely meet at the loss, known before any flow is.
bool TaskGraph::will_meet() {
  if (!met_before_ || ops[exit_].layout->num_output_parts != 1) return false;
  const auto goes_on = [&](const Operand& output) {
    const bool back = graph.ops[graph.tensors[output.tensor].producer].backward;
    if (std::binary_search(rerouted_.begin(), rerouted_.end(), output.tensor)) return is_wanted(output.tensor, back);
    return back ? flows[output.tensor]->all_return : flows[output.tensor]->all_read;
  };
  for (const int32_t tensor : rerouted_) {
    const int32_t op = graph.tensors[tensor].producer;
    const auto& outputs = graph.ops[op].outputs;
    if (op != exit_ && std::none_of(outputs.begin(), outputs.end(), goes_on)) return false;
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

bool TaskGraph::find_whether_meets() const {
  if (exit_ < 0 || !graph.ops[exit_].backward || ops[exit_].layout->num_output_parts != 1) return false;
  const auto waits = [](const auto& block) { return block->all_wait; };
  if (met_before_)  // and what the change does not reach still does
    return std::all_of(rerouted_.begin(), rerouted_.end(),
                       [&](int32_t tensor) { return goes_on(graph.tensors[tensor].producer); }) &&
           std::all_of(regrouped_.begin(), regrouped_.end(), [&](int32_t group) { return waits(syncs[group]); });
  for (int32_t op = 0; op < static_cast<int32_t>(ops.size()); ++op)
    if (!goes_on(op)) return false;
  return std::all_of(syncs.begin(), syncs.end(), waits) &&
         std::all_of(undo_.syncs.begin(), undo_.syncs.end(), [&](const auto& old) { return waits(old.second); });
}

void TaskGraph::replaced(const Block& old, const Block& block) {
  gone_.emplace_back(old.begin, old.count);
  fresh_.emplace_back(block.begin, block.count);
}

void TaskGraph::link() {
  undo_.linked = true;
  gone_.clear();
  fresh_.clear();
  rewired_.clear();
  relinked_.clear();
  std::fill(relinking_.begin(), relinking_.end(), false);
  for (const auto& [op, old] : undo_.ops) {
    replaced(*old.block, *ops[op].block);
    relink(op, true);
    pool.unlink(old.next->slots);
  }
  for (const auto& [tensor, old] : undo_.flows) replace_flows(tensor, *old);
  for (const auto& [group, old] : undo_.syncs) replace_syncs(group, *old);
  reupdated_.clear();
  for (int32_t device = 0; device < machine.topology.num_devices(); ++device) {
    if (before_.elements[device] == totals.elements[device]) continue;
    reupdated_.push_back(device);
    if (before_.elements[device] == 0) fresh_.emplace_back(device, 1);
    if (totals.elements[device] == 0) gone_.emplace_back(device, 1);
  }
  if (exit_ >= 0 && changing_[exit_])
    for (int32_t op = 0; op < static_cast<int32_t>(ops.size()); ++op) relink(op, has_idle(op));
  for (const int32_t op : relinked_) {
    auto next = make_next(op);
    if (!changing_[op]) {
      rewired_.emplace_back(ops[op].block->begin, ops[op].block->count);
      pool.unlink(ops[op].next->slots);
      undo_.next.emplace_back(op, std::move(ops[op].next));
    }
    pool.link(next->slots);
    ops[op].next = std::move(next);
    point_to_next(op);
  }
}

void TaskGraph::replace_flows(int32_t tensor, const FlowBlock& old) {
  auto& block = *flows[tensor];
  flow_builder_->join(tensor, block, &old);
  if (block.shares(old))
    rewired_.emplace_back(block.begin, block.count);
  else
    replaced(old, block);
  pool.unlink(old.next);
  pool.link(block.next);
  relink(graph.tensors[tensor].producer,
         old.forward != block.forward || old.read != block.read || old.returns != block.returns);
  for (size_t i = 0; i < graph.tensors[tensor].readers.size(); ++i)
    relink(graph.tensors[tensor].readers[i].first, old.backward[i] != block.backward[i]);
}

void TaskGraph::replace_syncs(int32_t group, const SyncBlock& old) {
  join_syncs(group);
  const auto& block = *syncs[group];
  for (size_t i = 0; i < groups[group].ops.size(); ++i) relink(groups[group].ops[i], old.edges[i] != block.edges[i]);
  if (old.tasks == block.tasks) return;
  replaced(*old.tasks, *block.tasks);
  pool.unlink(old.tasks->next);
  pool.link(block.tasks->next);
}

void TaskGraph::Undo::clear() {
  ops.clear();
  flows.clear();
  syncs.clear();
  next.clear();
  linked = false;
}

void TaskGraph::keep() {
  for (auto& [op, state] : undo_.ops) {
    drop(state);
    changing_[op] = false;
  }
  for (auto& [tensor, block] : undo_.flows) drop(std::move(block), *flows[tensor]);
  for (auto& [group, block] : undo_.syncs) drop(std::move(block), *syncs[group]);
  for (auto& [op, next] : undo_.next) spare_next_.give(std::move(next));
  undo_.clear();
}

void TaskGraph::drop(OpState& state) {
  pool.give_back(*state.block);
  spare_ops_.give(std::move(state.block));
  spare_next_.give(std::move(state.next));
}

// One of two blocks of a tensor.
void TaskGraph::drop(std::unique_ptr<FlowBlock> block, const FlowBlock& other) {
  if (!block->shares(other)) pool.give_back(*block);
  spare_flows_.give(std::move(block));
}

void TaskGraph::drop(std::unique_ptr<SyncBlock> block, const SyncBlock& other) {
  if (block->tasks != other.tasks) pool.give_back(*block->tasks);
  spare_syncs_.give(std::move(block));
}

void TaskGraph::take_back() {
  if (undo_.linked) unlink();
  for (auto& [op, old] : undo_.ops) {
    count_largest(op, ops[op], -1);
    count_largest(op, old, 1);
    std::swap(ops[op], old);
    drop(old);
    changing_[op] = false;
  }
  for (auto& [tensor, old] : undo_.flows) {
    std::swap(flows[tensor], old);
    drop(std::move(old), *flows[tensor]);
  }
  for (auto& [group, old] : undo_.syncs) {
    std::swap(syncs[group], old);
    drop(std::move(old), *syncs[group]);
  }
  totals.elements = before_.elements;
  set_updates();
  totals = before_;
  meets_ = met_before_;
  undo_.clear();
}

void TaskGraph::unlink() {
  for (const int32_t op : relinked_) pool.unlink(ops[op].next->slots);
  for (const auto& [tensor, block] : undo_.flows) {
    pool.unlink(flows[tensor]->next);
    pool.link(block->next);
    if (block->shares(*flows[tensor])) flow_builder_->point(*block);
  }
  for (const auto& [group, block] : undo_.syncs) {
    if (block->tasks == syncs[group]->tasks) continue;
    pool.unlink(syncs[group]->tasks->next);
    pool.link(block->tasks->next);
  }
  for (const auto& [op, old] : undo_.ops) pool.link(old.next->slots);
  for (auto& [op, old] : undo_.next) {
    std::swap(ops[op].next, old);
    spare_next_.give(std::move(old));
    point_to_next(op);
    pool.link(ops[op].next->slots);
  }
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

// ---- what adds up ----

Totals::Totals(size_t num_resources, size_t num_devices)
    : work(num_resources), before(num_resources), behind(num_resources), compute(num_devices), elements(num_devices) {
  for (auto* column : {&memory.parameters, &memory.gradients, &memory.saved, &memory.made, &memory.buckets})
    column->resize(num_devices);
}

void TaskGraph::count(const Block& block, int64_t sign) {
  const auto add = [&](std::vector<int64_t>& to, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) to[block.holds[i].resource] += sign * block.holds[i].duration;
  };
  add(totals.before, 0, block.num_before);
  add(totals.work, 0, block.holds.size());
  add(totals.behind, block.first_behind, block.holds.size());
}

void TaskGraph::count(int32_t op, const OpState& state, int64_t sign) {
  count(static_cast<const Block&>(*state.block), sign);
  for (int32_t part = 0; part < state.layout->num_parts; ++part) {
    const int32_t device = state.configuration.devices[part];
    for (const auto* slots :
         {&state.block->forward, &state.block->finish_forward, &state.block->finish_backward, &state.block->backward})
      if (!slots->empty() && (*slots)[part] >= 0)
        totals.compute[device] += sign * pool.tasks[(*slots)[part]].first.duration;
    totals.memory.saved[device] += sign * state.layout->saved[part];
    totals.memory.made[device] += sign * state.layout->made[part];
  }
  count_largest(op, state, sign);
}

void TaskGraph::count_largest(int32_t op, const OpState& state, int64_t sign) {
  const auto num_devices = static_cast<size_t>(machine.topology.num_devices());
  for (int32_t part = 0; part < state.layout->num_parts; ++part) {
    const int32_t device = state.configuration.devices[part];
    auto& largest = largest_[op * num_devices + device];
    largest = sign < 0 ? 0 : std::max(largest, state.layout->working[part]);
    transient_known_[device] = false;
  }
}

void TaskGraph::count(const FlowBlock& block, int64_t sign) {
  const auto add = [&](std::vector<int64_t>& to, const std::vector<Hold>& sums) {
    for (const auto& [resource, duration] : sums) {
      to[resource] += sign * duration;
      totals.work[resource] += sign * duration;
    }
  };
  add(totals.before, block.before);
  add(totals.behind, block.behind);
  for (size_t device = 0; device < block.made.size(); ++device) totals.memory.made[device] += sign * block.made[device];
}

void TaskGraph::count(const SyncGroup& group, const SyncBlock& block, int64_t sign) {
  count(*block.tasks, sign);
  for (size_t i = 0; i < group.tensors.size(); ++i)
    for (const auto& piece : *block.pieces[i])
      for (const int32_t device : piece.holders) {
        const int64_t bytes = piece.elements * graph.tensors[group.tensors[i]].item_size;
        totals.memory.parameters[device] += sign * bytes;
        if (!group.grad) continue;
        totals.memory.gradients[device] += sign * bytes;
        totals.elements[device] += sign * piece.elements;
      }
  for (const auto& bucket : block.tasks->buckets)
    for (const int32_t device : bucket.holders) totals.memory.buckets[device] += sign * bucket.bytes;
}

void TaskGraph::set_updates() {
  for (int32_t device = 0; device < machine.topology.num_devices(); ++device) {
    const int64_t duration = machine.update_time(device, totals.elements[device]);
    auto& task = pool.tasks[device];
    totals.work[device] += duration - task.first.duration;
    totals.behind[device] += duration - task.first.duration;
    task.first = {device, duration};
    task.num_holds = 1;
    task.tail = no_tail();
  }
}

int64_t TaskGraph::lasting(int32_t device, int64_t num_states) const {
  return totals.memory.parameters[device] + (1 + num_states) * totals.memory.gradients[device] +
         totals.memory.saved[device] + totals.memory.made[device] + totals.memory.buckets[device];
}

std::vector<int64_t> TaskGraph::memory_bound(int64_t num_states) {
  std::vector<int64_t> bound = transient();
  for (size_t device = 0; device < bound.size(); ++device) bound[device] += lasting(device, num_states);
  return bound;
}

bool TaskGraph::surely_fits(const std::vector<int64_t>& limit, int64_t num_states) const {
  int64_t largest = 0;
  for (const auto& op : ops)
    largest = std::max(largest, *std::max_element(op.layout->working.begin(), op.layout->working.end()));
  for (size_t device = 0; device < limit.size(); ++device)
    if (lasting(device, num_states) + largest > limit[device]) return false;
  return true;
}

const std::vector<int64_t>& TaskGraph::transient() {
  const auto num_devices = static_cast<size_t>(machine.topology.num_devices());
  for (size_t device = 0; device < num_devices; ++device) {
    if (transient_known_[device]) continue;
    transient_[device] = 0;
    for (size_t op = 0; op < ops.size(); ++op)
      transient_[device] = std::max(transient_[device], largest_[op * num_devices + device]);
    transient_known_[device] = true;
  }
  return transient_;
}

}  // namespace soapstone
