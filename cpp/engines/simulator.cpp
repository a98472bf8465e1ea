#include "engines/simulator.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <utility>

namespace soapstone {

namespace {

constexpr int32_t patience = 8;

}  // namespace

Simulator::Simulator(const Graph& of, Machine on, const Times& times, MemoryLimit limit)
    : graph(of, std::move(on), times, false), engine_(graph), memory_(std::move(limit)), followers_(of) {
  if (!memory_.bytes.empty() && memory_.bytes.size() != static_cast<size_t>(graph.machine.topology.num_devices()))
    throw std::invalid_argument("a memory limit needs a number of bytes for each device");
}

int64_t Simulator::begin(const std::vector<Configuration>& strategy) {
  if (begun_) throw std::invalid_argument("the simulator has its first strategy already");
  graph.begin(strategy);
  begun_ = true;
  bounds_.hold(graph, nullptr, 0, INT64_MAX);
  engine_.play(Method::full, INT64_MAX, bounds_);
  engine_.commit();
  return makespan_ = engine_.makespan();
}

void Simulator::check(const std::vector<std::pair<int32_t, Configuration>>& changes) const {
  if (!begun_) throw std::invalid_argument("the simulator has no strategy yet");
  if (open_) throw std::invalid_argument("accept or reject the last proposal first");
  std::set<int32_t> seen;
  for (const auto& [op, configuration] : changes) {
    if (op < 0 || static_cast<size_t>(op) >= graph.ops.size()) throw std::invalid_argument("there is no such op");
    if (!seen.insert(op).second) throw std::invalid_argument("a proposal changes an op twice");
  }
}

template <typename Run>
auto Simulator::book(Phase phase, Run run) {
  struct Entry {
    double& seconds;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    ~Entry() { seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
  } entry{seconds_[phase]};
  return run();
}

std::optional<int64_t> Simulator::propose(const std::vector<std::pair<int32_t, Configuration>>& changes, int64_t limit,
                                          Method method, int64_t most_overflow) {
  check(changes);
  if (method == Method::resume && changes_nothing(changes)) return propose_nothing(limit, most_overflow);
  engine_.prepare(method);
  // They cost as much as some plays, so a strategy that will not last does without.
  if (++num_since_ == patience) book(in_bounds, [&] { followers_.find(graph, std::exchange(changed_since_, {})); });
  bool possible = true;
  try {
    book(in_ops, [&] { graph.change(changes); });
    possible = *std::max_element(graph.totals.compute.begin(), graph.totals.compute.end()) <= limit;
    int64_t first = 0;
    if (possible)
      book(in_flows, [&] {
        graph.regroup();
        first = engine_.first_input();
        engine_.find_idle(first, graph.idle);
      });
    const Followers* followers = num_since_ >= patience ? &followers_ : nullptr;
    bool routed = false;
    while (possible && !routed) {
      possible = book(in_flows, [&] { return graph.route(limit); });
      routed = graph.unrouted().empty();
      if (routed) possible = possible && (most_overflow == INT64_MAX || overflow() <= most_overflow);
      possible = possible && book(in_bounds, [&] { return bounds_.hold(graph, followers, first, limit); });
    }
  } catch (...) {
    graph.take_back();
    throw;
  }
  open_ = true;
  if (!possible) ++num_unplayed_;
  if (possible) {
    book(in_links, [&] { graph.link(); });
    if (book(in_play, [&] { return engine_.play(method, limit, bounds_); })) return engine_.makespan();
    ++num_cut_short_;
  }
  reject();
  return std::nullopt;
}

int64_t Simulator::overflow() {
  if (memory_.bytes.empty()) return 0;
  if (graph.surely_fits(memory_.bytes, memory_.num_states)) return 0;
  const auto bound = graph.memory_bound(memory_.num_states);
  int64_t sum = 0;
  for (size_t device = 0; device < bound.size(); ++device) {
    const int64_t mebibytes = (std::max(int64_t{0}, bound[device] - memory_.bytes[device]) + (1 << 20) - 1) >> 20;
    sum += mebibytes * mebibytes;
  }
  return sum;
}

bool Simulator::changes_nothing(const std::vector<std::pair<int32_t, Configuration>>& changes) const {
  return std::all_of(changes.begin(), changes.end(),
                     [&](const auto& change) { return graph.ops[change.first].configuration == change.second; });
}

std::optional<int64_t> Simulator::propose_nothing(int64_t limit, int64_t most_overflow) {
  if (makespan_ > limit || (most_overflow != INT64_MAX && overflow() > most_overflow)) return std::nullopt;
  open_ = nothing_ = true;
  return makespan_;
}

void Simulator::accept() {
  if (!open_) throw std::invalid_argument("there is no proposal to accept");
  if (std::exchange(nothing_, false)) {
    open_ = false;
    return;
  }
  book(in_accept, [&] {
    engine_.commit();
    graph.keep();
  });
  changed_since_.insert(changed_since_.end(), graph.changed().begin(), graph.changed().end());
  num_since_ = 0;
  makespan_ = engine_.makespan();
  open_ = false;
}

void Simulator::reject() {
  if (!open_) throw std::invalid_argument("there is no proposal to reject");
  open_ = false;
  if (std::exchange(nothing_, false)) return;
  book(in_undo, [&] {
    graph.take_back();
    engine_.rollback();
  });
}

}  // namespace soapstone
