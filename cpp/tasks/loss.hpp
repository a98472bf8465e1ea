// What rests on a training iteration having one loss, with all of forward before it and all of backward after it.
#pragma once

#include <cstdint>

#include "support/index.hpp"

namespace soapstone {

class TaskGraph;

// Where it separates the two, what resources serve before and after it adds up, so bounds are tighter and an engine may
// resume on either side. Nothing needs it to: without, engines take a step as a whole.
class Loss {
 public:
  // `may_separate` is off where engines shall do without.
  Loss(TaskGraph& graph, bool may_separate);

  OpIndex op() const { return op_; }             // that ends forward, none where there are several
  Slot task() const;                             // that does; what finishes a combined loss begins backward
  bool separates() const { return separates_; }  // surely

  void begin_change() { separated_ = separates_; }
  void look_ahead();  // before it is known what moves between ops
  void look();        // once it is
  void rollback() { separates_ = separated_; }

 private:
  bool may_separate() const;
  bool surely_separates();
  bool separates_now() const;
  bool leads_on(OpIndex op) const;
  bool is_wanted(int32_t tensor, bool back);

  TaskGraph& graph_;
  bool may_separate_;
  OpIndex op_ = none;
  bool separates_ = false, separated_ = false;  // now, and before the change
};

}  // namespace soapstone
