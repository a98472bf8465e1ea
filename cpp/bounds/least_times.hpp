// What bounds ask of a task graph, in the order in which they ask: what each op takes at least, and what the messages
// between two ops do. A change reaches little of it, and most changes are taken back.
#pragma once

#include "tasks/taskgraph.hpp"

namespace soapstone {

class LeastTimes {
 public:
  struct Neighbour {
    OpIndex op;      // at its other end
    int64_t weight;  // or uncounted
  };
  struct OfOp {
    std::array<int64_t, num_roles> least{};
    int64_t sum = uncounted;  // of its parameters' gradients, the slowest
    bool combines = false, finishes = false, has_copies = false;
  };

  struct OfTensor {
    OpIndex maker = none;
    int32_t begin = 0, end = 0;  // of the edges to its readers
    bool moves = false;          // some of it, to another device
  };

  // Brings all up to date: what the last change reaches, and what the one before it did.
  void update(TaskGraph& graph);

  const OfOp& op(OpIndex op) const { return ops_[op]; }
  // From an op to those that read its outputs, and back to those whose outputs it reads.
  std::span<const Neighbour> forward(OpIndex op) const { return span(forward_, op); }
  std::span<const Neighbour> backward(OpIndex op) const { return span(backward_, op); }
  std::span<const OfTensor> tensors() const { return tensors_; }
  std::span<const Neighbour> readers(const OfTensor& tensor) const {
    return {forward_.edges.data() + tensor.begin, forward_.edges.data() + tensor.end};
  }

 private:
  struct Edges {
    std::vector<Neighbour> edges;
    By<OpIndex, int32_t> begin;
  };

  static std::span<const Neighbour> span(const Edges& side, OpIndex op) {
    return {side.edges.data() + side.begin[op], side.edges.data() + side.begin[op + 1]};
  }
  void begin(const TaskGraph& graph);
  void update_op(const TaskGraph& graph, OpIndex op);
  void update_tensor(const TaskGraph& graph, int32_t tensor);
  void forget_messages(TaskGraph& graph, int32_t tensor);
  void update_sum(const TaskGraph& graph, OpIndex op);

  By<OpIndex, OfOp> ops_;
  Edges forward_, backward_;
  std::vector<OfTensor> tensors_;
  std::vector<std::vector<int32_t>> places_;   // by tensor and reader: of its edge in `backward_`
  std::vector<OpIndex> changed_;               // by the change before,
  std::vector<int32_t> rerouted_, regrouped_;  // likewise
};

}  // namespace soapstone
