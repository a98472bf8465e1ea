#include "tasks/compute.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "tasks/listing.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

namespace {

// The first of the parts of one output part that runs on each part's device.
void find_first_on_device(const Layout& layout, const By<Part, Device>& devices, By<Part, Part>& result) {
  result.resize(layout.num_parts);
  for (const Part part : layout.parts()) {
    Part first = layout.first_copy(layout.output_of(part));
    while (devices[first] != devices[part]) ++first;
    result[part] = first;
  }
}

}  // namespace

void OpBlock::clear() {
  holds.clear();
  first_on_device.clear();
  for (auto* slots : {&forward, &finish_forward, &finish_backward, &backward}) slots->clear();
  for (auto* slots : {&combine_forward, &combine_backward}) slots->clear();
  least = {};
}

Slot OpBlock::arrival(const Layout& layout, Part part) const {
  if (!layout.combines) return forward[part];
  return finish_forward.empty() ? combine_forward[layout.group_of[part]] : finish_forward[part];
}

Slot OpBlock::sink(const Layout& layout, Part part) const {
  if (!layout.combines) return backward[part];
  return finish_backward.empty() ? combine_backward[layout.group_of[part]] : finish_backward[part];
}

// Writes the tasks of one role after the other and keeps the least time of each.
class OpBuilder {
 public:
  OpBuilder(TaskGraph& graph, OpIndex op, const OpState& state, OpBlock& block, int32_t count)
      : graph_(graph), op_(op), state_(state), block_(block), writer_(graph.pool, block, count) {}

  void computes(Role role, int64_t PartTimes::* time, int32_t PartTimes::* launch, By<Part, Slot>& slots) {
    const auto& [configuration, layout, unused] = state_;
    const bool finish = role == role_finish_forward || role == role_finish_backward;
    const bool back = role >= role_finish_backward;
    int64_t& least = block_.least[role];
    const Kind kind = back ? Kind::backward : Kind::forward;
    slots.assign(layout->num_parts, none);
    least = INT64_MAX;
    const std::vector<PartTimes>* times = nullptr;
    int32_t known_kind = -1;
    for (const Part part : layout->parts()) {
      if (finish && block_.first_on_device[part] != part) continue;
      const Device device = configuration.devices[part];
      if (const int32_t device_kind = graph_.machine.kinds[device]; device_kind != known_kind) {
        times = &graph_.times.of(op_, layout->degrees, device_kind);
        known_kind = device_kind;
      }
      const PartTimes& of_part = (*times)[layout->extents.of_part[part]];
      int64_t duration = std::max<int64_t>(of_part.*time, 1);
      int32_t launching = of_part.*launch;
      if (role == role_backward && configuration.recompute) {
        const auto [again, launches] = forward_of(of_part, part);
        duration += again;
        launching += launches;
      }
      block_.holds.push_back({resource_of(device), duration, launching});
      const uint64_t key = graph_.key(back, op_, kind, finish, part.value, device.value);
      slots[part] = writer_.add(key, 0, graph_.tail_of(op_, role)).slot;
      least = std::min(least, duration);
    }
  }

  // Of a part's forward, and what it finishes.
  std::pair<int64_t, int32_t> forward_of(const PartTimes& times, Part part) const {
    const bool finishes = !block_.finish_forward.empty() && block_.first_on_device[part] == part;
    return {std::max<int64_t>(times.forward, 1) + (finishes ? std::max<int64_t>(times.finish_forward, 1) : 0),
            times.launch_forward + (finishes ? times.launch_finish_forward : 0)};
  }

