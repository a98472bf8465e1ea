// The one file that sees both Python and the core. It converts and forwards; whatever decides anything belongs in
// the core.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "additive.hpp"
#include "chain.hpp"
#include "exhaustive.hpp"
#include "listing.hpp"
#include "simulator.hpp"
#include "timeline.hpp"
#include "topology.hpp"

namespace nb = nanobind;

// ---- timeline ----

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using NumpyColumn = nb::ndarray<nb::numpy, const T, nb::ndim<1>, nb::c_contig>;

template <typename T>
std::vector<T> to_vector(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

// The arrays look into the timeline, which they keep alive.
template <auto Member>
auto view_column(const soapstone::Timeline& timeline) {
  const auto& column = timeline.*Member;
  return NumpyColumn<typename std::decay_t<decltype(column)>::value_type>(column.data(), {column.size()});
}

soapstone::Timeline play(const Column<uint64_t>& keys, const Column<int64_t>& latency,
                         const Column<int32_t>& hold_begin, const Column<int32_t>& hold_resource,
                         const Column<int64_t>& hold_duration, const Column<int32_t>& predecessor_begin,
                         const Column<int32_t>& predecessors, int32_t num_resources) {
  if (hold_resource.size() != hold_duration.size()) throw std::invalid_argument("one hold_duration a hold_resource");
  soapstone::TaskList tasks{
      to_vector(keys),         to_vector(latency), to_vector(hold_begin), {}, to_vector(predecessor_begin),
      to_vector(predecessors), num_resources};
  for (size_t i = 0; i < hold_resource.size(); ++i) tasks.holds.push_back({hold_resource(i), hold_duration(i)});
  return soapstone::play(tasks);
}

void bind_timeline(nb::module_& m) {
  using soapstone::Timeline;
  nb::class_<Timeline>(m, "Timeline")
      .def_prop_ro("ready", view_column<&Timeline::ready>, nb::rv_policy::reference_internal)
      .def_prop_ro("start", view_column<&Timeline::start>, nb::rv_policy::reference_internal)
      .def_prop_ro("end", view_column<&Timeline::end>, nb::rv_policy::reference_internal)
      .def_prop_ro("hold_start", view_column<&Timeline::hold_start>, nb::rv_policy::reference_internal)
      .def_prop_ro("order", view_column<&Timeline::order>, nb::rv_policy::reference_internal)
      .def_ro("makespan", &Timeline::makespan);
  m.def("play", play, nb::arg("keys"), nb::arg("latency"), nb::arg("hold_begin"), nb::arg("hold_resource"),
        nb::arg("hold_duration"), nb::arg("predecessor_begin"), nb::arg("predecessors"), nb::arg("num_resources"),
        "Play tasks, rows in increasing key, through Algorithm 1; raises ValueError on bad rows or a cycle.");
}

// ---- topology ----

using HoldPairs = std::vector<std::pair<int32_t, int64_t>>;

HoldPairs to_pairs(const std::vector<soapstone::Hold>& holds) {
  HoldPairs pairs;
  for (const soapstone::Hold& hold : holds) pairs.emplace_back(hold.resource, hold.duration);
  return pairs;
}

std::pair<HoldPairs, int64_t> transfer(const soapstone::Topology& self, int32_t source, int32_t target, int64_t bytes) {
  std::vector<soapstone::Hold> holds;
  const int64_t latency = self.transfer(source, target, bytes, holds);
  return {to_pairs(holds), latency};
}

std::pair<HoldPairs, int64_t> all_reduce(const soapstone::Topology& self, const std::vector<int32_t>& devices,
                                         int64_t bytes) {
  std::vector<soapstone::Hold> holds;
  const int64_t latency = self.all_reduce(devices, bytes, holds);
  return {to_pairs(holds), latency};
}

void bind_topology(nb::module_& m) {
  using soapstone::Link;
  using soapstone::Topology;
  nb::class_<Link>(m, "Link").def(nb::init<int32_t, int32_t, double, int64_t, int64_t, bool, bool, double>(),
                                  nb::arg("source"), nb::arg("target"), nb::arg("bandwidth"), nb::arg("latency"),
                                  nb::arg("overhead"), nb::arg("duplex"), nb::arg("overlap"), nb::arg("summing"));
  nb::class_<Topology>(m, "Topology")
      .def(nb::init<int32_t, int32_t, std::vector<int32_t>, std::vector<Link>>(), nb::arg("num_devices"),
           nb::arg("num_switches"), nb::arg("node_of_device"), nb::arg("links"))
      .def_prop_ro("num_devices", &Topology::num_devices)
      .def_prop_ro("num_resources", &Topology::num_resources)
      .def("route", &Topology::route, nb::arg("source"), nb::arg("target"))
      .def("transfer", transfer, nb::arg("source"), nb::arg("target"), nb::arg("bytes"),
           "Return ([(resource, ns), ...], latency in ns) of one message.")
      .def("all_reduce", all_reduce, nb::arg("devices"), nb::arg("bytes"),
           "Return ([(resource, ns), ...], latency in ns) of an all-reduce: the better of ring and tree.");
}

// ---- operator graph ----

using BoxPairs = std::vector<std::pair<int64_t, int64_t>>;
using LineTuple = std::tuple<int64_t, int64_t, int64_t>;
using FactorTuple = std::tuple<int64_t, int32_t, LineTuple, LineTuple>;
using Axes = std::vector<std::vector<int32_t>>;
using StepTuple = std::tuple<std::vector<int32_t>, std::vector<int32_t>, soapstone::Sizes, std::vector<bool>,
                             std::vector<std::vector<std::vector<FactorTuple>>>, std::vector<Axes>>;
using DimTuple = std::tuple<int64_t, int32_t, int32_t, bool, bool>;
using CombineTuple = std::tuple<bool, bool, std::vector<int32_t>, int64_t, int64_t>;
using OperandPairs = std::vector<std::pair<int32_t, int32_t>>;

BoxPairs to_pairs(const soapstone::Box& box) {
  BoxPairs pairs;
  for (const auto& interval : box) pairs.emplace_back(interval.lo, interval.hi);
  return pairs;
}

std::vector<BoxPairs> to_pairs(const std::vector<soapstone::Box>& boxes) {
  std::vector<BoxPairs> result;
  for (const auto& box : boxes) result.push_back(to_pairs(box));
  return result;
}

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

int32_t add_op(soapstone::Graph& self, std::vector<soapstone::Factoring> values, const std::vector<StepTuple>& steps,
               const std::vector<DimTuple>& dims, const OperandPairs& inputs, const OperandPairs& outputs, int32_t head,
               const CombineTuple& combine, bool backward, std::vector<int64_t> item_sizes, std::vector<int32_t> saved,
               int64_t extra) {
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
  return self.add_op(std::move(op));
}

auto regions_in(const soapstone::Op& op, const soapstone::Box& box) {
  const auto regions = soapstone::RegionFinder(op).of(box);
  std::vector<std::vector<BoxPairs>> needs;
  for (const auto& boxes : regions.needs) needs.push_back(to_pairs(boxes));
  return std::tuple(to_pairs(regions.step_dims), needs, to_pairs(regions.values));
}

auto regions_of(const soapstone::Graph& self, int32_t op, const std::vector<int32_t>& degrees, int64_t part) {
  return regions_in(self.ops.at(op), soapstone::op_box(self.ops.at(op), degrees, part));
}

auto regions_at(const soapstone::Graph& self, int32_t op, const BoxPairs& pairs) {
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

void bind_graph(nb::module_& m) {
  using soapstone::Graph;
  using soapstone::Sizes;
  m.def("refine", nb::overload_cast<const Sizes&, const Sizes&>(&soapstone::refine), nb::arg("a"), nb::arg("b"),
        "The common refinement of two factorings of one axis, without ones; None where there is none.");
  m.def("project", project, nb::arg("box"), nb::arg("coarse"), nb::arg("fine"),
        "The boxes, over the dims of a refinement, of a box over coarser dims.");
  nb::class_<Graph>(m, "Graph")
      .def(nb::init<>())
      .def(
          "add_tensor",
          [](Graph& self, int32_t source, int64_t item_size, bool grad, const soapstone::Factoring& axes) {
            return self.add_tensor(static_cast<soapstone::Source>(source), item_size, grad, axes);
          },
          nb::arg("source"), nb::arg("item_size"), nb::arg("grad"), nb::arg("axes"),
          "Add a tensor (source 0: an op, 1: an input, 2: a parameter) and return its index.")
      .def("add_op", add_op, nb::arg("values"), nb::arg("steps"), nb::arg("dims"), nb::arg("inputs"),
           nb::arg("outputs"), nb::arg("head"), nb::arg("combine"), nb::arg("backward"), nb::arg("item_sizes"),
           nb::arg("saved"), nb::arg("extra"))
      .def(
          "factoring", [](const Graph& self, int32_t tensor) { return self.tensors.at(tensor).factoring; },
          nb::arg("tensor"), "The common refinement of a tensor's writer and readers: sizes, axis by axis.")
      .def("regions", regions_of, nb::arg("op"), nb::arg("degrees"), nb::arg("part"),
           "Boxes of one part: (each step's dims, what each step needs of each input, each value).")
      .def("regions_at", regions_at, nb::arg("op"), nb::arg("box"), "The same for any box over the op's dims.");
}

// ---- task graph ----

using soapstone::Configuration;
using soapstone::Listing;
using ConfigurationPair = std::pair<std::vector<int32_t>, std::vector<int32_t>>;  // degrees, devices
using TimesTuple = std::tuple<int64_t, int64_t, int64_t, int64_t>;

template <typename T>
auto to_array(std::vector<T>&& values) {
  auto* column = new std::vector<T>(std::move(values));
  nb::capsule owner(column, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(column->data(), {column->size()}, owner);
}

void set_times(soapstone::Times& self, int32_t op, const std::vector<int32_t>& degrees, int32_t kind,
               const std::vector<TimesTuple>& times) {
  std::vector<soapstone::PartTimes> by_extents;
  for (const auto& [forward, backward, finish_forward, finish_backward] : times)
    by_extents.push_back({forward, backward, finish_forward, finish_backward});
  self.set(op, degrees, kind, std::move(by_extents));
}

void bind_times(nb::module_& m) {
  using soapstone::Times;
  nb::class_<Times>(m, "Times")
      .def(nb::init<const soapstone::Graph&, std::vector<int32_t>>(), nb::arg("graph"), nb::arg("alike"),
           nb::keep_alive<1, 2>(), "`alike` names, by op, the op that it shares its times with.")
      .def(
          "extents",
          [](const Times& self, int32_t op, const std::vector<int32_t>& degrees) {
            return self.extents(op, degrees).distinct;
          },
          nb::arg("op"), nb::arg("degrees"), "The distinct extents of an op's parts.")
      .def("has", &Times::has, nb::arg("op"), nb::arg("degrees"), nb::arg("kind"))
      .def("set", set_times, nb::arg("op"), nb::arg("degrees"), nb::arg("kind"), nb::arg("times"),
           "Nanoseconds (forward, backward, finish forward, finish backward) for each of the distinct extents.");
  using soapstone::Machine;
  nb::class_<Machine>(m, "Machine")
      .def(
          "__init__",
          [](Machine* self, const soapstone::Topology& topology, std::vector<int32_t> kinds,
             std::vector<double> update_ns_per_element, int64_t update_overhead, int64_t bucket_bytes) {
            const auto count = static_cast<size_t>(topology.num_devices());
            if (kinds.size() != count || update_ns_per_element.size() != count)
              throw std::invalid_argument("a machine needs a kind and an update time for each device");
            new (self)
                Machine{topology, std::move(kinds), std::move(update_ns_per_element), update_overhead, bucket_bytes};
          },
          nb::arg("topology"), nb::arg("kinds"), nb::arg("update_ns_per_element"), nb::arg("update_overhead"),
          nb::arg("bucket_bytes"));
}

std::vector<Configuration> to_strategy(const std::vector<ConfigurationPair>& pairs) {
  std::vector<Configuration> strategy;
  for (const auto& [degrees, devices] : pairs) strategy.push_back({degrees, devices});
  return strategy;
}

// A column with a row for each task, or for each hold of each task.
template <typename T, typename Get>
auto task_column(Get get) {
  return [get](const Listing& self) {
    std::vector<T> column;
    for (const auto& task : self.tasks) column.push_back(static_cast<T>(get(task)));
    return to_array(std::move(column));
  };
}

template <typename T, typename Get>
auto hold_column(Get get) {
  return [get](const Listing& self) {
    std::vector<T> column;
    for (size_t row = 0; row < self.tasks.size(); ++row)
      for (const auto& hold : self.tasks[row].holds) column.push_back(static_cast<T>(get(row, hold)));
    return to_array(std::move(column));
  };
}

using FetchTuple = std::pair<BoxPairs, std::vector<std::pair<int32_t, std::vector<BoxPairs>>>>;

FetchTuple fetch_of(const Listing& self, int32_t op, int32_t part, int32_t input) {
  const auto fetch = self.fetch(op, part, input);
  FetchTuple result{to_pairs(fetch.hull), {}};
  for (const auto& [flow, boxes] : fetch.flows) result.second.emplace_back(flow, to_pairs(boxes));
  return result;
}

auto pieces_of(const Listing& self, int32_t tensor) {
  std::vector<std::pair<std::vector<int32_t>, std::vector<BoxPairs>>> result;
  for (const auto& piece : self.pieces(tensor)) result.emplace_back(piece.holders, to_pairs(piece.boxes));
  return result;
}

// Columns with a row for each flow, then the readers of all flows in a row and where each flow's begin.
auto flow_columns(const Listing& self) {
  std::vector<int64_t> tensor, part, device, source, forward, backward, begin, ops, parts;
  for (const auto& flow : self.flows) {
    tensor.push_back(flow.tensor);
    part.push_back(flow.part);
    device.push_back(flow.device);
    source.push_back(flow.source);
    forward.push_back(flow.forward);
    backward.push_back(flow.backward);
    begin.push_back(static_cast<int64_t>(ops.size()));
    for (const auto& [op, reader] : flow.readers) {
      ops.push_back(op);
      parts.push_back(reader);
    }
  }
  return std::tuple(to_array(std::move(tensor)), to_array(std::move(part)), to_array(std::move(device)),
                    to_array(std::move(source)), to_array(std::move(forward)), to_array(std::move(backward)),
                    to_array(std::move(begin)), to_array(std::move(ops)), to_array(std::move(parts)));
}

auto memory_of(soapstone::TaskGraph& graph) {
  auto copy = [](const std::vector<int64_t>& column) { return to_array(std::vector<int64_t>(column)); };
  const auto& memory = graph.totals.memory;
  return std::tuple(copy(memory.parameters), copy(memory.gradients), copy(memory.saved), copy(memory.made),
                    copy(memory.buckets), copy(graph.transient()));
}

constexpr const char* bound_doc = "Bytes by device that no order can pass, with so many numbers kept for each element.";
constexpr const char* memory_doc = "Bytes by device: (parameters, gradients, saved, made, buckets, transient).";

void bind_task_graph(nb::module_& m) {
  using soapstone::FlowRow;
  using soapstone::TaskRow;
  nb::class_<TaskRow>(m, "Task")
      .def_ro("key", &TaskRow::key)
      .def_prop_ro("kind", [](const TaskRow& task) { return static_cast<int32_t>(task.kind); })
      .def_ro("op", &TaskRow::op)
      .def_ro("part", &TaskRow::part)
      .def_ro("backward", &TaskRow::backward)
      .def_ro("finish", &TaskRow::finish)
      .def_ro("bytes", &TaskRow::bytes)
      .def_ro("latency", &TaskRow::latency)
      .def_ro("flow", &TaskRow::flow)
      .def_ro("devices", &TaskRow::devices)
      .def_ro("pieces", &TaskRow::pieces)
      .def_ro("after", &TaskRow::after)
      .def_prop_ro("holds", [](const TaskRow& task) { return to_pairs(task.holds); });
  nb::class_<FlowRow>(m, "Flow")
      .def_ro("tensor", &FlowRow::tensor)
      .def_ro("part", &FlowRow::part)
      .def_ro("device", &FlowRow::device)
      .def_ro("source", &FlowRow::source)
      .def_ro("forward", &FlowRow::forward)
      .def_ro("backward", &FlowRow::backward)
      .def_ro("readers", &FlowRow::readers)
      .def_prop_ro("hull", [](const FlowRow& flow) { return to_pairs(flow.hull); });
  nb::class_<Listing>(m, "TaskGraph")
      .def(
          "__init__",
          [](Listing* self, const soapstone::Graph& graph, const soapstone::Machine& machine,
             const soapstone::Times& times, const std::vector<ConfigurationPair>& strategy) {
            new (self) Listing(graph, machine, times, to_strategy(strategy));
          },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::arg("strategy"), nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("__len__", [](const Listing& self) { return self.tasks.size(); })
      .def("play", [](const Listing& self) { return soapstone::play(self.list()); })
      .def(
          "task", [](const Listing& self, size_t row) -> const TaskRow& { return self.tasks.at(row); }, nb::arg("row"),
          nb::rv_policy::reference_internal)
      .def_prop_ro("num_flows", [](const Listing& self) { return self.flows.size(); })
      .def(
          "flow", [](const Listing& self, size_t index) -> const FlowRow& { return self.flows.at(index); },
          nb::arg("index"), nb::rv_policy::reference_internal)
      .def("fetch", fetch_of, nb::arg("op"), nb::arg("part"), nb::arg("input"),
           "What a part reads of an input: (hull, [(flow, boxes), ...]), in the tensor's factoring.")
      .def("pieces", pieces_of, nb::arg("tensor"), "A parameter's pieces: [(holders, boxes), ...].")
      .def("flow_columns", flow_columns,
           "(tensor, part, device, source, forward, backward) of each flow, where its readers begin, and all readers: "
           "(op, part).")
      .def(
          "part_bytes",
          [](const Listing& self, int32_t op) {
            const auto& layout = self.layout(op);
            return std::tuple(layout.saved, layout.made, layout.working, layout.copies);
          },
          nb::arg("op"), "Of each part of an op: bytes that stay, are put out and are held at work; then its copies.")
      .def(
          "memory", [](Listing& self) { return memory_of(self.graph()); }, memory_doc)
      .def(
          "memory_bound",
          [](Listing& self, int64_t num_states) { return to_array(self.graph().memory_bound(num_states)); },
          nb::arg("num_states"), bound_doc)
      .def(
          "groups", [](const Listing& self, int32_t op) { return self.layout(op).groups; }, nb::arg("op"),
          "An op's combine groups, each the parts that combine; empty where none does.")
      .def_prop_ro("keys", task_column<uint64_t>([](const TaskRow& task) { return task.key; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("kinds", task_column<int32_t>([](const TaskRow& task) { return task.kind; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("ops", task_column<int32_t>([](const TaskRow& task) { return task.op; }), nb::rv_policy::automatic)
      .def_prop_ro("parts", task_column<int32_t>([](const TaskRow& task) { return task.part; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("latencies", task_column<int64_t>([](const TaskRow& task) { return task.latency; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("bytes", task_column<int64_t>([](const TaskRow& task) { return task.bytes; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_rows", hold_column<int64_t>([](size_t row, const soapstone::Hold&) { return row; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_resources",
                   hold_column<int32_t>([](size_t, const soapstone::Hold& hold) { return hold.resource; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_durations",
                   hold_column<int64_t>([](size_t, const soapstone::Hold& hold) { return hold.duration; }),
                   nb::rv_policy::automatic);
}

// ---- simulator ----

using ChangePairs = std::vector<std::pair<int32_t, ConfigurationPair>>;

std::optional<int64_t> propose(soapstone::Simulator& self, const ChangePairs& changes, std::optional<int64_t> limit,
                               int32_t method) {
  std::vector<std::pair<int32_t, Configuration>> native;
  for (const auto& [op, configuration] : changes) native.push_back({op, {configuration.first, configuration.second}});
  return self.propose(native, limit.value_or(INT64_MAX), static_cast<soapstone::Method>(method));
}

// (key, ready, end) of the last play's tasks, by (ready, key).
auto timeline_of(const soapstone::Simulator& self) {
  std::vector<uint64_t> keys;
  std::vector<int64_t> ready, end;
  self.engine().each([&](int32_t slot, int64_t from, int64_t until) {
    keys.push_back(self.graph.pool.tasks[slot].key);
    ready.push_back(from);
    end.push_back(until);
  });
  return std::tuple(to_array(std::move(keys)), to_array(std::move(ready)), to_array(std::move(end)));
}

void bind_simulator(nb::module_& m) {
  using soapstone::Simulator;
  nb::class_<Simulator>(m, "Simulator")
      .def(
          "__init__",
          [](Simulator* self, const soapstone::Graph& graph, const soapstone::Machine& machine,
             const soapstone::Times& times) { new (self) Simulator(graph, machine, times); },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>())
      .def(
          "begin",
          [](Simulator& self, const std::vector<ConfigurationPair>& strategy) {
            return self.begin(to_strategy(strategy));
          },
          nb::arg("strategy"), "Play the first strategy and return its makespan.")
      .def(
          "propose", propose, nb::arg("changes"), nb::arg("limit").none(), nb::arg("method"),
          "The makespan in ns of a change, or None where it passes the limit and is rejected already. Methods: 0 full, "
          "1 resume, 2 delta.")
      .def("accept", &Simulator::accept)
      .def("reject", &Simulator::reject)
      .def("look_closely", &Simulator::look_closely,
           "Find every chance to rejoin the old play, however dear: for tests.")
      .def("timeline", timeline_of, "(key, ready, end) of every task, by (ready, key).")
      .def(
          "memory", [](Simulator& self) { return memory_of(self.graph); }, memory_doc)
      .def(
          "memory_bound",
          [](Simulator& self, int64_t num_states) { return to_array(self.graph.memory_bound(num_states)); },
          nb::arg("num_states"), bound_doc)
      .def_prop_ro("is_open", &Simulator::is_open)
      .def_prop_ro("makespan", &Simulator::makespan)
      .def_prop_ro("bound", &Simulator::bound)
      .def_prop_ro("num_served", [](const Simulator& self) { return self.engine().num_served(); })
      .def_prop_ro("num_tasks", [](const Simulator& self) { return self.engine().num_tasks(); })
      .def_prop_ro("seconds", &Simulator::seconds,
                   "Of all proposals, by phase: ops' blocks, flows and syncs, bounds, links, play, undo, accept.")
      .def_prop_ro("num_unplayed", &Simulator::num_unplayed)
      .def_prop_ro("num_cut_short", &Simulator::num_cut_short);
}

// ---- search ----

using soapstone::Chain;
using MoveTuple = std::tuple<std::vector<int32_t>, int32_t, std::vector<ConfigurationPair>>;
using EndsTuple = std::tuple<int64_t, double, int64_t, double>;

std::vector<soapstone::Move> to_moves(const std::vector<MoveTuple>& tuples) {
  std::vector<soapstone::Move> moves;
  for (const auto& [ops, table, own] : tuples) moves.push_back({ops, table, to_strategy(own)});
  return moves;
}

soapstone::Ends to_ends(const EndsTuple& tuple) {
  const auto& [proposals, seconds, patience, patience_seconds] = tuple;
  return {proposals, seconds, patience, patience_seconds};
}

std::vector<ConfigurationPair> to_pairs(const std::vector<Configuration>& strategy) {
  std::vector<ConfigurationPair> pairs;
  for (const auto& configuration : strategy) pairs.emplace_back(configuration.degrees, configuration.devices);
  return pairs;
}

void bind_additive(nb::module_& m) {
  using soapstone::Additive;
  nb::class_<Additive>(m, "Additive")
      .def(nb::init<const soapstone::Graph&, soapstone::Machine, const soapstone::Times&>(), nb::arg("graph"),
           nb::arg("machine"), nb::arg("times"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def(
          "op",
          [](Additive& self, int32_t op, const std::vector<ConfigurationPair>& options) {
            std::vector<int64_t> compute, sync;
            for (const auto& configuration : to_strategy(options)) {
              compute.push_back(self.compute(op, configuration));
              sync.push_back(self.sync(op, configuration));
            }
            return std::pair(to_array(std::move(compute)), to_array(std::move(sync)));
          },
          nb::arg("op"), nb::arg("options"), "Nanoseconds of an op for each option: (compute, sync).")
      .def(
          "edge",
          [](Additive& self, int32_t tensor, int32_t reader, const std::vector<ConfigurationPair>& made,
             const std::vector<ConfigurationPair>& read) {
            const auto makers = to_strategy(made), readers = to_strategy(read);
            std::vector<int64_t> times;
            {
              nb::gil_scoped_release released;
              for (const auto& maker : makers)
                for (const auto& taker : readers) times.push_back(self.transfer(tensor, reader, maker, taker));
            }
            return to_array(std::move(times));
          },
          nb::arg("tensor"), nb::arg("reader"), nb::arg("made"), nb::arg("read"),
          "Nanoseconds of what a tensor's reader takes from its maker, row by row for each of the maker's options.");
}

void bind_exhaustive(nb::module_& m) {
  using soapstone::Exhaustive;
  nb::class_<Exhaustive>(m, "Exhaustive")
      .def(
          "__init__",
          [](Exhaustive* self, const soapstone::Graph& graph, const soapstone::Machine& machine,
             const soapstone::Times& times, const std::vector<std::vector<ConfigurationPair>>& options) {
            std::vector<std::vector<Configuration>> native;
            for (const auto& own : options) native.push_back(to_strategy(own));
            new (self) Exhaustive(graph, machine, times, native);
          },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::arg("options"), nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 4>())
      .def(
          "run",
          [](Exhaustive& self, const std::vector<ConfigurationPair>& pairs, int32_t num_threads, double seconds) {
            const auto first = to_strategy(pairs);
            nb::gil_scoped_release released;
            return self.run(first, num_threads, seconds);
          },
          nb::arg("first"), nb::arg("num_threads"), nb::arg("seconds"), "Whether the whole space was gone through.")
      .def("stop", &Exhaustive::stop)
      .def("bound", &Exhaustive::bound, nb::arg("choice"), "Of the strategy that an option of each op makes.")
      .def_prop_ro("makespan", &Exhaustive::makespan)
      .def_prop_ro("root_bound", &Exhaustive::root_bound)
      .def_prop_ro("num_nodes", &Exhaustive::num_nodes)
      .def_prop_ro("num_simulated", &Exhaustive::num_simulated)
      .def_prop_ro("share", &Exhaustive::share)
      .def_prop_ro("best", [](const Exhaustive& self) { return to_pairs(self.best()); });
}

void bind_search(nb::module_& m) {
  nb::class_<Chain>(m, "Chain")
      .def(
          "__init__",
          [](Chain* self, const soapstone::Graph& graph, const soapstone::Machine& machine,
             const soapstone::Times& times, const std::vector<std::vector<ConfigurationPair>>& tables,
             std::vector<int64_t> memory, int64_t num_states, uint64_t seed) {
            std::vector<std::vector<Configuration>> native;
            for (const auto& table : tables) native.push_back(to_strategy(table));
            new (self) Chain(graph, machine, times, std::move(native), {std::move(memory), num_states}, seed);
          },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::arg("tables"), nb::arg("memory"),
          nb::arg("num_states"), nb::arg("seed"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>(),
          "Moves choose from tables of configurations; `memory` is bytes by device, empty for no limit.")
      .def(
          "go",
          [](Chain& self, const std::vector<ConfigurationPair>& pairs) {
            const auto strategy = to_strategy(pairs);
            nb::gil_scoped_release released;
            self.go(strategy);
          },
          nb::arg("strategy"))
      .def(
          "walk",
          [](Chain& self, const std::vector<MoveTuple>& tuples, double first, double last, bool relative,
             const EndsTuple& ends) {
            const auto moves = to_moves(tuples);
            nb::gil_scoped_release released;
            self.walk(moves, {first, last, relative}, to_ends(ends));
          },
          nb::arg("moves"), nb::arg("first"), nb::arg("last"), nb::arg("relative"), nb::arg("ends"),
          "Metropolis from one temperature to another. Moves: (ops, table, configurations of their own); ends: "
          "(proposals, seconds, patience in proposals, in seconds).")
      .def(
          "descend",
          [](Chain& self, const std::vector<MoveTuple>& tuples, const EndsTuple& ends, double share) {
            const auto moves = to_moves(tuples);
            nb::gil_scoped_release released;
            return self.descend(moves, to_ends(ends), share);
          },
          nb::arg("moves"), nb::arg("ends"), nb::arg("share"),
          "Take improvements until this share of all options was tried in vain in a row; whether it came to that.")
      .def(
          "look",
          [](Chain& self, const std::vector<MoveTuple>& tuples, const EndsTuple& ends) {
            const auto moves = to_moves(tuples);
            nb::gil_scoped_release released;
            return self.look(moves, to_ends(ends));
          },
          nb::arg("moves"), nb::arg("ends"), "Whether nothing improves the strategy; None where it ends before.")
      .def("stop", &Chain::stop, "End what runs on another thread.")
      .def_prop_ro("is_stopped", &Chain::is_stopped)
      .def_prop_ro("seconds", &Chain::seconds, "Since the chain was made.")
      .def_prop_ro("num_proposals", &Chain::num_proposals)
      .def_prop_ro("num_neighbours", &Chain::num_neighbours)
      .def_prop_ro("makespan", &Chain::makespan)
      .def_prop_ro("best_makespan", &Chain::best_makespan)
      .def_prop_ro("best_overflow", &Chain::best_overflow)
      .def_prop_ro("best", [](const Chain& self) { return to_pairs(self.best()); })
      .def_prop_ro("strategy", [](const Chain& self) { return to_pairs(self.strategy()); })
      .def_prop_ro("phases", &Chain::phases)
      .def_prop_ro(
          "history",
          [](const Chain& self) {
            std::vector<std::tuple<int64_t, double, int64_t>> rows;
            for (const auto& [proposals, seconds, makespan] : self.history())
              rows.emplace_back(proposals, seconds, makespan);
            return rows;
          },
          "(proposals, seconds, makespan) at each improvement.");
}

NB_MODULE(_core, m) {
  m.doc() = "The compiled core: geometry, topology, task graph, timeline.";
  nb::set_leak_warnings(false);  // a graph that is a global of the user's lives until the interpreter is gone
  bind_timeline(m);
  bind_topology(m);
  bind_graph(m);
  bind_times(m);
  bind_task_graph(m);
  bind_simulator(m);
  bind_search(m);
  bind_additive(m);
  bind_exhaustive(m);
}
