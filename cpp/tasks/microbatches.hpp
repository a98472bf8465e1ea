// A batch that is cut into microbatches, which pass through one task graph one after the other. All tasks are done for
// each of them but gradient sums and updates, which are done once, after the last; and gathers of weights that stay
// whole until the update, which the first alone waits for.
//
// Between microbatches tasks wait for one another so:
//
//   windows  a part's forward of microbatch i + w waits for its own backward of i, where its op has w in flight
//   runs     what begins a run of a device's ops waits for what ends it in the microbatch before: else all microbatches
//            would pass the first op before any passes the second
//   gathers  what is gathered first waits for those who used it in the microbatch before
//
// A run goes on until something that left the device comes back to it.
#pragma once

#include <vector>

#include "tasks/taskgraph.hpp"

namespace soapstone {

// The microbatches for which a task is done.
enum class Occurrence : int32_t { first, each, last };

By<Slot, Occurrence> occurrences(const TaskGraph& graph);

// `to` of a microbatch waits for `from` of the microbatch `lag` before it.
struct LaggedEdge {
  Slot from, to;
  int32_t lag;
};

std::vector<LaggedEdge> lagged_edges(const TaskGraph& graph);

}  // namespace soapstone
