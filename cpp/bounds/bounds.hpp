// Lower bounds of the makespan that need no simulation.
//
// A resource must serve all its work. Along the ops: after a task comes at least its tail, the longest chain of
// least times over the ops that wait for it, forward, backward, gradient sum and update; an edge adds the least over
// the sending parts of the slowest of its messages. A chain counts an edge only where every sending part has a reader.
// A tail is also at least the work of what follows on the same device (Followers).
//
// Where one op ends forward, all of forward comes before its end and all of backward after it: then the most that a
// resource serves before the loss and the most that one serves after it add up.
//
// The messages of one tensor that share a resource are served one by one, between the first that can be sent and what
// comes after the last.
//
// None of this rests on a simulated time but for those before the first moment that a change can touch: when the first
// input of a changed op is there, and how long a resource stood idle until then (Idle). So no order of service can
// undercut it.
#pragma once

#include "bounds/followers.hpp"
#include "bounds/least_times.hpp"

namespace soapstone {

class Bounds {
 public:
  // Of the graph as it is, with or without the followers in what it was changed from; the changed ops' inputs are made
  // from `first` on, and resources stand idle so long. What is not routed yet takes no time. False where a bound passes
  // the limit. Throws std::invalid_argument where times may overflow.
  bool hold(TaskGraph& graph, const Followers* followers, int64_t first, const Idle& idle, int64_t limit);
  int64_t tail(int32_t index) const { return tails_[index]; }
  int64_t bound() const { return bound_; }
  // Where tasks meet at the loss: to its end, and from there.
  int64_t before_loss() const { return before_loss_; }
  int64_t after_loss() const { return after_loss_; }

 private:
  void begin(TaskGraph& graph);
  int64_t go_backward(const TaskGraph& graph, const Followers* followers);
  int64_t go_forward(const TaskGraph& graph, const Followers* followers);
  void find_changed(const TaskGraph& graph, const Followers* followers);
  int64_t backward(const TaskGraph& graph, OpIndex op);
  int64_t forward(const TaskGraph& graph, OpIndex op);
  int64_t least_after(const TaskGraph& graph, const Followers* followers, const Idle& idle, int64_t last) const;
  int64_t ended(const TaskGraph& graph, const Followers& followers, OpIndex op) const;
  int64_t gradient(const TaskGraph& graph, const Followers& followers, int32_t tensor) const;
  int64_t made(const TaskGraph& graph, OpIndex op) const;
  int64_t after_message(const LeastTimes::OfTensor& tensor) const;
  int64_t messages_forward(const TaskGraph& graph, int64_t first) const;
  int64_t messages_backward(const TaskGraph& graph, const Followers& followers) const;
  void find_transfers(const TaskGraph& graph);

  LeastTimes least_times_;
  std::vector<int64_t> tails_;          // by Task::tail
  By<OpIndex, int64_t> head_backward_;  // from when its output's gradient is there
  By<OpIndex, int64_t> head_forward_;   // from when its inputs are there
  Followers::Bits before_, after_;      // the changed ops and those that lie before them, or after them
  int64_t bound_ = 0, before_loss_ = 0, after_loss_ = 0;
};

}  // namespace soapstone
