// What bounds ask of a task graph, in the order in which they ask: what each op takes at least, and what the messages
// between two ops do. A change reaches little of it, and most changes are taken back.
#pragma once

#include "tasks/taskgraph.hpp"

namespace soapstone {

class LeastTimes {
 public:
  struct Neighbour {
    int32_t op;      // at its other end
    int64_t weight;  // or uncounted
  };
  struct OfOp {
    std::array<int64_t, num_roles> least{};
    int64_t sum = uncounted;  // of its parameters' gradients, the slowest
    bool combines = false, finishes = false, has_copies = false;
  };

  struct OfTensor {
    int32_t maker = -1;          // or none
    int32_t begin = 0, end = 0;  // of the edges to its readers
    bool moves = false;          // some of it, to another device
  };

  // Brings all up to date: what the last change reaches, and what the one before it did.
  void update(TaskGraph& graph);

  const OfOp& op(int32_t op) const { return ops_[op]; }
  // From an op to those that read its outputs, and back to those whose outputs it reads.
  std::span<const Neighbour> forward(int32_t op) const { return span(forward_, op); }
  std::span<const Neighbour> backward(int32_t op) const { return span(backward_, op); }
  std::span<const OfTensor> tensors() const { return tensors_; }
  std::span<const Neighbour> readers(const OfTensor& tensor) const {
    return {forward_.edges.data() + tensor.begin, forward_.edges.data() + tensor.end};
  }

 private:
  struct Edges {
    std::vector<Neighbour> edges;
    std::vector<int32_t> begin;  // by op
  };

  static std::span<const Neighbour> span(const Edges& side, int32_t op) {
    return {side.edges.data() + side.begin[op], side.edges.data() + side.begin[op + 1]};
  }
  void begin(const TaskGraph& graph);
  void update_op(const TaskGraph& graph, int32_t op);
  void update_tensor(const TaskGraph& graph, int32_t tensor);
  void forget_messages(TaskGraph& graph, int32_t tensor);
  void update_sum(const TaskGraph& graph, int32_t op);

  std::vector<OfOp> ops_;
  Edges forward_, backward_;
  std::vector<OfTensor> tensors_;
  std::vector<std::vector<int32_t>> places_;             // by tensor and reader: of its edge in `backward_`
  std::vector<int32_t> changed_, rerouted_, regrouped_;  // by the change before
};

}  // namespace soapstone
