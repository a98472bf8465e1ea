// The task graph of one training iteration, kept up to date while configurations change.
//
// Tasks lie in blocks: an op's compute and combines (OpBlock), a tensor's transfers (FlowBlock), the gradient sums of
// parameters that may share a bucket (SyncBlock), and one update a device. A block depends on the configurations of few
// ops, so a change of one op replaces its own block and those of the tensors that it touches; taking it back puts
// the old ones in place again. All edges between ops pass through a tensor or a parameter, whose block lists them.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "geometry/layouts.hpp"
#include "geometry/pieces.hpp"
#include "machine/machine.hpp"
#include "machine/times.hpp"
#include "support/spares.hpp"
#include "tasks/tasks.hpp"

namespace soapstone {

// What a task does for its op, in the order in which they follow one another.
enum Role : int32_t {
  role_forward,
  role_combine_forward,
  role_finish_forward,
  role_finish_backward,
  role_combine_backward,
  role_backward,
  num_roles
};

struct OpBlock : Block {
  std::vector<int32_t> first_on_device;  // by part: the part that finishes for it on its device
  std::vector<int32_t> forward, finish_forward, finish_backward, backward;  // slots by part, -1 where there is none
  std::vector<int32_t> combine_forward, combine_backward;                   // slots by group
  std::array<int64_t, num_roles> least{};                                   // time of a task, by role

  void clear();
  bool is_large() const { return holds.capacity() > 1024; }
  // The task behind which a part's output is whole, and the one that takes its gradient.
  int32_t arrival(const Layout& layout, int32_t part) const;
  int32_t sink(const Layout& layout, int32_t part) const;
};

// An output part of a tensor as one device has it: made there, or moved there from `source`.
struct Flow {
  int32_t part = 0, device = 0, source = 0, maker = 0;  // maker: the op's part that makes or finishes it on `source`
  bool returns = false;                                 // a gradient goes back
  int32_t forward = -1, backward = -1;                  // the transfers' slots, -1 where it does not move
  int32_t readers_begin = 0;                            // its readers begin here in FlowBlock::readers
  int64_t bytes = 0;
  Trip there, back;

  bool moves() const { return source != device; }
};

struct Reader {
  int32_t reader, part;  // an index in the tensor's readers, and a part of that op
};

constexpr int64_t uncounted = -1;  // of an edge's weight: some part at its end has nothing to do with it

struct FlowBlock : Block {
  std::vector<Flow> flows;
  std::vector<Hold> before, behind;           // what each resource serves of the transfers, there and back
  std::vector<int64_t> made;                  // by device: bytes of what is moved there
  std::vector<Interval> hulls;                // of what each flow's device reads, one interval for each dim
  std::vector<Reader> readers;                // of all flows
  std::vector<int32_t> next, next_end;        // successors of all transfers, and where each one's end
  std::vector<Edge> forward;                  // from the maker's tasks
  std::vector<std::vector<Edge>> backward;    // from each reader's tasks
  std::vector<bool> read, returns;            // by the maker's part: some device has it, a gradient comes back to it
  bool all_read = false, all_return = false;  // of every output part some copy
  // By reader: the least time that its messages add, or uncounted: behind any part that sends, and before any that
  // receives.
  std::vector<int64_t> weight_forward, weight_backward, arrival_forward;
  int64_t arrival_backward = 0;                 // before any of the maker's parts
  int64_t most_forward = 0, most_backward = 0;  // that a resource serves of the transfers

  void clear();
  bool is_large() const { return flows.capacity() > 1024; }
  bool shares(const FlowBlock& other) const { return count > 0 && other.count > 0 && begin == other.begin; }
  std::span<const Reader> readers_of(size_t flow) const {
    const auto begin = static_cast<size_t>(flows[flow].readers_begin);
    const size_t end = flow + 1 < flows.size() ? flows[flow + 1].readers_begin : readers.size();
    return {readers.data() + begin, end - begin};
  }
};

struct Bucket {
  std::vector<int32_t> holders;
  std::vector<std::pair<int32_t, int32_t>> pieces;  // (index in the group, piece)
  int64_t bytes = 0;
  int32_t slot = -1;
  Trip trip;

