// When every task of a listed task graph is ready, starts and ends.
//
// Algorithm 1 of the paper (section "Full Simulation Algorithm"), with tasks that hold several resources:
//
//     ready(t)    = max over predecessors p of end(p), or 0
//     start(t, r) = max(ready(t), free(r))                    free(r): when r has served the task before t
//     end(t)      = max over holds (r, d) of (start(t, r) + d) + latency(t)
//     start(t)    = min over holds of start(t, r)
//
// and start(t) = ready(t), end(t) = ready(t) + latency(t) where t holds nothing. Each resource serves tasks in
// increasing (ready, key); with microbatches, of what is ready at the same time, backward before forward and the
// earlier microbatch first. Every task takes at least one nanosecond, so exactly one timeline satisfies this.
#pragma once

#include <cstdint>
#include <vector>

#include "tasks/listing.hpp"

namespace soapstone {

struct Timeline {
  std::vector<int64_t> ready, start, end;  // by row, ns
  std::vector<int64_t> hold_start;         // of all rows' holds, one after the other
  std::vector<int32_t> order;              // rows as they were served
  int64_t makespan = 0;
};

Timeline timeline_of(Listing& listing);

}  // namespace soapstone