  void combines(Role role, std::vector<Slot>& slots) {
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
  OpIndex op_;
  const OpState& state_;
  OpBlock& block_;
  BlockWriter writer_;
};

OpBlocks::OpBlocks(TaskGraph& graph)
    : graph_(graph),
      states_(graph.graph.ops.size()),
      changing_(graph.graph.ops.size()),
      working_(graph.graph.ops.size() * graph.machine.topology.num_devices()),
      most_working_(graph.machine.topology.num_devices()),
      most_known_(graph.machine.topology.num_devices()) {}

void OpBlocks::configure(const Changes& changes, ChangeSet& set) {
  for (const auto& [op, configuration] : changes) {
    auto state = configured(op, configuration);
    count(op, states_[op], -1);
    count(op, state, 1);
    std::swap(states_[op], state);
    replaced_.emplace_back(op, std::move(state));
    set.ops.push_back(op);
    changing_[op] = true;
  }
}

OpState OpBlocks::configured(OpIndex op, const Configuration& configuration) {
  check(op, configuration);
  OpState state{configuration, graph_.layouts.of(op, configuration.degrees), nullptr};
  state.block = make_block(op, state);
  return state;
}

void OpBlocks::check(OpIndex op, const Configuration& configuration) const {
  const auto& dims = graph_.graph.ops[op].dims;
  if (configuration.degrees.size() != dims.size()) throw std::invalid_argument("an op has one degree a dim");
  int64_t num_parts = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int32_t degree = configuration.degrees[i];
    if (degree < 1 || degree > dims[i].size) throw std::invalid_argument("an op's degree is out of range");
    num_parts *= degree;
    if (num_parts > most_parts) throw std::invalid_argument("an op has more than 2^17 parts");
  }
  if (configuration.devices.size() != static_cast<size_t>(num_parts))
    throw std::invalid_argument("a configuration names one device a part");
  for (const Device device : configuration.devices)
    if (!device.is_below(graph_.machine.topology.num_devices())) throw std::invalid_argument("there is no such device");
}

std::unique_ptr<OpBlock> OpBlocks::make_block(OpIndex op, const OpState& state) {
  const auto& layout = *state.layout;
  const bool back = graph_.graph.ops[op].backward;
  const bool finishes = layout.combines && graph_.graph.ops[op].combine.finish;
  auto block = spare_.take();
  find_first_on_device(layout, state.configuration.devices, block->first_on_device);
  int32_t count = layout.num_parts + static_cast<int32_t>(layout.groups.size());
  if (finishes)
    for (const Part part : layout.parts()) count += block->first_on_device[part] == part;
  OpBuilder builder(graph_, op, state, *block, back ? 2 * count : count);
  builder.computes(role_forward, &PartTimes::forward, &PartTimes::launch_forward, block->forward);
  if (layout.combines) builder.combines(role_combine_forward, block->combine_forward);
  block->num_before = block->holds.size();
  if (finishes)
    builder.computes(role_finish_forward, &PartTimes::finish_forward, &PartTimes::launch_finish_forward,
                     block->finish_forward);
  if (op != graph_.loss.op()) block->num_before = block->holds.size();
  block->first_after = block->num_before;
  if (back) {
    if (finishes)
      builder.computes(role_finish_backward, &PartTimes::finish_backward, &PartTimes::launch_finish_backward,
                       block->finish_backward);
    if (layout.combines) builder.combines(role_combine_backward, block->combine_backward);
    builder.computes(role_backward, &PartTimes::backward, &PartTimes::launch_backward, block->backward);
  }
  builder.finish();
  return block;
}

void OpBlocks::count(OpIndex op, const OpState& state, int64_t sign) {
  if (!state.block) return;
  auto& totals = graph_.totals;
  const int64_t times = sign * graph_.num_microbatches, saved = sign * graph_.most_saved(state.configuration);
  int64_t made = 0;
  for (const Operand& output : graph_.graph.ops[op].outputs)
    made = std::max<int64_t>(made, graph_.most_made(output.tensor, state.configuration));
  totals.count(*state.block, times);
  for (const Part part : state.layout->parts()) {
    const Device device = state.configuration.devices[part];
    for (const auto* slots :
         {&state.block->forward, &state.block->finish_forward, &state.block->finish_backward, &state.block->backward})
      if (!slots->empty() && (*slots)[part] != none)
        totals.compute[device] += times * graph_.pool.tasks[(*slots)[part]].first.duration;
    const int64_t again = state.configuration.recompute && graph_.graph.ops[op].backward ? state.layout->read[part]
                                                                                         : 0;  // what it is remade from
    totals.memory.saved[device] += saved * (state.layout->saved[part] - state.gathered_anew(part) + again);
    totals.memory.made[device] += sign * made * state.layout->made[part];
  }
  count_working(op, state, sign);
}

