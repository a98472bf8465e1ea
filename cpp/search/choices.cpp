#include "search/choices.hpp"

#include <algorithm>

namespace soapstone {

int64_t time_of(const std::vector<Hold>& holds, int64_t latency) {
  int64_t hold = 0;
  for (const auto& each : holds) hold = std::max(hold, each.duration);
  return std::max<int64_t>(hold + latency, 1);
}

void go_forward(const Choice& choice, const Column& ready, Column& done) {
  done.resize(ready.size());
  for (const Part p : ready.indices()) done[p] = ready[p] + choice.forward[p];
  for (size_t g = 0; g < choice.groups.size(); ++g) {
    int64_t latest = never;
    for (const Part p : choice.groups[g]) latest = std::max(latest, done[p]);
    for (const Part p : choice.groups[g]) done[p] = latest + choice.combine[g] + choice.finish_forward[p];
  }
}

void go_backward(const Choice& choice, const Column& ready, Column& done) {
  done = ready;
  for (size_t g = 0; g < choice.groups.size(); ++g) {
    int64_t latest = never;
    for (const Part p : choice.groups[g]) latest = std::max(latest, ready[p] + choice.finish_backward[p]);
    for (const Part p : choice.groups[g]) done[p] = latest + choice.combine[g];
  }
  for (const Part p : done.indices()) done[p] += choice.backward[p];
}

void what_follows(const Choice& choice, const Column& after, Column& follows) {
  follows.resize(after.size());
  for (const Part p : after.indices()) follows[p] = after[p] + choice.backward[p];
  for (size_t g = 0; g < choice.groups.size(); ++g) {
    int64_t most = never;
    for (const Part p : choice.groups[g]) most = std::max(most, follows[p]);
    for (const Part p : choice.groups[g]) follows[p] = most + choice.combine[g] + choice.finish_backward[p];
  }
}

Choice ChoiceMaker::make(OpIndex op, const Configuration& configuration) {
  if (configuration.shard != Shard::none || configuration.recompute)
    throw std::invalid_argument("these bounds know no sharded parameters and no recomputation");
  layout_ = layouts_.of(op, configuration.degrees);
  Choice choice;
  choice.configuration = configuration;
  choice.groups = layout_->groups;
  choice.sync.assign(layout_->num_parts, 0);
  choice.updates.assign(layout_->num_parts, false);
  add_times(op, choice);
  for (size_t g = 0; g < layout_->groups.size(); ++g)
    choice.combine.push_back(all_reduce(devices_of(configuration, layout_->groups[g]), layout_->combine_bytes[g]));
  for (size_t input = 0; graph_.ops[op].backward && input < graph_.ops[op].inputs.size(); ++input)
    add_parameter(graph_.ops[op].inputs[input].tensor, layout_->inputs[input], choice);
  return choice;
}

int64_t ChoiceMaker::all_reduce(const std::vector<Device>& devices, int64_t bytes) const {
  std::vector<Hold> holds;
  const int64_t latency = machine_.topology.all_reduce(devices, bytes, holds);
  return time_of(holds, latency);
}

void ChoiceMaker::add_times(OpIndex op, Choice& choice) const {
  const auto& [degrees, devices, shard, recompute, in_flight] = choice.configuration;
  const bool back = graph_.ops[op].backward, finishes = layout_->combines && graph_.ops[op].combine.finish;
  const auto at_least_1 = [](int64_t ns) { return std::max<int64_t>(ns, 1); };
  std::map<Device, Load> work;
  for (const Part part : layout_->parts()) {
    const auto& times = times_.of(op, degrees, machine_.kinds[devices[part]])[layout_->extents.of_part[part]];
    const auto first = devices.begin() + layout_->first_copy(layout_->output_of(part)).value;
    const bool ends = finishes && std::find(first, devices.end(), devices[part]) == devices.begin() + part.value;
    choice.forward.push_back(at_least_1(times.forward));
    choice.backward.push_back(back ? at_least_1(times.backward) : 0);
    choice.finish_forward.push_back(ends ? at_least_1(times.finish_forward) : 0);
    choice.finish_backward.push_back(ends && back ? at_least_1(times.finish_backward) : 0);
    Load& load = work[devices[part]];
    load.busy +=
        choice.forward.back() + choice.backward.back() + choice.finish_forward.back() + choice.finish_backward.back();
    load.launching += times.launch_forward + (back ? times.launch_backward : 0);
    if (ends) load.launching += times.launch_finish_forward + (back ? times.launch_finish_backward : 0);
  }
  choice.work.assign(work.begin(), work.end());
}

void ChoiceMaker::add_parameter(int32_t tensor, const Share<Part>& share, Choice& choice) const {
  if (parameters_[tensor] < 0) return;
  const bool disjoint = share.disjoint;  // boxes that meet are cut into pieces, of which nothing is said here
  const bool alone = disjoint && graph_.tensors[tensor].readers.size() == 1 && machine_.bucket_bytes == 0;
  std::map<Device, int64_t> held;
  int64_t read = 0;
  for (size_t box = 0; box < share.boxes.size(); ++box) {
    int64_t count = 0;
    for (const auto& each : share.boxes[box]) count += volume(each);
    const auto parts = share.parts_of(box);
    const auto devices = devices_of(choice.configuration, parts);
    for (const Part part : parts) choice.updates[part] = choice.updates[part] || count > 0;
    read = disjoint ? read + count : std::max(read, count);
    for (const Device device : devices) held[device] = disjoint ? held[device] + count : std::max(held[device], count);
    if (!alone || devices.size() < 2 || count == 0) continue;
    const int64_t sync = all_reduce(devices, count * graph_.tensors[tensor].item_size);
    for (const Part part : parts) choice.sync[part] = std::max(choice.sync[part], sync);
  }
  for (const auto& [device, count] : held) choice.elements.push_back({parameters_[tensor], device, count});
  auto& most = choice.read[parameters_[tensor]];
  most = std::max(most, read);
}

}  // namespace soapstone
