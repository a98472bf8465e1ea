// Algorithm 1 where a batch is cut into microbatches: every task is played once for each, on the task graph of one. Of
// what is ready at the same time, backward comes before forward, then the earlier microbatch, then the smaller key.
#pragma once

#include <vector>

#include "bounds/bounds.hpp"
#include "engines/stretch.hpp"
#include "tasks/microbatches.hpp"

namespace soapstone {

class Repeat {
 public:
  explicit Repeat(const TaskGraph& graph) : graph_(graph) {}

  // Plays all microbatches. False where the makespan passes the limit. Throws std::invalid_argument where tasks of
  // different microbatches wait for one another.
  bool run(int64_t limit, const Bounds& bounds);

  void forget() { order_.clear(); }

  int64_t makespan() const { return makespan_; }
  int64_t num_served() const { return static_cast<int64_t>(order_.size()); }
  // Tasks as they were served: `visit(slot, microbatch, ready, end)`.
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& [slot, microbatch] : order_) {
      const State& state = states_[place(slot, microbatch)];
      visit(slot, microbatch, state.ready, state.end);
    }
  }

 private:
  struct State {
    int64_t ready = 0, end = 0;  // ready: the latest end of those that it waited for
    int32_t waiting = 0;         // for how many it still waits
  };
  struct Lagged {
    Slot to;
    int32_t lag;
  };
  struct Turn {
    int64_t ready;
    uint64_t rank;  // by phase and microbatch
    uint64_t key;
    Slot slot;

    bool operator>(const Turn& other) const;
    int32_t microbatch() const { return static_cast<int32_t>(rank & UINT32_MAX); }
  };

  size_t place(Slot slot, int32_t microbatch) const { return microbatch * num_slots_ + slot.value; }
  int32_t last() const { return graph_.num_microbatches - 1; }
  std::pair<int32_t, int32_t> microbatches_of(Slot slot) const;  // the first, and the one after the last
  void prepare();
  void count_waiting();
  void find_lagged();
  void count_work();
  bool serve(const Turn& turn, int64_t limit, const Bounds& bounds);
  void give_all(const Turn& turn);
  void give(Slot slot, int32_t microbatch, int64_t end);
  void push(Slot slot, int32_t microbatch);
  int64_t least_at(int64_t now) const;

  const TaskGraph& graph_;
  size_t num_slots_ = 0;
  std::vector<SlotRun> runs_;
  By<Slot, Occurrence> occurrences_;
  std::vector<State> states_;  // by microbatch and slot
  By<Slot, int32_t> lagged_begin_;
  std::vector<Lagged> lagged_;  // those that wait for a slot's earlier microbatches, one slot after the other
  By<Resource, Progress> resources_;
  By<Resource, int64_t> left_;  // to serve
  std::vector<Turn> queue_;     // a heap
  std::vector<std::pair<Slot, int32_t>> order_;
  int64_t makespan_ = 0, least_ = 0;
};

}  // namespace soapstone
