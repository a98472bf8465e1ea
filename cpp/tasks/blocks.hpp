// What the blocks of every kind of work have in common: how they follow a change.
#pragma once

#include <vector>

#include "tasks/changes.hpp"
#include "tasks/tasks.hpp"

namespace soapstone {

class Listing;

constexpr int64_t uncounted = -1;  // of an edge's least time: some part at its end has nothing to do with it

// All blocks of one kind: the ops' own tasks, transfers, gradient sums, gathers, updates. While a change is open, the
// blocks that it replaced are kept beside the new ones. A further kind is a class like this and a member of TaskGraph;
// docs/how-to-add.md has the steps, and what engines take for granted.
class Blocks {
 public:
  virtual ~Blocks() = default;

  // Make the blocks that the change reaches, as far as bounds ask for them, and count what they hold.
  virtual void make(const ChangeSet& changes) = 0;
  // Make tasks of them, and the edges from these; say which slots came, went or have other successors, and mark the ops
  // whose tasks do.
  virtual void join(ChangeSet& changes) = 0;
  // End the change: without what was replaced, or with it in place again. Totals are not this kind's to restore.
  virtual void commit() = 0;
  virtual void rollback(const ChangeSet& changes) = 0;

  // Edges from an op's tasks to those of this kind.
  virtual void add_edges(OpIndex op, std::vector<Edge>& edges) const = 0;
  // The slots of all tasks.
  virtual void add_slots(std::vector<SlotRun>& runs) const = 0;
  // A row for each task.
  virtual void list(Listing& listing) const = 0;
};

}  // namespace soapstone
