// What adds up over all tasks of a task graph and its microbatches, kept along while blocks come and go. Gathers count
// once, though some are done for each microbatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tasks/tasks.hpp"

namespace soapstone {

// Bytes.
struct MemoryTotals {
  By<Device, int64_t> parameters;  // that lie there all along
  By<Device, int64_t> gathered;    // and those that come and go
  By<Device, int64_t> gradients, saved, made, buckets;
  By<Device, int64_t> updated;  // parameters whose update, and the optimizer's state, are its own

  // What is there beside a task's own bytes, where the optimizer keeps so many numbers for each element.
  int64_t lasting(Device device, int64_t num_states) const;
};

// What adds up over all tasks.
struct Totals {
  Totals(size_t num_resources, size_t num_devices);

  By<Resource, int64_t> work;    // all that it has to serve,
  By<Resource, int64_t> before;  // what of it surely comes before the end of forward,
  By<Resource, int64_t> after;   // and after it
  By<Device, int64_t> compute;   // what ops have it do
  By<Device, int64_t> elements;  // what its update changes
  int64_t num_flows = 0;
  MemoryTotals memory;

  // Add what a block's tasks hold so many times, or take it away.
  void count(const Block& block, int64_t times);
};

// How long each stands idle before a change can touch anything, up to the loss and from there on.
struct Idle {
  By<Resource, int64_t> before, after;
};

}  // namespace soapstone
