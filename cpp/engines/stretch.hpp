// A stretch of the timeline while it is played: all of it from some moment on, or only up to the loss, or only from
// there on.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/calendar.hpp"

namespace soapstone {

enum class Half : int32_t { both, before_loss, after_loss };

// What a resource has done at some moment.
struct Progress {
  int64_t free = 0;    // when it can serve the next task
  int64_t served = 0;  // ns
};

// Many gradient sums lead to one update, and to nothing else: how many ended, and the latest end.
struct Sums {
  int32_t count = 0;
  int64_t ready = 0;
};

// A moment that a later play can resume from: before the task at `position` is served.
struct Checkpoint {
  Position position;
  By<Resource, Progress> progress;
  std::vector<Position> reaching;  // earlier ones for which something from here on waits, but for sums
  By<Device, Sums> updates;        // what the sums before it give
};

struct Stretch {
  struct Load {
    int64_t free, left;  // when a resource is free, and what it has still to serve
  };

  explicit Stretch(TaskPool& pool) : calendar(pool) {}

  Half half = Half::both;
  Position begin, end;  // what of the accepted order it replaces
  Calendar calendar;
  By<Resource, Load> resources;
  By<Resource, int64_t> whole;          // what each has to serve from the start of the timeline on
  std::vector<Slot> order;              // what it served
  std::vector<Checkpoint> checkpoints;  // at positions in `order`
  int64_t latest = 0;                   // end so far
  int64_t least = 0;                    // a lower bound of the end, with what surely follows
  int64_t given = 0;                    // the latest end from before `begin` that something waits for, but for sums
  size_t next_checkpoint = 0;
  Slot stop = none;  // the task that ends it, where one does
  bool done = false;
};

}  // namespace soapstone
