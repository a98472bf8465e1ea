// Algorithm 2 of the paper (section "Delta Simulation Algorithm"), each task at most once.
//
// The sweep goes over the accepted order and merges in, from a heap, tasks that are ready at another time than before.
// An accepted task whose predecessors end as they did is served where it stood; it notifies its successors only where
// its end changes. One whose predecessors end later than it stood is *open*: its successors may not be served until it
// is. A task is offered to the heap at a time that is no later than its true one and looked at again when that time
// comes, so that many notices of one task cost little.
#pragma once

#include "engines/play.hpp"
#include "engines/touch.hpp"

namespace soapstone {

class Delta {
 public:
  Delta(Play& play, const Accepted& accepted, Touch& touch)
      : play_(play), accepted_(accepted), touch_(touch), graph_(play.graph) {}

  // Before the graph changes: finds every task's predecessors.
  void prepare();
  // False where the makespan passes the limit.
  bool run(int64_t limit, const Bounds& bounds);
  // The accepted play is another one.
  void commit() { prepared_ = false; }

 private:
  static constexpr int64_t never = INT64_MAX;
  struct Sweep {
    uint32_t run = 0;         // that it is of
    int32_t unresolved = 0;   // predecessors whose end is open
    int64_t known = 0;        // the latest end that it was notified of
    int64_t offered = never;  // when it is looked at next
    bool dirty = false;       // a predecessor is another, or ends at another time
    bool loose = false;       // it may be ready earlier than it was
    bool open = false;        // it is not served where it stood
    bool served = false;
  };

  int64_t first_touch() const;
  bool sweep(int64_t limit, const Bounds& bounds);
  void begin_run();
  void mark_edited();
  void collect_added();
  void open_fresh();
  Sweep& swept(Slot slot);
  void set_open(Slot slot);
  int64_t latest_predecessor(Slot slot) const;
  void offer(Slot slot, int64_t ready);
  bool take_offer(int64_t limit, const Bounds& bounds);
  bool take_old(Slot slot, int64_t limit, const Bounds& bounds);
  bool serve_anew(Slot slot, int64_t ready, int64_t limit, const Bounds& bounds);
  void notify(Slot slot, bool was_open, int64_t end);
  Ready as_accepted(Slot slot) const { return {accepted_.ready(slot), graph_.pool.tasks[slot].key, slot}; }

  Play& play_;
  const Accepted& accepted_;
  Touch& touch_;
  TaskGraph& graph_;
  uint32_t run_ = 0;
  bool prepared_ = false;
  By<Slot, Sweep> sweep_;
  std::vector<Ready> offers_;                        // a heap
  By<Slot, int32_t> before_begin_;                   // where in `before_`
  std::vector<Slot> before_;                         // the predecessors in the accepted play
  By<Slot, uint32_t> edited_;                        // the run in which its successors are no longer those
  By<Slot, std::pair<int32_t, uint32_t>> added_at_;  // where in `added_`, and in which run
  std::vector<Edge> added_;                          // edges from such tasks and new ones, by target
};

}  // namespace soapstone
