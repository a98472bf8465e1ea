// Lower bounds of the makespan that need no simulation.
//
// A resource must serve all its work. And along the ops: behind a task comes at least its tail, the longest chain of
// least times over the ops that wait for it, forward, backward, gradient sum and update; an edge adds the least over
// the sending parts of the slowest of its messages. A chain counts an edge only where every sending part has a reader.
// None of this rests on a simulated time, so that no order of service can undercut it.
#pragma once

#include "taskgraph.hpp"

namespace soapstone {

class Bounds {
 public:
  // Of the graph as it is. False where a bound passes the limit. Throws std::invalid_argument where times may overflow.
  bool hold(const TaskGraph& graph, int64_t limit);
  int64_t tail(int32_t index) const { return tails_[index]; }
  int64_t bound() const { return bound_; }

 private:
  int64_t backward(const TaskGraph& graph, int32_t op);
  int64_t forward(const TaskGraph& graph, int32_t op);

  std::vector<int64_t> tails_;          // by Task::tail
  std::vector<int64_t> head_backward_;  // by op: from when its output's gradient is there
  std::vector<int64_t> head_forward_;   // by op: from when its inputs are there
  int64_t bound_ = 0;
};

}  // namespace soapstone
