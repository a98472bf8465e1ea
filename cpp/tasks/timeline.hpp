// When every task of a task graph is ready, starts and ends.
//
// Algorithm 1 of the paper (section "Full Simulation Algorithm"), with tasks that hold several resources:
//
//     ready(t)    = max over predecessors p of end(p), or 0
//     start(t, r) = max(ready(t), free(r))                    free(r): when r has served the task before t
//     end(t)      = max over holds (r, d) of (start(t, r) + d) + latency(t)
//     start(t)    = min over holds of start(t, r)
//
// and start(t) = ready(t), end(t) = ready(t) + latency(t) where t holds nothing. Each resource serves tasks in
// increasing (ready, key). Every task takes at least one nanosecond, so exactly one timeline satisfies this.

#pragma once

#include <cstdint>
#include <vector>

#include "machine/hold.hpp"

namespace soapstone {

struct TaskList {  // rows in increasing key
  std::vector<uint64_t> keys;
  std::vector<int64_t> latency;     // ns
  std::vector<int32_t> hold_begin;  // row i holds holds[hold_begin[i]] up to holds[hold_begin[i + 1]]
  std::vector<Hold> holds;
  std::vector<int32_t> predecessor_begin;  // likewise
  std::vector<int32_t> predecessors;       // rows
  int32_t num_resources = 0;
};

struct Timeline {
  std::vector<int64_t> ready, start, end;  // by row, ns
  std::vector<int64_t> hold_start;         // parallel to TaskList::holds
  std::vector<int32_t> order;              // rows by (ready, key)
  int64_t makespan = 0;
};

// Throws std::invalid_argument where rows are malformed, a task takes no time, or tasks wait for one another.
Timeline play(const TaskList& tasks);

}  // namespace soapstone
