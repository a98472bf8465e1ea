#include "bounds/followers.hpp"

#include <algorithm>
#include <bit>

namespace soapstone {

Followers::Followers(const Graph& graph)
    : forward(graph.ops.size()),
      backward(graph.ops.size()),
      lead(graph.ops.size()),
      num_words_((graph.ops.size() + 63) / 64),
      before_(graph.ops.size(), Bits(num_words_)),
      after_(before_) {
  const auto each_edge = [&](OpIndex op, auto visit) {
    for (const auto& output : graph.ops[op].outputs)
      for (const auto& [reader, input] : graph.tensors[output.tensor].readers) visit(reader);
  };
  for (const OpIndex op : graph.ops.indices() | std::views::reverse)
    each_edge(op, [&](OpIndex reader) {
      set(after_[op], reader);
      add(after_[op], after_[reader]);
    });
  for (const OpIndex op : graph.ops.indices())
    each_edge(op, [&](OpIndex reader) {
      set(before_[reader], op);
      add(before_[reader], before_[op]);
    });
}

Followers::Affected Followers::begin(const TaskGraph& graph, const std::vector<OpIndex>& changed) {
  Affected affected{Bits(num_words_), Bits(num_words_)};
  const auto see = [&](OpIndex op) {
    set(affected.forward, op);
    add(affected.forward, before_[op]);
    set(affected.backward, op);
    add(affected.backward, after_[op]);
    place(graph, op);
  };
  if (num_devices_ == 0) {
    num_devices_ = graph.machine.topology.num_devices();
    const size_t size = graph.ops.size() * num_devices_;
    parts_on_.resize(size);
    own_.resize(size);
    for (auto* chains : {&forward_, &backward_}) {
      chains->follow.resize(size);
      chains->sets.resize(size * num_words_);
    }
    for (const OpIndex op : graph.ops.indices()) see(op);
  }
  for (const OpIndex op : changed) see(op);
  return affected;
}

// The work of an op's part on each device. What finishes one of several copies may be of no use to anyone, and is not
// counted.
void Followers::place(const TaskGraph& graph, OpIndex op) {
  const auto& [configuration, layout, block] = graph.ops[op];
  std::fill_n(parts_on_.begin() + row_of(op), num_devices_, 0);
  const bool finishes = !block->finish_forward.empty() && layout->copies == 1;
  const auto time = [&](const By<Part, Slot>& slots, Part part) {
    return slots.empty() ? 0 : graph.pool.tasks[slots[part]].first.duration;
  };
  for (const Part part : layout->parts()) {
    const size_t at = place_of(op, configuration.devices[part]);
    ++parts_on_[at];
    own_[at] = {time(block->forward, part), time(block->backward, part)};
    if (!finishes) continue;
    own_[at].forward += time(block->finish_forward, part);
    own_[at].backward += time(block->finish_backward, part);
  }
}

void Followers::clear(Chains& chains, OpIndex op) {
  std::fill_n(chains.follow.begin() + row_of(op), num_devices_, Work{});
  std::fill_n(chains.sets.begin() + row_of(op) * static_cast<ptrdiff_t>(num_words_), num_devices_ * num_words_, 0);
}

// All that follows `follower`, and itself, follow `op`.
void Followers::join(Chains& chains, OpIndex op, OpIndex follower, Device device) {
  const size_t to = place_of(op, device), from = place_of(follower, device);
  if (parts_on_[to] != 1 || parts_on_[from] != 1) return;
  const int32_t bit = follower.value;
  uint64_t* own = chains.sets.data() + to * num_words_;
  const uint64_t* others = chains.sets.data() + from * num_words_;
  auto& [forward, backward] = chains.follow[to];
  if (forward == 0) {
    std::copy_n(others, num_words_, own);
    own[bit >> 6] |= uint64_t{1} << (bit & 63);
    forward = chains.follow[from].forward + own_[from].forward;
    backward = chains.follow[from].backward + own_[from].backward;
    return;
  }
  for (size_t word = 0; word < num_words_; ++word) {
    uint64_t fresh = others[word];
    if (word == static_cast<size_t>(bit >> 6)) fresh |= uint64_t{1} << (bit & 63);
    fresh &= ~own[word];
    own[word] |= fresh;
    for (; fresh; fresh &= fresh - 1) {
      const Work& work = own_[place_of(OpIndex(64 * word + std::countr_zero(fresh)), device)];
      forward += work.forward;
      backward += work.backward;
    }
  }
}

template <typename Of>
int64_t Followers::least(const TaskGraph& graph, OpIndex op, Of of) const {
  int64_t least = INT64_MAX;
  for (const Device device : graph.ops[op].configuration.devices) {
    const size_t at = place_of(op, device);
    if (parts_on_[at] != 1) return 0;
    least = std::min(least, of(at));
  }
  return least;
}

void Followers::find(const TaskGraph& graph, const std::vector<OpIndex>& changed) {
  const auto affected = begin(graph, changed);
  // Every (reader, device) that reads on its device what `op` makes there, and gives back a gradient.
  const auto each_link = [&](OpIndex op, auto visit) {
    for (const auto& output : graph.graph.ops[op].outputs) {
      const auto& tensor = graph.graph.tensors[output.tensor];
      if (!tensor.grad || !graph.graph.ops[op].backward) continue;
      const auto& block = *graph.flows[output.tensor];
      for (size_t flow = 0; flow < block.flows.size(); ++flow) {
        if (block.flows[flow].moves()) continue;
        for (const auto& reading : block.readers_of(flow))
          if (const OpIndex reader = tensor.readers[reading.reader].first; graph.graph.ops[reader].backward)
            visit(reader, block.flows[flow].device);
      }
    }
  };
  for (const OpIndex op : graph.ops.indices() | std::views::reverse) {
    if (!has(affected.forward, op)) continue;
    clear(forward_, op);
    each_link(op, [&](OpIndex reader, Device device) { join(forward_, op, reader, device); });
    const auto& follow = forward_.follow;
    forward[op].after = least(graph, op, [&](size_t at) { return follow[at].forward; });
    forward[op].from = least(graph, op, [&](size_t at) { return follow[at].forward + own_[at].forward; });
    lead[op] = least(graph, op, [&](size_t at) { return follow[at].backward + own_[at].backward; });
  }
  for (const OpIndex op : graph.ops.indices())
    if (has(affected.backward, op)) clear(backward_, op);
  for (const OpIndex op : graph.ops.indices()) {
    const auto& follow = backward_.follow;
    backward[op].after = least(graph, op, [&](size_t at) { return follow[at].backward; });
    backward[op].from = least(graph, op, [&](size_t at) { return follow[at].backward + own_[at].backward; });
    each_link(op, [&](OpIndex reader, Device device) {
      if (has(affected.backward, reader)) join(backward_, reader, op, device);
    });
  }
}

}  // namespace soapstone
