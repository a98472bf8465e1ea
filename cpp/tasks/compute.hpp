// An op's own tasks: a part's forward and backward, and where parts combine, the combine and what finishes after it.
// Where an op is recomputed, its backward does its forward again first.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "geometry/layouts.hpp"
#include "support/spares.hpp"
#include "tasks/blocks.hpp"

namespace soapstone {

class TaskGraph;

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
  By<Part, Part> first_on_device;                                     // the one that finishes for it on its device
  By<Part, Slot> forward, finish_forward, finish_backward, backward;  // or none
  std::vector<Slot> combine_forward, combine_backward;                // by group
  std::array<int64_t, num_roles> least{};                             // time of a task, by role

  void clear();
  bool is_large() const { return holds.capacity() > 1024; }
  // The task after which a part's output is whole, and the one that takes its gradient.
  Slot arrival(const Layout& layout, Part part) const;
  Slot sink(const Layout& layout, Part part) const;
};

// How an op runs, and its tasks.
struct OpState {
  Configuration configuration;
  std::shared_ptr<const Layout> layout;
  std::unique_ptr<OpBlock> block;

  // Bytes of `saved` that do not stay: casts of sharded parameters are made again for backward.
  int64_t gathered_anew(Part part) const { return configuration.shard == Shard::all ? layout->casts[part] : 0; }
};

// By op. A change begins here, since all other kinds follow from the ops' configurations.
class OpBlocks final : public Blocks {
 public:
  explicit OpBlocks(TaskGraph& graph);

  // Throws std::invalid_argument where a configuration does not fit its op.
  void configure(const Changes& changes, ChangeSet& set);
  const OpState& operator[](OpIndex op) const { return states_[op]; }
  const OpState& at(OpIndex op) const { return states_.at(op); }
  size_t size() const { return states_.size(); }
  auto indices() const { return states_.indices(); }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }
  bool is_changing(OpIndex op) const { return changing_[op]; }
  const OpBlock& before(OpIndex op) const;    // the change
  const By<Device, int64_t>& most_working();  // the largest task's bytes
  int64_t largest_working(OpIndex op) const;  // of an op's parts
  bool has_unread(OpIndex op) const;          // some part finishes a copy that nobody reads

  void make(const ChangeSet&) override {}  // `configure` did
  void join(ChangeSet& changes) override;
  void commit() override;
  void rollback(const ChangeSet& changes) override;
  void add_edges(OpIndex op, std::vector<Edge>& edges) const override;
  void add_slots(std::vector<SlotRun>& runs) const override;
  void list(Listing& listing) const override;

 private:
  void check(OpIndex op, const Configuration& configuration) const;
  OpState configured(OpIndex op, const Configuration& configuration);
  std::unique_ptr<OpBlock> make_block(OpIndex op, const OpState& state);
  void count(OpIndex op, const OpState& state, int64_t sign);
  void count_working(OpIndex op, const OpState& state, int64_t sign);
  By<Part, int64_t> working_of(OpIndex op, const OpState& state) const;
  bool is_unread(OpIndex op, Part part) const;
  bool is_returned(OpIndex op, Part begin, Part end) const;
  void add_combine_edges(OpIndex op, std::vector<Edge>& edges) const;
  int64_t& working(OpIndex op, Device device) { return working_[op.value * most_working_.size() + device.value]; }
  void drop(OpState& state);
  void list_op(OpIndex op, Listing& listing) const;

  TaskGraph& graph_;
  By<OpIndex, OpState> states_;
  std::vector<std::pair<OpIndex, OpState>> replaced_;
  By<OpIndex, bool> changing_;
  std::vector<int64_t> working_;  // by op and device: the largest part's bytes
  By<Device, int64_t> most_working_;
  By<Device, bool> most_known_;
  Spares<OpBlock> spare_;
};

}  // namespace soapstone
