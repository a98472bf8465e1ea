#include "tasks/microbatches.hpp"

#include <algorithm>

namespace soapstone {

namespace {

class LagFinder {
 public:
  explicit LagFinder(const TaskGraph& graph)
      : graph_(graph), num_devices_(graph.machine.topology.num_devices()), runs_(graph.ops.size() * num_devices_, -1) {}

  std::vector<LaggedEdge> find() {
    for (const OpIndex op : graph_.ops.indices()) add_window(op);
    find_runs();
    add_runs();
    add_gathers();
    return std::move(edges_);
  }

 private:
  void add_window(OpIndex op) {
    const auto& [configuration, layout, block] = graph_.ops[op];
    const int32_t in_flight = configuration.in_flight;
    if (block->backward.empty() || in_flight == 0 || in_flight >= graph_.num_microbatches) return;
    for (const Part part : layout->parts()) edges_.push_back({block->backward[part], block->forward[part], in_flight});
  }

  template <typename Visit>
  void each_maker(OpIndex op, Visit visit) const {
    for (const auto& [tensor, reader] : graph_.reads[op])
      if (const OpIndex maker = graph_.graph.tensors[tensor].producer; maker != none) visit(maker);
  }

  std::vector<Device> devices_of_op(OpIndex op) const {
    return devices_of(graph_.ops[op].configuration, graph_.ops[op].layout->all_parts());
  }

  int32_t& run(OpIndex op, Device device) { return runs_[op.value * num_devices_ + device.value]; }

  // The run of each op on each of its devices, -1 elsewhere.
  void find_runs() {
    std::vector<int32_t> leads(runs_.size(), -1);  // by op and device: the last run there that leads to it
    By<Device, int32_t> now(num_devices_, -1);
    int32_t count = 0;
    for (const OpIndex op : graph_.ops.indices()) {
      int32_t* own = &leads[op.value * num_devices_];
      std::vector<Device> back;
      const auto devices = devices_of_op(op);
      each_maker(op, [&](OpIndex maker) {
        const int32_t* theirs = &leads[maker.value * num_devices_];
        for (size_t i = 0; i < num_devices_; ++i) own[i] = std::max(own[i], theirs[i]);
        for (const Device device : devices)
          if (theirs[device.value] >= 0 && theirs[device.value] == now[device] && run(maker, device) < 0)
            back.push_back(device);
      });
      for (const Device device : devices) {
        if (now[device] < 0 || std::find(back.begin(), back.end(), device) != back.end()) now[device] = count++;
        run(op, device) = own[device.value] = now[device];
      }
    }
    num_runs_ = count;
  }

  void add_runs() {
    struct Ends {
      std::vector<Slot> first, last;
      int32_t num_ops = 0;
    };
    std::vector<Ends> ends(num_runs_);
    std::vector<bool> is_read(runs_.size());  // in its run
    for (const OpIndex op : graph_.ops.indices())
      for (const Device device : devices_of_op(op))
        each_maker(op, [&](OpIndex maker) {
          if (run(maker, device) == run(op, device)) is_read[maker.value * num_devices_ + device.value] = true;
        });
    for (const OpIndex op : graph_.ops.indices()) {
      const auto& [configuration, layout, block] = graph_.ops[op];
      for (const Device device : devices_of_op(op)) ++ends[run(op, device)].num_ops;
      for (const Part part : layout->parts()) {
        const Device device = configuration.devices[part];
        Ends& own = ends[run(op, device)];
        bool begins = true;
        each_maker(op, [&](OpIndex maker) { begins &= run(maker, device) != run(op, device); });
        if (begins) own.first.push_back(block->forward[part]);
        const Slot made = block->arrival(*layout, part);
        if (made != none && !is_read[op.value * num_devices_ + device.value]) own.last.push_back(made);
      }
    }
    for (const auto& [first, last, num_ops] : ends) {
      if (num_ops < 2) continue;
      for (const Slot from : last)
        for (const Slot to : first) edges_.push_back({from, to, 1});
    }
  }

  void add_gathers() {
    for (size_t group = 0; group < graph_.syncs.groups().size(); ++group) {
      if (!graph_.gathers[group]) continue;
      for (const Gather& gather : graph_.gathers[group]->gathers) {
        if (gather.backward || graph_.pool.waiting[gather.slot] > 0) continue;
        if (graph_.syncs[group]->tasks->buckets[gather.bucket].shard != Shard::all) continue;
        const Task& task = graph_.pool.tasks[gather.slot];
        for (int32_t i = 0; i < task.num_next; ++i) edges_.push_back({task.next[i], gather.slot, 1});
      }
    }
  }

  const TaskGraph& graph_;
  const size_t num_devices_;
  std::vector<int32_t> runs_;  // by op and device
  int32_t num_runs_ = 0;
  std::vector<LaggedEdge> edges_;
};

}  // namespace

By<Slot, Occurrence> occurrences(const TaskGraph& graph) {
  By<Slot, Occurrence> found(graph.pool.tasks.size(), Occurrence::each);
  std::vector<SlotRun> once;
  graph.syncs.add_slots(once);
  graph.updates.add_slots(once);
  for (const SlotRun& run : once)
    for (const Slot slot : run.slots()) found[slot] = Occurrence::last;
  for (size_t group = 0; group < graph.syncs.groups().size(); ++group) {
    if (!graph.gathers[group]) continue;
    for (const Gather& gather : graph.gathers[group]->gathers)
      if (graph.syncs[group]->tasks->buckets[gather.bucket].shard == Shard::optimizer)
        found[gather.slot] = Occurrence::first;
  }
  return found;
}

std::vector<LaggedEdge> lagged_edges(const TaskGraph& graph) { return LagFinder(graph).find(); }

}  // namespace soapstone
