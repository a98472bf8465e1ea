// A tensor's flows: which output part each device has, and what the messages that bring it there and take its gradient
// back take.
#include "tasks/flow_builder.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace soapstone {

void FlowBlock::clear() {
  begin = {};
  count = 0;
  holds.clear();
  flows.clear();
  before.clear();
  after.clear();
  hulls.clear();
  readers.clear();
  next.clear();
  next_end.clear();
  forward.clear();
  for (auto& edges : backward) edges.clear();
}

FlowBuilder::FlowBuilder(TaskGraph& graph)
    : graph_(graph),
      flow_on_(graph.machine.topology.num_devices(), -1),
      together_(graph.machine.topology.num_resources()),
      there_{together_, {}},
      back_{together_, {}},
      shortcuts_(graph.graph.tensors.size()) {
  if (!graph.thorough) find_all_shortcuts();
}

void FlowBuilder::begin(int32_t tensor, FlowBlock& block) {
  index_ = tensor;
  tensor_ = &graph_.graph.tensors[tensor];
  maker_ = &graph_.ops[tensor_->producer];
  block_ = &block;
  gives_.resize(tensor_->readers.size());
  for (size_t i = 0; i < gives_.size(); ++i)
    gives_[i] = tensor_->grad && graph_.graph.ops[tensor_->readers[i].first].backward;
}

void FlowBuilder::set_limit(int64_t limit, const Idle* idle, bool meets) {
  limit_ = limit;
  idle_ = idle;
  meets_ = meets;
}

bool FlowBuilder::find(int32_t tensor, FlowBlock& block) {
  begin(tensor, block);
  begin_trips();
  if (!fits()) return false;
  block.made.assign(flow_on_.size(), 0);
  rank_ = num_dims(tensor_->factoring);
  overlaps_.clear();
  for (size_t i = 0; i < tensor_->readers.size(); ++i)
    overlaps_.push_back(&graph_.layouts.between(tensor, static_cast<int32_t>(i), *maker_->layout, *reader(i).layout));
  found_.clear();
  for (const OutputPart part : maker_->layout->output_parts()) {
    const size_t first = block.flows.size();
    find_flows(part);
    add_trips(first);
    if (!fits()) return false;
  }
  block.most_forward = there_.tally.end(&block.before);
  block.most_backward = back_.tally.end(&block.after);
  sort_readers();
  find_gaps();
  weigh_by_output();
  weigh_by_reader();
  return true;
}

// One output part: the flows to all devices that read it.
void FlowBuilder::find_flows(OutputPart part) {
  const size_t first = block_->flows.size();
  const int32_t made = maker_->layout->outputs[tensor_->output].of_part[part];
  for (size_t i = 0; i < overlaps_.size(); ++i) {
    const auto& share = reader(i).layout->inputs[tensor_->readers[i].second];
    const auto& devices = reader(i).configuration.devices;
    for (int32_t at = overlaps_[i]->begin[made]; at < overlaps_[i]->begin[made + 1]; ++at) {
      const int32_t box = overlaps_[i]->read[at];
      const Interval* hull = overlaps_[i]->hulls.data() + at * rank_;
      for (int32_t k = share.begin[box]; k < share.begin[box + 1]; ++k) {
        const int32_t flow = flow_to(part, devices[share.parts[k]], hull);
        block_->flows[flow].returns |= gives_[i];
        found_.push_back({flow, {static_cast<int32_t>(i), share.parts[k]}});
      }
    }
  }
  for (size_t flow = first; flow < block_->flows.size(); ++flow) flow_on_[block_->flows[flow].device] = -1;
}

int32_t FlowBuilder::flow_to(OutputPart part, Device device, const Interval* hull) {
  int32_t& index = flow_on_[device];
  if (index < 0) {
    index = static_cast<int32_t>(block_->flows.size());
    block_->flows.push_back(new_flow(part, device));
    block_->hulls.insert(block_->hulls.end(), hull, hull + rank_);
  } else {
    Interval* own = block_->hulls.data() + index * rank_;
    for (int64_t dim = 0; dim < rank_; ++dim)
      own[dim] = {std::min(own[dim].lo, hull[dim].lo), std::max(own[dim].hi, hull[dim].hi)};
  }
  return index;
}

