// Gradient sums: the pieces of parameters, put into buckets of one holder set. Where holders share what they keep of
// it, a sum is a reduce-scatter, which leaves each its share.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "geometry/pieces.hpp"
#include "support/spares.hpp"
#include "tasks/blocks.hpp"

namespace soapstone {

class TaskGraph;

struct Bucket {
  std::vector<Device> holders;
  Shard shard = Shard::none;
  std::vector<std::pair<int32_t, int32_t>> pieces;  // (index in the group, piece)
  int64_t bytes = 0, gathered_bytes = 0;            // of gradients, and of the weights as they are used
  Slot slot = none;
  Trip trip;

  bool same_sum(const Bucket& other) const {
    return holders == other.holders && shard == other.shard && pieces == other.pieces && bytes == other.bytes;
  }
};

struct SyncTasks : Block {
  std::vector<Bucket> buckets;
  std::vector<Slot> next;
};

struct SyncBlock {
  std::shared_ptr<SyncTasks> tasks;  // those of the block before, where the same sums are left
  std::vector<std::shared_ptr<const std::vector<Piece>>> pieces;  // by parameter of the group
  std::vector<Shard> shards;                                      // likewise
  std::vector<std::vector<Edge>> edges;                           // from the tasks of each of the group's ops
  std::vector<int64_t> weights;  // likewise: the least time that a sum takes, or uncounted
  bool all_wait = true;          // every piece's gradient is some backward's

  void clear();
  bool is_large() const { return edges.capacity() > 1024; }
};

// Parameters whose pieces may share a bucket, and the ops that read them.
struct SyncGroup {
  std::vector<int32_t> tensors;
  std::vector<OpIndex> ops;
  bool grad = false;
};

// By group.
class SyncBlocks final : public Blocks {
 public:
  explicit SyncBlocks(TaskGraph& graph);

  const std::unique_ptr<SyncBlock>& operator[](size_t group) const { return blocks_[group]; }
  const std::vector<SyncGroup>& groups() const { return groups_; }
  // (group, index in its ops)
  const std::vector<std::pair<int32_t, int32_t>>& groups_of(OpIndex op) const { return groups_of_op_[op]; }
  const SyncBlock& before(int32_t group) const;  // the change
  // Every piece's gradient is some backward's, in what was replaced as well.
  bool all_wait() const { return num_unawaited_ == 0; }

  void make(const ChangeSet& changes) override;
  void join(ChangeSet& changes) override;
  void commit() override;
  void rollback(const ChangeSet& changes) override;
  void add_edges(OpIndex op, std::vector<Edge>& edges) const override;
  void add_slots(std::vector<SlotRun>& runs) const override;
  void list(Listing& listing) const override;

 private:
  void make_groups();
  void count(int32_t group, const SyncBlock& block, int64_t sign);
  void drop(std::unique_ptr<SyncBlock> block, const SyncBlock* other);

  TaskGraph& graph_;
  std::vector<SyncGroup> groups_;
  By<OpIndex, std::vector<std::pair<int32_t, int32_t>>> groups_of_op_;
  std::vector<std::unique_ptr<SyncBlock>> blocks_;
  std::vector<std::pair<int32_t, std::unique_ptr<SyncBlock>>> replaced_;
  int32_t num_unawaited_ = 0;  // blocks with a piece that waits for nothing
  Spares<SyncBlock> spare_;
  std::vector<int32_t> reading_of_;  // for whoever makes a block
};

}  // namespace soapstone
