#include "engines/ledger.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace soapstone {

namespace {

bool contains(const std::vector<int32_t>& values, int32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool is_outer(const Op& op, int32_t value) {
  const auto is = [&](const Operand& operand) { return operand.value == value; };
  return std::any_of(op.inputs.begin(), op.inputs.end(), is) || std::any_of(op.outputs.begin(), op.outputs.end(), is);
}

}  // namespace

const Ledger::Parts& Ledger::parts_of(OpIndex index) {
  const Layout& layout = *graph_.ops[index].layout;
  const auto [at, is_new] = known_.try_emplace(layout.id);
  Parts& found = at->second;
  if (!is_new) return found;
  const Op& op = graph_.graph.ops[index];
  found.inputs.resize(op.inputs.size());
  found.outputs.resize(op.outputs.size());
  RegionFinder finder(op);
  for (const Part part : layout.parts()) {
    const Regions& regions = finder.of(op_box(op, layout.degrees, part.value));
    const auto bytes = [&](int32_t value) { return volume(regions.values[value]) * op.item_sizes[value]; };
    int64_t outer_saved = 0, temporary = 0, most = 0, inside = 0;
    for (const int32_t value : op.saved) (is_outer(op, value) ? outer_saved : inside) += bytes(value);
    const int64_t kept = layout.saved[part] - outer_saved, extra = kept - inside;
    for (int32_t value = 0; value < static_cast<int32_t>(op.values.size()); ++value)
      if (!is_outer(op, value) && !contains(op.saved, value)) temporary += bytes(value);
    for (const Step& step : op.steps) {  // a step's backward holds the gradients on both of its sides
      int64_t sum = 0;
      for (const auto* values : {&step.inputs, &step.outputs})
        for (const int32_t value : *values) sum += is_outer(op, value) ? 0 : bytes(value);
      most = std::max(most, sum);
    }
    found.kept.push_back(kept);
    found.forward.push_back(temporary);
    found.backward.push_back(most + extra);
    for (size_t i = 0; i < op.inputs.size(); ++i) found.inputs[i].push_back(bytes(op.inputs[i].value));
    for (size_t i = 0; i < op.outputs.size(); ++i) found.outputs[i].push_back(bytes(op.outputs[i].value));
  }
  return found;
}

void Ledger::hold(Device device, int64_t since, int64_t until, int64_t bytes, Content content, OpIndex op) {
  if (bytes > 0 && until > since && is_wanted(device)) holdings_.push_back({device, since, until, bytes, content, op});
}

Ledger::Spans Ledger::spans_along(const TaskTimes& times) const {
  Spans spans(graph_.ops.size());
  for (const OpIndex op : graph_.ops.indices()) {
    const auto& block = *graph_.ops[op].block;
    const auto& layout = *graph_.ops[op].layout;
    spans[op].resize(layout.num_parts);
    for (const Part part : layout.parts()) {
      Span span{times.start[block.forward[part]], times.end[block.forward[part]], -1, -1};
      const Part first = block.first_on_device[part];  // finishes for all of its device
      if (!block.finish_forward.empty() && block.finish_forward[first] != none)
        span.until = std::max(span.until, times.end[block.finish_forward[first]]);
      if (!block.backward.empty()) {
        span.back_since = times.start[block.backward[part]];
        span.back_until = times.end[block.backward[part]];
      }
      spans[op][part] = span;
    }
  }
  return spans;
}

bool Ledger::is_recomputed(OpIndex op) const {
  return graph_.ops[op].configuration.recompute && graph_.graph.ops[op].backward;
}

// Whether devices combine their partial results of an op. A stretch ends there: the combined result stays, and so do
// the inputs that a finish after it reads.
bool Ledger::meets_others(OpIndex op) const {
  const auto& groups = graph_.ops[op].layout->groups;
  return std::any_of(groups.begin(), groups.end(),
                     [&](const auto& parts) { return devices_of(graph_.ops[op].configuration, parts).size() > 1; });
}

void Ledger::find_stretches() {
  num_devices_ = graph_.machine.topology.num_devices();
  remade_.clear();
  if (std::none_of(spans_.indices().begin(), spans_.indices().end(), [&](OpIndex op) { return is_recomputed(op); }))
    return;
  remade_.assign(graph_.ops.size() * num_devices_, {});
  struct Open {
    std::vector<OpIndex> ops;
    int64_t since = INT64_MAX;
  };
  By<Device, Open> open(num_devices_);
  int32_t num_stretches = 0;
  const auto close = [&](Device device) {
    for (const OpIndex op : open[device].ops)
      remade_[op.value * num_devices_ + device.value] = {num_stretches, open[device].since};
    ++num_stretches;
    open[device] = {};
  };
  for (const OpIndex op : graph_.ops.indices()) {
    if (!graph_.graph.ops[op].backward) continue;
    const auto& devices = graph_.ops[op].configuration.devices;
    const bool meets = meets_others(op), finishes = !graph_.ops[op].block->finish_forward.empty();
    const auto own = devices_of(graph_.ops[op].configuration, graph_.ops[op].layout->all_parts());
    if (meets && finishes)
      for (const Device device : own) close(device);
    for (const Part part : devices.indices())
      open[devices[part]].since = std::min(open[devices[part]].since, spans_[op][part].back_since);
    for (const Device device : own) {
      open[device].ops.push_back(op);
      if (!is_recomputed(op) || (meets && !finishes)) close(device);
    }
  }
  for (const Device device : open.indices()) close(device);
}

const std::vector<Holding>& Ledger::write(std::span<const TaskTimes> microbatches, int64_t num_temporaries,
                                          std::optional<Device> only) {
  only_ = only;
  if (known_.size() > 100'000) known_.clear();
  holdings_.clear();
  all_spans_.clear();
  for (const TaskTimes& times : microbatches) write_microbatch(times);
  const TaskTimes& last = microbatches.back();
  int64_t end = 0;
  for (const auto& [begin, count] : graph_.slots())
    for (int32_t i = 0; i < count; ++i) end = std::max(end, last.end[begin + i]);
  write_sums(last, end);
  for (const Device device : graph_.totals.memory.updated.indices()) {
    if (!graph_.updates.is_there(device)) continue;
    const Slot slot = graph_.updates.slot_of(device);
    hold(device, last.start[slot], last.end[slot], num_temporaries * graph_.totals.memory.updated[device],
         Content::working, none);
  }
  return holdings_;
}

void Ledger::write_microbatch(const TaskTimes& times) {
  spans_ = spans_along(times);
  find_stretches();
  for (const OpIndex op : graph_.ops.indices()) write_parts(op, times);
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(graph_.flows.size()); ++tensor)
    if (graph_.flows[tensor]) write_tensor(tensor, times);
  write_weights(times);
  all_spans_.push_back(std::move(spans_));
}

void Ledger::write_parts(OpIndex index, const TaskTimes& times) {
  const Op& op = graph_.graph.ops[index];
  const Parts& parts = parts_of(index);
  const auto& devices = graph_.ops[index].configuration.devices;
  const auto& block = *graph_.ops[index].block;
  const auto work = [&](const By<Part, Slot>& slots, Part part, int64_t bytes) {
    if (slots.empty() || slots[part] == none) return;
    hold(devices[part], times.start[slots[part]], times.end[slots[part]], bytes, Content::working, index);
  };
  for (const Part part : graph_.ops[index].layout->parts()) {
    const Device device = devices[part];
    if (!is_wanted(device)) continue;
    const auto& [since, until, back_since, back_until] = spans_[index][part];
    const bool again = is_recomputed(index);
    const int64_t kept = parts.kept[part] - graph_.ops[index].gathered_anew(part);
    hold(device, since, again ? until : std::max(until, back_until), kept, Content::activation, index);
    if (again) hold(device, remade(index, device).since, back_until, kept, Content::activation, index);
    work(block.forward, part, parts.forward[part]);
    work(block.finish_forward, part, parts.forward[part]);
    work(block.finish_backward, part, parts.backward[part]);
    work(block.backward, part, parts.backward[part]);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (graph_.graph.tensors[op.inputs[i].tensor].source != Source::input) continue;
      const bool stays = again || contains(op.saved, op.inputs[i].value);
      const int64_t last = stays ? std::max(until, back_until) : until;
      hold(device, since, last, parts.inputs[i][part], Content::activation, index);
    }
  }
}

