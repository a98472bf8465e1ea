// The task graph of one training iteration: compute, combine, transfer, sync and update tasks, what each waits
// for and what it holds. The simulator plays it and the runtime executes it.
#pragma once

#include <set>

#include "opgraph.hpp"
#include "pieces.hpp"
#include "timeline.hpp"
#include "topology.hpp"

namespace soapstone {

enum class Kind : int32_t { forward, backward, combine, transfer, sync, update };

struct Configuration {
  std::vector<int32_t> degrees, devices;
};

// Nanoseconds of one part; `finish_*` are the steps behind a combine and count only where there are any.
struct PartTimes {
  int64_t forward = 1, backward = 1, finish_forward = 1, finish_backward = 1;
};

struct Task {
  uint64_t key = 0;
  Kind kind = Kind::forward;
  int32_t op = -1, part = -1;  // part: of the op; a combine's group; a transfer's output part
  bool backward = false, finish = false;
  int64_t bytes = 0, latency = 0;
  int32_t flow = -1;                                // transfer
  std::vector<int32_t> devices;                     // where it runs; a transfer: source, destination
  std::vector<std::pair<int32_t, int32_t>> pieces;  // sync: (parameter, piece)
  std::vector<int32_t> after;
  std::vector<Hold> holds;
};

// An output part of a tensor as one device has it: made there, or moved there from `source`.
struct Flow {
  int32_t tensor = 0, part = 0, device = 0, source = 0;
  Box hull;                                       // all that the device reads of it
  int32_t forward = -1, backward = -1;            // the transfers, -1 where it does not move
  std::set<std::pair<int32_t, int32_t>> readers;  // (op, part)
};

// What one part reads of one input: the hull, and the boxes that come with each flow.
struct Fetch {
  Box hull;
  std::vector<std::pair<int32_t, std::vector<Box>>> flows;
};

// How the parts of one op make its output parts and combine groups, and the tasks that they became.
struct OpLayout {
  int32_t num_parts = 1, num_output_parts = 1, copies = 1;  // copies: parts that share one output part
  bool combines = false;
  std::vector<int32_t> group_of, first_on_device;  // by part; the part that finishes for it on its device
  std::vector<int32_t> forward, finish_forward, finish_backward, backward;  // by part, -1 where there is none
  std::vector<int32_t> combine_forward, combine_backward;                   // by group
};

class TaskGraph {
 public:
  TaskGraph(const Graph&, const Topology&, std::vector<Configuration> strategy,
            std::vector<std::vector<PartTimes>> times, std::vector<double> update_ns_per_element,
            int64_t update_overhead, int64_t bucket_bytes);

  std::vector<Task> tasks;  // in key order
  std::vector<Flow> flows;
  std::vector<std::vector<std::vector<Fetch>>> fetches;   // op, part, input
  std::vector<std::vector<std::vector<Box>>> values;      // op, part, value: the part's share of it
  std::vector<std::vector<Piece>> pieces;                 // by tensor; empty for all but parameters
  std::vector<std::vector<std::vector<int32_t>>> groups;  // op -> combine group -> parts; empty where none combines

  TaskList list() const;

 private:
  void lay_out(int32_t op);
  void add_forward(int32_t op);
  void add_backward(int32_t op);
  void add_combines(int32_t op, bool backward);
  void add_compute(int32_t op, int32_t part, bool backward, bool finish, int64_t duration, std::vector<int32_t>& rows);
  void add_flows(int32_t tensor);
  void connect(int32_t flow);
  void connect_gradient(int32_t flow);
  int32_t add_transfer(int32_t flow, bool backward, std::vector<int32_t> after);
  void add_pieces(int32_t tensor);
  void add_syncs();
  void add_sync(const std::vector<std::pair<int32_t, int32_t>>& bucket);
  void add_updates();
  void sort_by_key();

  int32_t push(Task task, uint64_t key);
  int32_t part_on_source(const Flow&) const;
  std::vector<Box> read_boxes(int32_t op, int32_t part, int32_t input) const;
  void wait_for(int32_t row, int32_t other) { tasks[row].after.push_back(other); }
  uint64_t key(const Task&, int64_t op_order, int64_t slot, int64_t major, int64_t minor) const;

  const Graph& graph_;
  const Topology& topology_;
  std::vector<Configuration> strategy_;
  std::vector<std::vector<PartTimes>> times_;
  std::vector<double> update_ns_per_element_;
  int64_t update_overhead_, bucket_bytes_;
  std::vector<OpLayout> layouts_;
  std::vector<std::vector<std::vector<std::pair<int32_t, int32_t>>>> piece_readers_;  // tensor, piece -> (op, part)
};

}  // namespace soapstone
