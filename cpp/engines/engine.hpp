// Engines that play a task graph, to the nanosecond alike: each resource serves in increasing (ready, key).
//
// full     Algorithm 1 of the paper, by a calendar instead of a heap
// resume   the same, from the first moment that a change can touch; all before it is as it was. Where every task comes
//          before or behind the loss, the two sides know nothing of each other: each is played from its own first
//          moment, in turns, until their bounds together pass the limit. A side that differs from what it was in
//          nothing but a shift any more is done
// delta    Algorithm 2 of the paper: goes over the old order once, and serves anew only what changes
//
// A play may have a limit. It stops as soon as some lower bound of the makespan passes it: what a resource still has to
// serve, or the least time that must follow a task.
#pragma once

#include "bounds/bounds.hpp"
#include "engines/calendar.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

enum class Method : int32_t { full, resume, delta };

class Engine {
 public:
  explicit Engine(TaskGraph& graph) : graph_(graph), forward_(graph.pool), backward_(graph.pool) {}

  // Plays the graph as it is. False where the makespan passes the limit.
  bool play(Method method, int64_t limit, const Bounds& bounds);
  // What delta needs of the graph before it changes.
  void prepare(Method method) {
    if (method == Method::delta && !inverted_) invert();
  }
  // To find every chance to rejoin the old play, however dear: for tests.
  void look_closely() {
    glance_ = 0;
    thrift_ = SIZE_MAX / 2;
  }
  // The last play is the one that the next change starts from.
  void adopt();
  // The last play is forgotten.
  void drop() {
    cut_ = static_cast<int32_t>(order_.size());
    forward_.order.clear();
  }

  // Before this, all is as it was in what was adopted: no part of the changed ops was ready, or is, any earlier.
  int64_t first_input();
  // What is sure before any flow is known; zeros where tasks may not meet at the loss as they did.
  void find_idle(int64_t first, Idle& idle);

  int64_t makespan() const { return forward_.latest; }  // of the last play, where it kept to the limit
  int64_t num_served() const { return num_served_; }    // tasks that the last play served
  int64_t num_tasks() const { return static_cast<int64_t>(order_.size()); }

  // The last play's tasks by (ready, key), with their times.
  template <typename Visit>
  void each(Visit visit) const;

 private:
  struct Served {
    int64_t ready, end;
  };
  struct Resource {
    int64_t free, left;  // when it is free, and what it has still to serve, or where that is said what it has served
  };
  // Many sums lead to one update, and to nothing else.
  struct Given {
    int32_t count = 0;
    int64_t ready = 0;
  };
  struct Checkpoint {  // before the task at `position` is served
    int32_t position;
    std::vector<Resource> resources;  // `left` counts what was served
    std::vector<int32_t> reaching;    // positions before it for which something from it on waits, but for sums
    std::vector<Given> updates;       // by device: what the sums before it give
  };
  enum class Part : int32_t { all, before_loss, behind_loss };
  struct Moment {  // before the task at a position of the old order is served
    int32_t position = -1;
    int64_t time = 0, shift = 0;  // now, and how much later that is than it was
  };
  // What is played from one moment on.
  struct Side {
    explicit Side(TaskPool& pool) : calendar(pool) {}

    Part part = Part::all;
    int32_t begin = 0, end = 0;  // what it serves of the old order
    Calendar calendar;
    std::vector<Resource> resources;
    std::vector<int64_t> whole;     // by resource: `left` and what was served
    std::vector<int32_t> order;     // the slots that it served
    std::vector<Checkpoint> noted;  // at positions in `order`
    int64_t latest = 0;             // end so far
    int64_t least = 0;              // a lower bound of the end, with what surely follows
    size_t next_note = 0;
    int32_t stop = -1;  // the slot that ends it, where one does
    bool done = false;

    // Where it rejoins the old play.
    size_t next_look = 0;
    int64_t given = 0;           // the latest end from before `begin` that something waits for, but for sums
    int32_t settled = -1;        // from here on nothing has changed, -1 where that is not known yet
    size_t num_fresh = 0;        // new tasks that it has
    Moment rest;                 // from here on it is shifted
    std::vector<Ready> updates;  // but for these
  };

