// Weights that are gathered before they are used, where their holders share them: once an iteration where each keeps
// all of them and shares the update, and again for backward where each keeps nothing but its share.
//
// What is gathered at once is what is summed at once. A bucket is gathered at most `Machine::groups_ahead` groups of
// parameters before it is used: on each of its holders it waits for what comes last of the group before those, and in
// backward, where there is none, for the loss.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/spares.hpp"
#include "tasks/blocks.hpp"

namespace soapstone {

struct SyncGroup;
class TaskGraph;

struct Gather {
  int32_t bucket;  // of the group's sums
  bool backward;   // for it, or for forward
  Slot slot = none;
  Trip trip;
};

// What a gather waits for: the part of an op that no longer needs its weights, or the loss.
struct Gate {
  OpIndex op;
  Part part;  // none: the loss
  int32_t gather;

  auto operator<=>(const Gate&) const = default;
};

struct GatherBlock : Block {
  std::vector<Gather> gathers;                  // forward's, then backward's
  std::vector<Gate> gates;                      // increasing
  std::vector<std::pair<Edge, OpIndex>> edges;  // from the gates
  std::vector<Slot> next;
  bool starts_at_once = false;  // some gather for forward waits for nothing
  bool waits_for_loss = false;

  void clear();
  bool is_large() const { return gates.capacity() > 1024; }
};

// By group of parameters; null where nothing is gathered.
class GatherBlocks final : public Blocks {
 public:
  explicit GatherBlocks(TaskGraph& graph);

  const std::unique_ptr<GatherBlock>& operator[](size_t group) const { return blocks_[group]; }
  const GatherBlock* before(int32_t group) const;  // the change
  // The groups whose gathers a change may touch, of which those of its own groups are named.
  void reach(ChangeSet& changes) const;
  // Visits what gathers of the changed groups wait for, or waited for.
  template <typename Visit>
  void each_changing(const ChangeSet& changes, Visit visit) const;

  void make(const ChangeSet& changes) override;
  void join(ChangeSet& changes) override;
  void commit() override;
  void rollback(const ChangeSet& changes) override;
  void add_edges(OpIndex op, std::vector<Edge>& edges) const override;
  void add_slots(std::vector<SlotRun>& runs) const override;
  void list(Listing& listing) const override;

 private:
  void find_gates(std::span<const int32_t> order, bool (*may_wait_for)(OpIndex, const SyncGroup&),
                  std::vector<int32_t>& gates);
  void drop(std::unique_ptr<GatherBlock> block);

  TaskGraph& graph_;
  std::vector<int32_t> before_, after_;         // by group: the one that its gathers wait for, or -1
  By<OpIndex, std::vector<int32_t>> gated_by_;  // groups
  std::vector<std::unique_ptr<GatherBlock>> blocks_;
  std::vector<std::pair<int32_t, std::unique_ptr<GatherBlock>>> replaced_;
  Spares<GatherBlock> spare_;
};

template <typename Visit>
void GatherBlocks::each_changing(const ChangeSet& changes, Visit visit) const {
  for (const int32_t group : changes.gathers) {
    if (blocks_[group]) visit(*blocks_[group]);
    if (const GatherBlock* old = before(group); old && old != blocks_[group].get()) visit(*old);
  }
}

}  // namespace soapstone
