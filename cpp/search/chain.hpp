// A Markov chain over strategies (FlexFlow, section "Execution Optimizer").
//
// A proposal gives the ops of one move another configuration, drawn uniformly from the move's options. With u drawn
// from (0, 1] before anything is simulated, it is accepted where its makespan c* is at most
//
//     c u^-tau       at a temperature relative to the cost; strategies then come up with p ~ c^(-1/tau), or
//     c - T ln u     which is the paper's exp(-beta (c* - c)) with beta = 1/T,
//
// so that a simulation stops as soon as c* is known to be larger. Where the strategy does not fit into the devices'
// memory, a proposal must not fit worse, and one that fits better is accepted whatever its makespan.
//
// Walks are the same with each engine. `resume` knows the limit, as above; `delta` and `full` are the paper's two
// simulation algorithms, which play every proposal to its end, and `full` makes the task graph anew for it.
//
// How many microbatches there are is fixed, and so is how many of them each op has in flight, by the strategy that the
// chain went to last.
#pragma once

#include <atomic>
#include <chrono>
#include <random>

#include "engines/simulator.hpp"

namespace soapstone {

// Ops that are configured as one: by an entry of one of the chain's tables, or by one of their own, which say how they
// are split and placed; or the `sharers`, those of them that train parameters and all who share these, take another
// shard; or all are recomputed, or not, where they may be. A walk puts each part of what it has drawn `anywhere`, on
// any device, or leaves it where it is.
struct Move {
  std::vector<OpIndex> ops;
  int32_t table = 0;
  std::vector<Configuration> own;
  bool anywhere = false;
  std::vector<OpIndex> sharers;
  bool may_recompute = false;
};

// What a move has its ops take.
struct Option {
  enum class What { splits, shards, recomputes } what;
  Configuration value;  // of which it is that part
};

// Goes from `first` to `last` along a walk, each time by the same factor.
struct Temperature {
  double first = 0, last = 0;
  bool relative = true;  // a share of the cost; else nanoseconds
};

// Where a walk ends, whichever comes first. Proposals are its own, seconds are on the chain's clock; patience counts
// from the walk's begin, or the last improvement on the best of all strategies.
struct Ends {
  int64_t proposals = INT64_MAX;
  double seconds = 1e300;
  int64_t patience = INT64_MAX;
  double patience_seconds = 1e300;
};

struct Improvement {
  int64_t proposals;
  double seconds;
  int64_t makespan;
};

class Chain {
 public:
  using Clock = std::chrono::steady_clock;

  Chain(const Graph&, const Machine&, const Times&, std::vector<std::vector<Configuration>> tables, MemoryLimit,
        uint64_t seed, Method engine = Method::resume, int32_t num_microbatches = 1);

  // Goes to a strategy, however long it takes.
  void go(const Strategy& strategy);
  void walk(const std::vector<Move>& moves, const Temperature&, const Ends&);
  // Takes whatever improves the strategy until a share of all options of all moves was tried in vain, one after the
  // other. Whether it came to that.
  bool descend(const std::vector<Move>& moves, const Ends&, double share);
  // Whether no option of any move improves the strategy; unknown where it ends before that is seen.
  std::optional<bool> look(const std::vector<Move>& moves, const Ends&);

  // May be called from other threads.
  void stop() { stopped_ = true; }
  bool is_stopped() const { return stopped_; }
  int64_t num_proposals() const { return num_proposals_; }
  int64_t best_makespan() const { return best_makespan_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }  // since it was made

  int64_t makespan() const { return simulator_->makespan(); }
  int64_t overflow() const { return overflow_; }
  int64_t best_overflow() const { return best_overflow_; }
  const Strategy& best() const { return best_; }
  Strategy strategy() const;
  const std::vector<Improvement>& history() const { return history_; }
  int64_t num_neighbours() const { return num_neighbours_; }  // of the last descent, since its last improvement
  const std::array<double, Simulator::num_stages>& stages() const { return simulator_->seconds(); }

 private:
  struct Begin {
    int64_t proposals;
    double seconds;
  };

  size_t num_splits(const Move& move) const { return tables_[move.table].size() + move.own.size(); }
  size_t num_options(const Move& move) const {
    return num_splits(move) + (move.sharers.empty() ? 0 : 3) + (move.may_recompute ? 2 : 0);
  }
  Option option(const Move& move, size_t index) const;
  void find_changes(const Move& move, const Option& option);
  Option drawn(const Move& move);
  size_t draw(size_t count);
  double draw();
  bool ends(const Ends&, const Begin&) const;
  std::vector<std::pair<int32_t, int32_t>> neighbours(const std::vector<Move>& moves);  // (move, option), shuffled
  std::optional<int64_t> propose(const Move&, const Option&, int64_t limit);
  std::optional<int64_t> propose_anew(int64_t limit);
  int64_t most_flows() const;
  void accept();
  void reject();
  bool try_out(const Move&, const Option&, int64_t limit);
  void check(const std::vector<Move>& moves) const;
  void note();

  const Graph& graph_;
  const Machine machine_;
  const Times& times_;
  const std::vector<std::vector<Configuration>> tables_;
  const MemoryLimit memory_;
  std::mt19937_64 random_;
  const Method engine_;
  const TaskOptions options_;
  std::unique_ptr<Simulator> simulator_;
  std::unique_ptr<Simulator> anew_;  // of an open proposal, where the engine is `full`
  const Clock::time_point begun_ = Clock::now();
  int64_t overflow_ = 0;
  Strategy best_;
  std::vector<Improvement> history_;
  int64_t num_neighbours_ = 0;
  Changes changes_;  // try_out's own
  std::atomic<int64_t> num_proposals_ = 0, best_makespan_ = INT64_MAX, best_overflow_ = INT64_MAX;
  std::atomic<bool> stopped_ = false;
};

}  // namespace soapstone
