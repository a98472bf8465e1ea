// An op's own tasks: a part's forward and backward, and where parts combine, the combine and what finishes after it.
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
  std::vector<int32_t> first_on_device;  // by part: the part that finishes for it on its device
  std::vector<Slot> forward, finish_forward, finish_backward, backward;  // by part, or none
  std::vector<Slot> combine_forward, combine_backward;                   // by group
  std::array<int64_t, num_roles> least{};                                // time of a task, by role

  void clear();
  bool is_large() const { return holds.capacity() > 1024; }
  // The task after which a part's output is whole, and the one that takes its gradient.
  Slot arrival(const Layout& layout, int32_t part) const;
  Slot sink(const Layout& layout, int32_t part) const;
};

// How an op runs, and its tasks.
struct OpState {
  Configuration configuration;
  std::shared_ptr<const Layout> layout;
  std::unique_ptr<OpBlock> block;
};

// By op. A change begins here, since all other kinds follow from the ops' configurations.
class OpBlocks final : public Blocks {
 public:
  explicit OpBlocks(TaskGraph& graph);

  // Throws std::invalid_argument where a configuration does not fit its op.
  void configure(const Changes& changes, ChangeSet& set);
  const OpState& operator[](size_t op) const { return states_[op]; }
  const OpState& at(size_t op) const { return states_.at(op); }
  size_t size() const { return states_.size(); }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }
  bool is_changing(int32_t op) const { return changing_[op]; }
  const OpBlock& before(int32_t op) const;    // the change
  const By<Device, int64_t>& most_working();  // the largest task's bytes
  bool has_unread(int32_t op) const;          // some part finishes a copy that nobody reads

  void make(const ChangeSet&) override {}  // `configure` did
  void join(ChangeSet& changes) override;
  void commit() override;
  void rollback(const ChangeSet& changes) override;
  void add_edges(int32_t op, std::vector<Edge>& edges) const override;
  void add_slots(std::vector<SlotRun>& runs) const override;
  void list(Listing& listing) const override;

 private:
  void check(int32_t op, const Configuration& configuration) const;
  OpState configured(int32_t op, const Configuration& configuration);
  std::unique_ptr<OpBlock> make_block(int32_t op, const OpState& state);
  void count(int32_t op, const OpState& state, int64_t sign);
  void count_working(int32_t op, const OpState& state, int64_t sign);
  bool is_unread(int32_t op, int32_t part) const;
  bool is_returned(int32_t op, int32_t begin, int32_t end) const;
  void add_combine_edges(int32_t op, std::vector<Edge>& edges) const;
  int64_t& working(int32_t op, Device device) { return working_[op * most_working_.size() + device.value]; }
  void drop(OpState& state);
  void list_op(int32_t op, Listing& listing) const;

  TaskGraph& graph_;
  std::vector<OpState> states_;
  std::vector<std::pair<int32_t, OpState>> replaced_;
  std::vector<bool> changing_;
  std::vector<int64_t> working_;  // by op and device: the largest part's bytes
  By<Device, int64_t> most_working_;
  By<Device, bool> most_known_;
  Spares<OpBlock> spare_;
};

}  // namespace soapstone
