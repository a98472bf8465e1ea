// The task graph of one training iteration, kept up to date while configurations change.
//
// Tasks lie in blocks, of five kinds: an op's compute and combines, a tensor's transfers, the gradient sums of
// parameters that may share a bucket, the gathers of weights that are shared, and one update a device. A block depends
// on the configurations of few ops, so a change of one op replaces its own block and those of the tensors and
// parameters that it touches; taking it back puts the old ones in place again. All edges between ops pass through a
// tensor or a parameter, whose block lists them.
#pragma once

#include "machine/machine.hpp"
#include "machine/times.hpp"
#include "tasks/compute.hpp"
#include "tasks/flows.hpp"
#include "tasks/gathers.hpp"
#include "tasks/loss.hpp"
#include "tasks/successors.hpp"
#include "tasks/syncs.hpp"
#include "tasks/totals.hpp"
#include "tasks/updates.hpp"

namespace soapstone {

// What a task graph is for.
struct TaskOptions {
  bool thorough = false;          // keep edges that follow from others; engines do as well without
  bool loss_may_separate = true;  // let engines and bounds make use of a loss that all of forward comes before
  int32_t num_microbatches = 1;   // that pass through it; totals are of all of them
};

class TaskGraph {
 public:
  TaskGraph(const Graph&, Machine, const Times&, TaskOptions options = {});
  TaskGraph(const TaskGraph&) = delete;  // tasks point into their blocks

  // The first strategy; a Proposal changes it.
  void begin(const Strategy& strategy);

  const Graph& graph;
  const Machine machine;
  const Times& times;
  const bool thorough;
  const int32_t num_microbatches;
  // The tensors that an op reads, each with its index in their readers.
  const By<OpIndex, std::vector<std::pair<int32_t, int32_t>>> reads;
  Layouts layouts;
  TaskPool pool;
  Totals totals;
  Loss loss;
  OpBlocks ops;
  FlowBlocks flows;
  SyncBlocks syncs;
  GatherBlocks gathers;
  Updates updates;
  Successors successors;

  // What the open proposal changes, or the last one that was committed.
  const ChangeSet& changes() const { return changes_; }
  bool is_changing(OpIndex op) const { return ops.is_changing(op); }
  bool is_routed(int32_t tensor) const { return changes_.is_routed(tensor); }
  const Totals& totals_before() const { return totals_before_; }

  // Of how many microbatches values lie there at the same time at most: those that a part keeps for its backward, and
  // those of one of its op's outputs.
  int32_t most_saved(const Configuration& configuration) const;
  int32_t most_made(int32_t tensor, const Configuration& maker) const;

  const Overlaps& between(int32_t tensor, int32_t reader);
  uint64_t key(bool backward, OpIndex op, Kind kind, int64_t slot, int64_t major, int64_t minor) const;
  void add_edges(OpIndex op, std::vector<Edge>& edges) const;  // from an op's tasks
  std::vector<SlotRun> slots() const;                          // of all tasks that are in the graph
  void list(Listing& listing) const;

  // What no order of the tasks can pass, where the optimizer keeps so many numbers for each element.
  By<Device, int64_t> memory_bound(int64_t num_states);
  // Whether it is within a limit, found without asking which device runs the largest task.
  bool surely_fits(const By<Device, int64_t>& limit, int64_t num_states) const;

  // Places of the tails that bounds put after tasks.
  int32_t tail_of(OpIndex op, Role role) const { return num_roles * op.value + role; }
  int32_t no_tail() const { return num_roles * static_cast<int32_t>(graph.ops.size()); }
  int32_t sync_tail() const { return no_tail() + 1; }
  int32_t transfer_tail(int32_t tensor, bool back) const { return sync_tail() + 1 + 2 * tensor + back; }
  int32_t num_tails() const { return transfer_tail(static_cast<int32_t>(graph.tensors.size()), false); }

 private:
  friend class Proposal;
  void change(const Changes& changes);
  void regroup();
  bool route(int64_t limit, const Idle* idle);
  void link();
  void commit();
  void rollback();

  void find_reach();

  std::vector<Blocks*> kinds_;  // each follows from those before it
  ChangeSet changes_;
  Totals totals_before_;  // the change
};

}  // namespace soapstone
