// Who waits for the ops' own tasks, gathered op by op from the edges that all kinds of blocks have.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "support/spares.hpp"
#include "tasks/changes.hpp"
#include "tasks/tasks.hpp"

namespace soapstone {

class TaskGraph;

// By op. Tasks point into these lists.
class Successors {
 public:
  explicit Successors(TaskGraph& graph);

  // An op's tasks have others than before.
  void mark(OpIndex op);
  // Gather those of the marked ops anew.
  void join(ChangeSet& changes);
  void commit();
  void rollback();

 private:
  struct List {
    std::vector<Slot> slots;   // of all of the op's tasks,
    std::vector<int32_t> end;  // and where each task's end

    void clear() {}  // all is assigned anew
    bool is_large() const { return slots.capacity() > 4096; }
  };

  std::unique_ptr<List> gathered(OpIndex op);
  void point(OpIndex op);

  TaskGraph& graph_;
  By<OpIndex, std::unique_ptr<List>> lists_;
  std::vector<std::pair<OpIndex, std::unique_ptr<List>>> replaced_;
  std::vector<OpIndex> marked_;
  By<OpIndex, bool> is_marked_;
  std::vector<Edge> edges_;  // gathered's own
  Spares<List> spare_;
};

}  // namespace soapstone
