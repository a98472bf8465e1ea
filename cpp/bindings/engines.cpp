#include "bindings/convert.hpp"
#include "bindings/memory.hpp"
#include "bindings/rooms.hpp"
#include "engines/simulator.hpp"

namespace {

using ChangeTuples = std::vector<std::pair<soapstone::OpIndex, ConfigurationTuple>>;

std::optional<int64_t> propose(soapstone::Simulator& self, const ChangeTuples& changes, std::optional<int64_t> limit,
                               soapstone::Method method) {
  soapstone::Changes native;
  for (const auto& [op, configuration] : changes) native.emplace_back(op, to_configuration(configuration));
  return self.propose(native, limit.value_or(INT64_MAX), method);
}

// (key, ready, end) of the last play's tasks, by (ready, key).
auto timeline_of(soapstone::Simulator& self) {
  std::vector<uint64_t> keys;
  std::vector<int64_t> ready, end;
  self.played_engine().each([&](soapstone::Slot slot, int32_t, int64_t from, int64_t until) {
    keys.push_back(self.graph.pool.tasks[slot].key);
    ready.push_back(from);
    end.push_back(until);
  });
  return std::tuple(to_array(std::move(keys)), to_array(std::move(ready)), to_array(std::move(end)));
}

}  // namespace

void bind_engines(nb::module_& m) {
  using soapstone::Method;
  using soapstone::Simulator;
  nb::enum_<Method>(m, "Method", "How a task graph is played; all find the same times.")
      .value("full", Method::full)
      .value("resume", Method::resume)
      .value("delta", Method::delta);
  nb::class_<Simulator>(m, "Simulator")
      .def(
          "__init__",
          [](Simulator* self, const soapstone::Graph& graph, const soapstone::Machine& machine,
             const soapstone::Times& times, bool loss_may_separate, int32_t microbatches) {
            const soapstone::TaskOptions options{.loss_may_separate = loss_may_separate,
                                                 .num_microbatches = microbatches};
            new (self) Simulator(graph, machine, times, {}, options);
          },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::kw_only(), nb::arg("loss_may_separate") = true,
          nb::arg("microbatches") = 1, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def(
          "begin",
          [](Simulator& self, const std::vector<ConfigurationTuple>& strategy) {
            return self.begin(to_strategy(strategy));
          },
          nb::arg("strategy"), "Play the first strategy and return its makespan.")
      .def("propose", propose, nb::arg("changes"), nb::arg("limit").none(), nb::arg("method"),
           "The makespan in ns of a change, or None where it passes the limit and is rejected already.")
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
      .def(
          "peak",
          [](Simulator& self, int64_t num_states, int64_t num_temporaries) {
            return to_array(self.peak(num_states, num_temporaries));
          },
          nb::arg("num_states"), nb::arg("num_temporaries"), "The most bytes by device, along the last play.")
      .def_prop_ro("is_open", &Simulator::is_open)
      .def_prop_ro("makespan", &Simulator::makespan)
      .def_prop_ro("bound", &Simulator::bound)
      .def_prop_ro("num_served", [](const Simulator& self) { return self.engine().num_served(); })
      .def_prop_ro("num_tasks", [](const Simulator& self) { return self.engine().num_tasks(); })
      .def_prop_ro(
          "seconds", &Simulator::seconds,
          "Of all proposals, by stage: ops' blocks, flows and syncs, bounds, links, play, undo, accept, memory.")
      .def_prop_ro("num_unplayed", &Simulator::num_unplayed)
      .def_prop_ro("num_cut_short", &Simulator::num_cut_short);
}
