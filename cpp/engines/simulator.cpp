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

Simulator::Simulator(const Graph& of, Machine on, const Times& times, MemoryLimit limit, TaskOptions options)
    : graph(of, std::move(on), times, options),
      engine_(graph),
      memory_(std::move(limit)),
      ledger_(graph),
      followers_(of) {
  idle_.before.resize(graph.machine.topology.num_resources());
  idle_.after = idle_.before;
  if (!memory_.bytes.empty() && memory_.bytes.size() != static_cast<size_t>(graph.machine.topology.num_devices()))
    throw std::invalid_argument("a memory limit needs a number of bytes for each device");
}

int64_t Simulator::begin(const Strategy& strategy) {
  if (begun_) throw std::invalid_argument("the simulator has its first strategy already");
  graph.begin(strategy);
  begun_ = true;
  bounds_.hold(graph, nullptr, 0, idle_, INT64_MAX);
  engine_.play(Method::full, INT64_MAX, bounds_);
  engine_.commit();
  return makespan_ = engine_.makespan();
}

void Simulator::check(const Changes& changes) const {
  if (!begun_) throw std::invalid_argument("the simulator has no strategy yet");
  if (is_open()) throw std::invalid_argument("accept or reject the last proposal first");
  std::set<OpIndex> seen;
  for (const auto& [op, configuration] : changes) {
    if (!op.is_below(graph.ops.size())) throw std::invalid_argument("there is no such op");
    if (!seen.insert(op).second) throw std::invalid_argument("a proposal changes an op twice");
  }
}