void Ledger::write_tensor(int32_t tensor, const TaskTimes& times) {
  Stores stores = made_stores(tensor);
  const FlowBlock& block = *graph_.flows[tensor];
  const OpIndex maker = graph_.graph.tensors[tensor].producer;
  for (const Flow& flow : block.flows)
    if (flow.moves() && (is_wanted(flow.source) || is_wanted(flow.device))) move(flow, maker, times, stores);
  read_stores(tensor, times, stores);
  hold_added(tensor, stores);
  for (const auto& [place, store] : stores) {
    hold(place.second, store.since, store.until, store.bytes, Content::activation, maker);
    if (store.is_remade)
      hold(place.second, store.again_since, store.again_until, store.bytes, Content::activation, maker);
    hold(place.second, store.back_since, store.back_until, store.bytes, Content::returned, maker);
  }
}

// Where it is made.
Ledger::Stores Ledger::made_stores(int32_t tensor) {
  const auto& [source, item_size, read_size, grad, factoring, maker, output, readers] = graph_.graph.tensors[tensor];
  const auto& state = graph_.ops[maker];
  const Op& op = graph_.graph.ops[maker];
  const bool is_saved = contains(op.saved, op.outputs[output].value);
  const bool is_remade = is_recomputed(maker) && !(state.block->finish_forward.empty() && meets_others(maker));
  const auto& made = parts_of(maker).outputs[output];
  Stores stores;
  for (const Part part : state.layout->parts()) {
    if (!is_wanted(state.configuration.devices[part])) continue;
    const Span& span = spans_[maker][part];
    auto& store = stores[{state.layout->output_of(part), state.configuration.devices[part]}];
    store.bytes = made[part];
    store.since = std::min(store.since, span.since);
    store.until = std::max(store.until, span.until);
    if (is_remade) {
      store.is_remade = true;
      store.again_since = remade(maker, state.configuration.devices[part]).since;
    }
    int64_t& last = store.is_remade ? store.again_until : store.until;
    if (is_saved) last = std::max(last, span.back_until);
    store.back_until = std::max(store.back_until, span.back_until);
  }
  return stores;
}

