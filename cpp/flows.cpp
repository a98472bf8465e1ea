// A tensor's flows: which output part each device has, the transfers that bring it there and take its gradient back,
// and who waits for them.
#include <algorithm>
#include <numeric>
#include <utility>

#include "taskgraph.hpp"

namespace soapstone {

class FlowBuilder {
 public:
  FlowBuilder(TaskGraph& graph, int32_t tensor, FlowBlock& block)
      : graph_(graph),
        index_(tensor),
        tensor_(graph.graph.tensors[tensor]),
        maker_(graph.ops[tensor_.producer]),
        block_(block),
        rank_(num_dims(tensor_.factoring)),
        flow_on_(graph.machine.topology.num_devices(), -1) {
    for (size_t i = 0; i < tensor_.readers.size(); ++i)
      overlaps_.push_back(&graph.layouts_.between(tensor, static_cast<int32_t>(i), *maker_.layout, *reader(i).layout));
    for (const auto& shortcut : graph.shortcuts_[tensor])
      between_.push_back(&graph.layouts_.between(shortcut.tensor, shortcut.reader, *reader(shortcut.before).layout,
                                                 *reader(shortcut.behind).layout));
    first_shortcut_.resize(tensor_.readers.size() + 1);
    for (const auto& shortcut : graph.shortcuts_[tensor]) ++first_shortcut_[shortcut.behind + 1];
    std::partial_sum(first_shortcut_.begin(), first_shortcut_.end(), first_shortcut_.begin());
    in_flow_.resize(tensor_.readers.size());
  }

  void build() {
    for (int32_t part = 0; part < maker_.layout->num_output_parts; ++part) find_flows(part);
    sort_readers();
    add_transfers();
    block_.returns.assign(maker_.layout->num_parts, false);
    block_.backward.resize(tensor_.readers.size());
    connect();
    connect_gradients();
    weigh();
    look_for_gaps();
  }

 private:
  struct Found {
    int32_t flow;
    Reader reader;
  };

  const TaskGraph::OpState& reader(size_t i) const { return graph_.ops[tensor_.readers[i].first]; }
  bool gives(int32_t i) const { return graph_.graph.ops[tensor_.readers[i].first].backward; }

  // One output part: the flows to all devices that read it.
  void find_flows(int32_t part) {
    const auto first = static_cast<int32_t>(block_.flows.size());
    const int32_t made = maker_.layout->outputs[tensor_.output].of_part[part];
    for (size_t i = 0; i < overlaps_.size(); ++i) {
      const auto& share = reader(i).layout->inputs[tensor_.readers[i].second];
      const auto& devices = reader(i).configuration.devices;
      for (int32_t at = overlaps_[i]->begin[made]; at < overlaps_[i]->begin[made + 1]; ++at) {
        const int32_t box = overlaps_[i]->read[at];
        const Interval* hull = overlaps_[i]->hulls.data() + at * rank_;
        for (int32_t k = share.begin[box]; k < share.begin[box + 1]; ++k)
          found_.push_back({flow_to(part, devices[share.parts[k]], hull), {static_cast<int32_t>(i), share.parts[k]}});
      }
    }
    for (auto flow = first; flow < static_cast<int32_t>(block_.flows.size()); ++flow)
      flow_on_[block_.flows[flow].device] = -1;
  }

  int32_t flow_to(int32_t part, int32_t device, const Interval* hull) {
    int32_t& index = flow_on_[device];
    if (index < 0) {
      index = static_cast<int32_t>(block_.flows.size());
      block_.flows.push_back(new_flow(part, device));
      block_.hulls.insert(block_.hulls.end(), hull, hull + rank_);
    } else {
      Interval* own = block_.hulls.data() + index * rank_;
      for (int64_t dim = 0; dim < rank_; ++dim)
        own[dim] = {std::min(own[dim].lo, hull[dim].lo), std::max(own[dim].hi, hull[dim].hi)};
    }
    return index;
  }

  // From the device itself where it has a copy, else from the first that does.
  Flow new_flow(int32_t part, int32_t device) const {
    const int32_t copies = maker_.layout->copies;
    const auto* devices = maker_.configuration.devices.data() + static_cast<ptrdiff_t>(part) * copies;
    const auto* here = std::find(devices, devices + copies, device);
    if (here == devices + copies) here = devices;
    Flow flow;
    flow.part = part;
    flow.device = device;
    flow.source = *here;
    flow.maker = part * copies + static_cast<int32_t>(here - devices);
    return flow;
  }

