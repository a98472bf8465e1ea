// A task graph row by row, in key order, with all that the runtime and a reader want to know of it. Where a batch is
// cut into microbatches, its rows come once for each of them: first what only the first one does, then each one's, then
// what is done once for all.
#pragma once

#include <map>

#include "tasks/microbatches.hpp"

namespace soapstone {

struct TaskRow {
  uint64_t key = 0;
  Kind kind = Kind::forward;
  OpIndex op = none;
  int32_t part = -1;  // of the op; a combine's group; a transfer's output part
  bool backward = false, finish = false;
  bool is_half = false;  // of an all-reduce: a reduce-scatter or an all-gather
  int64_t bytes = 0, latency = 0;
  Occurrence occurs = Occurrence::each;
  int32_t microbatch = 0, first = -1;               // first: its row in microbatch 0
  int32_t flow = -1;                                // transfer
  std::vector<Device> devices;                      // where it runs; a transfer: source, destination
  std::vector<std::pair<int32_t, int32_t>> pieces;  // sync: (parameter, piece)
  std::vector<int32_t> after;                       // rows
  std::vector<Hold> holds;
};

struct FlowRow {
  int32_t tensor = 0;
  OutputPart part;
  Device device, source;
  Box hull;                                       // all that the device reads of it
  int32_t forward = -1, backward = -1;            // the transfers' rows, -1 where it does not move
  std::vector<std::pair<OpIndex, Part>> readers;  // increasing
};

// What one part reads of one input: the hull, and the boxes that come with each flow.
struct Fetch {
  Box hull;
  std::vector<std::pair<int32_t, std::vector<Box>>> flows;
};

class Listing {
 public:
  Listing(const Graph&, Machine, const Times&, const Strategy& strategy, int32_t num_microbatches = 1);

  const int32_t num_microbatches;

  std::vector<TaskRow> tasks;
  std::vector<FlowRow> flows;

  // For the blocks: a row with what it does, to which the task at a slot gives the rest; and what moves, with the
  // transfers that move it, which returns its number.
  void add(Slot slot, TaskRow row);
  int32_t add_flow(FlowRow row, Slot forward, Slot backward);

  Fetch fetch(OpIndex op, Part part, int32_t input) const;
  std::vector<Piece> pieces(int32_t tensor) const;
  const Layout& layout(OpIndex op) const { return *graph_.ops.at(op).layout; }
  TaskGraph& graph() { return graph_; }
  // -1 where no task is, or not for this microbatch.
  int32_t row_of(Slot slot, int32_t microbatch = 0) const;
  Slot slot_of(int32_t row) const { return slots_[row]; }

 private:
  void sort_rows();
  void link_rows();
  void repeat();

  TaskGraph graph_;
  std::vector<Slot> slots_;                       // by row
  std::vector<std::pair<Slot, Slot>> transfers_;  // by flow: forward, backward
  By<Slot, Occurrence> occurrences_;
  By<Slot, int32_t> row_of_;                                         // of microbatch 0; -1 where no task is
  int32_t num_first_ = 0, num_each_ = 0;                             // rows that occur so
  std::map<std::tuple<int32_t, OutputPart, Device>, int32_t> flow_;  // by (tensor, part, device)
};

}  // namespace soapstone