void Ledger::move(const Flow& flow, OpIndex maker, const TaskTimes& times, Stores& stores) {
  auto& from = stores[{flow.part, flow.source}];
  auto& to = stores[{flow.part, flow.device}];
  to.bytes = flow.bytes;
  to.since = times.start[flow.forward];
  from.until = std::max(from.until, times.end[flow.forward]);
  if (flow.backward == none) return;
  to.back_until = times.end[flow.backward];
  from.back_since = std::min(from.back_since, times.end[flow.backward]);
  hold(flow.source, times.start[flow.backward], times.end[flow.backward], flow.bytes, Content::returned, maker);
}

void Ledger::read_stores(int32_t tensor, const TaskTimes& times, Stores& stores) {
  const auto& readers = graph_.graph.tensors[tensor].readers;
  const FlowBlock& block = *graph_.flows[tensor];
  std::map<std::pair<int32_t, Part>, int32_t> num_flows;  // of each reading part
  for (size_t i = 0; i < block.flows.size(); ++i)
    if (is_wanted(block.flows[i].device))
      for (const auto& [reader, part] : block.readers_of(i)) ++num_flows[{reader, part}];
  std::map<std::pair<int32_t, Part>, bool> is_copied;
  for (size_t i = 0; i < block.flows.size(); ++i) {
    const Flow& flow = block.flows[i];
    if (!is_wanted(flow.device)) continue;
    auto& store = stores[{flow.part, flow.device}];
    for (const auto& [reader, part] : block.readers_of(i)) {
      const auto& [op, input] = readers[reader];
      const Span& span = spans_[op][part];
      const int64_t bytes = parts_of(op).inputs[input][part];
      const bool is_one = num_flows[{reader, part}] == 1;
      const bool again = is_recomputed(op);
      const bool saves = contains(graph_.graph.ops[op].saved, graph_.graph.ops[op].inputs[input].value);
      const int64_t last = saves || again ? std::max(span.until, span.back_until) : span.until;
      const bool is_shared = is_one && (bytes == store.bytes || last == span.until);
      const OpIndex maker = graph_.graph.tensors[tensor].producer;
      const bool is_remade = store.is_remade && remade(op, flow.device).stretch == remade(maker, flow.device).stretch;
      store.until = std::max(store.until, (is_shared || again) && !is_remade ? last : span.until);
      if (is_remade && last > span.until) store.again_until = std::max(store.again_until, last);
      const bool copy_stays = saves && !again;
      const int64_t copied_until = copy_stays ? last : times.end[graph_.ops[op].block->forward[part]];
      if (!is_shared && !std::exchange(is_copied[{reader, part}], true)) {
        hold(flow.device, span.since, copied_until, bytes, copy_stays ? Content::activation : Content::working, op);
        if (again) hold(flow.device, remade(op, flow.device).since, span.back_until, bytes, Content::activation, op);
      }
      if (flow.returns && span.back_since >= 0) store.back_since = std::min(store.back_since, span.back_since);
    }
  }
}

// What is added to a gradient lies beside it.
void Ledger::hold_added(int32_t tensor, const Stores& stores) {
  const FlowBlock& block = *graph_.flows[tensor];
  std::map<std::pair<int32_t, Part>, int64_t> left;  // of what each reading part's backward makes
  for (size_t i = 0; i < block.flows.size(); ++i) {
    const Flow& flow = block.flows[i];
    if (!flow.returns || !is_wanted(flow.device)) continue;
    const Store& store = stores.at({flow.part, flow.device});
    for (const auto& [reader, part] : block.readers_of(i)) {
      const auto& [op, input] = graph_.graph.tensors[tensor].readers[reader];
      const Span& span = spans_[op][part];
      if (span.back_since <= store.back_since) continue;
      int64_t& rest = left.try_emplace({reader, part}, parts_of(op).inputs[input][part]).first->second;
      const int64_t bytes = std::min(store.bytes, rest);
      hold(flow.device, span.back_since, span.back_until, bytes, Content::working, op);
      rest -= bytes;
    }
  }
}

