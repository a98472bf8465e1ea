// Plays from the first moment that a change can touch; all before it is as it was.
//
// Where every task comes before or after the loss, the two halves know nothing of each other: each is played from its
// own first moment, in turns, until their bounds together pass the limit. Where backward has to wait for its hosts,
// which launch from the start of the iteration on, it is played after forward. A stretch that differs from what was
// accepted in nothing but a shift any more is done (Rejoin).
#pragma once

#include "engines/rejoin.hpp"
#include "engines/touch.hpp"

namespace soapstone {

class Resume {
 public:
  Resume(Play& play, Accepted& accepted, Touch& touch);

  // Starts earlier: something lost one that it waited for, and is ready before the change. Then nothing was played.
  enum class Outcome { done, passes_limit, starts_earlier };
  Outcome run(int64_t limit, const Bounds& bounds);
  // The accepted play is another one.
  void commit() { rejoin_.commit(); }
  void look_closely() { rejoin_.look_closely(); }

 private:
  struct Halves {
    Outcome outcome;
    bool apart = true;  // false where backward waits for hosts: then it is not the same whenever it begins
  };
  Outcome run_whole(int64_t limit, const Bounds& bounds);
  Halves run_halves(int64_t limit, const Bounds& bounds);
  bool serve_in_turns(Position to, int64_t limit, const Bounds& bounds);
  bool serve(Stretch& stretch, Rejoin::Look& look, int64_t count, int64_t limit, const Bounds& bounds);
  bool start_backward(Position to, int64_t change);
  bool hosts_are_ahead();
  void append_backward(Position to);
  bool seed(int64_t change);
  bool give_from(Stretch& stretch, Position begin, Position end, int64_t change);
  bool give_updates(Stretch& stretch, const By<Device, Sums>& updates, Position end, int64_t change);

  Play& play_;
  Accepted& accepted_;
  Touch& touch_;
  TaskGraph& graph_;
  Rejoin rejoin_;
  Rejoin::Look look_, backward_look_;
  Stretch backward_;
  int64_t change_ = 0;  // the first moment that is played
  // How much later the loss ends than in the accepted play, and hosts have launched all up to it.
  int64_t shift_ = 0;
  Launched launched_;
  By<Resource, int64_t> launched_by_;
  By<Resource, Progress> progress_;
};

}  // namespace soapstone
