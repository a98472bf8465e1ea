// What adds up over all tasks of a task graph, kept along while blocks come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace soapstone {

// Bytes by device.
struct MemoryTotals {
  std::vector<int64_t> parameters, gradients, saved, made, buckets;
};

// What adds up over all tasks.
struct Totals {
  Totals(size_t num_resources, size_t num_devices);

  std::vector<int64_t> work;      // by resource: all that it has to serve,
  std::vector<int64_t> before;    // what of it surely comes before the end of forward,
  std::vector<int64_t> after;     // and after it
  std::vector<int64_t> compute;   // by device: what ops have it do
  std::vector<int64_t> elements;  // by device: what its update changes
  MemoryTotals memory;
};

// By resource: how long it stands idle before a change can touch anything, up to the loss and from there on.
struct Idle {
  std::vector<int64_t> before, after;
};

}  // namespace soapstone
