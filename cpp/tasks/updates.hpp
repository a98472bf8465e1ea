// The optimizer's work: one task a device, for all the elements of parameters that it holds.
#pragma once

#include <cassert>

#include "tasks/blocks.hpp"

namespace soapstone {

class TaskGraph;

// Each device has its slot for good; where it holds no parameters, that is not in the task graph.
class Updates final : public Blocks {
 public:
  explicit Updates(TaskGraph& graph);

  Slot slot_of(Device device) const { return first_ + device.value; }
  Device device_of(Slot slot) const {
    assert(has(slot));
    return Device(slot - first_);
  }
  bool has(Slot slot) const { return slot >= first_ && slot < first_ + num_devices_; }
  bool is_there(Device device) const;
  bool is_changing(Device device) const;
  int64_t time(Device device) const;

  void make(const ChangeSet& changes) override;
  void join(ChangeSet& changes) override;
  void commit() override {}
  void rollback(const ChangeSet& changes) override;
  void add_edges(OpIndex, std::vector<Edge>&) const override {}  // they wait for gradients, whose kind has the edges
  void add_slots(std::vector<SlotRun>& runs) const override;
  void list(Listing& listing) const override;

 private:
  auto devices() const { return range<Device>(num_devices_); }
  int64_t wanted_time(Device device) const;

  TaskGraph& graph_;
  int32_t num_devices_;
  Slot first_;
};

}  // namespace soapstone
