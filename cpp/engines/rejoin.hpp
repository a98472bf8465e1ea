// Where a play rejoins the accepted one: what is left to serve is what was left there, and whatever it waits for comes
// later or earlier by the same shift. From then on every task does, so the rest is known without being served.
//
// What ended before now holds nothing back, whenever it did. Updates are left out, since a change moves gradients from
// device to device: where they come last on their devices, their times follow from those of all others.
#pragma once

#include "engines/play.hpp"

namespace soapstone {

class Rejoin {
 public:
  Rejoin(Play& play, const Accepted& accepted) : play_(play), accepted_(accepted), graph_(play.graph) {}

  struct Moment {  // before the task at a position of the accepted order is served
    Position position = none;
    int64_t time = 0, shift = 0;  // now, and how much later that is than it was
    int64_t launched = 0;         // how much later hosts have launched all so far, at most
  };
  // What is known of one stretch.
  struct Look {
    size_t next = 0;             // so many tasks are served before the next look
    Position settled = none;     // from this one on nothing has changed; none: not known yet
    size_t num_fresh = 0;        // new tasks that it has
    Moment rest;                 // from here on it is shifted, where it has rejoined
    std::vector<Ready> updates;  // but for these
  };

  // Asked before a task is served. Where it does, the stretch knows how it ends: what it takes at least, and its
  // updates.
  bool rejoins(Stretch& stretch, Look& look, const Ready& next, const Bounds& bounds);
  // Appends the rest as if it had been served.
  void append_rest(Stretch& stretch, Look& look);
  // The accepted play is another one.
  void commit();
  // To find every chance, however dear: for tests.
  void look_closely() {
    num_recent_ = 0;
    spacing_ = SIZE_MAX / 2;
  }

 private:
  struct Ending {
    Position giver = none;  // the last that the device's update had to wait for
    int64_t free = 0;       // when it has nothing but the update to do
    bool is_last = true;    // whether the update comes after all else
  };

  bool shifted_lately(const Stretch& stretch, const Moment& now) const;
  void find_settled(const Stretch& stretch, Look& look) const;
  bool resources_rejoin(const Stretch& stretch, Moment& now);
  bool tasks_rejoin(const Stretch& stretch, const Look& look, const Moment& now) const;
  bool serve_updates(Stretch& stretch, Look& look, const Moment& now);
  Checkpoint shifted(const Checkpoint& point, const Stretch& stretch, int64_t shift) const;

  Play& play_;
  const Accepted& accepted_;
  TaskGraph& graph_;
  ptrdiff_t num_recent_ = 8;         // so many last tasks must share the shift before a closer look
  size_t spacing_ = 8;               // after a closer look, at least this part more is served before the next
  By<Resource, Progress> progress_;  // at a moment of the accepted play
  By<Device, Ending> endings_;
  int64_t latest_other_ = 0;  // the latest end of all but updates
};

}  // namespace soapstone
