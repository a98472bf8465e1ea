#include "tasks/taskgraph.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "support/sorting.hpp"
#include "tasks/proposal.hpp"

namespace soapstone {

namespace {

By<OpIndex, std::vector<std::pair<int32_t, int32_t>>> find_reads(const Graph& graph) {
  By<OpIndex, std::vector<std::pair<int32_t, int32_t>>> reads(graph.ops.size());
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (graph.tensors[tensor].source != Source::op) continue;
    if (graph.tensors[tensor].producer == none) throw std::invalid_argument("no op makes one of the tensors");
    for (size_t i = 0; i < graph.tensors[tensor].readers.size(); ++i)
      reads[graph.tensors[tensor].readers[i].first].emplace_back(tensor, i);
  }
  return reads;
}

}  // namespace

TaskGraph::TaskGraph(const Graph& of, Machine on, const Times& from, TaskOptions options)
    : graph(of),
      machine(std::move(on)),
      times(from),
      thorough(options.thorough),
      num_microbatches(options.num_microbatches),
      reads(find_reads(graph)),
      layouts(graph),
      totals(machine.topology.num_resources(), machine.topology.num_devices()),
      loss(*this, options.loss_may_separate && options.num_microbatches == 1),
      ops(*this),
      flows(*this),
      syncs(*this),
      gathers(*this),
      updates(*this),
      successors(*this),
      kinds_{&ops, &flows, &syncs, &gathers, &updates},
      totals_before_(totals) {
  if (num_microbatches < 1) throw std::invalid_argument("a batch has one microbatch or more");
}

void TaskGraph::begin(const Strategy& strategy) {
  if (strategy.size() != graph.ops.size()) throw std::invalid_argument("a strategy has one configuration an op");
  Changes all;
  for (const OpIndex op : strategy.indices()) all.emplace_back(op, strategy[op]);
  Proposal first(*this, all);
  first.regroup();
  while (!first.is_routed()) first.route(INT64_MAX, nullptr);
  first.link();
  first.commit();
  changes_.clear();  // a first play takes everything anew
}

int32_t TaskGraph::most_saved(const Configuration& configuration) const {
  return configuration.in_flight == 0 ? num_microbatches : std::min(configuration.in_flight, num_microbatches);
}

// Its maker's backward comes after all readers', where they give it a gradient.
int32_t TaskGraph::most_made(int32_t tensor, const Configuration& maker) const {
  const auto& [source, item_size, read_size, grad, factoring, producer, output, readers] = graph.tensors[tensor];
  const bool all_return = grad && std::all_of(readers.begin(), readers.end(),
                                              [&](const auto& reader) { return graph.ops[reader.first].backward; });
  return all_return ? most_saved(maker) : num_microbatches;
}

const Overlaps& TaskGraph::between(int32_t tensor, int32_t reader) {
  const auto& [op, input] = graph.tensors[tensor].readers[reader];
  return layouts.between(tensor, reader, *ops[graph.tensors[tensor].producer].layout, *ops[op].layout);
}

uint64_t TaskGraph::key(bool backward, OpIndex op, Kind kind, int64_t slot, int64_t major, int64_t minor) const {
  const int64_t order = backward ? graph.ops.end_index() - op - 1 : op.value;
  return pack_key(backward ? backward_phase : forward_phase, order, kind, slot, major, minor);
}

void TaskGraph::add_edges(OpIndex op, std::vector<Edge>& edges) const {
  for (const Blocks* kind : kinds_) kind->add_edges(op, edges);
}

std::vector<SlotRun> TaskGraph::slots() const {
  std::vector<SlotRun> runs;
  for (const Blocks* kind : kinds_) kind->add_slots(runs);
  return runs;
}

void TaskGraph::list(Listing& listing) const {
  for (const Blocks* kind : kinds_) kind->list(listing);
}

By<Device, int64_t> TaskGraph::memory_bound(int64_t num_states) {
  By<Device, int64_t> bound = ops.most_working();
  for (const Device device : bound.indices()) bound[device] += totals.memory.lasting(device, num_states);
  return bound;
}

bool TaskGraph::surely_fits(const By<Device, int64_t>& limit, int64_t num_states) const {
  int64_t largest = 0;
  for (const OpIndex op : ops.indices()) largest = std::max(largest, ops.largest_working(op));
  for (const Device device : limit.indices())
    if (totals.memory.lasting(device, num_states) + largest > limit[device]) return false;
  return true;
}

void TaskGraph::change(const Changes& changes) {
  layouts.forget();
  totals_before_ = totals;
  loss.begin_change();
  changes_.clear();
  ops.configure(changes, changes_);
}

// The changed ops' neighbours: the tensors and groups whose blocks are replaced.
void TaskGraph::find_reach() {
  for (const OpIndex op : changes_.ops) {
    for (const auto* operands : {&graph.ops[op].inputs, &graph.ops[op].outputs})
      for (const auto& operand : *operands)
        if (graph.tensors[operand.tensor].source == Source::op) changes_.tensors.push_back(operand.tensor);
    for (const auto& [group, place] : syncs.groups_of(op)) changes_.groups.push_back(group);
  }
  sort_unique(changes_.tensors);
  sort_unique(changes_.groups);
  gathers.reach(changes_);
}

void TaskGraph::regroup() {
  find_reach();
  for (Blocks* kind : kinds_) kind->make(changes_);
  loss.look_ahead();
}

bool TaskGraph::route(int64_t limit, const Idle* idle) {
  if (!flows.route(changes_, limit, idle)) return false;
  if (changes_.unrouted().empty()) loss.look();
  return true;
}

void TaskGraph::link() {
  changes_.linked = true;
  for (Blocks* kind : kinds_) kind->join(changes_);
  successors.join(changes_);
}

void TaskGraph::commit() {
  for (Blocks* kind : kinds_) kind->commit();
  successors.commit();
}

void TaskGraph::rollback() {
  totals = totals_before_;
  for (Blocks* kind : kinds_) kind->rollback(changes_);
  successors.rollback();
  loss.rollback();
}

}  // namespace soapstone