  bool same_sum(const Bucket& other) const {
    return holders == other.holders && pieces == other.pieces && bytes == other.bytes;
  }
};

struct SyncTasks : Block {
  std::vector<Bucket> buckets;
  std::vector<int32_t> next;
};

struct SyncBlock {
  std::shared_ptr<SyncTasks> tasks;  // those of the block before, where the same sums are left
  std::vector<std::shared_ptr<const std::vector<Piece>>> pieces;  // by parameter of the group
  std::vector<std::vector<Edge>> edges;                           // from the tasks of each of the group's ops
  std::vector<int64_t> weights;  // likewise: the least time that a sum takes, or uncounted
  bool all_wait = true;          // every piece's gradient is some backward's

  void clear();
  bool is_large() const { return edges.capacity() > 1024; }
};

// Parameters whose pieces may share a bucket, and the ops that read them.
struct SyncGroup {
  std::vector<int32_t> tensors, ops;
  bool grad = false;
};

// Bytes by device.
struct MemoryTotals {
  std::vector<int64_t> parameters, gradients, saved, made, buckets;
};

// What adds up over all tasks.
struct Totals {
  Totals(size_t num_resources, size_t num_devices);

  std::vector<int64_t> work;      // by resource: all that it has to serve,
  std::vector<int64_t> before;    // what of it surely comes before the end of forward,
  std::vector<int64_t> behind;    // and behind it
  std::vector<int64_t> compute;   // by device: what ops have it do
  std::vector<int64_t> elements;  // by device: what its update changes
  MemoryTotals memory;
};

// By resource: how long it stands idle before a change can touch anything, up to the loss and from there on.
struct Idle {
  std::vector<int64_t> before, behind;
};

// The most that a resource takes, idle or at work.
inline int64_t longest(const std::vector<int64_t>& work, const std::vector<int64_t>& idle) {
  int64_t most = 0;
  for (size_t i = 0; i < work.size(); ++i) most = std::max(most, work[i] + idle[i]);
  return most;
}

class FlowBuilder;

class TaskGraph {
 public:
  // `thorough` keeps edges that follow from others; engines do as well without.
  TaskGraph(const Graph&, Machine, const Times&, bool thorough);
  TaskGraph(const TaskGraph&) = delete;  // tasks point into their blocks
  ~TaskGraph();

  // The first strategy, and then changes of some ops: `change` makes the ops' blocks, `regroup` finds the gradient
  // sums and forgets what moved between ops, `route` finds some of what moves between them now, or stops where that
  // alone passes the limit, `link` makes tasks of it all and joins them to the rest, `keep` or `take_back` ends it.
  void begin(const std::vector<Configuration>& strategy);
  void change(const std::vector<std::pair<int32_t, Configuration>>& changes);
  void regroup();
  bool route(int64_t limit);
  void link();
  void keep();
  void take_back();

  // Where the last change reaches: tensors with other flows and groups of parameters with other pieces; once linked,
  // slots that are gone, slots that are new, those that may have other successors than before, and devices with another
  // update.
  const std::vector<std::pair<int32_t, int32_t>>& gone() const { return gone_; }
  const std::vector<std::pair<int32_t, int32_t>>& fresh() const { return fresh_; }
  const std::vector<std::pair<int32_t, int32_t>>& rewired() const { return rewired_; }
  const std::vector<int32_t>& rerouted() const { return rerouted_; }
  // While a change is open: those whose flows are found, and those whose flows are still the ones before it.
  std::span<const int32_t> routed() const { return {rerouted_.data(), undo_.flows.size()}; }
  std::span<const int32_t> unrouted() const { return std::span(rerouted_).subspan(undo_.flows.size()); }
  bool is_routed(int32_t tensor) const { return !std::binary_search(unrouted().begin(), unrouted().end(), tensor); }
  const std::vector<int32_t>& regrouped() const { return regrouped_; }
  const std::vector<int32_t>& reupdated() const { return reupdated_; }
  const std::vector<int32_t>& changed() const { return changed_; }
  bool is_changing(int32_t op) const { return changing_[op]; }
  const OpBlock& block_before(int32_t op) const;       // the change
  const SyncBlock& syncs_before(int32_t group) const;  // likewise
  const Totals& totals_before() const { return before_; }