Flow FlowBuilder::new_flow(OutputPart part, Device device) const {
  Flow flow;
  flow.part = part;
  flow.device = device;
  flow.maker = giver_of(maker_->configuration, part, maker_->layout->copies, device);
  flow.source = maker_->configuration.devices[flow.maker];
  return flow;
}

void FlowBuilder::sort_readers() {
  at_.assign(block_->flows.size() + 1, 0);
  for (const auto& found : found_) ++at_[found.flow + 1];
  std::partial_sum(at_.begin(), at_.end(), at_.begin());
  for (size_t i = 0; i < block_->flows.size(); ++i) block_->flows[i].readers_begin = at_[i];
  block_->readers.resize(found_.size());
  for (const auto& found : found_) block_->readers[at_[found.flow]++] = found.reader;
}

// Output parts that nobody reads, or to which no gradient comes back.
void FlowBuilder::find_gaps() {
  const int32_t num_parts = maker_->layout->num_output_parts;
  int32_t num_read = 0, num_returned = 0;
  block_->read.assign(maker_->layout->num_parts, false);
  block_->returns.assign(maker_->layout->num_parts, false);
  for (size_t i = 0; i < block_->flows.size();) {
    const OutputPart part = block_->flows[i].part;
    bool returned = false;
    for (; i < block_->flows.size() && block_->flows[i].part == part; ++i) {
      block_->read[block_->flows[i].maker] = true;
      if (!block_->flows[i].returns) continue;
      returned = block_->returns[block_->flows[i].maker] = true;
    }
    ++num_read;
    num_returned += returned;
  }
  block_->all_read = num_read == num_parts;
  block_->all_return = num_returned == num_parts;
}

inline int64_t FlowBuilder::Tally::add(Resource resource, int64_t duration) {
  int64_t& served = served_[resource];
  if (served == 0 && duration > 0) resources_.push_back(resource);
  return served += duration;
}

int64_t FlowBuilder::Tally::end(std::vector<Hold>* sums) {
  int64_t most = 0;
  for (const Resource resource : resources_) {
    const int64_t served = std::exchange(served_[resource], 0);
    most = std::max(most, served);
    if (sums) sums->push_back({resource, served});
  }
  resources_.clear();
  return most;
}

// The messages of one output part's flows.
void FlowBuilder::add_trips(size_t first) {
  const auto& topology = graph_.machine.topology;
  const int64_t in_flight = graph_.most_made(index_, maker_->configuration);
  for (size_t i = first; i < block_->flows.size(); ++i) {
    auto& flow = block_->flows[i];
    flow.bytes = tensor_->item_size;
    for (int64_t dim = 0; dim < rank_; ++dim) flow.bytes *= block_->hulls[i * rank_ + dim].size();
    if (!flow.moves()) continue;
    flow.there = there_.add(topology.way(flow.source, flow.device, flow.bytes));
    block_->made[flow.device] += in_flight * flow.bytes;
    if (!flow.returns) continue;
    flow.back = back_.add(topology.way(flow.device, flow.source, flow.bytes));
    block_->made[flow.source] += in_flight * flow.bytes;
  }
}

void FlowBuilder::begin_trips() {
  const Totals& totals = graph_.totals;
  there_.begin(meets_ ? totals.before : totals.work, idle_ ? &idle_->before : nullptr);
  back_.begin(meets_ ? totals.after : totals.work, idle_ ? &idle_->after : nullptr);
}

// What a resource takes before the loss and what any takes after it add up.
bool FlowBuilder::fits() const {
  return (meets_ ? there_.most + back_.most : std::max(there_.most, back_.most)) <= limit_;
}

void FlowBuilder::Direction::begin(const By<Resource, int64_t>& counted, const By<Resource, int64_t>* idle) {
  tally.end();  // what a refusal left after
  others = counted;
  if (idle) std::transform(counted.begin(), counted.end(), idle->begin(), others.begin(), std::plus<>());
  most = *std::max_element(others.begin(), others.end());
}

