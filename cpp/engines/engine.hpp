// Engines that play a task graph, to the nanosecond alike: each resource serves in increasing (ready, key).
//
// full     all of it
// resume   from the first moment that a change can touch
// delta    over the accepted order, serving anew only what changes
//
// Where a batch is cut into microbatches, all of them are played anew, whichever is asked for (Repeat).
//
// A play may have a limit. It stops as soon as some lower bound of the makespan passes it: what a resource still has to
// serve, or the least time that must follow a task.
#pragma once

#include "engines/delta.hpp"
#include "engines/full.hpp"
#include "engines/repeat.hpp"
#include "engines/resume.hpp"

namespace soapstone {

enum class Method : int32_t { full, resume, delta };

class Engine {
 public:
  explicit Engine(TaskGraph& graph);

  // Before the graph changes.
  void prepare(Method method) {
    if (method == Method::delta) delta_.prepare();
  }
  bool repeats() const { return graph_.num_microbatches > 1; }
  // Where there was a rollback and what was accepted would have to be played anew.
  bool has_forgotten() const { return repeats() && repeat_.num_served() == 0; }
  // While a change is open, of a batch that is not cut: from when it can touch anything, and how long resources stand
  // idle until then.
  int64_t first_input() { return touch_.first_input(); }
  void find_idle(int64_t first, Idle& idle) { touch_.find_idle(first, idle); }
  // Plays the graph as it is. False where the makespan passes the limit.
  bool play(Method method, int64_t limit, const Bounds& bounds);
  // The last play is the one that the next change starts from; or it is forgotten.
  void commit();
  void rollback();

  // Of the last play, where it kept to the limit.
  int64_t makespan() const { return repeats() ? repeat_.makespan() : play_.main.latest; }
  // Tasks that the last play served.
  int64_t num_served() const { return repeats() ? repeat_.num_served() : play_.num_served; }
  int64_t num_tasks() const { return repeats() ? repeat_.num_served() : static_cast<int64_t>(accepted_.size()); }
  // The last play's tasks as they were served: `visit(slot, microbatch, ready, end)`.
  template <typename Visit>
  void each(Visit visit) const;
  // To find every chance to rejoin the accepted play, however dear: for tests.
  void look_closely() { resume_.look_closely(); }

 private:
  TaskGraph& graph_;
  Accepted accepted_;
  Play play_;
  Touch touch_;
  Full full_;
  Resume resume_;
  Delta delta_;
  Repeat repeat_;
};

template <typename Visit>
void Engine::each(Visit visit) const {
  if (repeats()) return repeat_.each(visit);
  for (const Position i : range(Position(0), play_.cut)) {
    const Slot slot = accepted_.slot(i);
    visit(slot, 0, accepted_.ready(slot), accepted_.end(slot));
  }
  for (const Slot slot : play_.main.order) visit(slot, 0, play_.served[slot].ready, play_.served[slot].end);
}

}  // namespace soapstone