  bool waits_for_nothing() const;
  int64_t first_touch() const;
  int64_t first_change(int32_t position);
  int64_t first_arrival(int32_t op) const;
  int64_t first_return() const;
  int64_t first_update() const;
  int32_t position_at(int64_t time) const;
  bool has_sides() const;
  void start(Side& side, Part part, int32_t begin, int32_t end);
  void serve_to(std::vector<Resource>& resources, int32_t cut) const;
  bool seed(int64_t change);
  bool give_from(Side& side, int32_t begin, int32_t end, int64_t change);
  bool give_updates(Side& side, const std::vector<Given>& updates, int32_t end, int64_t change);
  const Checkpoint* checkpoint_at(int32_t cut) const;
  std::vector<std::pair<int32_t, int32_t>> far_reach(int32_t cut);
  void find_reach();
  void find_reaching();
  void give(Side& side, const int32_t* slots, int32_t count, int64_t end);
  bool serve_some(Side& side, int64_t count, int64_t limit, const Bounds& bounds);
  bool serve_sides(int64_t limit, const Bounds& bounds, bool& in_time);
  bool start_backward(int32_t to, int64_t change);
  static double gain(const Side& side, int64_t took, double num_tasks);
  void join_sides(int32_t to);
  void find_loss();
  int64_t hold(Side& side, const Task& task, int64_t ready);
  bool serve(Side& side, int32_t slot, int64_t ready, int64_t limit, const Bounds& bounds);
  int64_t least_at(const Side& side, int64_t now) const;
  void note_now(Side& side, int64_t now);
  static void note(Side& side, Checkpoint point);
  bool is_update(int32_t slot) const { return slot < graph_.machine.topology.num_devices(); }
  bool changes_update(int32_t device) const {
    return graph_.totals.elements[device] != graph_.totals_before().elements[device];
  }
  bool rejoins(Side& side, const Ready& next, const Bounds& bounds);
  bool shifted_lately(const Side& side, const Moment& now) const;
  void find_settled(Side& side);
  bool resources_rejoin(Side& side, const Moment& now);
  bool tasks_rejoin(const Side& side, const Moment& now) const;
  void find_endings();
  bool serve_updates(Side& side, const Moment& now);
  void append_rest(Side& side);
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
  Side forward_, backward_;       // forward is all, where the loss does not part the tasks
  std::vector<Served> served_;    // by slot, in the last play
  std::vector<int32_t> touched_;  // slots whose state it changed
  size_t num_touched_ = 0;
  std::vector<int32_t> due_;             // those that one task makes ready
  std::vector<Resource> old_resources_;  // at a moment of the old play
  ptrdiff_t glance_ = 8;                 // so many last tasks must share the shift before a closer look
  size_t thrift_ = 8;                    // after a closer look, at least this part more is served before the next
  int32_t cut_ = 0;                      // the last play served from here on
  uint32_t play_ = 0;
  int64_t num_served_ = 0;

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
  struct Ending {
    int32_t giver = -1;   // the last position that the device's update had to wait for
    int64_t free = 0;     // when it has nothing but the update to do
    bool is_last = true;  // whether the update comes behind all else
  };
  std::vector<Ending> endings_;  // by device
  int64_t latest_other_ = 0;     // the latest end of all but updates
  int32_t loss_ = -1;            // its position, where it parts the tasks
};

// Returns when a task ends that is ready now.
inline int64_t Engine::hold(Side& side, const Task& task, int64_t ready) {
  int64_t served = ready, least = side.least;
  const auto hold = [&](const Hold& hold) {
    Resource& resource = side.resources[hold.resource];
    resource.free = std::max(ready, resource.free) + hold.duration;
    resource.left -= hold.duration;
    served = std::max(served, resource.free);
    least = std::max(least, resource.free + resource.left);
  };
  task.each_hold(hold);
  side.least = least;
  return served + task.latency;
}

// False where the side cannot be done by the limit.
inline bool Engine::serve(Side& side, int32_t slot, int64_t ready, int64_t limit, const Bounds& bounds) {
  const Task& task = graph_.pool.tasks[slot];
  const int64_t end = hold(side, task, ready);
  side.least = std::max(side.least, end + bounds.tail(task.tail));
  if (side.least > limit) return false;
  served_[slot] = {ready, end};
  side.order.push_back(slot);
  side.latest = std::max(side.latest, end);
  return true;
}

template <typename Visit>
void Engine::each(Visit visit) const {
  for (int32_t i = 0; i < cut_; ++i) visit(order_[i], old_ready_[order_[i]], old_end_[order_[i]]);
  for (const int32_t slot : forward_.order) visit(slot, served_[slot].ready, served_[slot].end);
}

}  // namespace soapstone
