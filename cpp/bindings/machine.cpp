#include "machine/machine.hpp"
#include "bindings/convert.hpp"
#include "bindings/rooms.hpp"
#include "machine/times.hpp"

namespace {

using soapstone::By;
using soapstone::Device;
using soapstone::OpIndex;

std::pair<HoldPairs, int64_t> transfer(const soapstone::Topology& self, Device source, Device target, int64_t bytes) {
  std::vector<soapstone::Hold> holds;
  const int64_t latency = self.transfer(source, target, bytes, holds);
  return {to_pairs(holds), latency};
}

template <auto method>
std::pair<HoldPairs, int64_t> collective(const soapstone::Topology& self, const std::vector<Device>& devices,
                                         int64_t bytes) {
  std::vector<soapstone::Hold> holds;
  const int64_t latency = (self.*method)(devices, bytes, holds);
  return {to_pairs(holds), latency};
}

void make_curve(soapstone::Curve* self, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  std::vector<soapstone::Curve::Point> points;
  for (const auto& [bytes, time] : pairs) points.push_back({bytes, time});
  new (self) soapstone::Curve(std::move(points));
}

using TimesTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, int32_t>;

void set_times(soapstone::Times& self, OpIndex op, const std::vector<int32_t>& degrees, int32_t kind,
               const std::vector<TimesTuple>& times) {
  std::vector<soapstone::PartTimes> by_extents;
  for (const auto& of_part : times)
    by_extents.push_back(std::apply([](auto... numbers) { return soapstone::PartTimes{numbers...}; }, of_part));
  self.set(op, degrees, kind, std::move(by_extents));
}

void bind_topology(nb::module_& m) {
  using soapstone::Curve;
  using soapstone::Link;
  using soapstone::MeasuredSum;
  using soapstone::Topology;
  nb::class_<Curve>(m, "Curve", "How long bytes take, as measured at a few sizes.")
      .def("__init__", make_curve, nb::arg("points"), "Of (bytes, ns).")
      .def("time", &Curve::time, nb::arg("bytes"));
  nb::class_<Link>(m, "Link").def(
      nb::init<int32_t, int32_t, double, int64_t, int64_t, bool, double, double, double, Curve, std::vector<int32_t>>(),
      nb::arg("source"), nb::arg("target"), nb::arg("bandwidth"), nb::arg("latency"), nb::arg("overhead"),
      nb::arg("duplex"), nb::arg("exposed"), nb::arg("summing"), nb::arg("sharp"), nb::arg("times"), nb::arg("buses"));
  using soapstone::Host;
  nb::class_<Host>(
      m, "Host",
      "The thread that issues a device's work, and what it pays for messages and sums and once an iteration; ns.")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, double, bool>(), nb::arg("send"), nb::arg("receive"),
           nb::arg("sum"), nb::arg("iteration"), nb::arg("copying"), nb::arg("is_ahead"));
  nb::class_<MeasuredSum>(m, "MeasuredSum", "The times of an all-reduce among so many devices of so many nodes.")
      .def(nb::init<int32_t, int32_t, Curve, std::optional<double>>(), nb::arg("members"), nb::arg("nodes"),
           nb::arg("times"), nb::arg("exposed") = nb::none());
  nb::class_<Topology>(m, "Topology")
      .def(nb::init<int32_t, int32_t, By<Device, int32_t>, std::vector<Link>, By<Device, Host>,
                    std::vector<MeasuredSum>, std::vector<double>>(),
           nb::arg("num_devices"), nb::arg("num_switches"), nb::arg("node_of_device"), nb::arg("links"),
           nb::arg("hosts"), nb::arg("sums"), nb::arg("buses"))
      .def_prop_ro("num_devices", &Topology::num_devices)
      .def_prop_ro("num_resources", &Topology::num_resources)
      .def("route", &Topology::route, nb::arg("source"), nb::arg("target"))
      .def("transfer", transfer, nb::arg("source"), nb::arg("target"), nb::arg("bytes"),
           "Return ([(resource, ns), ...], latency in ns) of one message.")
      .def("all_reduce", collective<&Topology::all_reduce>, nb::arg("devices"), nb::arg("bytes"),
           "Return ([(resource, ns), ...], latency in ns) of an all-reduce in the best of its patterns.")
      .def("reduce_scatter", collective<&Topology::reduce_scatter>, nb::arg("devices"), nb::arg("bytes"),
           "The same of a reduce-scatter; `bytes` are those that each device gives.")
      .def("all_gather", collective<&Topology::all_gather>, nb::arg("devices"), nb::arg("bytes"),
           "The same of an all-gather; `bytes` are those that each device ends with.");
}

void bind_times(nb::module_& m) {
  using soapstone::Times;
  nb::class_<Times>(m, "Times")
      .def(nb::init<const soapstone::Graph&, By<OpIndex, OpIndex>>(), nb::arg("graph"), nb::arg("alike"),
           nb::keep_alive<1, 2>(), "`alike` names, by op, the op that it shares its times with.")
      .def(
          "extents",
          [](const Times& self, OpIndex op, const std::vector<int32_t>& degrees) {
            return self.extents(op, degrees).distinct;
          },
          nb::arg("op"), nb::arg("degrees"), "The distinct extents of an op's parts.")
      .def("has", &Times::has, nb::arg("op"), nb::arg("degrees"), nb::arg("kind"))
      .def("set", set_times, nb::arg("op"), nb::arg("degrees"), nb::arg("kind"), nb::arg("times"),
           "For each of the distinct extents, nanoseconds (forward, backward, finish forward, finish backward), and of "
           "a "
           "host that launches each.");
  using soapstone::Machine;
  nb::class_<Machine>(m, "Machine")
      .def(
          "__init__",
          [](Machine* self, const soapstone::Topology& topology, By<Device, int32_t> kinds,
             By<Device, double> update_ns_per_element, int64_t update_overhead, int64_t bucket_bytes,
             int32_t groups_ahead) {
            const auto count = static_cast<size_t>(topology.num_devices());
            if (kinds.size() != count || update_ns_per_element.size() != count)
              throw std::invalid_argument("a machine needs a kind and an update time for each device");
            new (self) Machine{topology,        std::move(kinds), std::move(update_ns_per_element),
                               update_overhead, bucket_bytes,     groups_ahead};
          },
          nb::arg("topology"), nb::arg("kinds"), nb::arg("update_ns_per_element"), nb::arg("update_overhead"),
          nb::arg("bucket_bytes"), nb::arg("groups_ahead"));
}

}  // namespace

void bind_machine(nb::module_& m) {
  bind_topology(m);
  bind_times(m);
}
