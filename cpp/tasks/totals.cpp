#include "tasks/totals.hpp"

namespace soapstone {

Totals::Totals(size_t num_resources, size_t num_devices)
    : work(num_resources), before(num_resources), after(num_resources), compute(num_devices), elements(num_devices) {
  for (auto* column : {&memory.parameters, &memory.gathered, &memory.gradients, &memory.saved, &memory.made,
                       &memory.buckets, &memory.updated})
    column->resize(num_devices);
}

void Totals::count(const Block& block, int64_t times) {
  const auto add = [&](By<Resource, int64_t>& to, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) to[block.holds[i].resource] += times * block.holds[i].duration;
  };
  add(before, 0, block.num_before);
  add(work, 0, block.holds.size());
  add(after, block.first_after, block.holds.size());
}

int64_t MemoryTotals::lasting(Device device, int64_t num_states) const {
  return parameters[device] + gathered[device] + gradients[device] + num_states * updated[device] + saved[device] +
         made[device] + buckets[device];
}

}  // namespace soapstone
