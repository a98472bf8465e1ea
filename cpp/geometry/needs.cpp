#include "geometry/needs.hpp"

#include <algorithm>

namespace soapstone {

std::span<const Need> Needs::of(Layouts& layouts, const Graph& graph, int32_t index, int32_t reader,
                                const Configuration& made, const Configuration& read) {
  const auto& tensor = graph.tensors[index];
  const auto [consumer, input] = tensor.readers[reader];
  const auto maker = layouts.of(tensor.producer, made.degrees), taker = layouts.of(consumer, read.degrees);
  const auto& overlaps = layouts.between(index, reader, *maker, *taker);
  const auto& share = taker->inputs[input];
  const int64_t rank = num_dims(tensor.factoring);
  num_ = 0;
  after_last_.assign(std::max_element(read.devices.begin(), read.devices.end())->value + 1, 0);
  for (const OutputPart part : maker->output_parts()) {
    const size_t first = num_;
    const int32_t box = maker->outputs[tensor.output].of_part[part];
    for (int32_t at = overlaps.begin[box]; at < overlaps.begin[box + 1]; ++at) {
      const std::span shared(overlaps.hulls.begin() + at * rank, rank);
      for (int32_t i = share.begin[overlaps.read[at]]; i < share.begin[overlaps.read[at] + 1]; ++i) {
        const Device device = read.devices[share.parts[i]];
        const bool known = after_last_[device] > first;
        if (!known) add(device);
        Need& need = needs_[after_last_[device] - 1];
        if (known) {
          for (int64_t dim = 0; dim < rank; ++dim) need.hull[dim] = hull(need.hull[dim], shared[dim]);
        } else {
          need.maker = giver_of(made, part, maker->copies, device);
          need.source = made.devices[need.maker];
          need.hull.assign(shared.begin(), shared.end());
        }
        need.parts.push_back(share.parts[i]);
      }
    }
  }
  return {needs_.data(), num_};
}

void Needs::add(Device device) {
  if (num_ == needs_.size()) needs_.emplace_back();
  needs_[num_].device = device;
  needs_[num_].parts.clear();
  after_last_[device] = ++num_;
}

}  // namespace soapstone
