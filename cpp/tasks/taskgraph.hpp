// The task graph of one training iteration, kept up to date while configurations change.
//
// Tasks lie in blocks: an op's compute and combines (OpBlock), a tensor's transfers (FlowBlock), the gradient sums of
// parameters that may share a bucket (SyncBlock), and one update a device. A block depends on the configurations of few
// ops, so a change of one op replaces its own block and those of the tensors that it touches; taking it back puts
// the old ones in place again. All edges between ops pass through a tensor or a parameter, whose block lists them.
#pragma once

#include "machine/machine.hpp"
#include "machine/times.hpp"
#include "support/spares.hpp"
#include "tasks/blocks.hpp"
#include "tasks/changes.hpp"
#include "tasks/totals.hpp"

namespace soapstone {

class FlowBuilder;

class TaskGraph {
 public:
  // `thorough` keeps edges that follow from others; engines do as well without.
  TaskGraph(const Graph&, Machine, const Times&, bool thorough);
  TaskGraph(const TaskGraph&) = delete;  // tasks point into their blocks
  ~TaskGraph();

  // The first strategy; a Proposal changes it.
  void begin(const std::vector<Configuration>& strategy);

  // What the open proposal changes, or the last one that was committed.
  const ChangeSet& changes() const { return changes_; }
  bool is_changing(int32_t op) const { return changing_[op]; }
  bool is_routed(int32_t tensor) const { return changes_.is_routed(tensor); }
  const OpBlock& block_before(int32_t op) const;       // the change
  const SyncBlock& syncs_before(int32_t group) const;  // likewise
  const Totals& totals_before() const { return before_; }

  const Graph& graph;
  const Machine machine;
  TaskPool pool;  // the first slots are the updates, one a device
  Totals totals;

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

  // Places of the tails that bounds put after tasks.
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
  bool meets_at_loss() const { return meets_; }  // surely: what is counted as before and after it is so

 private:
  // Two readers of a tensor, of which one also reads what the other makes: `tensor`, as its reader number `reader`.
  struct Shortcut {
    int32_t before, after, tensor, reader;
  };
  struct Undo {
    std::vector<std::pair<int32_t, OpState>> ops;
    std::vector<std::pair<int32_t, std::unique_ptr<FlowBlock>>> flows;
    std::vector<std::pair<int32_t, std::unique_ptr<SyncBlock>>> syncs;
    std::vector<std::pair<int32_t, std::unique_ptr<Next>>> next;
    bool linked = false;

    void clear();  // and keep the memory
  };

  friend class Proposal;
  void change(const Changes& changes);
  void regroup();
  bool route(int64_t limit, const Idle& idle);
  void link();
  void commit();
  void rollback();

  void make_groups();
  void find_exit();
  bool leads_on(int32_t op) const;
  bool meets_now() const;
  bool surely_meets();
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
  ChangeSet changes_;
  std::vector<int32_t> relinked_;
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
