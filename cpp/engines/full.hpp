// Algorithm 1 of the paper (section "Full Simulation Algorithm") on the kept task graph, by a calendar instead of a
// heap.
#pragma once

#include "engines/play.hpp"

namespace soapstone {

class Full {
 public:
  Full(Play& play, const Accepted& accepted) : play_(play), accepted_(accepted) {}

  // Plays all tasks. False where the makespan passes the limit.
  bool run(int64_t limit, const Bounds& bounds) {
    Stretch& all = play_.main;
    play_.reset();
    all.whole = play_.graph.totals.work;
    play_.start(all, Half::both, Position(0), accepted_.past());
    all.calendar.reset(0, std::max(accepted_.makespan(), bounds.bound()), play_.served.size());
    play_.seed_all(all);
    const bool done = play_.serve_some(all, INT64_MAX, limit, bounds, [](const Ready&) { return false; });
    play_.restore();
    return done;
  }

 private:
  Play& play_;
  const Accepted& accepted_;
};

}  // namespace soapstone
