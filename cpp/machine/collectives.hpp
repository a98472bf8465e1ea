// Collectives: the patterns in which n devices sum or gather bytes, and what each loads every link with.
//
// A link that carries c/p of the bytes, and s/p of them for a switch to sum, is held
//
//     overhead + ceil(c/p * bytes * 1e9 / summing) + ceil(s/p * bytes * 1e9 / sharp)
//
// nanoseconds. Patterns of an all-reduce, with m members in each of k nodes; a hop counts the largest latency of the
// routes in use:
//
//     ring     2(n-1)/n of the bytes a crossing; 2(n-1) hops
//     tree     all bytes a crossing; 2D hops and 2D-1 whole messages, D = ceil(log2 n)
//     rails    m rings at once, each with 1/m of the bytes, entering node by node at another member; 2(n-1) hops
//     levels   inside each node a ring, 2(m-1)/m of the bytes a crossing, which leaves every member 1/m of the sum;
//              those go up and down two binary trees over the nodes, 1/2m of the bytes a crossing of each tree;
//              2(m-1) hops inside and 2 ceil(log2 k) across
//     switch   a switch sums (NVLink SHARP): each device sends all its bytes and its 1/n of the sum, (n+1)/n up and
//              down; 2 hops. Levels may do so inside nodes.
//
// A message is cut so fine that the levels overlap in time. The two trees are NCCL's (2.4; Sanders, Speck, Traeff,
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009): no node has children in both.
// Where sums among so many were measured, a ring is held for what was measured, and there is no other pattern.
// A reduce-scatter and an all-gather are half of an all-reduce each: (n-1)/n and n-1 hops in ring and rails; levels are
// rings then, inside and across.

#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "machine/curve.hpp"
#include "machine/hold.hpp"

namespace soapstone {

class Topology;

enum class Collective { all_reduce, half };  // half: reduce-scatter and all-gather, which load links alike

// One way to do a collective among given devices. Links that are held alike share a load, computed once a message.
struct Pattern {
  struct Load {
    int64_t overhead;
    double summing, sharp;
    int64_t count, in_switch;  // in `parts` of the bytes
  };
  struct Cost {
    int64_t latency, longest;  // longest: of the holds
    int64_t sum() const { return latency + longest; }
  };

  std::vector<Load> loads;
  std::vector<std::pair<Resource, int32_t>>
      resources;  // with an index in `loads`, in the order of their first crossing
  int64_t parts = 1;
  int64_t latency = 0;
  int64_t whole_messages = 0;  // that follow one another before the last one
  double exposed = 0;          // the share of its time that keeps members from computing
  Curve measured;              // of the whole, where it was measured: then it is what every link is held for

  Cost cost(int64_t bytes, int64_t limit) const;             // may stop short where the sum reaches the limit
  void hold(int64_t bytes, std::vector<Hold>& holds) const;  // appends
};

// All patterns that fit two or more devices, which come node by node. A ring is always the first.
std::vector<Pattern> find_patterns(const Topology& topology, Collective collective, std::span<const Device> order);

}  // namespace soapstone