void Ledger::write_sums(const TaskTimes& times, int64_t end) {
  const auto& groups = graph_.syncs.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].grad) continue;
    const SyncBlock& block = *graph_.syncs[g];
    std::map<std::pair<int32_t, int32_t>, int64_t> summed;  // when the sum of a shared piece has ended
    for (const Bucket& bucket : block.tasks->buckets) {
      for (const Device device : bucket.holders)
        hold(device, times.start[bucket.slot], times.end[bucket.slot], bucket.bytes, Content::bucket, groups[g].ops[0]);
      for (const auto& piece : bucket.pieces)
        if (bucket.shard != Shard::none) summed[piece] = times.end[bucket.slot];
    }
    for (size_t i = 0; i < block.pieces.size(); ++i)
      for (size_t p = 0; p < block.pieces[i]->size(); ++p) {
        const Piece& piece = (*block.pieces[i])[p];
        const int64_t item_size = graph_.graph.tensors[groups[g].tensors[i]].item_size;
        const auto at = summed.find({static_cast<int32_t>(i), static_cast<int32_t>(p)});
        const int64_t until = at == summed.end() ? end : at->second;
        for (size_t holder = 0; holder < piece.holders.size(); ++holder) {
          if (!is_wanted(piece.holders[holder])) continue;
          write_gradient(groups[g], piece, piece.holders[holder], piece.elements * item_size, until);
          hold(piece.holders[holder], until, end, share_of(piece.elements, piece.holders.size(), holder) * item_size,
               Content::gradient, groups[g].ops[0]);
        }
      }
  }
}

// From the first backward that makes it. Others' are added: autograd has the sum so far, what is added and the new sum.
void Ledger::write_gradient(const SyncGroup& group, const Piece& piece, Device device, int64_t bytes, int64_t until) {
  int64_t since = INT64_MAX;
  OpIndex first = none;
  const auto each_backward = [&](auto visit) {
    for (const auto& [place, part] : piece.parts) {
      const OpIndex op = group.ops[place];
      if (graph_.ops[op].configuration.devices[part] != device) continue;
      for (const Spans& spans : all_spans_)
        if (spans[op][part].back_since >= 0) visit(op, spans[op][part]);
    }
  };
  each_backward([&](OpIndex op, const Span& span) {
    if (span.back_since >= since) return;
    since = span.back_since;
    first = op;
  });
  hold(device, since, until, bytes, Content::gradient, first);
  each_backward([&](OpIndex op, const Span& span) {
    if (span.back_since > since) hold(device, span.back_since, span.back_until, 2 * bytes, Content::working, op);
  });
}

// Of which no holder keeps more than its share.
void Ledger::write_weights(const TaskTimes& times) {
  const auto& groups = graph_.syncs.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!graph_.gathers[g]) continue;
    const SyncBlock& sums = *graph_.syncs[g];
    for (const Gather& gather : graph_.gathers[g]->gathers) {
      const Bucket& bucket = sums.tasks->buckets[gather.bucket];
      if (bucket.shard != Shard::all) continue;
      for (const auto& [i, p] : bucket.pieces) {
        const Piece& piece = (*sums.pieces[i])[p];
        const int64_t bytes = piece.elements * graph_.graph.tensors[groups[g].tensors[i]].item_size;
        std::map<Device, int64_t> until;
        for (const auto& [place, part] : piece.parts) {
          const OpIndex op = groups[g].ops[place];
          const Device device = graph_.ops[op].configuration.devices[part];
          if (!is_wanted(device)) continue;
          const Span& span = spans_[op][part];
          int64_t& last = until[device];
          last = std::max(last, gather.backward ? span.back_until : span.until);
        }
        for (const auto& [device, last] : until)
          hold(device, times.start[gather.slot], last, bytes, Content::weight, groups[g].ops[0]);
      }
    }
  }
}

By<Device, int64_t> Ledger::peak() const {
  using Event = std::pair<int64_t, int64_t>;  // a time, and bytes that come or go; at one time, what goes goes first
  By<Device, std::vector<Event>> events(graph_.machine.topology.num_devices());
  for (const auto& [device, since, until, bytes, content, op] : holdings_) {
    events[device].emplace_back(since, bytes);
    events[device].emplace_back(until, -bytes);
  }
  By<Device, int64_t> peak(events.size());
  for (const Device device : events.indices()) {
    std::sort(events[device].begin(), events[device].end());
    int64_t now = 0;
    for (const auto& [time, bytes] : events[device]) peak[device] = std::max(peak[device], now += bytes);
  }
  return peak;
}

}  // namespace soapstone