Trip FlowBuilder::Direction::add(const Topology::Way& way) {
  const auto& [resources, size] = way;
  Trip::check(size.longest, size.latency);
  int64_t longest = most;
  for (size_t i = 0; i < size.durations.size(); ++i)
    longest = std::max(longest, others[resources[i]] + tally.add(resources[i], size.durations[i]));
  most = longest;
  return {0, 0, resources[size.slowest], resources[size.last_slowest], size.latency, size.longest + size.latency};
}

// What is sent or received together takes as long as the slowest of it, and as what one resource serves of all.
class FlowBuilder::Together {
 public:
  Together(Tally& tally, Trip Flow::* trip) : tally_(tally), trip_(trip) {}

  void add(const Flow& flow) {
    const Trip& trip = flow.*trip_;
    slowest_ = std::max(slowest_, trip.time);
    if (!flow.moves()) return;
    latency_ = std::min(latency_, trip.latency);
    tally_.add(trip.slowest, trip.time - trip.latency);
    if (trip.last_slowest != trip.slowest) tally_.add(trip.last_slowest, trip.time - trip.latency);
  }
  int64_t time() {
    const int64_t most = tally_.end();
    return most == 0 ? slowest_ : std::max(slowest_, most + latency_);
  }

 private:
  Tally& tally_;
  Trip Flow::* trip_;
  int64_t slowest_ = uncounted, latency_ = INT64_MAX;
};

// What the messages of every output part take, there to each reader and back from all.
void FlowBuilder::weigh_by_output() {
  const auto count = static_cast<int32_t>(tensor_->readers.size());
  block_->weight_forward.assign(count, INT64_MAX);
  at_.assign(block_->flows.size(), -1);  // the last reader that was seen
  auto found = found_.begin();           // in the order of parts and readers
  for (const OutputPart part : maker_->layout->output_parts())
    for (int32_t i = 0; i < count; ++i) {
      Together there(together_, &Flow::there);
      for (; found != found_.end() && found->reader.reader == i && block_->flows[found->flow].part == part; ++found)
        if (std::exchange(at_[found->flow], i) != i) there.add(block_->flows[found->flow]);
      block_->weight_forward[i] = std::min(block_->weight_forward[i], there.time());
    }
  block_->arrival_backward = INT64_MAX;
  for (size_t i = 0; i < block_->flows.size();) {
    Together back(together_, &Flow::back);
    for (const OutputPart part = block_->flows[i].part; i < block_->flows.size() && block_->flows[i].part == part; ++i)
      back.add(block_->flows[i]);
    block_->arrival_backward = std::min(block_->arrival_backward, back.time());
  }
}

// What the messages of every reading part take, there and back.
void FlowBuilder::weigh_by_reader() {
  const size_t count = tensor_->readers.size();
  block_->arrival_forward.assign(count, INT64_MAX);
  block_->weight_backward.assign(count, INT64_MAX);
  first_part_.assign(count + 1, 0);
  for (size_t i = 0; i < count; ++i) first_part_[i + 1] = first_part_[i] + reader(i).layout->num_parts;
  at_.assign(first_part_[count] + 1, 0);  // by reading part: where its flows begin
  const auto part_of = [&](const Reader& reader) { return first_part_[reader.reader] + reader.part.value; };
  for (const auto& found : found_) ++at_[part_of(found.reader)];
  std::partial_sum(at_.begin(), at_.end(), at_.begin());
  by_part_.resize(at_.back());
  for (const auto& found : found_) by_part_[--at_[part_of(found.reader)]] = found.flow;
  for (size_t i = 0; i < count; ++i) {
    for (int32_t part = first_part_[i]; part < first_part_[i + 1]; ++part) {
      const std::span flows(by_part_.data() + at_[part], by_part_.data() + at_[part + 1]);
      Together there(together_, &Flow::there);
      for (const int32_t flow : flows) there.add(block_->flows[flow]);
      block_->arrival_forward[i] = std::min(block_->arrival_forward[i], there.time());
      if (!gives_[i]) continue;
      Together back(together_, &Flow::back);
      for (const int32_t flow : flows) back.add(block_->flows[flow]);
      block_->weight_backward[i] = std::min(block_->weight_backward[i], back.time());
    }
    if (!gives_[i]) block_->weight_backward[i] = uncounted;
  }
}

}  // namespace soapstone
