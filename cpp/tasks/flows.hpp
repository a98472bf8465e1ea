// Transfers: who has which part of a tensor, and the messages that bring it to others and take its gradient back.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "geometry/boxes.hpp"
#include "support/spares.hpp"
#include "tasks/blocks.hpp"
#include "tasks/totals.hpp"

namespace soapstone {

class FlowBuilder;
class TaskGraph;

// An output part of a tensor as one device has it: made there, or moved there from `source`.
struct Flow {
  OutputPart part;
  Part maker;  // that makes or finishes it on `source`
  Device device, source;
  bool returns = false;                  // a gradient goes back
  Slot forward = none, backward = none;  // the transfers, where it moves
  int32_t readers_begin = 0;             // its readers begin here in FlowBlock::readers
  int64_t bytes = 0;
  Trip there, back;

  bool moves() const { return source != device; }
};

struct Reader {
  int32_t reader;  // an index in the tensor's readers
  Part part;       // of that op
};

struct FlowBlock : Block {
  std::vector<Flow> flows;
  std::vector<Hold> before, after;            // what each resource serves of the transfers, there and back
  By<Device, int64_t> made;                   // bytes of what is moved there
  std::vector<Interval> hulls;                // of what each flow's device reads, one interval for each dim
  std::vector<Reader> readers;                // of all flows
  std::vector<Slot> next;                     // successors of all transfers,
  std::vector<int32_t> next_end;              // and where each one's end
  std::vector<Edge> forward;                  // from the maker's tasks
  std::vector<std::vector<Edge>> backward;    // from each reader's tasks
  By<Part, bool> read, returns;               // of the maker: some device has it, a gradient comes back to it
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

// By tensor; null where no op makes it.
class FlowBlocks final : public Blocks {
 public:
  explicit FlowBlocks(TaskGraph& graph);
  ~FlowBlocks() override;

  const std::unique_ptr<FlowBlock>& operator[](size_t tensor) const { return blocks_[tensor]; }
  size_t size() const { return blocks_.size(); }
  // Finds some of the flows that a change reaches, after `make` has forgotten all of them. False where these alone,
  // with all else that is counted and how long resources stand idle, pass the limit.
  bool route(ChangeSet& changes, int64_t limit, const Idle* idle);

  void make(const ChangeSet& changes) override;
  void join(ChangeSet& changes) override;
  void commit() override;
  void rollback(const ChangeSet& changes) override;
  void add_edges(OpIndex op, std::vector<Edge>& edges) const override;
  void add_slots(std::vector<SlotRun>& runs) const override;
  void list(Listing& listing) const override;

 private:
  void count(const FlowBlock& block, int64_t sign);
  void mark_relinked(int32_t tensor, const FlowBlock& old);
  void drop(std::unique_ptr<FlowBlock> block, const FlowBlock* other);
  void list_tensor(int32_t tensor, Listing& listing) const;

  TaskGraph& graph_;
  std::vector<std::unique_ptr<FlowBlock>> blocks_;
  std::vector<std::pair<int32_t, std::unique_ptr<FlowBlock>>> replaced_;
  Spares<FlowBlock> spare_;
  std::unique_ptr<FlowBuilder> builder_;
};

}  // namespace soapstone