  const Graph& graph;
  const Machine machine;
  TaskPool pool;  // the first slots are the updates, one a device
  Totals totals;
  Idle idle;  // whoever knows times says so; zeros where tasks may not meet at the loss

  struct Next {
    std::vector<int32_t> slots, end;  // successors of all the block's tasks, and where each task's end

    void clear() {}  // all is assigned anew
    bool is_large() const { return slots.capacity() > 4096; }
  };
  struct OpState {
    Configuration configuration;
    std::shared_ptr<const Layout> layout;
    std::unique_ptr<OpBlock> block;
    std::unique_ptr<Next> next;
  };
  std::vector<OpState> ops;
  std::vector<std::unique_ptr<FlowBlock>> flows;  // by tensor; null where no op makes it
  std::vector<std::unique_ptr<SyncBlock>> syncs;  // by group
  std::vector<SyncGroup> groups;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> groups_of_op;  // (group, index in its ops)

  const std::vector<std::pair<int32_t, int32_t>>& reads(int32_t op) const { return reads_[op]; }
  const Overlaps& between(int32_t tensor, int32_t reader);
  bool has_update(int32_t device) const { return totals.elements[device] > 0; }
  bool changes_update(int32_t device) const { return totals.elements[device] != before_.elements[device]; }
  int64_t update_time(int32_t device) const { return pool.tasks[update_slot(device)].first.duration; }
  // The first slots are the updates.
  static int32_t update_slot(int32_t device) { return device; }
  static int32_t device_of_update(int32_t slot) { return slot; }
  bool is_update(int32_t slot) const { return slot < machine.topology.num_devices(); }
  const std::vector<int64_t>& transient();  // by device: the largest task's bytes
  // By device: what no order of the tasks can pass, where the optimizer keeps so many numbers for each element.
  std::vector<int64_t> memory_bound(int64_t num_states);
  // Whether it is within a limit, found without asking which device runs the largest task.
  bool surely_fits(const std::vector<int64_t>& limit, int64_t num_states) const;
  template <typename Visit>
  void each_slot(Visit visit) const;  // of all tasks that are in the graph

  // Places of the tails that bounds put behind tasks.
  int32_t tail_of(int32_t op, Role role) const { return num_roles * op + role; }
  int32_t no_tail() const { return num_roles * static_cast<int32_t>(graph.ops.size()); }
  int32_t sync_tail() const { return no_tail() + 1; }
  int32_t transfer_tail(int32_t tensor, bool back) const { return sync_tail() + 1 + 2 * tensor + back; }
  int32_t num_tails() const { return transfer_tail(static_cast<int32_t>(graph.tensors.size()), false); }

  // The op that ends forward, -1 where there are several, and the task that does; what finishes a combined loss begins
  // backward.
  int32_t exit() const { return exit_; }
  int32_t loss() const {
    const auto& [configuration, layout, block, next] = ops[exit_];
    return layout->combines ? block->combine_forward[0] : block->forward[0];
  }
  bool meets_at_loss() const { return meets_; }  // surely: what is counted as before and behind it is so

 private:
  // Two readers of a tensor, of which one also reads what the other makes: `tensor`, as its reader number `reader`.
  struct Shortcut {
    int32_t before, behind, tensor, reader;
  };
  struct Undo {
    std::vector<std::pair<int32_t, OpState>> ops;
    std::vector<std::pair<int32_t, std::unique_ptr<FlowBlock>>> flows;
    std::vector<std::pair<int32_t, std::unique_ptr<SyncBlock>>> syncs;
    std::vector<std::pair<int32_t, std::unique_ptr<Next>>> next;
    bool linked = false;

