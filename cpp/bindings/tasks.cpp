#include "bindings/convert.hpp"
#include "bindings/memory.hpp"
#include "bindings/rooms.hpp"
#include "engines/ledger.hpp"
#include "engines/timeline.hpp"

using soapstone::Listing;
using soapstone::OpIndex;

namespace {

// The arrays look into the timeline, which they keep alive.
template <auto Member>
auto view_column(const soapstone::Timeline& timeline) {
  const auto& column = timeline.*Member;
  return NumpyColumn<typename std::decay_t<decltype(column)>::value_type>(column.data(), {column.size()});
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

FetchTuple fetch_of(const Listing& self, OpIndex op, soapstone::Part part, int32_t input) {
  const auto fetch = self.fetch(op, part, input);
  FetchTuple result{to_pairs(fetch.hull), {}};
  for (const auto& [flow, boxes] : fetch.flows) result.second.emplace_back(flow, to_pairs(boxes));
  return result;
}

auto pieces_of(const Listing& self, int32_t tensor) {
  std::vector<std::pair<std::vector<soapstone::Device>, std::vector<BoxPairs>>> result;
  for (const auto& piece : self.pieces(tensor)) result.emplace_back(piece.holders, to_pairs(piece.boxes));
  return result;
}

// Columns with a row for each flow, then the readers of all flows in a row and where each flow's begin.
auto flow_columns(const Listing& self) {
  std::vector<int64_t> tensor, part, device, source, forward, backward, begin, ops, parts;
  for (const auto& flow : self.flows) {
    tensor.push_back(flow.tensor);
    part.push_back(flow.part.value);
    device.push_back(flow.device.value);
    source.push_back(flow.source.value);
    forward.push_back(flow.forward);
    backward.push_back(flow.backward);
    begin.push_back(static_cast<int64_t>(ops.size()));
    for (const auto& [op, reader] : flow.readers) {
      ops.push_back(op.value);
      parts.push_back(reader.value);
    }
  }
  return std::tuple(to_array(std::move(tensor)), to_array(std::move(part)), to_array(std::move(device)),
                    to_array(std::move(source)), to_array(std::move(forward)), to_array(std::move(backward)),
                    to_array(std::move(begin)), to_array(std::move(ops)), to_array(std::move(parts)));
}

auto holdings_of(Listing& self, const soapstone::Timeline& timeline, int64_t num_temporaries) {
  const size_t num_slots = self.graph().pool.tasks.size();
  std::vector<soapstone::TaskTimes> times(self.num_microbatches);
  for (auto& [start, end] : times) {
    start.resize(num_slots);
    end.resize(num_slots);
  }
  for (size_t row = 0; row < self.tasks.size(); ++row) {
    auto& [start, end] = times[self.tasks[row].microbatch];
    start[self.slot_of(static_cast<int32_t>(row))] = timeline.start[row];
    end[self.slot_of(static_cast<int32_t>(row))] = timeline.end[row];
  }
  soapstone::Ledger ledger(self.graph());
  std::vector<int32_t> device, content, op;
  std::vector<int64_t> since, until, bytes;
  for (const auto& held : ledger.write(times, num_temporaries)) {
    device.push_back(held.device.value);
    content.push_back(static_cast<int32_t>(held.content));
    op.push_back(held.op.value);
    since.push_back(held.since);
    until.push_back(held.until);
    bytes.push_back(held.bytes);
  }
  return std::tuple(to_array(std::move(device)), to_array(std::move(content)), to_array(std::move(op)),
                    to_array(std::move(since)), to_array(std::move(until)), to_array(std::move(bytes)));
}

void bind_task_graph(nb::module_& m) {
  using soapstone::FlowRow;
  using soapstone::Kind;
  using soapstone::TaskRow;
  nb::enum_<Kind>(m, "Kind", nb::is_arithmetic(), "What a task does; columns hold the numbers.")
      .value("forward", Kind::forward)
      .value("backward", Kind::backward)
      .value("combine", Kind::combine)
      .value("transfer", Kind::transfer)
      .value("sync", Kind::sync)
      .value("update", Kind::update)
      .value("gather", Kind::gather);
  nb::class_<TaskRow>(m, "Task")
      .def_ro("key", &TaskRow::key)
      .def_ro("kind", &TaskRow::kind)
      .def_ro("op", &TaskRow::op)
      .def_ro("part", &TaskRow::part)
      .def_ro("backward", &TaskRow::backward)
      .def_ro("finish", &TaskRow::finish)
      .def_ro("is_half", &TaskRow::is_half)
      .def_ro("bytes", &TaskRow::bytes)
      .def_ro("latency", &TaskRow::latency)
      .def_ro("microbatch", &TaskRow::microbatch)
      .def_ro("first", &TaskRow::first)
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
             const soapstone::Times& times, const std::vector<ConfigurationTuple>& strategy,
             int32_t microbatches) { new (self) Listing(graph, machine, times, to_strategy(strategy), microbatches); },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::arg("strategy"), nb::arg("microbatches") = 1,
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("__len__", [](const Listing& self) { return self.tasks.size(); })
      .def("play", [](Listing& self) { return soapstone::timeline_of(self); })
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
      .def("holdings", holdings_of, nb::arg("timeline"), nb::arg("num_temporaries"),
           "(device, content, op, since, until, bytes) of all that is held along a timeline, but for parameters and "
           "states.")
      .def(
          "memory", [](Listing& self) { return memory_of(self.graph()); }, memory_doc)
      .def(
          "memory_bound",
          [](Listing& self, int64_t num_states) { return to_array(self.graph().memory_bound(num_states)); },
          nb::arg("num_states"), bound_doc)
      .def(
          "groups", [](const Listing& self, OpIndex op) { return self.layout(op).groups; }, nb::arg("op"),
          "An op's combine groups, each the parts that combine; empty where none does.")
      .def_prop_ro("keys", task_column<uint64_t>([](const TaskRow& task) { return task.key; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("kinds", task_column<int32_t>([](const TaskRow& task) { return task.kind; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("ops", task_column<int32_t>([](const TaskRow& task) { return task.op.value; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("microbatches", task_column<int32_t>([](const TaskRow& task) { return task.microbatch; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("parts", task_column<int32_t>([](const TaskRow& task) { return task.part; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("latencies", task_column<int64_t>([](const TaskRow& task) { return task.latency; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("bytes", task_column<int64_t>([](const TaskRow& task) { return task.bytes; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_rows", hold_column<int64_t>([](size_t row, const soapstone::Hold&) { return row; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_resources",
                   hold_column<int32_t>([](size_t, const soapstone::Hold& hold) { return hold.resource.value; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_durations",
                   hold_column<int64_t>([](size_t, const soapstone::Hold& hold) { return hold.duration; }),
                   nb::rv_policy::automatic)
      .def_prop_ro("hold_launches",
                   hold_column<int64_t>([](size_t, const soapstone::Hold& hold) { return hold.launch; }),
                   nb::rv_policy::automatic);
}

}  // namespace

void bind_tasks(nb::module_& m) {
  bind_timeline(m);
  bind_task_graph(m);
}
