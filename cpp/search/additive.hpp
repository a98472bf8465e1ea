// What OptCNN (Jia et al., 2018) adds up: every op's own time and every edge's, each as if nothing else went on.
#pragma once

#include "geometry/needs.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

class Additive {
 public:
  Additive(const Graph&, Machine, const Times&);
  Additive(const Additive&) = delete;

  // Nanoseconds of an op: its longest device forward and backward, and its combines.
  int64_t compute(OpIndex op, const Configuration&);
  // Of the sums of its parameters' gradients, and the updates.
  int64_t sync(OpIndex op, const Configuration&);
  // Of what an op, the tensor's reader number `reader`, takes from the tensor's maker, and of its gradient.
  int64_t transfer(int32_t tensor, int32_t reader, const Configuration& made, const Configuration& read);

 private:
  // The links' work piles up; the busiest one and the longest latency make the time.
  class Pile;

  const Graph& graph_;
  const Machine machine_;
  const Times& times_;
  Layouts layouts_;
  Needs needs_;
  By<Resource, int64_t> load_;  // Pile's own, all 0 between piles
  std::vector<Hold> holds_;     // Pile's own
};

}  // namespace soapstone
