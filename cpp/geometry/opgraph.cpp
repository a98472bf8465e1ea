#include "geometry/opgraph.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace soapstone {

namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0)); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

Interval read(const Factor& factor, const Box& step_dims) {
  const Interval from = factor.dim < 0 ? Interval{0, 1} : step_dims[factor.dim];
  if (from.empty()) return {0, 0};
  const int64_t lo = floor_div(factor.lower.p * from.lo + factor.lower.b, factor.lower.q);
  const int64_t hi = ceil_div(factor.upper.p * from.hi + factor.upper.b, factor.upper.q);
  const Interval clamped{std::clamp<int64_t>(lo, 0, factor.size), std::clamp<int64_t>(hi, 0, factor.size)};
  return clamped.empty() ? Interval{0, 0} : clamped;
}

Factoring factoring_of(const std::vector<std::vector<Factor>>& axes) {
  Factoring result;
  for (const auto& axis : axes) {
    result.emplace_back();
    for (const auto& factor : axis) result.back().push_back(factor.size);
  }
  return result;
}

void need(const std::vector<std::vector<Factor>>& axes, const Box& step_dims, Box& box) {
  box.clear();
  for (const auto& axis : axes)
    for (const auto& factor : axis) box.push_back(read(factor, step_dims));
}

// The step's dims that a needed box of one of its outputs asks for.
void ask(const std::vector<std::vector<int32_t>>& write, const Box& box, Box& step_dims, std::vector<bool>& asked) {
  size_t at = 0;
  for (const auto& axis : write)
    for (const int32_t dim : axis) {
      step_dims[dim] = asked[dim] ? hull(step_dims[dim], box[at]) : box[at];
      asked[dim] = true;
      ++at;
    }
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <typename Index>
void require_index(Index index, size_t size, const char* what) {
  require(index >= 0 && static_cast<size_t>(index) < size, what);
}

int64_t axis_size(const Sizes& axis) {
  int64_t product = 1;
  for (const int64_t size : axis) {
    require(size >= 1 && size < (int64_t{1} << 40) / product, "a size is out of range");
    product *= size;
  }
  return product;
}

// Two factorings of one tensor: as many axes, each of the same size.
void require_alike(const Factoring& a, const Factoring& b, const char* what) {
  require(a.size() == b.size(), what);
  for (size_t i = 0; i < a.size(); ++i) require(axis_size(a[i]) == axis_size(b[i]), what);
}

void check_step(const Op& op, const Step& step) {
  require(step.whole.size() == step.dims.size(), "a step lacks a flag for a dim");
  require(step.reads.size() == step.inputs.size(), "a step lacks the reads of an input");
  require(step.writes.size() == step.outputs.size(), "a step lacks the writes of an output");
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    require_index(step.inputs[i], op.values.size(), "a step reads a value that is not there");
    for (const auto& axis : step.reads[i])
      for (const auto& factor : axis) {
        require(factor.dim < static_cast<int64_t>(step.dims.size()), "a step reads through a dim that it lacks");
        require(factor.lower.q != 0 && factor.upper.q != 0, "a map divides by zero");
      }
    require_alike(factoring_of(step.reads[i]), op.values[step.inputs[i]], "a read does not fit its value");
  }
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    require_index(step.outputs[i], op.values.size(), "a step writes a value that is not there");
    Factoring written;
    for (const auto& axis : step.writes[i]) {
      written.emplace_back();
      for (const int32_t dim : axis) {
        require_index(dim, step.dims.size(), "a step writes a dim that it lacks");
        written.back().push_back(step.dims[dim]);
      }
    }
    require(written == op.values[step.outputs[i]], "a write does not fit its value");
  }
}

void check_order(const Op& op) {
  std::vector<bool> made(op.values.size(), false);
  for (const auto& input : op.inputs) made[input.value] = true;
  for (const auto& step : op.steps) {
    for (const int32_t value : step.inputs) require(made[value], "a step reads a value before it is made");
    for (const int32_t value : step.outputs) {
      require(!made[value], "a value is made twice");
      made[value] = true;
    }
  }
  for (const auto& output : op.outputs) require(made[output.value], "an op gives out a value that is not made");
}

void check_op(const Op& op, size_t num_tensors) {
  for (const auto& factoring : op.values)
    for (const auto& axis : factoring) axis_size(axis);
  for (const auto& step : op.steps) check_step(op, step);
  require_index(op.head, op.steps.size(), "an op's head is not one of its steps");
  for (const int32_t dim : op.combine.dims)
    require_index(dim, op.steps[op.head].dims.size(), "a combine spans a dim that the head lacks");
  for (const auto& dim : op.dims) {
    require_index(dim.step, op.steps.size(), "a dim names a step that is not there");
    require_index(dim.step_dim, op.steps[dim.step].dims.size(), "a dim names a step's dim that is not there");
    require(dim.size == op.steps[dim.step].dims[dim.step_dim], "a dim's size is not that of its step");
  }
  for (const auto* operands : {&op.inputs, &op.outputs})
    for (const auto& [tensor, value] : *operands) {
      require_index(tensor, num_tensors, "an op names a tensor that is not there");
      require_index(value, op.values.size(), "an op names a value that is not there");
    }
  require(op.item_sizes.size() == op.values.size(), "an op lacks the item size of a value");
  for (const int32_t value : op.saved) require_index(value, op.values.size(), "an op keeps a value that is not there");
  for (const auto& [value, input] : op.casts) {
    require_index(value, op.values.size(), "an op casts to a value that is not there");
    require_index(input, op.inputs.size(), "an op casts an input that is not there");
  }
  std::set<std::pair<int32_t, int32_t>> own;
  for (const auto& dim : op.dims) require(own.emplace(dim.step, dim.step_dim).second, "an op has a dim twice");
  check_order(op);
}

}  // namespace

