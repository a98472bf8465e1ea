#include "bindings/convert.hpp"
#include "bindings/rooms.hpp"
#include "geometry/opgraph.hpp"

namespace {

using soapstone::OpIndex;
using LineTuple = std::tuple<int64_t, int64_t, int64_t>;
using FactorTuple = std::tuple<int64_t, int32_t, LineTuple, LineTuple>;
using Axes = std::vector<std::vector<int32_t>>;
using StepTuple = std::tuple<std::vector<int32_t>, std::vector<int32_t>, soapstone::Sizes, std::vector<bool>,
                             std::vector<std::vector<std::vector<FactorTuple>>>, std::vector<Axes>>;
using DimTuple = std::tuple<int64_t, int32_t, int32_t, bool, bool>;
using CombineTuple = std::tuple<bool, bool, std::vector<int32_t>, int64_t, int64_t>;
using OperandPairs = std::vector<std::pair<int32_t, int32_t>>;

soapstone::Line to_line(const LineTuple& line) { return {std::get<0>(line), std::get<1>(line), std::get<2>(line)}; }

soapstone::Step to_step(const StepTuple& tuple) {
  const auto& [inputs, outputs, dims, whole, reads, writes] = tuple;
  soapstone::Step step{inputs, outputs, dims, whole, {}, writes, {}};
  for (const auto& input : reads) {
    auto& axes = step.reads.emplace_back();
    for (const auto& axis : input) {
      auto& factors = axes.emplace_back();
      for (const auto& [size, dim, lower, upper] : axis) factors.push_back({size, dim, to_line(lower), to_line(upper)});
    }
  }
  return step;
}

OpIndex add_op(soapstone::Graph& self, std::vector<soapstone::Factoring> values, const std::vector<StepTuple>& steps,
               const std::vector<DimTuple>& dims, const OperandPairs& inputs, const OperandPairs& outputs, int32_t head,
               const CombineTuple& combine, bool backward, std::vector<int64_t> item_sizes, std::vector<int32_t> saved,
               int64_t extra, std::vector<std::pair<int32_t, int32_t>> casts) {
  soapstone::Op op;
  op.values = std::move(values);
  for (const auto& step : steps) op.steps.push_back(to_step(step));
  for (const auto& [size, step, step_dim, combinable, extra] : dims)
    op.dims.push_back({size, step, step_dim, combinable, extra});
  for (const auto& [tensor, value] : inputs) op.inputs.push_back({tensor, value});
  for (const auto& [tensor, value] : outputs) op.outputs.push_back({tensor, value});
  op.head = head;
  const auto& [gather, finish, combine_dims, factor, item_size] = combine;
  op.combine = {gather, finish, combine_dims, factor, item_size};
  op.backward = backward;
  op.item_sizes = std::move(item_sizes);
  op.saved = std::move(saved);
  op.extra = extra;
  op.casts = std::move(casts);
  return self.add_op(std::move(op));
}

auto regions_in(const soapstone::Op& op, const soapstone::Box& box) {
  const auto regions = soapstone::RegionFinder(op).of(box);
  std::vector<std::vector<BoxPairs>> needs;
  for (const auto& boxes : regions.needs) needs.push_back(to_pairs(boxes));
  return std::tuple(to_pairs(regions.step_dims), needs, to_pairs(regions.values));
}

auto regions_of(const soapstone::Graph& self, OpIndex op, const std::vector<int32_t>& degrees, int64_t part) {
  return regions_in(self.ops.at(op), soapstone::op_box(self.ops.at(op), degrees, part));
}

auto regions_at(const soapstone::Graph& self, OpIndex op, const BoxPairs& pairs) {
  soapstone::Box box;
  for (const auto& [lo, hi] : pairs) box.push_back({lo, hi});
  if (box.size() != self.ops.at(op).dims.size()) throw std::invalid_argument("the box has not the op's dims");
  return regions_in(self.ops.at(op), box);
}

std::vector<BoxPairs> project(const BoxPairs& box, const soapstone::Factoring& coarse,
                              const soapstone::Factoring& fine) {
  soapstone::Box intervals;
  for (const auto& [lo, hi] : box) intervals.push_back({lo, hi});
  return to_pairs(soapstone::project(intervals, coarse, fine));
}

}  // namespace

void bind_geometry(nb::module_& m) {
  using soapstone::Graph;
  using soapstone::Sizes;
  using soapstone::Source;
  nb::enum_<Source>(m, "Source", "Where a tensor comes from.")
      .value("op", Source::op)
      .value("input", Source::input)
      .value("parameter", Source::parameter);
  m.def("refine", nb::overload_cast<const Sizes&, const Sizes&>(&soapstone::refine), nb::arg("a"), nb::arg("b"),
        "The common refinement of two factorings of one axis, without ones; None where there is none.");
  m.def("project", project, nb::arg("box"), nb::arg("coarse"), nb::arg("fine"),
        "The boxes, over the dims of a refinement, of a box over coarser dims.");
  nb::class_<Graph>(m, "Graph")
      .def(nb::init<>())
      .def(
          "add_tensor",
          [](Graph& self, Source source, int64_t item_size, int64_t read_size, bool grad,
             const soapstone::Factoring& axes) { return self.add_tensor(source, item_size, read_size, grad, axes); },
          nb::arg("source"), nb::arg("item_size"), nb::arg("read_size"), nb::arg("grad"), nb::arg("axes"),
          "Add a tensor and return its index.")
      .def("add_op", add_op, nb::arg("values"), nb::arg("steps"), nb::arg("dims"), nb::arg("inputs"),
           nb::arg("outputs"), nb::arg("head"), nb::arg("combine"), nb::arg("backward"), nb::arg("item_sizes"),
           nb::arg("saved"), nb::arg("extra"), nb::arg("casts"))
      .def(
          "factoring", [](const Graph& self, int32_t tensor) { return self.tensors.at(tensor).factoring; },
          nb::arg("tensor"), "The common refinement of a tensor's writer and readers: sizes, axis by axis.")
      .def("regions", regions_of, nb::arg("op"), nb::arg("degrees"), nb::arg("part"),
           "Boxes of one part: (each step's dims, what each step needs of each input, each value).")
      .def("regions_at", regions_at, nb::arg("op"), nb::arg("box"), "The same for any box over the op's dims.");
}
