// What a proposal changes in a task graph.
#pragma once

#include <algorithm>
#include <cstdint>

#include <span>
#include <utility>
#include <vector>

#include "geometry/configuration.hpp"
#include "support/index.hpp"

namespace soapstone {

using Changes = std::vector<std::pair<OpIndex, Configuration>>;

struct SlotRun {
  Slot first;
  int32_t count;

  auto slots() const { return range(first, first + count); }
};

struct ChangeSet {
  std::vector<OpIndex> ops;      // with another configuration
  std::vector<int32_t> tensors;  // with other flows, of which the first `num_routed` are found
  size_t num_routed = 0;
  std::vector<int32_t> groups;       // of parameters, with other pieces
  std::vector<int32_t> gathers;      // groups whose weights are gathered otherwise, or after others
  bool linked = false;               // since then:
  std::vector<SlotRun> gone, fresh;  // tasks that are no longer there, and new ones,
  std::vector<SlotRun> rewired;      // those that may have other successors,
  std::vector<SlotRun> retimed;      // and those that take another time, in the slot that they had

  std::span<const int32_t> routed() const { return {tensors.data(), num_routed}; }
  std::span<const int32_t> unrouted() const { return std::span(tensors).subspan(num_routed); }
  bool is_routed(int32_t tensor) const { return !std::binary_search(unrouted().begin(), unrouted().end(), tensor); }

  // And keep the memory.
  void clear() {
    ops.clear();
    for (auto* list : {&tensors, &groups, &gathers}) list->clear();
    for (auto* runs : {&gone, &fresh, &rewired, &retimed}) runs->clear();
    num_routed = 0;
    linked = false;
  }
};

}  // namespace soapstone
