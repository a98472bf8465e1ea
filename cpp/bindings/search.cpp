#include "bindings/convert.hpp"
#include "bindings/rooms.hpp"
#include "search/additive.hpp"
#include "search/chain.hpp"
#include "search/exhaustive.hpp"

namespace {

using soapstone::Chain;
using soapstone::OpIndex;
using MoveTuple =
    std::tuple<std::vector<OpIndex>, int32_t, std::vector<ConfigurationTuple>, bool, std::vector<OpIndex>, bool>;
using EndsTuple = std::tuple<int64_t, double, int64_t, double>;

std::vector<soapstone::Move> to_moves(const std::vector<MoveTuple>& tuples) {
  std::vector<soapstone::Move> moves;
  for (const auto& [ops, table, own, anywhere, sharers, may_recompute] : tuples)
    moves.push_back({ops, table, to_configurations(own), anywhere, sharers, may_recompute});
  return moves;
}

soapstone::Ends to_ends(const EndsTuple& tuple) {
  const auto& [proposals, seconds, patience, patience_seconds] = tuple;
  return {proposals, seconds, patience, patience_seconds};
}

void bind_additive(nb::module_& m) {
  using soapstone::Additive;
  nb::class_<Additive>(m, "Additive")
      .def(nb::init<const soapstone::Graph&, soapstone::Machine, const soapstone::Times&>(), nb::arg("graph"),
           nb::arg("machine"), nb::arg("times"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def(
          "op",
          [](Additive& self, OpIndex op, const std::vector<ConfigurationTuple>& options) {
            std::vector<int64_t> compute, sync;
            for (const auto& configuration : to_configurations(options)) {
              compute.push_back(self.compute(op, configuration));
              sync.push_back(self.sync(op, configuration));
            }
            return std::pair(to_array(std::move(compute)), to_array(std::move(sync)));
          },
          nb::arg("op"), nb::arg("options"), "Nanoseconds of an op for each option: (compute, sync).")
      .def(
          "edge",
          [](Additive& self, int32_t tensor, int32_t reader, const std::vector<ConfigurationTuple>& made,
             const std::vector<ConfigurationTuple>& read) {
            const auto makers = to_configurations(made), readers = to_configurations(read);
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
             const soapstone::Times& times, const std::vector<std::vector<ConfigurationTuple>>& options) {
            soapstone::By<OpIndex, std::vector<Configuration>> native;
            for (const auto& own : options) native.push_back(to_configurations(own));
            new (self) Exhaustive(graph, machine, times, native);
          },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::arg("options"), nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 4>())
      .def(
          "run",
          [](Exhaustive& self, const std::vector<ConfigurationTuple>& tuples, int32_t num_threads, double seconds) {
            const auto first = to_strategy(tuples);
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
      .def_prop_ro("best", [](const Exhaustive& self) { return to_tuples(self.best()); });
}

void bind_chain(nb::module_& m) {
  nb::class_<Chain>(m, "Chain")
      .def(
          "__init__",
          [](Chain* self, const soapstone::Graph& graph, const soapstone::Machine& machine,
             const soapstone::Times& times, const std::vector<std::vector<ConfigurationTuple>>& tables,
             soapstone::By<soapstone::Device, int64_t> memory, int64_t num_states, uint64_t seed,
             int64_t num_temporaries, soapstone::Method engine, int32_t microbatches) {
            std::vector<std::vector<Configuration>> native;
            for (const auto& table : tables) native.push_back(to_configurations(table));
            new (self) Chain(graph, machine, times, std::move(native), {std::move(memory), num_states, num_temporaries},
                             seed, engine, microbatches);
          },
          nb::arg("graph"), nb::arg("machine"), nb::arg("times"), nb::arg("tables"), nb::arg("memory"),
          nb::arg("num_states"), nb::arg("seed"), nb::arg("num_temporaries") = 0,
          nb::arg("engine") = soapstone::Method::resume, nb::arg("microbatches") = 1, nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 4>(),
          "Moves choose from tables of configurations; `memory` is bytes by device, empty for no limit.")
      .def(
          "go",
          [](Chain& self, const std::vector<ConfigurationTuple>& tuples) {
            const auto strategy = to_strategy(tuples);
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
          "Metropolis from one temperature to another. Moves: (ops, table, configurations of their own, whether on any "
          "device, the ops whose shard may change, whether ops may be recomputed); ends: (proposals, seconds, patience "
          "in proposals, in seconds).")
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
      .def_prop_ro("overflow", &Chain::overflow, "How far the strategy is from fitting: 0 where it does.")
      .def_prop_ro("best_makespan", &Chain::best_makespan)
      .def_prop_ro("best_overflow", &Chain::best_overflow)
      .def_prop_ro("best", [](const Chain& self) { return to_tuples(self.best()); })
      .def_prop_ro("strategy", [](const Chain& self) { return to_tuples(self.strategy()); })
      .def_prop_ro("stages", &Chain::stages)
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

}  // namespace

void bind_search(nb::module_& m) {
  bind_chain(m);
  bind_additive(m);
  bind_exhaustive(m);
}
