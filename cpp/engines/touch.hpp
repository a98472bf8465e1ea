// When an open change first touches the accepted play: before that, all is as it was. And how long resources stand idle
// until then, which bounds add to the work.
#pragma once

#include "engines/accepted.hpp"

namespace soapstone {

class Touch {
 public:
  Touch(TaskGraph& graph, const Accepted& accepted) : graph_(graph), accepted_(accepted) {}

  // Once ops are changed: no part of them was ready, or is, any earlier.
  int64_t first_input();
  // What is sure before any flow is known, from `first_input`; zeros where tasks may not meet at the loss as they did.
  void find_idle(int64_t first, Idle& idle);

  // Once the change is linked. Nothing after a position of the accepted order that the change adds, removes or moves is
  // ready before this, as long as all before the position ends when it did.
  int64_t first_change(Position position);
  // The earliest end of any of an op's forwards, and of its outputs.
  int64_t first_forward(OpIndex op) const;
  int64_t first_arrival(OpIndex op) const;
  // Whether a gradient sum or an update has lost all that it waited for.
  bool waits_for_nothing() const;
  // Whether the loss parts the tasks as it did before, and backward does not wait for its hosts.
  bool has_halves() const;

 private:
  int64_t first_return() const;
  int64_t first_update() const;

  TaskGraph& graph_;
  const Accepted& accepted_;
  By<Slot, int64_t> known_;          // when a new task is ready, as far as accepted tasks tell
  By<Resource, Progress> progress_;  // at a moment of the accepted play
};

}  // namespace soapstone
