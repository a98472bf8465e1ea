// What all engines do: serve tasks in increasing (ready, key), stretch by stretch, and stop as soon as some lower bound
// of the makespan passes the limit. Between plays the pool's states are as at the start of one.
#pragma once

#include "bounds/bounds.hpp"
#include "engines/accepted.hpp"

namespace soapstone {

class Play {
 public:
  using Served = Accepted::Served;

  Play(TaskGraph& of, const Accepted& accepted) : graph(of), main(of.pool), accepted_(accepted) {}

  TaskGraph& graph;
  Stretch main;             // what was played in the end, after all before `cut`
  Position cut;             // the accepted play holds up to this one
  By<Slot, Served> served;  // when
  By<Slot, int64_t> leads;  // how long before it could start otherwise each was launched; negative where it waited
  int64_t num_served = 0;   // tasks that the engine went through

  void reset();
  // Nothing is played, and all is as it was accepted.
  void forget();
  // As it is before the task at `begin` of the accepted order is served; `stretch.whole` is set.
  void start(Stretch& stretch, Half half, Position begin, Position end);
  // False where the stretch cannot be done by the limit.
  bool serve(Stretch& stretch, Slot slot, int64_t ready, int64_t limit, const Bounds& bounds);
  // Lets tasks know of the end of one that they waited for.
  void give(Stretch& stretch, const Slot* slots, int32_t count, int64_t end);
  // Adds a checkpoint; `now` is the next task's ready time.
  void checkpoint(Stretch& stretch, int64_t now);
  static void add_checkpoint(Stretch& stretch, Checkpoint point);
  // Serves up to `count` tasks. `rejoins(next)` may end the stretch before a task. False where it passes the limit.
  template <typename Rejoins>
  bool serve_some(Stretch& stretch, int64_t count, int64_t limit, const Bounds& bounds, Rejoins rejoins);
  // Pushes all tasks that wait for nothing.
  void seed_all(Stretch& stretch);
  // The pool's states as at the start of a play.
  void restore();

 private:
  int64_t hold(Stretch& stretch, const Task& task, int64_t ready);
  int64_t hold_launched(Stretch& stretch, Slot slot, int64_t ready);
  static int64_t least_at(const Stretch& stretch, int64_t now);

  const Accepted& accepted_;
  By<Resource, Progress> progress_;
  std::vector<Slot> touched_;  // whose state the play changed
  size_t num_touched_ = 0;
  std::vector<Slot> due_;  // those that one task makes ready
};

// Returns when a task ends that is ready now.
inline int64_t Play::hold(Stretch& stretch, const Task& task, int64_t ready) {
  int64_t served = ready, least = stretch.least;
  task.each_hold([&](const Hold& hold) {
    auto& [free, left, launched] = stretch.resources[hold.resource];
    free = std::max(ready, free) + hold.duration;
    left -= hold.duration;
    served = std::max(served, free);
    least = std::max(least, free + left);
  });
  stretch.least = least;
  return served + task.latency;
}

inline bool Play::serve(Stretch& stretch, Slot slot, int64_t ready, int64_t limit, const Bounds& bounds) {
  const Task& task = graph.pool.tasks[slot];
  const int64_t end = task.launches ? hold_launched(stretch, slot, ready) : hold(stretch, task, ready);
  stretch.least = std::max(stretch.least, end + bounds.tail(task.tail));
  if (stretch.least > limit) return false;
  served[slot] = {ready, end};
  stretch.order.push_back(slot);
  stretch.latest = std::max(stretch.latest, end);
  return true;
}

// Counted without a jump: which tasks are seen first, and which are ready now, is hard to predict.
inline void Play::give(Stretch& stretch, const Slot* slots, int32_t count, int64_t end) {
  if (due_.size() < static_cast<size_t>(count)) due_.resize(2 * count);
  size_t num_due = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Slot slot = slots[i];
    auto& state = graph.pool.states[slot];
    touched_[num_touched_] = slot;
    num_touched_ += state.ready == 0;
    state.ready = std::max(state.ready, end);
    due_[num_due] = slot;
    num_due += --state.waiting == 0;
  }
  for (size_t i = 0; i < num_due; ++i) {
    __builtin_prefetch(&graph.pool.tasks[due_[i]]);
    stretch.calendar.push(due_[i]);
  }
}

template <typename Rejoins>
bool Play::serve_some(Stretch& stretch, int64_t count, int64_t limit, const Bounds& bounds, Rejoins rejoins) {
  if (stretch.least > limit) return false;
  Ready next;
  while (count-- > 0) {
    if (!stretch.calendar.pop(next)) {
      stretch.done = true;
      break;
    }
    if (stretch.order.size() >= stretch.next_checkpoint) checkpoint(stretch, next.ready);
    if (rejoins(next)) {
      stretch.done = true;
      return stretch.least <= limit;
    }
    ++num_served;
    if (!serve(stretch, next.slot, next.ready, limit, bounds)) return false;
    if (next.slot == stretch.stop) {
      stretch.done = true;
      break;
    }
    const Task& task = graph.pool.tasks[next.slot];
    give(stretch, task.next, task.num_next, served[next.slot].end);
  }
  return true;
}

}  // namespace soapstone
