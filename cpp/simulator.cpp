#include "simulator.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>

namespace soapstone {

int64_t Simulator::begin(const std::vector<Configuration>& strategy) {
  if (begun_) throw std::invalid_argument("the simulator has its first strategy already");
  graph.begin(strategy);
  begun_ = true;
  bounds_.hold(graph, INT64_MAX);
  engine_.play(Method::full, INT64_MAX, bounds_);
  engine_.adopt();
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
                                          Method method) {
  check(changes);
  engine_.prepare(method);
  bool possible = true;
  try {
    book(in_ops, [&] { graph.change(changes); });
    possible = *std::max_element(graph.compute.begin(), graph.compute.end()) <= limit;
    if (possible) book(in_flows, [&] { graph.route(); });
    possible = possible && book(in_bounds, [&] { return bounds_.hold(graph, limit); });
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

void Simulator::accept() {
  if (!open_) throw std::invalid_argument("there is no proposal to accept");
  book(in_accept, [&] {
    engine_.adopt();
    graph.keep();
  });
  makespan_ = engine_.makespan();
  open_ = false;
}

void Simulator::reject() {
  if (!open_) throw std::invalid_argument("there is no proposal to reject");
  book(in_undo, [&] {
    graph.take_back();
    engine_.drop();
  });
  open_ = false;
}

}  // namespace soapstone
