// Makes the blocks of tensors: first who has what and the messages between devices, which is all that bounds ask for;
// then tasks and edges.
#pragma once

#include "tasks/taskgraph.hpp"

namespace soapstone {

class FlowBuilder {
 public:
  explicit FlowBuilder(TaskGraph& graph);

  // Before flows are found: how long what resources serve of them may take, with all else that is counted, and how long
  // they stand idle where that is known.
  void set_limit(int64_t limit, const Idle* idle, bool meets);
  // False where it takes longer; then the block is of no use.
  bool find(int32_t tensor, FlowBlock& block);
  void join(int32_t tensor, FlowBlock& block, const FlowBlock* before);
  void point(const FlowBlock& block);

 private:
  struct Found {
    int32_t flow;
    Reader reader;
  };

  // What resources serve of some messages.
  class Tally {
   public:
    explicit Tally(size_t num_resources) : served_(num_resources) {}

    int64_t add(Resource resource, int64_t duration);  // returns what it serves now
    int64_t end(std::vector<Hold>* sums = nullptr);    // begins anew; returns the most that a resource served

   private:
    By<Resource, int64_t> served_;
    std::vector<Resource> resources_;  // that serve any
  };

  // The transfers of one direction.
  struct Direction {
    Tally tally;
    By<Resource, int64_t> others;  // what else is counted, and how long it stands idle
    int64_t most = 0;              // that a resource takes for all of this

    void begin(const By<Resource, int64_t>& counted, const By<Resource, int64_t>* idle);
    Trip add(const Topology::Way& way);
  };

  const OpState& reader(size_t i) const { return graph_.ops[tensor_->readers[i].first]; }
  void begin(int32_t tensor, FlowBlock& block);
  void begin_trips();
  bool fits() const;
  void find_flows(OutputPart part);
  int32_t flow_to(OutputPart part, Device device, const Interval* hull);
  Flow new_flow(OutputPart part, Device device) const;
  void sort_readers();
  void find_gaps();
  void add_trips(size_t first);
  class Together;
  // Two readers of a tensor, of which one also reads what the other makes: `tensor`, as its reader number `reader`.
  struct Shortcut {
    int32_t before, after, tensor, reader;
  };
  void weigh_by_output();
  void weigh_by_reader();
  bool moves_alike(const FlowBlock& before) const;
  void add_holds(Flow& flow, bool back);
  void add_transfers(const FlowBlock* before);
  void find_all_shortcuts();
  void find_shortcuts();
  void look_at(std::span<const Reader> readers);
  bool follows(const Reader& reading, bool back) const;
  void connect();
  void connect_gradients();
  int32_t first_return(size_t flow) const;
  void find_sinks(const Flow& flow, bool first);

  TaskGraph& graph_;
  int32_t index_ = 0;
  const Tensor* tensor_ = nullptr;
  const OpState* maker_ = nullptr;
  FlowBlock* block_ = nullptr;
  int64_t rank_ = 0;
  std::vector<bool> gives_;                // by reader: it gives back a gradient
  std::vector<const Overlaps*> overlaps_;  // by reader
  By<Device, int32_t> flow_on_;            // the flow of the present output part
  std::vector<Found> found_;
  std::vector<int32_t> at_, first_part_, by_part_;
  Tally together_;
  Direction there_, back_;
  bool meets_ = false;
  int64_t limit_ = INT64_MAX;
  const Idle* idle_ = nullptr;
  std::vector<std::vector<Shortcut>> shortcuts_;  // by tensor; none where the graph is thorough
  std::vector<const Overlaps*> between_;          // parallel to the tensor's shortcuts, which are sorted by `after`
  std::vector<int32_t> first_shortcut_;           // by reader after
  std::vector<std::span<const Reader>> in_flow_;  // by reader
  std::vector<Slot> sinks_;                       // the tasks that take a gradient
};

}  // namespace soapstone
