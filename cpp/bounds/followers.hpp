// What must follow an op's part on its own device. Where a device has one part of an op, and its one part of another
// reads what the first makes there, all that waits for the second waits for the first; and the device serves it one by
// one. So the work of all these followers is a bound that, unlike a path, counts branches that lie chains by chains.
//
// It is found for a strategy. While some ops are changed, what is known of an op's forward holds where none of them
// lies after it, and of its backward where none lies before it.
#pragma once

#include "tasks/taskgraph.hpp"

namespace soapstone {

class Followers {
 public:
  explicit Followers(const Graph& graph);

  // Where some ops have other configurations than at the last call.
  void find(const TaskGraph& graph, const std::vector<OpIndex>& changed);

  // Nanoseconds that no part's device can undercut, until the device has done all that follows.
  struct Least {
    int64_t after = 0;  // from the end of a part
    int64_t from = 0;   // from when it can begin
  };
  By<OpIndex, Least> forward, backward;
  By<OpIndex, int64_t> lead;  // from the loss to the end of a part's backward

  // Sets of ops, a bit each.
  using Bits = std::vector<uint64_t>;
  const Bits& before(OpIndex op) const { return before_[op]; }
  const Bits& after(OpIndex op) const { return after_[op]; }

 private:
  struct Work {
    int64_t forward = 0, backward = 0;
  };
  struct Chains {                // of forward or backward, by op and device
    std::vector<Work> follow;    // all that follows
    std::vector<uint64_t> sets;  // who does
  };

  struct Affected {
    Bits forward, backward;  // ops of whose followers something may have changed
  };

  Affected begin(const TaskGraph& graph, const std::vector<OpIndex>& changed);
  void place(const TaskGraph& graph, OpIndex op);
  void clear(Chains& chains, OpIndex op);
  void join(Chains& chains, OpIndex op, OpIndex follower, Device device);
  template <typename Of>
  int64_t least(const TaskGraph& graph, OpIndex op, Of of) const;

  // Places in what is kept by op and device.
  ptrdiff_t row_of(OpIndex op) const { return static_cast<ptrdiff_t>(op.value) * num_devices_; }
  size_t place_of(OpIndex op, Device device) const { return row_of(op) + device.value; }

  size_t num_words_;
  int32_t num_devices_ = 0;
  By<OpIndex, Bits> before_, after_;
  std::vector<int32_t> parts_on_;  // by op and device
  std::vector<Work> own_;          // likewise: the part's, where there is one
  Chains forward_, backward_;
};

inline bool has(const Followers::Bits& bits, OpIndex op) { return bits[op.value >> 6] >> (op.value & 63) & 1; }
inline void set(Followers::Bits& bits, OpIndex op) { bits[op.value >> 6] |= uint64_t{1} << (op.value & 63); }
inline void add(Followers::Bits& bits, const Followers::Bits& more) {
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= more[i];
}

}  // namespace soapstone
