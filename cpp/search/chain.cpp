#include "search/chain.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace soapstone {

namespace {

// Of a proposal: a few gigabytes of tasks. Thousands of messages a device in each layer would make no good strategy.
constexpr int64_t many_flows = 4'000'000;

int64_t largest_accepted(int64_t makespan, double u, double temperature, bool relative) {
  const auto now = static_cast<double>(makespan);
  const double limit = relative ? now * std::pow(u, -temperature) : now - temperature * std::log(u);
  return limit < 9e18 ? std::max(makespan, static_cast<int64_t>(limit)) : INT64_MAX;
}

}  // namespace

Chain::Chain(const Graph& graph, const Machine& machine, const Times& times,
             std::vector<std::vector<Configuration>> tables, MemoryLimit memory, uint64_t seed, Method engine,
             int32_t num_microbatches)
    : graph_(graph),
      machine_(machine),
      times_(times),
      tables_(std::move(tables)),
      memory_(std::move(memory)),
      random_(seed),
      engine_(engine),
      options_{.num_microbatches = num_microbatches} {}

void Chain::go(const Strategy& strategy) {
  if (!simulator_) {
    auto simulator = std::make_unique<Simulator>(graph_, machine_, times_, memory_, options_);
    simulator->begin(strategy);
    simulator_ = std::move(simulator);
  } else {
    if (strategy.size() != graph_.ops.size()) throw std::invalid_argument("a strategy configures every op");
    changes_.clear();
    for (const OpIndex op : strategy.indices())
      if (simulator_->graph.ops[op].configuration != strategy[op]) changes_.emplace_back(op, strategy[op]);
    simulator_->propose(changes_, INT64_MAX, Method::resume);
    simulator_->overflow();  // known from here on: the play is at hand
    simulator_->accept();
  }
  overflow_ = simulator_->overflow();
  note();
}

Strategy Chain::strategy() const {
  Strategy strategy;
  for (const auto& op : simulator_->graph.ops) strategy.push_back(op.configuration);
  return strategy;
}

Option Chain::option(const Move& move, size_t index) const {
  const auto& table = tables_[move.table];
  if (index < table.size()) return {Option::What::splits, table[index]};
  if (index < num_splits(move)) return {Option::What::splits, move.own[index - table.size()]};
  index -= num_splits(move);
  if (!move.sharers.empty()) {
    if (index < 3) return {Option::What::shards, {{}, {}, static_cast<Shard>(index)}};
    index -= 3;
  }
  return {Option::What::recomputes, {{}, {}, Shard::none, index == 1}};
}

void Chain::find_changes(const Move& move, const Option& option) {
  changes_.clear();
  for (const OpIndex op : option.what == Option::What::shards ? move.sharers : move.ops) {
    const Configuration& now = simulator_->graph.ops[op].configuration;
    Configuration wanted = option.what == Option::What::splits ? option.value : now;
    wanted.shard = option.what == Option::What::shards ? option.value.shard : now.shard;
    wanted.recompute = option.what == Option::What::recomputes ? option.value.recompute : now.recompute;
    wanted.in_flight = now.in_flight;
    if (wanted != now) changes_.emplace_back(op, std::move(wanted));
  }
}

Option Chain::drawn(const Move& move) {
  Option chosen = option(move, draw(num_options(move)));
  if (move.anywhere)
    for (Device& device : chosen.value.devices)
      device = Device(static_cast<int32_t>(draw(machine_.topology.num_devices())));
  return chosen;
}

// Own mappings from random bits: the standard's distributions differ from library to library.
size_t Chain::draw(size_t count) {
  return static_cast<size_t>((static_cast<unsigned __int128>(random_()) * count) >> 64);
}

double Chain::draw() { return static_cast<double>((random_() >> 11) + 1) * 0x1p-53; }

bool Chain::ends(const Ends& ends, const Begin& begin) const {
  const int64_t count = num_proposals_;
  const double now = seconds();
  const auto& [proposals, since, unused] = history_.back();
  return stopped_ || count - begin.proposals >= ends.proposals || now >= ends.seconds ||
         count - std::max(proposals, begin.proposals) >= ends.patience ||
         now - std::max(since, begin.seconds) >= ends.patience_seconds;
}

void Chain::check(const std::vector<Move>& moves) const {
  if (!simulator_) throw std::invalid_argument("the chain has no strategy yet");
  for (const auto& move : moves)
    if (move.table < 0 || static_cast<size_t>(move.table) >= tables_.size() || num_options(move) == 0)
      throw std::invalid_argument("a move has no options");
}