void OpBlocks::count_working(OpIndex op, const OpState& state, int64_t sign) {
  const auto bytes = working_of(op, state);
  for (const Part part : state.layout->parts()) {
    const Device device = state.configuration.devices[part];
    auto& most = working(op, device);
    most = sign < 0 ? 0 : std::max(most, bytes[part]);
    most_known_[device] = false;
  }
}

// Where a gradient is added to another, autograd has what is added and the new sum beside the sum so far, each as large
// as all that the device has of the parameter.
By<Part, int64_t> OpBlocks::working_of(OpIndex op, const OpState& state) const {
  By<Part, int64_t> found = state.layout->working;
  bool is_shared = false;
  int64_t whole = 0;
  for (const Operand& input : graph_.graph.ops[op].inputs) {
    const Tensor& tensor = graph_.graph.tensors[input.tensor];
    if (tensor.source != Source::parameter || !tensor.grad) continue;
    is_shared |= tensor.readers.size() > 1;
    whole += num_elements(tensor.factoring) * tensor.item_size;
  }
  const auto& devices = state.configuration.devices;
  std::map<Device, int64_t> there;  // of the op's trained parameters
  for (const Part part : devices.indices()) there[devices[part]] += state.layout->trained[part];
  const bool adds = is_shared || graph_.num_microbatches > 1 || there.size() < devices.size();
  for (const Part part : devices.indices())
    if (adds) found[part] += 2 * (is_shared ? whole : std::min(there[devices[part]], whole));
  return found;
}

int64_t OpBlocks::largest_working(OpIndex op) const {
  const auto working = working_of(op, states_[op]);
  return *std::max_element(working.begin(), working.end());
}

const By<Device, int64_t>& OpBlocks::most_working() {
  for (const Device device : most_working_.indices()) {
    if (most_known_[device]) continue;
    most_working_[device] = 0;
    for (const OpIndex op : states_.indices())
      most_working_[device] = std::max(most_working_[device], working(op, device));
    most_known_[device] = true;
  }
  return most_working_;
}

const OpBlock& OpBlocks::before(OpIndex op) const {
  const auto at = std::find_if(replaced_.begin(), replaced_.end(), [&](const auto& old) { return old.first == op; });
  return at == replaced_.end() ? *states_[op].block : *at->second.block;
}

void OpBlocks::join(ChangeSet& changes) {
  for (const auto& [op, old] : replaced_) {
    if (old.block) changes.gone.push_back(old.block->run());
    changes.fresh.push_back(states_[op].block->run());
    graph_.successors.mark(op);
  }
  if (graph_.loss.op() == none || !changing_[graph_.loss.op()]) return;
  for (const OpIndex op : states_.indices())
    if (has_unread(op)) graph_.successors.mark(op);
}

void OpBlocks::commit() {
  for (auto& [op, old] : replaced_) {
    drop(old);
    changing_[op] = false;
  }
  replaced_.clear();
}

void OpBlocks::rollback(const ChangeSet&) {
  for (auto& [op, old] : replaced_) {
    count_working(op, states_[op], -1);
    if (old.layout) count_working(op, old, 1);
    std::swap(states_[op], old);
    drop(old);
    changing_[op] = false;
  }
  replaced_.clear();
}

void OpBlocks::drop(OpState& state) {
  if (!state.block) return;
  graph_.pool.give_back(*state.block);
  spare_.give(std::move(state.block));
}

bool OpBlocks::is_unread(OpIndex op, Part part) const {
  const auto& finish = states_[op].block->finish_forward;
  const auto& outputs = graph_.graph.ops[op].outputs;
  const auto is_read = [&](const auto& output) { return graph_.flows[output.tensor]->read[part]; };
  return !finish.empty() && finish[part] != none && std::none_of(outputs.begin(), outputs.end(), is_read);
}

bool OpBlocks::has_unread(OpIndex op) const {
  for (const Part part : states_[op].layout->parts())
    if (is_unread(op, part)) return true;
  return false;
}

