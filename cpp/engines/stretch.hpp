// A stretch of the timeline while it is played: all of it from some moment on, or only up to the loss, or only from
// there on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engines/calendar.hpp"
#include "machine/topology.hpp"

namespace soapstone {

constexpr int64_t never_launched = INT64_MAX;  // the lead of a task without a host

// A lead that grows or shrinks.
constexpr int64_t led(int64_t lead, int64_t by) { return lead == never_launched ? lead : lead + by; }

// How much later hosts have launched all up to some moment than in another play.
struct Launched {
  int64_t least = INT64_MAX, most = INT64_MIN;

  void see(int64_t later, bool is_device) {
    if (!is_device) return;
    least = std::min(least, later);
    most = std::max(most, later);
  }
  // Whether what follows is shifted like all else: hosts are, too, or nothing waits for them, in either play.
  bool allows(int64_t shift, int64_t lead) const {
    return (least == shift && most == shift) || (lead >= 0 && most - shift <= lead);
  }
};

enum class Half : int32_t { both, before_loss, after_loss };

// What a resource has done at some moment.
struct Progress {
  int64_t free = 0;      // when it can serve the next task
  int64_t served = 0;    // ns
  int64_t launched = 0;  // when its host has launched all so far
};

// What resources have done when an iteration begins: it costs each host something before its first op.
inline By<Resource, Progress> at_start(const Topology& topology) {
  By<Resource, Progress> progress(topology.num_resources());
  for (const Device device : topology.devices()) {
    const Host& host = topology.host_of(device);
    (host.is_ahead ? progress[resource_of(device)].launched : progress[resource_of(device)].free) = host.iteration;
  }
  return progress;
}

// Serves a task that is ready; `visit(hold, start)` hears when it begins on each of what it holds.
template <typename Visit>
void serve(const Task& task, int64_t ready, By<Resource, Progress>& resources, Visit visit) {
  const int64_t launched = launch(task, ready, resources);
  task.each_hold([&](const Hold& hold) {
    auto& progress = resources[hold.resource];
    const int64_t start = hold.is_busy() ? std::max(launched, progress.free) : launched;
    if (hold.is_busy()) {
      progress.free = start + hold.duration;
      progress.served += hold.duration;
    }
    visit(hold, start);
  });
}

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
    int64_t launched;    // when its host has launched all so far
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
  int64_t lead = never_launched;        // the least that a task was launched before it could start otherwise
  size_t next_checkpoint = 0;
  Slot stop = none;  // the task that ends it, where one does
  bool done = false;
};

}  // namespace soapstone