// Remembers the strategy where it is the best so far.
void Chain::note() {
  const int64_t makespan = simulator_->makespan();
  if (std::pair(overflow_, makespan) >= std::pair(best_overflow_.load(), best_makespan_.load())) return;
  best_overflow_ = overflow_;
  best_makespan_ = makespan;
  best_ = strategy();
  history_.push_back({num_proposals_, seconds(), makespan});
}

// The makespan where it may be accepted; then the proposal is open, unless nothing changes.
std::optional<int64_t> Chain::propose(const Move& move, const Option& option, int64_t limit) {
  ++num_proposals_;
  find_changes(move, option);
  if (changes_.empty()) return std::nullopt;
  if (engine_ == Method::full) return propose_anew(limit);
  const bool to_the_end = overflow_ || engine_ == Method::delta;
  const auto makespan = simulator_->propose(changes_, to_the_end ? INT64_MAX : limit, engine_, overflow_, most_flows());
  if (makespan && *makespan > limit && simulator_->overflow() == overflow_) {
    reject();
    return std::nullopt;
  }
  return makespan;
}

// More only where there are more already.
int64_t Chain::most_flows() const { return std::max(many_flows, simulator_->graph.totals.num_flows); }

std::optional<int64_t> Chain::propose_anew(int64_t limit) {
  Strategy proposed = strategy();
  for (const auto& [op, configuration] : changes_) proposed[op] = configuration;
  anew_ = std::make_unique<Simulator>(graph_, machine_, times_, memory_, options_);
  const int64_t makespan = anew_->begin(proposed), overflow = anew_->overflow();
  const bool fits = overflow < overflow_ || (overflow == overflow_ && makespan <= limit);
  if (fits && anew_->graph.totals.num_flows <= most_flows()) return makespan;
  reject();
  return std::nullopt;
}

void Chain::accept() {
  if (anew_)
    simulator_ = std::move(anew_);
  else
    simulator_->accept();
}

void Chain::reject() {
  if (anew_)
    anew_.reset();
  else
    simulator_->reject();
}

// Whether the strategy is another one now.
bool Chain::try_out(const Move& move, const Option& option, int64_t limit) {
  if (!propose(move, option, limit)) return false;
  accept();
  if (overflow_) overflow_ = simulator_->overflow();
  note();
  return true;
}

void Chain::walk(const std::vector<Move>& moves, const Temperature& temperature, const Ends& where) {
  check(moves);
  if (moves.empty()) return;
  const Begin begin{num_proposals_, seconds()};
  const double length = static_cast<double>(where.proposals), fall = temperature.last / temperature.first;
  while (!ends(where, begin)) {
    const Move& move = moves[draw(moves.size())];
    const Option chosen = drawn(move);
    const double u = draw(), done = static_cast<double>(num_proposals_ - begin.proposals) / length;
    const double now = temperature.first * std::pow(fall, done);
    try_out(move, chosen, largest_accepted(simulator_->makespan(), u, now, temperature.relative));
  }
}

std::vector<std::pair<int32_t, int32_t>> Chain::neighbours(const std::vector<Move>& moves) {
  std::vector<std::pair<int32_t, int32_t>> all;
  for (size_t i = 0; i < moves.size(); ++i)
    for (size_t j = 0; j < num_options(moves[i]); ++j) all.emplace_back(i, j);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[draw(i)]);
  return all;
}

bool Chain::descend(const std::vector<Move>& moves, const Ends& where, double share) {
  check(moves);
  const Begin begin{num_proposals_, seconds()};
  const auto all = neighbours(moves);
  const auto enough = static_cast<int64_t>(std::ceil(share * static_cast<double>(all.size())));
  num_neighbours_ = 0;
  for (size_t i = 0; num_neighbours_ < enough; i = (i + 1) % all.size()) {
    if (ends(where, begin)) return false;
    const Move& move = moves[all[i].first];
    const bool improved = try_out(move, option(move, all[i].second), simulator_->makespan() - 1);
    num_neighbours_ = improved ? 0 : num_neighbours_ + 1;
  }
  return true;
}

std::optional<bool> Chain::look(const std::vector<Move>& moves, const Ends& where) {
  check(moves);
  const Begin begin{num_proposals_, seconds()};
  num_neighbours_ = 0;
  for (const auto& [move, index] : neighbours(moves)) {
    if (ends(where, begin)) return std::nullopt;
    ++num_neighbours_;
    if (!propose(moves[move], option(moves[move], index), simulator_->makespan() - 1)) continue;
    reject();
    return false;
  }
  return true;
}

}  // namespace soapstone
