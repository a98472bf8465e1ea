// A change of some ops' configurations that is not decided yet. It goes stage by stage, so that most can be dropped
// early; dropped before `commit`, it leaves the task graph as it was.
#pragma once

#include "tasks/taskgraph.hpp"

namespace soapstone {

class Proposal {
 public:
  // Makes the changed ops' blocks.
  Proposal(TaskGraph& graph, const Changes& changes);
  Proposal(const Proposal&) = delete;
  ~Proposal();

  // Finds the gradient sums, and forgets what moved between ops.
  void regroup() { graph_.regroup(); }
  // Finds some of what moves between them now. False where that alone, with all else that is counted and how long
  // resources stand idle, passes the limit.
  bool route(int64_t limit, const Idle* idle) { return graph_.route(limit, idle); }
  bool is_routed() const { return graph_.changes().unrouted().empty(); }
  // Makes tasks of it all and joins them to the rest.
  void link() { graph_.link(); }
  void commit();

 private:
  TaskGraph& graph_;
  bool open_ = true;
};

}  // namespace soapstone