// Whether a gradient comes back to some of these parts.
bool OpBlocks::is_returned(OpIndex op, Part begin, Part end) const {
  for (const auto& output : graph_.graph.ops[op].outputs)
    for (const Part part : range(begin, end))
      if (graph_.flows[output.tensor]->returns[part]) return true;
  return false;
}

// A task's gradient comes back after its readers, so where it does, it need not wait for the task as such.
void OpBlocks::add_edges(OpIndex op, std::vector<Edge>& edges) const {
  const auto& [configuration, layout, block] = states_[op];
  if (layout->combines) return add_combine_edges(op, edges);
  if (!graph_.graph.ops[op].backward) return;
  for (const Part part : layout->parts())
    if (graph_.thorough || !is_returned(op, part, part + 1))
      edges.push_back({block->forward[part], block->backward[part]});
}

// Also from what finishes a copy that nobody reads to the loss: all of forward comes before it.
void OpBlocks::add_combine_edges(OpIndex op, std::vector<Edge>& edges) const {
  const auto& layout = *states_[op].layout;
  const auto& block = *states_[op].block;
  const bool back = graph_.graph.ops[op].backward, finishes = !block.finish_forward.empty();
  const OpIndex loss = graph_.loss.op();
  for (const Part part : layout.parts()) {
    const int32_t group = layout.group_of[part];
    edges.push_back({block.forward[part], block.combine_forward[group]});
    if (back) edges.push_back({block.combine_backward[group], block.backward[part]});
    if (!finishes || block.finish_forward[part] == none) continue;
    edges.push_back({block.combine_forward[group], block.finish_forward[part]});
    if (loss != none && op != loss && is_unread(op, part))
      edges.push_back({block.finish_forward[part], graph_.loss.task()});
    if (!back) continue;
    edges.push_back({block.finish_backward[part], block.combine_backward[group]});
    // Where another copy's gradient begins it, its device serves it after the copy anyway.
    const Part first = layout.first_copy(layout.output_of(part));
    if (!is_returned(op, first, first + layout.copies) || (graph_.thorough && is_returned(op, part, part + 1)))
      edges.push_back({block.finish_forward[part], block.finish_backward[part]});
  }
  if (finishes || !back) return;
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    const auto& parts = layout.groups[group];
    const auto returns = [&](Part part) { return is_returned(op, part, part + 1); };
    if (graph_.thorough || std::none_of(parts.begin(), parts.end(), returns))
      edges.push_back({block.combine_forward[group], block.combine_backward[group]});
  }
}

void OpBlocks::add_slots(std::vector<SlotRun>& runs) const {
  for (const auto& state : states_) runs.push_back(state.block->run());
}

void OpBlocks::list(Listing& listing) const {
  for (const OpIndex op : states_.indices()) list_op(op, listing);
}

void OpBlocks::list_op(OpIndex op, Listing& listing) const {
  const auto& [configuration, layout, block] = states_[op];
  const auto row_of = [&](Kind kind, int32_t part, bool backward) {
    TaskRow row;
    row.kind = kind;
    row.op = op;
    row.part = part;
    row.backward = backward;
    return row;
  };
  const auto computes = [&](const By<Part, Slot>& slots, bool backward, bool finish) {
    for (const Part part : slots.indices()) {
      if (slots[part] == none) continue;
      TaskRow row = row_of(backward ? Kind::backward : Kind::forward, part.value, backward);
      row.finish = finish;
      row.devices = {configuration.devices[part]};
      listing.add(slots[part], std::move(row));
    }
  };
  const auto combines = [&](const std::vector<Slot>& slots, bool backward) {
    for (size_t group = 0; group < slots.size(); ++group) {
      TaskRow row = row_of(Kind::combine, static_cast<int32_t>(group), backward);
      row.bytes = layout->combine_bytes[group];
      row.devices = devices_of(configuration, layout->groups[group]);
      listing.add(slots[group], std::move(row));
    }
  };
  computes(block->forward, false, false);
  combines(block->combine_forward, false);
  computes(block->finish_forward, false, true);
  computes(block->finish_backward, true, true);
  combines(block->combine_backward, true);
  computes(block->backward, true, false);
}

}  // namespace soapstone
