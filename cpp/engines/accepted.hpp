// The play of the strategy that was accepted last. It changes only in `commit`, and all engines read it: the order in
// which tasks were served, when each was ready and ended, and checkpoints to resume from.
#pragma once

#include <vector>

#include "engines/stretch.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

class Accepted {
 public:
  static constexpr Position forever{INT32_MAX};

  explicit Accepted(TaskGraph& graph) : graph_(graph) {}

  bool empty() const { return order_.empty(); }
  size_t size() const { return order_.size(); }
  Position past() const { return order_.end_index(); }  // all of them
  Slot slot(Position position) const { return order_[position]; }
  const By<Position, Slot>& order() const { return order_; }
  Position position(Slot slot) const { return position_[slot]; }  // none where it was not served
  bool has(Slot slot) const { return position_[slot] != none; }
  int64_t ready(Slot slot) const { return ready_[slot]; }
  int64_t end(Slot slot) const { return end_[slot]; }
  int64_t makespan() const { return makespan_; }
  // The least that tasks from a position on were launched before they could start otherwise, or less; negative where
  // one waited for its host.
  int64_t lead(Position position) const { return lead_[position]; }
  int64_t lead_of(Slot slot) const { return slot_lead_[slot]; }
  int64_t latest_before(Position position) const { return position == Position(0) ? 0 : latest_[position - 1]; }
  // The last position that waits for the one at a position.
  Position reach(Position position) const { return reach_[position]; }
  const std::vector<Checkpoint>& checkpoints() const { return checkpoints_; }
  // The loss's position where it parts the tasks: all before it end by its end, all after it are ready from then on.
  Position loss() const { return loss_; }
  int64_t loss_end() const { return end_[order_[loss_]]; }

  // The first position that is ready at a time or later.
  Position position_at(int64_t time) const;
  // The last checkpoint up to a position, or null.
  const Checkpoint* checkpoint_at(Position position) const;
  // What resources had done before the task at a position was served.
  void progress_at(Position position, By<Resource, Progress>& progress) const;

  // Tasks whose successors the open change replaced count as if everything waited for them, until `restore_reach`.
  std::vector<std::pair<Position, Position>> widen_reach(Position end);
  void restore_reach(const std::vector<std::pair<Position, Position>>& before);

  // Slots that the graph has by now.
  void resize(size_t num_slots);

  struct Served {
    int64_t ready, end;
  };
  // Replaces all from a position on by what was played.
  void commit(Position cut, Stretch& played, const By<Slot, Served>& served, const By<Slot, int64_t>& leads);

 private:
  void find_leads();
  void find_reach(Position cut);
  void find_reaching();
  void find_loss();

  TaskGraph& graph_;
  By<Position, Slot> order_;
  By<Slot, Position> position_;
  By<Slot, int64_t> ready_, end_, slot_lead_;
  By<Position, int64_t> lead_;
  By<Position, Position> reach_;
  By<Position, int64_t> latest_;  // end so far
  std::vector<Checkpoint> checkpoints_;
  int64_t makespan_ = 0;
  Position loss_ = none;
};

}  // namespace soapstone