    void clear();  // and keep the memory
  };

  void make_groups();
  void find_exit();
  bool goes_on(int32_t op) const;
  bool find_whether_meets() const;
  bool will_meet();
  bool is_wanted(int32_t tensor, bool back);
  void find_shortcuts();
  void check(const Op&, const Configuration&) const;
  OpState configured(int32_t op, const Configuration&);
  std::unique_ptr<OpBlock> make_op_block(int32_t op, const OpState&);
  std::unique_ptr<SyncBlock> find_syncs(int32_t group);
  void join_syncs(int32_t group);
  std::unique_ptr<Next> make_next(int32_t op);
  void point_to_next(int32_t op);
  void inner_edges(int32_t op, std::vector<Edge>& edges) const;
  bool is_idle(int32_t op, int32_t part) const;
  bool has_idle(int32_t op) const;
  uint64_t key(bool backward, int64_t op, Kind kind, int64_t slot, int64_t major, int64_t minor) const;

  // Add what they hold and keep to all that adds up, or with -1 take it away.
  void count(const Block&, int64_t sign);
  void count(int32_t op, const OpState&, int64_t sign);
  void count_largest(int32_t op, const OpState&, int64_t sign);
  void count(const FlowBlock&, int64_t sign);
  void count(const SyncGroup&, const SyncBlock&, int64_t sign);
  void set_updates();
  int64_t lasting(int32_t device, int64_t num_states) const;  // the bytes that are there beside a task's own
  void replaced(const Block& old, const Block& block);
  void find_reach();
  void unlink();
  void drop(OpState&);
  void drop(std::unique_ptr<FlowBlock>, const FlowBlock& other);
  void drop(std::unique_ptr<SyncBlock>, const SyncBlock& other);
  void replace_flows(int32_t tensor, const FlowBlock& old);
  void replace_syncs(int32_t group, const SyncBlock& old);
  void relink(int32_t op, bool differs);

  friend class OpBuilder;
  friend class FlowBuilder;
  friend class SyncBuilder;

  bool thorough_;
  Layouts layouts_;
  const Times& times_;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> reads_;  // by op: (tensor, index in its readers)
  std::vector<std::vector<Shortcut>> shortcuts_;                 // by tensor; none where the graph is thorough
  std::vector<std::pair<int32_t, int32_t>> gone_, fresh_, rewired_;
  std::vector<int32_t> changed_, relinked_, rerouted_, regrouped_, reupdated_;
  int32_t exit_ = -1;
  std::vector<bool> changing_, relinking_;
  std::vector<int64_t> largest_;  // by op and device: the largest part's bytes
  std::vector<int64_t> transient_;
  std::vector<bool> transient_known_;
  Undo undo_;
  Spares<OpBlock> spare_ops_;
  Spares<FlowBlock> spare_flows_;
  Spares<SyncBlock> spare_syncs_;
  Spares<Next> spare_next_;
  std::vector<Edge> edges_;          // make_next's own
  std::vector<int32_t> reading_of_;  // SyncBuilder's own: by region, -1 between calls
  Totals before_;                    // the change
  bool meets_ = false, met_before_ = false;
  std::unique_ptr<FlowBuilder> flow_builder_;
};

template <typename Visit>
void TaskGraph::each_slot(Visit visit) const {
  const auto each = [&](const Block& block) {
    for (int32_t slot = block.begin; slot < block.begin + block.count; ++slot) visit(slot);
  };
  for (const auto& op : ops) each(*op.block);
  for (const auto& block : flows)
    if (block) each(*block);
  for (const auto& block : syncs) each(*block->tasks);
  for (int32_t device = 0; device < machine.topology.num_devices(); ++device)
    if (has_update(device)) visit(device);
}

}  // namespace soapstone
