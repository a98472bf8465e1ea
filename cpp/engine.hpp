// Engines that play a task graph, to the nanosecond alike: each resource serves in increasing (ready, key).
//
// full     Algorithm 1 of the paper, by a calendar instead of a heap
// resume   the same, from the first moment that a change can touch; all before it is as it was. Where every task comes
//          before or behind the loss, backward is the same whenever it begins: so from the loss it goes on at the first
//          moment of backward that the change can touch
// delta    Algorithm 2 of the paper: goes over the old order once, and serves anew only what changes
//
// A play may have a limit. It stops as soon as some lower bound of the makespan passes it: what a resource still has to
// serve, or the least time that must follow a task.
#pragma once

#include "bounds.hpp"
#include "calendar.hpp"
#include "taskgraph.hpp"

namespace soapstone {

enum class Method : int32_t { full, resume, delta };

class Engine {
 public:
  explicit Engine(TaskGraph& graph) : graph_(graph), calendar_(graph.pool) {}

  // Plays the graph as it is. False where the makespan passes the limit.
  bool play(Method method, int64_t limit, const Bounds& bounds);
  // What delta needs of the graph before it changes.
  void prepare(Method method) {
    if (method == Method::delta && !inverted_) invert();
  }
  // The last play is the one that the next change starts from.
  void adopt();
  // The last play is forgotten.
  void drop() {
    cut_ = static_cast<int32_t>(order_.size());
    suffix_.clear();
  }

  // Before this, all is as it was in what was adopted: no part of some changed ops was ready, or is, any earlier.
  int64_t first_input(const std::vector<int32_t>& ops) const;

  int64_t makespan() const { return makespan_; }      // of the last play
  int64_t num_served() const { return num_served_; }  // tasks that the last play served
  int64_t num_tasks() const { return static_cast<int64_t>(order_.size()); }

  // The last play's tasks by (ready, key), with their times.
  template <typename Visit>
  void each(Visit visit) const;

 private:
  struct Served {
    int64_t ready, end;
  };
  struct Resource {
    int64_t free, left;  // when it is free, and what it has still to serve
  };
  struct Checkpoint {  // before the task at `position` is served
    int32_t position;
    std::vector<Resource> resources;  // `left` counts what was served
  };

  bool waits_for_nothing() const;
  int64_t first_touch() const;
  int64_t first_change(int32_t position);
  int64_t first_arrival(int32_t op) const;
  void start(int32_t cut);
  bool seed(int32_t cut, int64_t change);
  bool give_from(int32_t begin, int32_t end, int64_t shift, int64_t change);
  std::vector<std::pair<int32_t, int32_t>> far_reach(int32_t cut);
  void give(const int32_t* slots, int32_t count, int64_t end);
  bool serve_all(int64_t limit, const Bounds& bounds);
  bool serve_in_two(int64_t limit, const Bounds& bounds, bool& in_time);
  void find_loss();
  bool skip(int32_t to, int64_t change);
  struct Middle {
    size_t suffix, noted;  // how many there are before what is skipped
  };
  void splice(int32_t from, int32_t to, const Middle& middle, int64_t shift);
  bool serve(const Task& task, int64_t ready, int64_t limit, int64_t& end);
  bool hopeless(int64_t now, int64_t limit) const;
  void replay(int32_t from, int32_t to);
  void checkpoint(int32_t position);
  void restore();

  // Delta.
  static constexpr int64_t never = INT64_MAX;
  struct Sweep {
    uint32_t play = 0;
    int32_t unresolved = 0;   // predecessors whose end is open
    int64_t known = 0;        // the latest end that it was told of
    int64_t offered = never;  // when it is looked at next
    bool dirty = false;       // a predecessor is another, or ends at another time
    bool loose = false;       // it may be ready earlier than it was
    bool open = false;        // it is not served where it stood
    bool served = false;
  };
  bool sweep(int64_t limit, const Bounds& bounds);
  void forget_plays();
  void invert();
  void mark_edited();
  void collect_added();
  void open_fresh();
  Sweep& swept(int32_t slot);
  void set_open(int32_t slot);
  int64_t pull(int32_t slot) const;
  void offer(int32_t slot, int64_t ready);
  bool take_offer(int64_t limit, const Bounds& bounds);
  bool take_old(int32_t slot, int64_t limit, const Bounds& bounds);
  bool serve_anew(int32_t slot, int64_t ready, int64_t limit, const Bounds& bounds);
  void tell(int32_t slot, bool was_open, int64_t end);
  bool is_old(int32_t slot) const { return position_[slot] >= 0; }
  Ready old_look(int32_t slot) const { return {old_ready_[slot], graph_.pool.tasks[slot].key, slot}; }

  TaskGraph& graph_;
  Calendar calendar_;
  std::vector<Served> served_;    // by slot, in the last play
  std::vector<int32_t> touched_;  // slots whose state it changed
  size_t num_touched_ = 0;
  std::vector<int32_t> due_;  // those that one task makes ready
  std::vector<Resource> resources_;
  std::vector<int32_t> suffix_;    // what the last play served, in order, from position `cut_` on
  std::vector<Checkpoint> noted_;  // during it
  int32_t cut_ = 0;
  uint32_t play_ = 0;
  int64_t makespan_ = 0, num_served_ = 0;
  std::vector<int64_t> served_more_;  // by resource: of forward, than before the change
  int32_t num_skipped_ = 0;           // tasks between those that it served, which come as they did
  int32_t stop_ = -1;                 // the slot that ends a play, where one does

  std::vector<Sweep> sweep_;   // by slot
  std::vector<Ready> offers_;  // a heap
  bool inverted_ = false;
  std::vector<int32_t> before_begin_, before_;          // by slot: the predecessors in what was adopted
  std::vector<uint32_t> edited_;                        // by slot: the play in which its successors are no longer those
  std::vector<std::pair<int32_t, uint32_t>> added_at_;  // by slot: where in `added_`, and in which play
  std::vector<Edge> added_;                             // edges from such tasks and new ones, by target

  // What was adopted.
  std::vector<int32_t> order_, position_;     // slots, and where each stands, -1 where it does not
  std::vector<int64_t> old_ready_, old_end_;  // by slot
  std::vector<int32_t> reach_;                // by position: the last position that waits for it
  std::vector<int64_t> latest_;               // by position: the latest end so far
  std::vector<Checkpoint> checkpoints_;
  int64_t old_makespan_ = 0;
  int32_t loss_ = -1;  // its position, where it parts the tasks
};

// False where one of its resources cannot be done by the limit.
inline bool Engine::serve(const Task& task, int64_t ready, int64_t limit, int64_t& end) {
  int64_t served = ready;
  bool possible = true;
  const auto hold = [&](const Hold& hold) {
    Resource& resource = resources_[hold.resource];
    resource.free = std::max(ready, resource.free) + hold.duration;
    resource.left -= hold.duration;
    served = std::max(served, resource.free);
    possible &= resource.left <= limit - resource.free;
  };
  if (task.num_holds > 0) hold(task.first);
  for (int32_t i = 1; i < task.num_holds; ++i) hold(task.holds[i]);
  end = served + task.latency;
  return possible;
}

template <typename Visit>
void Engine::each(Visit visit) const {
  for (int32_t i = 0; i < cut_; ++i) visit(order_[i], old_ready_[order_[i]], old_end_[order_[i]]);
  for (const int32_t slot : suffix_) visit(slot, served_[slot].ready, served_[slot].end);
}

}  // namespace soapstone
