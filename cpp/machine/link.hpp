// A link, and how long bytes take on one.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/curve.hpp"

namespace soapstone {

constexpr int64_t largest_whole = int64_t{1} << 53;  // bytes, bytes/s, ns of a hold: whole numbers in a double

struct Link {
  int32_t source, target;
  double bandwidth;            // bytes/s each way, rounded to whole bytes so that holds are exact
  int64_t latency, overhead;   // ns
  bool duplex;                 // false: both directions share one resource
  double exposed;              // the share of a message's time that keeps the devices at its ends from computing
  double summing;              // bytes/s of a collective over it
  double sharp;                // bytes/s of an all-reduce that the switch at its end sums; 0: it does not
  Curve times;                 // of a transfer, where they were measured; none: by its bandwidth
  std::vector<int32_t> buses;  // what it shares with other links: their numbers
};

// ceil(amount * part / whole), exactly. Throws std::invalid_argument beyond 2^53.
int64_t proportion(int64_t amount, int64_t part, int64_t whole);

// ceil(times / parts * bytes * 1e9 / bandwidth), exactly. Throws std::invalid_argument beyond 2^53 ns.
int64_t wire_time(double bandwidth, int64_t bytes, int64_t times = 1, int64_t parts = 1);

// What a transfer holds a link for.
inline int64_t hold_time(const Link& link, int64_t bytes) {
  return link.overhead + (link.times.empty() ? wire_time(link.bandwidth, bytes) : link.times.time(bytes));
}

}  // namespace soapstone