int32_t Graph::add_tensor(Source source, int64_t item_size, int64_t read_size, bool grad, const Factoring& axes) {
  for (const auto& axis : axes) axis_size(axis);
  Tensor tensor;
  tensor.source = source;
  tensor.item_size = item_size;
  tensor.read_size = read_size;
  tensor.grad = grad;
  tensor.factoring = refine(axes, axes);
  tensors.push_back(std::move(tensor));
  return static_cast<int32_t>(tensors.size()) - 1;
}

OpIndex Graph::add_op(Op op) {
  check_op(op, tensors.size());
  for (const auto* operands : {&op.inputs, &op.outputs})
    for (const auto& [tensor, value] : *operands)
      require_alike(tensors[tensor].factoring, op.values[value], "a value does not fit its tensor");
  for (const auto& input : op.inputs)
    require(tensors[input.tensor].source != Source::op || tensors[input.tensor].producer != none,
            "an op reads a tensor before it is made");
  for (auto& step : op.steps) {
    step.factorings.clear();
    for (const auto& axes : step.reads) step.factorings.push_back(factoring_of(axes));
  }
  const OpIndex index = ops.end_index();
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    auto& tensor = tensors[op.outputs[i].tensor];
    require(tensor.source == Source::op && tensor.producer == none, "a tensor is made twice, or is not an op's");
    tensor.producer = index;
    tensor.output = static_cast<int32_t>(i);
    tensor.factoring = refine(op.values[op.outputs[i].value], op.values[op.outputs[i].value]);
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    auto& tensor = tensors[op.inputs[i].tensor];
    tensor.readers.emplace_back(index, static_cast<int32_t>(i));
    tensor.factoring = refine(tensor.factoring, op.values[op.inputs[i].value]);
  }
  ops.push_back(std::move(op));
  return index;
}

Box op_box(const Op& op, const std::vector<int32_t>& degrees, int64_t part) {
  Box box(op.dims.size());
  for (size_t i = op.dims.size(); i-- > 0;) {
    box[i] = part_interval(part % degrees[i], degrees[i], op.dims[i].size);
    part /= degrees[i];
  }
  return box;
}

RegionFinder::RegionFinder(const Op& op) : op_(op), needed_(op.values.size()) {
  regions_.values.resize(op.values.size());
  regions_.step_dims.resize(op.steps.size());
  regions_.needs.resize(op.steps.size());
  for (size_t s = 0; s < op.steps.size(); ++s) regions_.needs[s].resize(op.steps[s].inputs.size());
}

const Regions& RegionFinder::of(const Box& box) {
  std::fill(needed_.begin(), needed_.end(), false);
  for (size_t s = op_.steps.size(); s-- > 0;) {
    find_dims(s, box);
    const auto& step = op_.steps[s];
    const Box& dims = regions_.step_dims[s];
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      Box& out = regions_.values[step.outputs[i]];
      out.clear();
      for (const auto& axis : step.writes[i])
        for (const int32_t dim : axis) out.push_back(dims[dim]);
    }
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const int32_t value = step.inputs[i];
      Box& needed = regions_.needs[s][i];
      need(step.reads[i], dims, needed);
      if (needed_[value])
        extend(regions_.values[value], cover(needed, step.factorings[i], op_.values[value]));
      else if (step.factorings[i] == op_.values[value])
        regions_.values[value] = needed;
      else
        regions_.values[value] = cover(needed, step.factorings[i], op_.values[value]);
      needed_[value] = true;
    }
  }
  return regions_;
}

// What a step computes: what is asked of its outputs, and of the op itself.
void RegionFinder::find_dims(size_t s, const Box& box) {
  const auto& step = op_.steps[s];
  Box& dims = regions_.step_dims[s];
  dims.clear();
  for (const int64_t size : step.dims) dims.push_back({0, size});
  asked_.assign(dims.size(), false);
  for (size_t i = 0; i < step.outputs.size(); ++i)
    if (needed_[step.outputs[i]]) ask(step.writes[i], regions_.values[step.outputs[i]], dims, asked_);
  for (size_t i = 0; i < op_.dims.size(); ++i)
    if (op_.dims[i].step == static_cast<int32_t>(s)) dims[op_.dims[i].step_dim] = box[i];
  for (size_t i = 0; i < dims.size(); ++i)
    if (step.whole[i]) dims[i] = {0, step.dims[i]};
}

}  // namespace soapstone
