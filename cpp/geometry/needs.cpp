#include "geometry/needs.hpp"

#include <algorithm>

namespace soapstone {

std::vector<Need> needs_of(Layouts& layouts, const Graph& graph, int32_t index, int32_t reader,
                           const Configuration& made, const Configuration& read) {
  const auto& tensor = graph.tensors[index];
  const auto [consumer, input] = tensor.readers[reader];
  const auto maker = layouts.of(tensor.producer, made.degrees), taker = layouts.of(consumer, read.degrees);
  const auto& overlaps = layouts.between(index, reader, *maker, *taker);
  const auto& share = taker->inputs[input];
  const int64_t rank = num_dims(tensor.factoring);
  std::vector<Need> needs;
  for (const OutputPart part : maker->output_parts()) {
    const auto first = static_cast<ptrdiff_t>(needs.size());
    const int32_t box = maker->outputs[tensor.output].of_part[part];
    for (int32_t at = overlaps.begin[box]; at < overlaps.begin[box + 1]; ++at) {
      const Box hull(overlaps.hulls.begin() + at * rank, overlaps.hulls.begin() + (at + 1) * rank);
      for (int32_t i = share.begin[overlaps.read[at]]; i < share.begin[overlaps.read[at] + 1]; ++i) {
        const Device device = read.devices[share.parts[i]];
        auto known =
            std::find_if(needs.begin() + first, needs.end(), [&](auto& need) { return need.device == device; });
        if (known == needs.end()) {
          const Part giver = giver_of(made, part, maker->copies, device);
          needs.push_back({giver, made.devices[giver], device, {}, hull});
          known = needs.end() - 1;
        } else if (rank > 0) {
          extend(known->hull, hull);
        }
        known->parts.push_back(share.parts[i]);
      }
    }
  }
  return needs;
}

}  // namespace soapstone
