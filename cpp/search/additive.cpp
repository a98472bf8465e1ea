#include "search/additive.hpp"

#include <algorithm>

namespace soapstone {

class Additive::Pile {
 public:
  explicit Pile(Additive& of) : holds(of.holds_), load_(of.load_) { holds.clear(); }

  ~Pile() {
    for (const auto& hold : holds) load_[hold.resource] = 0;
  }

  void latency(int64_t nanoseconds) { latency_ = std::max(latency_, nanoseconds); }

  int64_t time() {
    int64_t longest = 0;
    for (const auto& hold : holds) longest = std::max(longest, load_[hold.resource] += hold.duration);
    return longest + latency_;
  }

  std::vector<Hold>& holds;

 private:
  By<Resource, int64_t>& load_;
  int64_t latency_ = 0;
};

Additive::Additive(const Graph& graph, Machine machine, const Times& times)
    : graph_(graph),
      machine_(std::move(machine)),
      times_(times),
      layouts_(graph),
      load_(machine_.topology.num_resources()) {}

int64_t Additive::compute(OpIndex op, const Configuration& configuration) {
  const auto layout = layouts_.of(op, configuration.degrees);
  const bool backward = graph_.ops[op].backward;
  const bool finishes = layout->combines && graph_.ops[op].combine.finish;
  By<Device, int64_t> busy(machine_.topology.num_devices());
  for (const Part part : layout->parts()) {
    const Device device = configuration.devices[part];
    const auto& times = times_.of(op, configuration.degrees, machine_.kinds[device])[layout->extents.of_part[part]];
    busy[device] += times.forward + (finishes ? times.finish_forward : 0);
    if (backward) busy[device] += times.backward + (finishes ? times.finish_backward : 0);
  }
  Pile pile(*this);
  for (size_t group = 0; group < layout->groups.size(); ++group) {
    const auto devices = devices_of(configuration, layout->groups[group]);
    pile.latency(machine_.topology.all_reduce(devices, layout->combine_bytes[group], pile.holds));
  }
  return *std::max_element(busy.begin(), busy.end()) + (backward ? 2 : 1) * pile.time();
}

int64_t Additive::sync(OpIndex op, const Configuration& configuration) {
  const auto layout = layouts_.of(op, configuration.degrees);
  By<Device, int64_t> updated(machine_.topology.num_devices());  // elements
  Pile pile(*this);
  for (size_t input = 0; input < graph_.ops[op].inputs.size(); ++input) {
    const auto& tensor = graph_.tensors[graph_.ops[op].inputs[input].tensor];
    if (tensor.source != Source::parameter || !tensor.grad) continue;
    const auto& share = layout->inputs[input];
    for (size_t box = 0; box < share.boxes.size(); ++box) {
      const auto devices = devices_of(configuration, share.parts_of(box));
      int64_t elements = 0;
      for (const auto& part : share.boxes[box]) elements += volume(part);
      for (const Device device : devices) updated[device] += elements;
      if (devices.size() > 1)
        pile.latency(machine_.topology.all_reduce(devices, elements * tensor.item_size, pile.holds));
    }
  }
  int64_t update = 0;
  for (const Device device : updated.indices())
    update = std::max(update, machine_.update_time(device, updated[device]));
  return pile.time() + update;
}

int64_t Additive::transfer(int32_t index, int32_t reader, const Configuration& made, const Configuration& read) {
  const auto& tensor = graph_.tensors[index];
  Pile pile(*this);
  for (const auto& need : needs_.of(layouts_, graph_, index, reader, made, read))
    if (need.source != need.device)
      pile.latency(
          machine_.topology.transfer(need.source, need.device, volume(need.hull) * tensor.item_size, pile.holds));
  layouts_.forget();
  return (tensor.grad && graph_.ops[tensor.readers[reader].first].backward ? 2 : 1) * pile.time();
}

}  // namespace soapstone
