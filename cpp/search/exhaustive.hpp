// The best strategy of a space, with proof: depth-first branch and bound (the paper's "depth-first search with A*").
//
// Ops are configured one after the other, so that makers come before readers. A partial strategy is dropped where a
// lower bound of every completion reaches the best makespan known:
//
//   work   a device's compute and update so far, or what its host has to launch; and of all devices on average, with
//          the least that is to come;
//   path   the longest path without contention, part by part, through an op i: up to each part's output, and from each
//          part's gradient to the end, both exact for what is configured; between them a turnaround T(i, c), a matrix
//          over the parts of i, that no completion is quicker than. Entry by entry it is the largest over the readers
//          of i of the least over their options of: to the reader, forward, the reader's T, backward, and back.
//
// What is complete and not dropped is simulated.
#pragma once

#include <atomic>
#include <mutex>

#include "engines/simulator.hpp"
#include "search/choices.hpp"

namespace soapstone {

class Exhaustive {
 public:
  Exhaustive(const Graph&, const Machine&, const Times&, const By<OpIndex, std::vector<Configuration>>& options);
  Exhaustive(const Exhaustive&) = delete;

  // Goes through the space from a first strategy, on so many threads. Whether it was seen to the end.
  bool run(const Strategy& first, int32_t num_threads, double seconds);
  void stop() { stopped_ = true; }
  // The bound of one strategy, given by an option of each op.
  int64_t bound(const By<OpIndex, int32_t>& choice) const;

  int64_t makespan() const { return best_makespan_; }
  int64_t root_bound() const { return root_bound_; }
  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_simulated() const { return num_simulated_; }
  double share() const { return static_cast<double>(num_done_) / static_cast<double>(jobs_.size() + jobs_.empty()); }
  const Strategy& best() const { return best_; }

 private:
  struct Hop {  // from a part of the maker to one of the reader, and back; no path where no gradient returns
    Part from, to;
    int64_t forward, backward;
  };
  struct Passage {
    OpIndex maker, reader;
    std::vector<std::vector<std::vector<Hop>>> hops;  // by option of the maker and of the reader
  };
  struct State;  // of one thread: what is configured so far

  void make_edges();
  void make_turnarounds();
  void make_rest(size_t num_parameters);
  int64_t message(Device from, Device to, int64_t bytes) const;
  Matrix around(size_t num_parts, const Choice& reader, const std::vector<Hop>& hops) const;
  int64_t update_time(const State&, OpIndex op, Device device) const;
  int64_t place(State&, OpIndex op, int32_t choice) const;
  int64_t bound_of_work(const State&, OpIndex op) const;
  double updates_to_come(const State&, OpIndex op) const;
  int64_t bound_of_paths(const State&, OpIndex op) const;
  void descend(State&, OpIndex op);
  void simulate(State&);
  void work_off(const Strategy& first);

  const Graph& graph_;
  const Machine machine_;
  const Times& times_;
  By<OpIndex, std::vector<Choice>> choices_;
  std::vector<Passage> edges_;
  By<OpIndex, std::vector<int32_t>> edges_to_, edges_from_;
  By<OpIndex, OpIndex> last_reader_;          // the op itself where nobody reads it
  By<OpIndex, Load> rest_;                    // the least work of it and of all after it
  std::vector<int64_t> least_elements_;       // of each trained parameter: what any strategy updates
  std::vector<std::array<int32_t, 2>> jobs_;  // choices of the first two ops
  Strategy best_;
  std::mutex mutex_;  // of the best
  std::atomic<size_t> next_job_ = 0;
  std::atomic<int64_t> best_makespan_ = INT64_MAX, num_nodes_ = 0, num_simulated_ = 0, num_done_ = 0;
  std::atomic<bool> stopped_ = false;
  int64_t root_bound_ = 0;
  double deadline_ = 0;
};

}  // namespace soapstone