  void sort_readers() {
    std::vector<int32_t> at(block_.flows.size() + 1);
    for (const auto& found : found_) ++at[found.flow + 1];
    std::partial_sum(at.begin(), at.end(), at.begin());
    for (size_t i = 0; i < block_.flows.size(); ++i) block_.flows[i].readers_begin = at[i];
    block_.readers.resize(found_.size());
    for (const auto& found : found_) block_.readers[at[found.flow]++] = found.reader;
  }

  bool has_gradient(size_t flow) const {
    const auto readers = block_.readers_of(flow);
    return tensor_.grad && std::any_of(readers.begin(), readers.end(), [&](auto& at) { return gives(at.reader); });
  }

  void add_transfers() {
    int32_t count = 0;
    for (size_t i = 0; i < block_.flows.size(); ++i) {
      auto& flow = block_.flows[i];
      flow.bytes = tensor_.item_size;
      for (int64_t dim = 0; dim < rank_; ++dim) flow.bytes *= block_.hulls[i * rank_ + dim].size();
      if (flow.source != flow.device) count += 1 + has_gradient(i);
    }
    BlockWriter writer(graph_.pool, block_, count);
    block_.holds.reserve(4 * static_cast<size_t>(count));
    for (auto& flow : block_.flows)
      if (flow.source != flow.device) flow.forward = add_transfer(writer, flow, false, flow.time_forward);
    block_.num_before = block_.first_behind = block_.holds.size();
    for (size_t i = 0; i < block_.flows.size(); ++i) {
      auto& flow = block_.flows[i];
      if (flow.forward >= 0 && has_gradient(i)) flow.backward = add_transfer(writer, flow, true, flow.time_backward);
    }
    writer.finish();
    const std::span<const Hold> holds(block_.holds);
    block_.most_forward = graph_.most_served(holds.first(block_.num_before));
    block_.most_backward = graph_.most_served(holds.subspan(block_.first_behind));
  }

  int32_t add_transfer(BlockWriter& writer, const Flow& flow, bool back, int64_t& time) {
    const int32_t from = back ? flow.device : flow.source, to = back ? flow.source : flow.device;
    const int64_t latency = graph_.machine.topology.transfer(from, to, flow.bytes, block_.holds);
    const uint64_t key = graph_.key(back, tensor_.producer, Kind::transfer, tensor_.output, flow.part, flow.device);
    const auto added = writer.add(key, latency, graph_.transfer_tail(index_, back));
    time = added.time;
    return added.slot;
  }

  // Where the readers of a flow stand, which come in increasing order.
  void look_at(std::span<const Reader> readers) {
    if (between_.empty()) return;
    std::fill(in_flow_.begin(), in_flow_.end(), std::span<const Reader>());
    for (const Reader& at : readers) {
      auto& own = in_flow_[at.reader];
      own = own.empty() ? std::span(&at, 1) : std::span(own.data(), own.size() + 1);
    }
  }

  // A reader that reads what another reader of the same flow makes waits for that one anyway.
  bool follows(const Reader& reading, bool back) const {
    for (int32_t i = first_shortcut_[reading.reader]; i < first_shortcut_[reading.reader + 1]; ++i) {
      const auto& [before, behind, tensor, input] = graph_.shortcuts_[index_][i];
      if (back && !(gives(before) && graph_.graph.tensors[tensor].grad)) continue;
      const auto& share = reader(behind).layout->inputs[graph_.graph.tensors[tensor].readers[input].second];
      const auto& made = reader(before).layout->outputs[graph_.graph.tensors[tensor].output];
      const int32_t copies = reader(before).layout->copies;
      for (const Reader& at : in_flow_[before])
        if (between_[i]->meet(made.of_part[at.part / copies], share.of_part[reading.part])) return true;
    }
    return false;
  }

  // Readers wait for the task after which the part is whole on its source, or for its transfer.
  void connect() {
    for (size_t i = 0; i < block_.flows.size(); ++i) {
      const auto& flow = block_.flows[i];
      const int32_t arrival = maker_.block->arrival(*maker_.layout, flow.maker);
      const auto readers = block_.readers_of(i);
      look_at(readers);
      const auto before = block_.next.size();
      if (flow.forward >= 0) block_.forward.push_back({arrival, flow.forward});
      for (const Reader& at : readers) {
        if (follows(at, false)) continue;
        const int32_t slot = reader(at.reader).block->forward[at.part];
        if (flow.forward >= 0)
          block_.next.push_back(slot);
        else
          block_.forward.push_back({arrival, slot});
      }
      if (flow.forward >= 0) nexts_.push_back({flow.forward, static_cast<int32_t>(block_.next.size() - before)});
    }
  }