template <typename Run>
auto Simulator::book(Stage stage, Run run) {
  struct Entry {
    double& seconds;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    ~Entry() { seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
  } entry{seconds_[stage]};
  return run();
}

std::optional<int64_t> Simulator::propose(const Changes& changes, int64_t limit, Method method, int64_t most_overflow,
                                          int64_t most_flows) {
  check(changes);
  is_undecided_ = false;
  if (method == Method::resume && changes_nothing(changes)) return propose_nothing(limit, most_overflow);
  engine_.prepare(method);
  // They cost as much as some plays, so a strategy that will not last does without.
  if (!engine_.repeats() && ++num_since_ == patience)
    book(in_bounds, [&] { followers_.find(graph, std::exchange(changed_since_, {})); });
  bool possible = false;
  try {
    possible = is_possible(changes, limit, most_overflow, most_flows);
  } catch (...) {
    proposal_.reset();
    throw;
  }
  if (possible) {
    book(in_links, [&] { proposal_->link(); });
    if (book(in_play, [&] { return engine_.play(method, limit, bounds_); }) &&
        (!is_undecided_ || book(in_memory, [&] { return overflows_by_at_most(most_overflow); })))
      return engine_.makespan();
  }
  ++(possible ? num_cut_short_ : num_unplayed_);
  reject();
  return std::nullopt;
}

// Opens the proposal. False where bounds or the memory limit rule it out before it is played.
bool Simulator::is_possible(const Changes& changes, int64_t limit, int64_t most_overflow, int64_t most_flows) {
  overflow_.reset();
  book(in_ops, [&] { proposal_.emplace(graph, changes); });
  if (*std::max_element(graph.totals.compute.begin(), graph.totals.compute.end()) > limit) return false;
  int64_t first = 0;
  book(in_flows, [&] {
    proposal_->regroup();
    if (engine_.repeats()) return;
    first = engine_.first_input();
    engine_.find_idle(first, idle_);
  });
  const Followers* followers = num_since_ >= patience ? &followers_ : nullptr;
  do {
    if (!book(in_flows, [&] { return proposal_->route(limit, &idle_); })) return false;
    if (graph.totals.num_flows > most_flows) return false;
    if (proposal_->is_routed() && most_overflow != INT64_MAX && !surely_fits()) {
      if (least_overflow() > most_overflow) return false;
      is_undecided_ = true;
    }
    if (!book(in_bounds, [&] { return bounds_.hold(graph, followers, first, idle_, limit); })) return false;
  } while (!proposal_->is_routed());
  return true;
}

// By a bound from above.
bool Simulator::surely_fits() {
  const int64_t num_numbers = memory_.num_states + memory_.num_temporaries;
  return memory_.bytes.empty() || graph.surely_fits(memory_.bytes, num_numbers) ||
         overflow_of(graph.memory_bound(num_numbers)) == 0;
}

// From below: what every device holds while it updates.
int64_t Simulator::least_overflow() const {
  const auto& totals = graph.totals.memory;
  By<Device, int64_t> least = totals.parameters;
  for (const Device device : least.indices())
    least[device] += (1 + memory_.num_states + memory_.num_temporaries) * totals.updated[device];
  return overflow_of(least);
}

int64_t Simulator::overflow_of(const By<Device, int64_t>& bytes) const {
  int64_t sum = 0;
  for (const Device device : bytes.indices()) {
    const int64_t mebibytes = (std::max(int64_t{0}, bytes[device] - memory_.bytes[device]) + (1 << 20) - 1) >> 20;
    sum += mebibytes * mebibytes;
  }
  return sum;
}

int64_t Simulator::overflow() {
  if (!overflow_) overflow_ = surely_fits() ? 0 : overflow_of(peak(memory_.num_states, memory_.num_temporaries));
  return *overflow_;
}

// Most that are refused are refused by the device that is expected to hold most.
bool Simulator::overflows_by_at_most(int64_t most) {
  const auto bound = graph.memory_bound(memory_.num_states + memory_.num_temporaries);
  const auto above = [&](Device device) { return bound[device] - memory_.bytes[device]; };
  const auto all = bound.indices();
  const Device fullest =
      *std::max_element(all.begin(), all.end(), [&](Device a, Device b) { return above(a) < above(b); });
  const auto times = played();
  ledger_.write(times, memory_.num_temporaries, fullest);
  if (overflow_of(with_lasting(ledger_.peak(), memory_.num_states)) > most) return false;
  ledger_.write(times, memory_.num_temporaries);
  overflow_ = overflow_of(with_lasting(ledger_.peak(), memory_.num_states));
  return *overflow_ <= most;
}

By<Device, int64_t> Simulator::peak(int64_t num_states, int64_t num_temporaries) {
  ledger_.write(played(), num_temporaries);
  return with_lasting(ledger_.peak(), num_states);
}

const Engine& Simulator::played_engine() {
  if (engine_.has_forgotten()) engine_.play(Method::full, INT64_MAX, bounds_);
  return engine_;
}

std::vector<TaskTimes> Simulator::played() {
  const size_t num_slots = graph.pool.tasks.size();
  std::vector<TaskTimes> times(graph.num_microbatches);
  for (auto& [start, end] : times) {
    start.resize(num_slots);
    end.resize(num_slots);
  }
  By<Resource, Progress> resources = at_start(graph.machine.topology);
  played_engine().each([&](Slot slot, int32_t microbatch, int64_t ready, int64_t end) {
    int64_t first = INT64_MAX;
    serve(graph.pool.tasks[slot], ready, resources,
          [&](const Hold&, int64_t start) { first = std::min(first, start); });
    times[microbatch].start[slot] = first == INT64_MAX ? ready : first;
    times[microbatch].end[slot] = end;
  });
  return times;
}

// With the parameters and the optimizer's states, which lie there all along.
By<Device, int64_t> Simulator::with_lasting(By<Device, int64_t> held, int64_t num_states) const {
  const auto& totals = graph.totals.memory;
  for (const Device device : held.indices())
    held[device] += totals.parameters[device] + num_states * totals.updated[device];
  return held;
}

bool Simulator::changes_nothing(const Changes& changes) const {
  return std::all_of(changes.begin(), changes.end(),
                     [&](const auto& change) { return graph.ops[change.first].configuration == change.second; });
}

std::optional<int64_t> Simulator::propose_nothing(int64_t limit, int64_t most_overflow) {
  if (makespan_ > limit || (most_overflow != INT64_MAX && overflow() > most_overflow)) return std::nullopt;
  nothing_ = true;
  return makespan_;
}

void Simulator::accept() {
  if (!is_open()) throw std::invalid_argument("there is no proposal to accept");
  if (std::exchange(nothing_, false)) return;
  book(in_accept, [&] {
    engine_.commit();
    proposal_->commit();
    proposal_.reset();
  });
  changed_since_.insert(changed_since_.end(), graph.changes().ops.begin(), graph.changes().ops.end());
  num_since_ = 0;
  makespan_ = engine_.makespan();
}

void Simulator::reject() {
  if (!is_open()) throw std::invalid_argument("there is no proposal to reject");
  if (std::exchange(nothing_, false)) return;
  book(in_undo, [&] {
    proposal_.reset();
    engine_.rollback();
  });
  overflow_.reset();
}

}  // namespace soapstone
