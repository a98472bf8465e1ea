// Tasks as the engines see them, and the pool that they lie in. A task keeps its slot for as long as nothing that it
// depends on changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "machine/hold.hpp"
#include "support/index.hpp"
#include "tasks/changes.hpp"

namespace soapstone {

enum class Kind : int32_t { forward, backward, combine, transfer, sync, update, gather };

enum Phase : uint64_t { forward_phase, backward_phase, sync_phase, update_phase };

constexpr int64_t most_parts = 1 << 17;
constexpr int64_t longest_time = int64_t{1} << 43;  // ns of one task: far from overflow in sums

// What orders tasks that are ready at the same time. It depends on the strategy alone, never on history.
uint64_t pack_key(uint64_t phase, int64_t op, Kind kind, int64_t slot, int64_t major, int64_t minor);
constexpr int phase_shift = 61;
inline uint64_t phase_of(uint64_t key) { return key >> phase_shift; }

// One cache line; the first hold lies here, since most tasks have no other.
struct alignas(64) Task {
  uint64_t key = 0;
  int64_t latency = 0;
  Hold first{{}, 0};
  const Hold* holds = nullptr;
  const Slot* next = nullptr;  // the tasks that wait for this one
  int32_t num_holds = 0, num_next = 0;
  int32_t tail = 0;       // which of the bounds' tails follows it
  bool launches = false;  // a host has to launch it

  template <typename Visit>
  void each_hold(Visit visit) const {
    if (num_holds > 0) visit(first);
    for (int32_t i = 1; i < num_holds; ++i) visit(holds[i]);
  }
};

static_assert(sizeof(Task) == 64);

// When a task that is ready can start: once its hosts, where it has any, have launched it, after all that they launched
// before.
template <typename Resources>
int64_t launch(const Task& task, int64_t ready, Resources& resources) {
  if (!task.launches) return ready;
  int64_t start = ready;
  task.each_hold([&](const Hold& hold) {
    if (hold.launch == 0) return;
    auto& launched = resources[hold.resource].launched;
    launched += hold.launch;
    start = std::max(start, launched);
  });
  return start;
}

// A message's holds in its block, once it is a task, and its time with nothing in its way: what its slowest resource
// takes, and the latency. Often the way out of one node is as slow as the way into another.
struct Trip {
  int32_t begin = 0, end = 0;
  Resource slowest, last_slowest;
  int64_t latency = 0, time = 0;

  // Of the last holds, from `begin` on.
  static Trip of(const std::vector<Hold>& holds, size_t begin, int64_t latency);
  static void check(int64_t longest, int64_t latency);
};

struct Edge {
  Slot from, to;
  bool operator==(const Edge&) const = default;
};

// Tasks that come and go together, with what they hold.
struct Block {
  Slot begin;
  int32_t count = 0;  // of its slots
  std::vector<Hold> holds;
  size_t num_before = 0, first_after = 0;  // holds that surely come before the loss: the first; after it: the last

  SlotRun run() const { return {begin, count}; }
};

class TaskPool {
 public:
  // What a play knows of a task before it is served. Between plays it is as at the start of one.
  struct State {
    int64_t ready = 0;    // the latest end of those that it waited for
    int32_t waiting = 0;  // for how many others it still waits
    Slot link;            // the calendar's: who is ready on the same day
  };

  By<Slot, Task> tasks;
  By<Slot, State> states;
  By<Slot, int32_t> waiting;  // for how many others each waits

  Slot take(int32_t count);  // so many in a row
  void write(Slot slot, uint64_t key, int32_t tail, const std::vector<Hold>& holds, const Trip& trip);
  void give_back(const Block& block);

  void link(const std::vector<Slot>& next) {
    for (const Slot slot : next) states[slot].waiting = ++waiting[slot];
  }
  void unlink(const std::vector<Slot>& next) {
    for (const Slot slot : next) states[slot].waiting = --waiting[slot];
  }

 private:
  std::unordered_map<int32_t, std::vector<Slot>> free_;  // by size
};

// Fills a block's tasks one after the other.
class BlockWriter {
 public:
  BlockWriter(TaskPool& pool, Block& block, int32_t count);
  ~BlockWriter();  // gives the slots back unless all was written

  struct Added {
    Slot slot;
    int64_t time;  // with nothing in its way
  };
  // The task's holds are those that stand in block.holds since the last call.
  Added add(uint64_t key, int64_t latency, int32_t tail);
  // Holds lie still only now.
  void finish();

 private:
  TaskPool& pool_;
  Block& block_;
  std::vector<std::size_t> begins_;
  bool finished_ = false;
};

}  // namespace soapstone
