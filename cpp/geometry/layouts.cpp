#include "geometry/layouts.hpp"

#include <algorithm>

namespace soapstone {

namespace {

constexpr size_t most_bytes = size_t{1} << 30;

template <typename T>
void write(std::string& out, const T& value) {
  if constexpr (requires { value.begin(); }) {
    write(out, value.size());
    for (const auto& item : value) write(out, item);
  } else {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

void write_factor(std::string& out, const Factor& factor) {
  for (const int64_t number : {factor.size, int64_t{factor.dim}, factor.lower.p, factor.lower.b, factor.lower.q,
                               factor.upper.p, factor.upper.b, factor.upper.q})
    write(out, number);
}

// All that an op's layouts depend on.
std::string geometry_of(const Graph& graph, const Op& op) {
  std::string out;
  write(out, op.values);
  write(out, op.steps.size());
  for (const auto& step : op.steps) {
    write(out, step.inputs);
    write(out, step.outputs);
    write(out, step.dims);
    for (const bool whole : step.whole) write(out, whole);
    write(out, step.writes);
    for (const auto& axes : step.reads) {
      write(out, axes.size());
      for (const auto& axis : axes) {
        write(out, axis.size());
        for (const auto& factor : axis) write_factor(out, factor);
      }
    }
  }
  write(out, op.dims.size());
  for (const auto& dim : op.dims)
    for (const int64_t number :
         {dim.size, int64_t{dim.step}, int64_t{dim.step_dim}, int64_t{dim.combinable}, int64_t{dim.extra}})
      write(out, number);
  for (const auto* operands : {&op.inputs, &op.outputs}) {
    write(out, operands->size());
    for (const auto& [tensor, value] : *operands) {
      write(out, value);
      write(out, graph.tensors[tensor].factoring);
      write(out, graph.tensors[tensor].source == Source::parameter);
    }
  }
  for (const int64_t number : {int64_t{op.head}, int64_t{op.combine.gather}, op.combine.factor, op.combine.item_size})
    write(out, number);
  write(out, op.combine.dims);
  write(out, op.item_sizes);
  write(out, op.saved);
  write(out, op.casts.size());
  for (const auto& [value, input] : op.casts) {
    write(out, value);
    write(out, input);
  }
  write(out, op.extra);
  return out;
}

int64_t group_index(const Op& op, const Degrees& degrees, int64_t part) {
  int64_t index = 0, scale = 1;
  for (size_t i = op.dims.size(); i-- > 0; part /= degrees[i]) {
    if (op.dims[i].combinable) continue;
    index += part % degrees[i] * scale;
    scale *= degrees[i];
  }
  return index;
}

// Collects the boxes of one operand, part after part.
template <typename P>
class Sharing {
 public:
  Sharing(const Factoring& own, const Tensor& tensor)
      : own_(own), tensor_(tensor.factoring), is_parameter_(tensor.source == Source::parameter) {}

  void add(const Box& box) {
    ends_.clear();
    for (const auto& interval : box) ends_.insert(ends_.end(), {interval.lo, interval.hi});
    const auto [at, fresh] = index_.try_emplace(ends_, static_cast<int32_t>(share_.boxes.size()));
    if (fresh) share_.boxes.push_back(project(box, own_, tensor_));
    share_.of_part.push_back(at->second);
  }

  Share<P> finish() {
    share_.begin.assign(share_.boxes.size() + 1, 0);
    for (const int32_t box : share_.of_part) ++share_.begin[box + 1];
    for (size_t i = 1; i < share_.begin.size(); ++i) share_.begin[i] += share_.begin[i - 1];
    share_.parts.resize(share_.of_part.size());
    auto at = share_.begin;
    for (const P part : share_.of_part.indices()) share_.parts[at[share_.of_part[part]]++] = part;
    share_.disjoint = is_parameter_ && are_disjoint();
    share_.in_order = is_parameter_ && are_in_order();
    return std::move(share_);
  }

 private:
  bool are_disjoint() const {
    for (size_t i = 0; i < share_.boxes.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        for (const auto& one : share_.boxes[i])
          for (const auto& other : share_.boxes[j])
            if (overlap(one, other)) return false;
    return true;
  }

  bool are_in_order() const {
    const auto& boxes = share_.boxes;
    const auto starts_before = [](const Interval& a, const Interval& b) { return a.lo < b.lo; };
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (boxes[i].size() != 1) return false;
      if (i > 0 && !std::lexicographical_compare(boxes[i - 1][0].begin(), boxes[i - 1][0].end(), boxes[i][0].begin(),
                                                 boxes[i][0].end(), starts_before))
        return false;
    }
    return true;
  }

  const Factoring& own_;
  const Factoring& tensor_;
  bool is_parameter_;
  Share<P> share_;
  std::map<std::vector<int64_t>, int32_t> index_;  // by the ends of a box
  std::vector<int64_t> ends_;
};

template <typename P>
std::vector<Sharing<P>> sharings(const Graph& graph, const Op& op, const std::vector<Operand>& operands) {
  std::vector<Sharing<P>> result;
  for (const auto& [tensor, value] : operands) result.emplace_back(op.values[value], graph.tensors[tensor]);
  return result;
}

void count_parts(const Op& op, Layout& layout) {
  for (size_t i = 0; i < op.dims.size(); ++i) {
    layout.num_parts *= layout.degrees[i];
    (op.dims[i].extra ? layout.copies : layout.num_output_parts) *= layout.degrees[i];
    layout.combines |= op.dims[i].combinable && layout.degrees[i] > 1;
  }
}

void add_memory(const Graph& graph, const Op& op, const Regions& regions, int64_t share, int64_t whole,
                Layout& layout) {
  const auto bytes = [&](int32_t value) { return volume(regions.values[value]) * op.item_sizes[value]; };
  const auto extra = static_cast<int64_t>((static_cast<__int128>(op.extra) * share + whole - 1) / whole);
  int64_t saved = extra, made = 0, working = extra;
  for (const int32_t value : op.saved) saved += bytes(value);
  for (const auto& output : op.outputs) made += bytes(output.value);
  for (int32_t value = 0; value < static_cast<int32_t>(op.values.size()); ++value) working += bytes(value);
  int64_t read = 0, trained = 0;
  for (const auto& [tensor, value] : op.inputs) {
    if (graph.tensors[tensor].source != Source::parameter) read += bytes(value);
    if (graph.tensors[tensor].source == Source::parameter && graph.tensors[tensor].grad) trained += bytes(value);
  }
  layout.read.push_back(read);
  layout.trained.push_back(trained);
  layout.saved.push_back(saved);
  layout.made.push_back(made);
  layout.working.push_back(working);
}

void add_casts(const Op& op, Layout& layout) {
  layout.casts.assign(layout.num_parts, 0);
  if (op.casts.empty()) return;
  RegionFinder finder(op);
  for (const Part part : layout.parts()) {
    const Regions& regions = finder.of(op_box(op, layout.degrees, part.value));
    for (const auto& [value, input] : op.casts) {
      const auto& share = layout.inputs[input];
      if (share.parts_of(share.of_part[part]).size() > 1)
        layout.casts[part] += volume(regions.values[value]) * op.item_sizes[value];
    }
  }
}

// The first part of a group speaks for all; a gather carries what each of them has.
void add_to_group(const Op& op, const Regions& regions, Part part, Layout& layout) {
  const auto group = static_cast<size_t>(layout.group_of[part]);
  if (group == layout.groups.size()) {
    int64_t bytes = op.combine.item_size * op.combine.factor;
    for (const int32_t dim : op.combine.dims) bytes *= regions.step_dims[op.head][dim].size();
    layout.groups.emplace_back();
    layout.combine_bytes.push_back(bytes);
  }
  layout.groups[group].push_back(part);
}

Layout lay_out(const Graph& graph, const Op& op, const Degrees& degrees) {
  Layout layout;
  layout.degrees = degrees;
  count_parts(op, layout);
  auto inputs = sharings<Part>(graph, op, op.inputs);
  auto outputs = sharings<OutputPart>(graph, op, op.outputs);
  layout.extents = extents_of(op, degrees);
  int64_t whole = 1;
  for (const auto& dim : op.dims) whole *= dim.size;
  RegionFinder finder(op);
  for (const Part part : layout.parts()) {
    const Box box = op_box(op, degrees, part.value);
    const Regions& regions = finder.of(box);
    layout.group_of.push_back(static_cast<int32_t>(group_index(op, degrees, part.value)));
    if (layout.combines) add_to_group(op, regions, part, layout);
    add_memory(graph, op, regions, volume(box), whole, layout);
    for (size_t i = 0; i < op.inputs.size(); ++i) inputs[i].add(regions.values[op.inputs[i].value]);
    if (part == layout.first_copy(layout.output_of(part)))
      for (size_t i = 0; i < op.outputs.size(); ++i) outputs[i].add(regions.values[op.outputs[i].value]);
  }
  if (op.combine.gather)
    for (size_t i = 0; i < layout.groups.size(); ++i)
      layout.combine_bytes[i] *= static_cast<int64_t>(layout.groups[i].size());
  for (auto& sharing : inputs) layout.inputs.push_back(sharing.finish());
  for (auto& sharing : outputs) layout.outputs.push_back(sharing.finish());
  add_casts(op, layout);
  return layout;
}

void meet(const std::vector<Box>& made, const std::vector<Box>& read, int32_t index, Overlaps& result) {
  if (made.size() == 1 && read.size() == 1) {  // nearly always, and then nothing is allocated
    const Box &a = made[0], &b = read[0];
    if (!overlap(a, b)) return;
    result.read.push_back(index);
    for (size_t i = 0; i < a.size(); ++i)
      result.hulls.push_back({std::max(a[i].lo, b[i].lo), std::min(a[i].hi, b[i].hi)});
    return;
  }
  Box shared;
  for (const auto& a : made)
    for (const auto& b : read)
      if (auto both = intersect(a, b)) extend(shared, *both);
  if (made.empty() || read.empty() || (shared.empty() && !made[0].empty())) return;
  result.read.push_back(index);
  result.hulls.insert(result.hulls.end(), shared.begin(), shared.end());
}

template <typename P>
size_t bytes_of(const Share<P>& share) {
  size_t total = (share.of_part.size() + share.begin.size() + share.parts.size()) * sizeof(int32_t);
  for (const auto& boxes : share.boxes)
    for (const auto& box : boxes) total += sizeof(Box) + box.size() * sizeof(Interval);
  return total;
}

size_t bytes_of(const Layout& layout) {
  size_t total = sizeof(Layout) + static_cast<size_t>(layout.num_parts) * 40;
  for (const auto& share : layout.inputs) total += bytes_of(share);
  for (const auto& share : layout.outputs) total += bytes_of(share);
  return total;
}

}  // namespace

bool Overlaps::meet(int32_t made, int32_t other) const {
  return std::binary_search(read.begin() + begin[made], read.begin() + begin[made + 1], other);
}

Layouts::Layouts(const Graph& graph) : graph_(graph) {
  std::map<std::string, int32_t> classes;
  for (const auto& op : graph.ops) {
    const auto fresh = static_cast<int32_t>(classes.size());
    class_of_.push_back(classes.try_emplace(geometry_of(graph, op), fresh).first->second);
  }
  layouts_.resize(classes.size());
  for (const auto& tensor : graph.tensors) recent_.emplace_back(tensor.readers.size());
}

std::shared_ptr<const Layout> Layouts::of(OpIndex op, const Degrees& degrees) {
  auto& known = layouts_[class_of_[op]][degrees];
  if (!known) {
    auto layout = std::make_shared<Layout>(lay_out(graph_, graph_.ops[op], degrees));
    layout->id = num_layouts_++;
    number_regions(graph_.ops[op], *layout);
    bytes_ += bytes_of(*layout);
    known = std::move(layout);
  }
  return known;
}

void Layouts::number_regions(const Op& op, Layout& layout) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (graph_.tensors[op.inputs[i].tensor].source != Source::parameter) continue;
    for (const auto& boxes : layout.inputs[i].boxes) {
      std::vector<int64_t> ends;
      for (const auto& box : boxes)
        for (const auto& interval : box) ends.insert(ends.end(), {interval.lo, interval.hi});
      const int32_t number = boxes.empty() ? -1 : regions_.try_emplace(std::move(ends), num_regions()).first->second;
      layout.inputs[i].regions.push_back(number);
    }
  }
}

const Overlaps& Layouts::between(int32_t tensor, int32_t reader, const Layout& made, const Layout& read) {
  auto& [first, second] = recent_[tensor][reader];
  if (first.made == made.id && first.read == read.id) return *first.overlaps;
  std::swap(first, second);
  if (first.made != made.id || first.read != read.id)
    first = {made.id, read.id,
             &find(graph_.tensors[tensor].output, graph_.tensors[tensor].readers[reader].second, made, read)};
  return *first.overlaps;
}

// Layouts of one class tell apart all but the operands, so the pair of them and those name an edge.
const Overlaps& Layouts::find(int32_t output, int32_t input, const Layout& made, const Layout& read) {
  const std::pair<uint64_t, uint64_t> key{static_cast<uint64_t>(made.id) << 32 | static_cast<uint32_t>(read.id),
                                          static_cast<uint64_t>(output) << 32 | static_cast<uint32_t>(input)};
  auto& known = overlaps_[key];
  if (!known) {
    auto result = std::make_unique<Overlaps>();
    const auto& owned = made.outputs[output].boxes;
    const auto& wanted = read.inputs[input].boxes;
    result->begin.push_back(0);
    for (const auto& box : owned) {
      for (size_t i = 0; i < wanted.size(); ++i) meet(box, wanted[i], static_cast<int32_t>(i), *result);
      result->begin.push_back(static_cast<int32_t>(result->read.size()));
      result->all_met &= result->begin.end()[-1] > result->begin.end()[-2];
    }
    std::vector<bool> reached(wanted.size());
    for (const int32_t box : result->read) reached[box] = true;
    result->all_reached = std::find(reached.begin(), reached.end(), false) == reached.end();
    bytes_ += sizeof(Overlaps) + result->read.size() * 4 + result->hulls.size() * sizeof(Interval);
    known = std::move(result);
  }
  return *known;
}

void Layouts::forget() {
  if (bytes_ < most_bytes) return;
  for (auto& layouts : layouts_) layouts.clear();
  overlaps_.clear();
  for (auto& readers : recent_) std::fill(readers.begin(), readers.end(), std::array<Recent, 2>{});
  bytes_ = 0;
}

}  // namespace soapstone
