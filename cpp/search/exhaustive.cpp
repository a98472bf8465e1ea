#include "search/exhaustive.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "geometry/needs.hpp"

namespace soapstone {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

struct Exhaustive::State {
  explicit State(size_t num_ops)
      : choice(num_ops), done(num_ops), follows(num_ops), work(num_ops), elements(num_ops), order(num_ops) {}

  By<OpIndex, int32_t> choice;
  By<OpIndex, Column> done, follows;                            // R and D
  By<OpIndex, By<Device, Load>> work;                           // for all ops up to it
  By<OpIndex, std::vector<int64_t>> elements;                   // likewise: of each parameter on each device
  By<OpIndex, std::vector<std::pair<int64_t, int32_t>>> order;  // (bound, option) of what is worth a look
  Column ready, after;
  std::unique_ptr<Simulator> simulator;
  int64_t num_nodes = 0;
};

Exhaustive::Exhaustive(const Graph& graph, const Machine& machine, const Times& times,
                       const By<OpIndex, std::vector<Configuration>>& options)
    : graph_(graph), machine_(machine), times_(times), choices_(graph.ops.size()) {
  if (options.size() != graph.ops.size()) throw std::invalid_argument("every op needs its options");
  std::vector<int32_t> parameters(graph.tensors.size(), -1);
  int32_t num_parameters = 0;
  for (size_t i = 0; i < graph.tensors.size(); ++i)
    if (graph.tensors[i].source == Source::parameter && graph.tensors[i].grad) parameters[i] = num_parameters++;
  ChoiceMaker maker(graph, machine_, times, parameters);
  for (const OpIndex op : options.indices()) {
    if (options[op].empty()) throw std::invalid_argument("an op has no options");
    for (const auto& configuration : options[op]) choices_[op].push_back(maker.make(op, configuration));
  }
  make_edges();
  make_turnarounds();
  make_rest(num_parameters);
  constexpr OpIndex first(0), second(1);
  for (int32_t a = 0; a < static_cast<int32_t>(choices_[first].size()); ++a)
    for (int32_t b = 0; b < (choices_.size() > 1 ? static_cast<int32_t>(choices_[second].size()) : 1); ++b)
      jobs_.push_back({a, b});
}

void Exhaustive::make_edges() {
  Layouts layouts(graph_);
  edges_to_.resize(graph_.ops.size());
  edges_from_.resize(graph_.ops.size());
  std::map<std::pair<OpIndex, OpIndex>, int32_t> known;
  Needs needs;
  for (size_t t = 0; t < graph_.tensors.size(); ++t) {
    const auto& tensor = graph_.tensors[t];
    for (size_t r = 0; tensor.producer != none && r < tensor.readers.size(); ++r) {
      const OpIndex maker = tensor.producer, reader = tensor.readers[r].first;
      const auto [at, fresh] = known.try_emplace({maker, reader}, static_cast<int32_t>(edges_.size()));
      if (fresh) {
        edges_.push_back({maker, reader, {}});
        edges_.back().hops.assign(choices_[maker].size(), std::vector<std::vector<Hop>>(choices_[reader].size()));
        edges_from_[maker].push_back(at->second);
        edges_to_[reader].push_back(at->second);
      }
      const bool returns = tensor.grad && graph_.ops[reader].backward && graph_.ops[maker].backward;
      auto& hops = edges_[at->second].hops;
      for (size_t a = 0; a < hops.size(); ++a)
        for (size_t b = 0; b < hops[a].size(); ++b)
          for (const auto& need : needs.of(layouts, graph_, static_cast<int32_t>(t), static_cast<int32_t>(r),
                                           choices_[maker][a].configuration, choices_[reader][b].configuration)) {
            const int64_t bytes = volume(need.hull) * tensor.item_size;
            const int64_t there = message(need.source, need.device, bytes);
            const int64_t back = returns ? message(need.device, need.source, bytes) : never;
            for (const Part part : need.parts) hops[a][b].push_back({need.maker, part, there, back});
          }
      layouts.forget();
    }
  }
}

int64_t Exhaustive::message(Device from, Device to, int64_t bytes) const {
  if (from == to) return 0;
  std::vector<Hold> holds;
  const int64_t latency = machine_.topology.transfer(from, to, bytes, holds);
  return time_of(holds, latency);
}

// From a part's output, through a reader, back to a part's gradient.
Matrix Exhaustive::around(size_t num_parts, const Choice& reader, const std::vector<Hop>& hops) const {
  Matrix matrix(num_parts, Column(num_parts, never));
  Column ready, made, given, done;
  for (const Part p : matrix.indices()) {
    ready.assign(reader.forward.size(), never);
    for (const auto& hop : hops)
      if (hop.from == p) ready[hop.to] = std::max(ready[hop.to], hop.forward);
    go_forward(reader, ready, made);
    given.assign(made.size(), never);
    for (const Part a : made.indices())
      for (const Part b : made.indices()) given[b] = std::max(given[b], made[a] + reader.turnaround[a][b]);
    go_backward(reader, given, done);
    for (const auto& hop : hops) matrix[p][hop.from] = std::max(matrix[p][hop.from], done[hop.to] + hop.backward);
    for (auto& time : matrix[p]) time = std::max(time, never);
  }
  return matrix;
}

void Exhaustive::make_turnarounds() {
  for (const OpIndex op : graph_.ops.indices() | std::views::reverse)
    for (size_t c = 0; c < choices_[op].size(); ++c) {
      auto& option = choices_[op][c];
      const size_t count = option.forward.size();
      option.turnaround.assign(count, Column(count, never));
      if (graph_.ops[op].backward)
        for (const Part p : option.turnaround.indices()) option.turnaround[p][p] = 0;
      for (const int32_t e : edges_from_[op]) {
        Matrix least(count, Column(count, INT64_MAX));
        const auto& readers = choices_[edges_[e].reader];
        for (size_t r = 0; r < readers.size(); ++r) {
          const Matrix times = around(count, readers[r], edges_[e].hops[c][r]);
          for (const Part p : least.indices())
            for (const Part q : least.indices()) least[p][q] = std::min(least[p][q], times[p][q]);
        }
        for (const Part p : least.indices())
          for (const Part q : least.indices()) option.turnaround[p][q] = std::max(option.turnaround[p][q], least[p][q]);
      }
    }
}

void Exhaustive::make_rest(size_t num_parameters) {
  least_elements_.assign(num_parameters, 0);
  for (const auto& options : choices_) {
    std::map<int32_t, int64_t> least = options[0].read;
    for (const auto& option : options)
      for (auto& [parameter, count] : least) {
        const auto found = option.read.find(parameter);
        count = std::min(count, found == option.read.end() ? 0 : found->second);
      }
    for (const auto& [parameter, count] : least)
      least_elements_[parameter] = std::max(least_elements_[parameter], count);
  }
  rest_.assign(graph_.ops.size() + 1, {});
  for (const OpIndex op : graph_.ops.indices() | std::views::reverse) {
    Load least{INT64_MAX, INT64_MAX};
    for (const auto& option : choices_[op]) {
      Load work;
      for (const auto& [device, load] : option.work) work += load;
      least = {std::min(least.busy, work.busy), std::min(least.launching, work.launching)};
    }
    rest_[op] = rest_[op + 1];
    rest_[op] += least;
  }
  last_reader_.resize(graph_.ops.size());
  for (const OpIndex op : graph_.ops.indices()) {
    last_reader_[op] = op;
    for (const int32_t e : edges_from_[op]) last_reader_[op] = std::max(last_reader_[op], edges_[e].reader);
  }
}

int64_t Exhaustive::update_time(const State& state, OpIndex op, Device device) const {
  const auto num_devices = static_cast<size_t>(machine_.topology.num_devices());
  int64_t count = 0;
  for (size_t i = 0; i < least_elements_.size(); ++i) count += state.elements[op][i * num_devices + device.value];
  return machine_.update_time(device, count);
}

// Configures an op after those before it and returns a bound of every completion.
int64_t Exhaustive::place(State& state, OpIndex op, int32_t choice) const {
  const Choice& option = choices_[op][choice];
  const auto num_devices = static_cast<size_t>(machine_.topology.num_devices());
  const size_t count = option.forward.size();
  state.choice[op] = choice;
  auto& work = state.work[op];
  auto& elements = state.elements[op];
  if (op > OpIndex(0)) {
    work = state.work[op - 1];
    elements = state.elements[op - 1];
  } else {
    work.assign(num_devices, {});
    elements.assign(num_devices * least_elements_.size(), 0);
  }
  for (const auto& [device, load] : option.work) work[device] += load;
  for (const auto& [parameter, device, held] : option.elements) {
    auto& most = elements[parameter * num_devices + device.value];
    most = std::max(most, held);
  }
  state.ready.assign(count, 0);
  state.after.assign(count, 0);
  for (const Part p : option.updates.indices())
    if (option.updates[p]) state.after[p] = option.sync[p] + update_time(state, op, option.configuration.devices[p]);
  for (const int32_t e : edges_to_[op]) {
    const OpIndex maker = edges_[e].maker;
    for (const auto& hop : edges_[e].hops[state.choice[maker]][choice]) {
      state.ready[hop.to] = std::max(state.ready[hop.to], state.done[maker][hop.from] + hop.forward);
      state.after[hop.to] = std::max(state.after[hop.to], hop.backward + state.follows[maker][hop.from]);
    }
  }
  go_forward(option, state.ready, state.done[op]);
  what_follows(option, state.after, state.follows[op]);
  return std::max(bound_of_work(state, op), bound_of_paths(state, op));
}

int64_t Exhaustive::bound_of_work(const State& state, OpIndex op) const {
  int64_t most = 0;
  Load total = rest_[op + 1];
  for (const Device device : machine_.topology.devices()) {
    const Host& host = machine_.topology.host_of(device);
    Load load = state.work[op][device];
    load += {update_time(state, op, device) + host.on_device(host.iteration), host.launch(host.iteration)};
    most = std::max({most, load.busy, load.launching});
    total += load;
  }
  total.busy += static_cast<int64_t>(updates_to_come(state, op) * (1 - 1e-9));
  const int64_t count = machine_.topology.num_devices();
  return std::max(most, (std::max(total.busy, total.launching) + count - 1) / count);
}

// Nanoseconds of what is surely updated and nobody holds yet.
double Exhaustive::updates_to_come(const State& state, OpIndex op) const {
  const auto num_devices = static_cast<size_t>(machine_.topology.num_devices());
  double to_come = 0;
  const double least = *std::min_element(machine_.update_ns_per_element.begin(), machine_.update_ns_per_element.end());
  for (size_t i = 0; i < least_elements_.size(); ++i) {
    int64_t held = 0;
    for (size_t device = 0; device < num_devices; ++device) held += state.elements[op][i * num_devices + device];
    to_come += least * static_cast<double>(std::max<int64_t>(least_elements_[i] - held, 0));
  }
  return to_come;
}

int64_t Exhaustive::bound_of_paths(const State& state, OpIndex op) const {
  int64_t longest = 0;
  for (const OpIndex i : range(OpIndex(0), op + 1)) {
    if (last_reader_[i] <= op && last_reader_[i] != i) continue;  // its readers' paths are as long
    const auto& turnaround = choices_[i][state.choice[i]].turnaround;
    for (const Part p : turnaround.indices()) {
      longest = std::max(longest, state.done[i][p]);
      for (const Part q : turnaround.indices())
        longest = std::max(longest, state.done[i][p] + turnaround[p][q] + state.follows[i][q]);
    }
  }
  return longest;
}

int64_t Exhaustive::bound(const By<OpIndex, int32_t>& choice) const {
  State state(graph_.ops.size());
  int64_t most = 0;
  for (const OpIndex op : graph_.ops.indices()) most = std::max(most, place(state, op, choice.at(op)));
  return most;
}

void Exhaustive::descend(State& state, OpIndex op) {
  if (op == graph_.ops.end_index()) return simulate(state);
  auto& order = state.order[op];
  order.clear();
  for (int32_t choice = 0; choice < static_cast<int32_t>(choices_[op].size()); ++choice) {
    const int64_t bound = place(state, op, choice);
    if (++state.num_nodes % 4096 == 0 && now() > deadline_) stopped_ = true;
    if (bound < best_makespan_) order.emplace_back(bound, choice);
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (stopped_ || order[i].first >= best_makespan_) return;
    place(state, op, order[i].second);
    descend(state, op + 1);
  }
}

void Exhaustive::simulate(State& state) {
  ++num_simulated_;
  Changes changes;
  for (const OpIndex op : state.choice.indices()) {
    const auto& configuration = choices_[op][state.choice[op]].configuration;
    if (state.simulator->graph.ops[op].configuration != configuration) changes.emplace_back(op, configuration);
  }
  const auto makespan = state.simulator->propose(changes, best_makespan_ - 1, Method::resume);
  if (!makespan) return;
  state.simulator->accept();
  const std::lock_guard lock(mutex_);
  if (*makespan >= best_makespan_) return;
  best_makespan_ = *makespan;
  for (const OpIndex op : best_.indices()) best_[op] = choices_[op][state.choice[op]].configuration;
}

bool Exhaustive::run(const Strategy& first, int32_t num_threads, double seconds) {
  deadline_ = now() + seconds;
  {
    Simulator simulator(graph_, machine_, times_);
    best_makespan_ = simulator.begin(first);
    best_ = first;
  }
  State root(graph_.ops.size());
  root_bound_ = INT64_MAX;
  for (int32_t a = 0; a < static_cast<int32_t>(choices_[OpIndex(0)].size()); ++a)
    root_bound_ = std::min(root_bound_, place(root, OpIndex(0), a));
  next_job_ = num_nodes_ = num_simulated_ = num_done_ = 0;
  stopped_ = false;
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(num_threads);
  for (int32_t t = 0; t < num_threads; ++t)
    threads.emplace_back([&, t] {
      try {
        work_off(first);
      } catch (...) {
        errors[t] = std::current_exception();
        stopped_ = true;
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return !stopped_;
}

void Exhaustive::work_off(const Strategy& first) {
  State state(graph_.ops.size());
  state.simulator = std::make_unique<Simulator>(graph_, machine_, times_);
  state.simulator->begin(first);
  for (size_t job = next_job_++; job < jobs_.size() && !stopped_; job = next_job_++) {
    int64_t bound = place(state, OpIndex(0), jobs_[job][0]);
    if (graph_.ops.size() > 1 && bound < best_makespan_) bound = place(state, OpIndex(1), jobs_[job][1]);
    ++state.num_nodes;
    if (bound < best_makespan_) descend(state, std::min(OpIndex(2), graph_.ops.end_index()));
    num_nodes_ += std::exchange(state.num_nodes, 0);
    ++num_done_;
  }
}

}  // namespace soapstone