  // The part's backward waits for its readers' gradients, or for the transfer of their sum.
  void connect_gradients() {
    for (size_t i = 0; i < block_.flows.size(); ++i) {
      const auto& flow = block_.flows[i];
      if (!has_gradient(i)) continue;
      const int32_t sink = maker_.block->sink(*maker_.layout, flow.maker);
      const auto readers = block_.readers_of(i);
      look_at(readers);
      block_.returns[flow.maker] = true;
      for (const Reader& at : readers) {
        if (!gives(at.reader) || follows(at, true)) continue;
        const int32_t slot = reader(at.reader).block->backward[at.part];
        block_.backward[at.reader].push_back({slot, flow.backward >= 0 ? flow.backward : sink});
      }
      if (flow.backward < 0) continue;
      block_.next.push_back(sink);
      nexts_.push_back({flow.backward, 1});
    }
    const int32_t* at = block_.next.data();
    for (const auto& [slot, count] : nexts_) {
      graph_.pool.tasks[slot].next = at;
      graph_.pool.tasks[slot].num_next = count;
      at += count;
    }
  }

  void look_for_gaps() {
    const int32_t copies = maker_.layout->copies;
    int32_t parts = 0, returned = 0;
    for (size_t i = 0; i < block_.flows.size(); ++i)
      parts += i == 0 || block_.flows[i].part != block_.flows[i - 1].part;
    for (int32_t part = 0; part < maker_.layout->num_output_parts; ++part) {
      const auto begin = block_.returns.begin() + static_cast<ptrdiff_t>(part) * copies;
      returned += std::find(begin, begin + copies, true) != begin + copies;
    }
    block_.all_read = parts == maker_.layout->num_output_parts;
    block_.all_return = returned == maker_.layout->num_output_parts;
  }

  // By reader: forward, every output part that it reads sends at least this long; backward, so does every reading part.
  void weigh() {
    const size_t count = tensor_.readers.size();
    block_.weight_forward.assign(count, INT64_MAX);
    block_.weight_backward.assign(count, INT64_MAX);
    std::vector<int64_t> slowest(count);
    std::vector<std::vector<int64_t>> given(count);
    for (size_t i = 0; i < count; ++i)
      given[i].assign(tensor_.grad && gives(static_cast<int32_t>(i)) ? reader(i).layout->num_parts : 0, uncounted);
    size_t flow = 0;
    for (int32_t part = 0; part < maker_.layout->num_output_parts; ++part) {
      std::fill(slowest.begin(), slowest.end(), uncounted);
      for (; flow < block_.flows.size() && block_.flows[flow].part == part; ++flow) {
        for (const auto& [index, reading] : block_.readers_of(flow)) {
          slowest[index] = std::max(slowest[index], block_.flows[flow].time_forward);
          if (given[index].empty()) continue;
          given[index][reading] = std::max(given[index][reading], block_.flows[flow].time_backward);
        }
      }
      for (size_t i = 0; i < count; ++i) block_.weight_forward[i] = std::min(block_.weight_forward[i], slowest[i]);
    }
    for (size_t i = 0; i < count; ++i)
      block_.weight_backward[i] = given[i].empty() ? uncounted : *std::min_element(given[i].begin(), given[i].end());
  }

  TaskGraph& graph_;
  int32_t index_;
  const Tensor& tensor_;
  const TaskGraph::OpState& maker_;
  FlowBlock& block_;
  int64_t rank_;
  std::vector<int32_t> flow_on_;  // by device: the flow of the present output part
  std::vector<const Overlaps*> overlaps_;
  std::vector<const Overlaps*> between_;          // parallel to the tensor's shortcuts, which are sorted by `behind`
  std::vector<int32_t> first_shortcut_;           // by reader behind
  std::vector<std::span<const Reader>> in_flow_;  // by reader
  std::vector<Found> found_;
  std::vector<std::pair<int32_t, int32_t>> nexts_;  // transfer, number of its successors, in the order of `next`
};

std::shared_ptr<FlowBlock> TaskGraph::make_flow_block(int32_t tensor) {
  auto block = std::make_shared<FlowBlock>();
  FlowBuilder(*this, tensor, *block).build();
  return block;
}

}  // namespace soapstone
