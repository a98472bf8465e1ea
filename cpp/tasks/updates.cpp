#include "tasks/updates.hpp"

#include "tasks/listing.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

Updates::Updates(TaskGraph& graph)
    : graph_(graph), num_devices_(graph.machine.topology.num_devices()), first_(graph.pool.take(num_devices_)) {
  for (const Device device : devices()) {
    Task& task = graph_.pool.tasks[slot_of(device)];
    task.key = pack_key(update_phase, 0, Kind::update, 0, 0, device.value);
    task.first = {resource_of(device), 0};
    task.num_holds = 1;
    task.tail = graph_.no_tail();
  }
}

bool Updates::is_there(Device device) const { return graph_.totals.elements[device] > 0; }

bool Updates::is_changing(Device device) const {
  return graph_.totals.elements[device] != graph_.totals_before().elements[device];
}

int64_t Updates::time(Device device) const { return graph_.pool.tasks[slot_of(device)].first.duration; }

int64_t Updates::wanted_time(Device device) const {
  return graph_.machine.update_time(device, graph_.totals.elements[device]);
}

void Updates::make(const ChangeSet&) {
  for (const Device device : devices()) {
    const int64_t longer = wanted_time(device) - time(device);
    graph_.totals.work[resource_of(device)] += longer;
    graph_.totals.after[resource_of(device)] += longer;
    graph_.pool.tasks[slot_of(device)].first.duration += longer;
  }
}

void Updates::join(ChangeSet& changes) {
  for (const Device device : devices()) {
    if (!is_changing(device)) continue;
    changes.retimed.push_back({slot_of(device), 1});
    if (graph_.totals_before().elements[device] == 0) changes.fresh.push_back({slot_of(device), 1});
    if (!is_there(device)) changes.gone.push_back({slot_of(device), 1});
  }
}

void Updates::rollback(const ChangeSet&) {
  for (const Device device : devices()) graph_.pool.tasks[slot_of(device)].first.duration = wanted_time(device);
}

void Updates::add_slots(std::vector<SlotRun>& runs) const {
  for (const Device device : devices())
    if (is_there(device)) runs.push_back({slot_of(device), 1});
}

void Updates::list(Listing& listing) const {
  for (const Device device : devices()) {
    if (!is_there(device)) continue;
    TaskRow row;
    row.kind = Kind::update;
    row.devices = {device};
    listing.add(slot_of(device), std::move(row));
  }
}

}  // namespace soapstone
