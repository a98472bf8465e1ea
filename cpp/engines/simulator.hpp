// Predicts what a change of some ops' configurations would do: propose, then accept or reject.
#pragma once

#include <array>
#include <optional>

#include "engines/engine.hpp"
#include "engines/ledger.hpp"
#include "tasks/proposal.hpp"

namespace soapstone {

// What the devices can hold.
struct MemoryLimit {
  By<Device, int64_t> bytes;    // none where there is no limit
  int64_t num_states = 0;       // numbers that the optimizer keeps for each element,
  int64_t num_temporaries = 0;  // and works on
};

class Simulator {
 public:
  Simulator(const Graph& of, Machine on, const Times& times, MemoryLimit limit = {}, TaskOptions options = {});

  // The first strategy; its times must be known.
  int64_t begin(const Strategy& strategy);
  // The makespan, or nothing where it passes the limit, or the overflow does; then the proposal is rejected already.
  // Nor are more than so many flows looked at.
  std::optional<int64_t> propose(const Changes& changes, int64_t limit, Method method,
                                 int64_t most_overflow = INT64_MAX, int64_t most_flows = INT64_MAX);
  void accept();
  void reject();
  void look_closely() { engine_.look_closely(); }

  // How far what is proposed, or else accepted, is above the memory limit: MiB squared, all devices together, so that
  // many that are a little above count less than one that is far. 0 where it fits: by the bound, or else by the peak of
  // what was played last.
  int64_t overflow();
  By<Device, int64_t> peak(int64_t num_states, int64_t num_temporaries);
  // The engine, with what is proposed, or else accepted, played.
  const Engine& played_engine();
  bool is_open() const { return proposal_ || nothing_; }
  int64_t makespan() const { return makespan_; }  // of what was accepted
  const Engine& engine() const { return engine_; }
  int64_t bound() const { return bounds_.bound(); }  // of the last whose bounds were asked for, from below
  // Where the time went: making ops' blocks, flows and syncs up to their limit, bounds, links, the play, undoing,
  // accepting, the peak of memory.
  enum Stage { in_ops, in_flows, in_bounds, in_links, in_play, in_undo, in_accept, in_memory, num_stages };
  const std::array<double, num_stages>& seconds() const { return seconds_; }
  // Proposals that bounds rejected before they were played, and during it.
  int64_t num_unplayed() const { return num_unplayed_; }
  int64_t num_cut_short() const { return num_cut_short_; }

  TaskGraph graph;

 private:
  bool changes_nothing(const Changes& changes) const;
  bool is_possible(const Changes& changes, int64_t limit, int64_t most_overflow, int64_t most_flows);
  std::optional<int64_t> propose_nothing(int64_t limit, int64_t most_overflow);
  void check(const Changes& changes) const;
  int64_t overflow_of(const By<Device, int64_t>& bytes) const;
  int64_t least_overflow() const;
  bool surely_fits();
  bool overflows_by_at_most(int64_t most);
  std::vector<TaskTimes> played();
  By<Device, int64_t> with_lasting(By<Device, int64_t> held, int64_t num_states) const;
  // Runs something and books its time.
  template <typename Run>
  auto book(Stage stage, Run run);

  Engine engine_;
  std::optional<Proposal> proposal_;
  Idle idle_;  // resources, before the proposal can touch anything
  MemoryLimit memory_;
  Ledger ledger_;
  std::optional<int64_t> overflow_;  // of what is proposed, or else accepted, where it is known
  bool is_undecided_ = false;        // whether the bound alone would refuse the proposal
  Bounds bounds_;
  Followers followers_;
  int32_t num_since_ = 0;               // proposals since the last that was accepted
  std::vector<OpIndex> changed_since_;  // since followers were found
  int64_t makespan_ = 0, num_unplayed_ = 0, num_cut_short_ = 0;
  bool begun_ = false, nothing_ = false;  // nothing: what is open changes nothing
  std::array<double, num_stages> seconds_{};
};

}  // namespace soapstone
