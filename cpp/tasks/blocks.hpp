// The blocks of a task graph: tasks that come and go together, with what bounds and engines ask of them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "geometry/layouts.hpp"
#include "geometry/pieces.hpp"
#include "tasks/tasks.hpp"

namespace soapstone {

// What a task does for its op, in the order in which they follow one another.
enum Role : int32_t {
  role_forward,
  role_combine_forward,
  role_finish_forward,
  role_finish_backward,
  role_combine_backward,
  role_backward,
  num_roles
};

struct OpBlock : Block {
  std::vector<int32_t> first_on_device;  // by part: the part that finishes for it on its device
  std::vector<int32_t> forward, finish_forward, finish_backward, backward;  // slots by part, -1 where there is none
  std::vector<int32_t> combine_forward, combine_backward;                   // slots by group
  std::array<int64_t, num_roles> least{};                                   // time of a task, by role

  void clear();
  bool is_large() const { return holds.capacity() > 1024; }
  // The task after which a part's output is whole, and the one that takes its gradient.
  int32_t arrival(const Layout& layout, int32_t part) const;
  int32_t sink(const Layout& layout, int32_t part) const;
};

// An output part of a tensor as one device has it: made there, or moved there from `source`.
struct Flow {
  int32_t part = 0, device = 0, source = 0, maker = 0;  // maker: the op's part that makes or finishes it on `source`
  bool returns = false;                                 // a gradient goes back
  int32_t forward = -1, backward = -1;                  // the transfers' slots, -1 where it does not move
  int32_t readers_begin = 0;                            // its readers begin here in FlowBlock::readers
  int64_t bytes = 0;
  Trip there, back;

  bool moves() const { return source != device; }
};

struct Reader {
  int32_t reader, part;  // an index in the tensor's readers, and a part of that op
};

constexpr int64_t uncounted = -1;  // of an edge's weight: some part at its end has nothing to do with it

struct FlowBlock : Block {
  std::vector<Flow> flows;
  std::vector<Hold> before, after;            // what each resource serves of the transfers, there and back
  std::vector<int64_t> made;                  // by device: bytes of what is moved there
  std::vector<Interval> hulls;                // of what each flow's device reads, one interval for each dim
  std::vector<Reader> readers;                // of all flows
  std::vector<int32_t> next, next_end;        // successors of all transfers, and where each one's end
  std::vector<Edge> forward;                  // from the maker's tasks
  std::vector<std::vector<Edge>> backward;    // from each reader's tasks
  std::vector<bool> read, returns;            // by the maker's part: some device has it, a gradient comes back to it
  bool all_read = false, all_return = false;  // of every output part some copy
  // By reader: the least time that its messages add, or uncounted: after any part that sends, and before any that
  // receives.
  std::vector<int64_t> weight_forward, weight_backward, arrival_forward;
  int64_t arrival_backward = 0;                 // before any of the maker's parts
  int64_t most_forward = 0, most_backward = 0;  // that a resource serves of the transfers

  void clear();
  bool is_large() const { return flows.capacity() > 1024; }
  bool shares(const FlowBlock& other) const { return count > 0 && other.count > 0 && begin == other.begin; }
  std::span<const Reader> readers_of(size_t flow) const {
    const auto begin = static_cast<size_t>(flows[flow].readers_begin);
    const size_t end = flow + 1 < flows.size() ? flows[flow + 1].readers_begin : readers.size();
    return {readers.data() + begin, end - begin};
  }
};

struct Bucket {
  std::vector<int32_t> holders;
  std::vector<std::pair<int32_t, int32_t>> pieces;  // (index in the group, piece)
  int64_t bytes = 0;
  int32_t slot = -1;
  Trip trip;

  bool same_sum(const Bucket& other) const {
    return holders == other.holders && pieces == other.pieces && bytes == other.bytes;
  }
};

struct SyncTasks : Block {
  std::vector<Bucket> buckets;
  std::vector<int32_t> next;
};

struct SyncBlock {
  std::shared_ptr<SyncTasks> tasks;  // those of the block before, where the same sums are left
  std::vector<std::shared_ptr<const std::vector<Piece>>> pieces;  // by parameter of the group
  std::vector<std::vector<Edge>> edges;                           // from the tasks of each of the group's ops
  std::vector<int64_t> weights;  // likewise: the least time that a sum takes, or uncounted
  bool all_wait = true;          // every piece's gradient is some backward's

  void clear();
  bool is_large() const { return edges.capacity() > 1024; }
};

// Parameters whose pieces may share a bucket, and the ops that read them.
struct SyncGroup {
  std::vector<int32_t> tensors, ops;
  bool grad = false;
};

}  // namespace soapstone
