// The play of the strategy that was accepted last. It changes only in `commit`, and all engines read it: the order in
// which tasks were served, when each was ready and ended, and checkpoints to resume from.
#pragma once

#include <vector>

#include "engines/stretch.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

class Accepted {
 public:
  static constexpr int32_t forever = INT32_MAX;

  explicit Accepted(TaskGraph& graph) : graph_(graph) {}

  bool empty() const { return order_.empty(); }
  int32_t size() const { return static_cast<int32_t>(order_.size()); }
  int32_t slot(int32_t position) const { return order_[position]; }
  const std::vector<int32_t>& order() const { return order_; }
  int32_t position(int32_t slot) const { return position_[slot]; }  // -1 where it was not served
  bool has(int32_t slot) const { return position_[slot] >= 0; }
  int64_t ready(int32_t slot) const { return ready_[slot]; }
  int64_t end(int32_t slot) const { return end_[slot]; }
  int64_t makespan() const { return makespan_; }
  int64_t latest_before(int32_t position) const { return position == 0 ? 0 : latest_[position - 1]; }
  // The last position that waits for the one at a position.
  int32_t reach(int32_t position) const { return reach_[position]; }
  const std::vector<Checkpoint>& checkpoints() const { return checkpoints_; }
  // The loss's position where it parts the tasks: all before it end by its end, all after it are ready from then on.
  int32_t loss() const { return loss_; }
  int64_t loss_end() const { return end_[order_[loss_]]; }

  // The first position that is ready at a time or later.
  int32_t position_at(int64_t time) const;
  // The last checkpoint up to a position, or null.
  const Checkpoint* checkpoint_at(int32_t position) const;
  // What resources had done before the task at a position was served.
  void progress_at(int32_t position, std::vector<Progress>& progress) const;

  // Tasks whose successors the open change replaced count as if everything waited for them, until `restore_reach`.
  std::vector<std::pair<int32_t, int32_t>> widen_reach(int32_t end);
  void restore_reach(const std::vector<std::pair<int32_t, int32_t>>& before);

  // Slots that the graph has by now.
  void resize(size_t num_slots);

  struct Served {
    int64_t ready, end;
  };
  // Replaces all from a position on by what was played.
  void commit(int32_t cut, Stretch& played, const std::vector<Served>& served);

 private:
  void find_reach(int32_t cut);
  void find_reaching();
  void find_loss();

  TaskGraph& graph_;
  std::vector<int32_t> order_;        // slots
  std::vector<int32_t> position_;     // by slot
  std::vector<int64_t> ready_, end_;  // by slot
  std::vector<int32_t> reach_;        // by position
  std::vector<int64_t> latest_;       // by position: the latest end so far
  std::vector<Checkpoint> checkpoints_;
  int64_t makespan_ = 0;
  int32_t loss_ = -1;
};

}  // namespace soapstone
