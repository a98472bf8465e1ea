#include "engines/delta.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace soapstone {

namespace {

bool later(const Ready& a, const Ready& b) { return b < a; }

}  // namespace

void Delta::prepare() {
  if (prepared_) return;
  before_begin_.assign(graph_.pool.tasks.size() + 2, 0);
  const auto each_edge = [&](auto visit) {
    for (const Slot from : accepted_.order()) {
      const Task& task = graph_.pool.tasks[from];
      for (int32_t i = 0; i < task.num_next; ++i) visit(from, task.next[i]);
    }
  };
  each_edge([&](Slot, Slot to) { ++before_begin_[to + 2]; });
  std::partial_sum(before_begin_.begin(), before_begin_.end(), before_begin_.begin());
  before_.resize(before_begin_.back());
  each_edge([&](Slot from, Slot to) { before_[before_begin_[to + 1]++] = from; });
  prepared_ = true;
}

// Before the count of runs comes round, old marks are cleared: they would look like new ones.
void Delta::begin_run() {
  if (++run_ == 0) {
    sweep_.clear();
    edited_.clear();
    added_at_.clear();
    run_ = 1;
  }
  const size_t num_slots = graph_.pool.tasks.size();
  sweep_.resize(num_slots);
  edited_.resize(num_slots);
  added_at_.resize(num_slots);
  offers_.clear();
}

// Before this not even the end of a task that now has other successors. What the change touches in backward comes
// after all of forward.
int64_t Delta::first_touch() const {
  const auto& order = accepted_.order();
  const auto back = std::find_if(order.begin(), order.end(),
                                 [&](Slot slot) { return phase_of(graph_.pool.tasks[slot].key) != forward_phase; });
  int64_t first = back == order.end() ? INT64_MAX : accepted_.ready(*back);
  for (const auto& run : graph_.changes().gone)
    for (const Slot slot : run.slots()) first = std::min(first, accepted_.ready(slot));
  for (const auto& run : graph_.changes().fresh)
    for (const Slot slot : run.slots())
      if (graph_.pool.waiting[slot] == 0) return 0;
  for (const int32_t tensor : graph_.changes().tensors) {
    const OpIndex op = graph_.graph.tensors[tensor].producer;
    if (!graph_.is_changing(op)) first = std::min(first, touch_.first_arrival(op));
  }
  graph_.gathers.each_changing(graph_.changes(), [&](const GatherBlock& block) {
    for (const Gate& gate : block.gates)
      if (!graph_.is_changing(gate.op)) first = std::min(first, touch_.first_forward(gate.op));
  });
  return first;
}

bool Delta::run(int64_t limit, const Bounds& bounds) {
  play_.reset();
  play_.cut = accepted_.position_at(touch_.waits_for_nothing() ? 0 : first_touch());
  if (play_.cut == accepted_.past()) play_.cut = {};
  play_.main.whole = graph_.totals.work;
  play_.start(play_.main, Half::both, play_.cut, accepted_.past());
  return sweep(limit, bounds);
}

Delta::Sweep& Delta::swept(Slot slot) {
  Sweep& sweep = sweep_[slot];
  if (sweep.run != run_) sweep = Sweep{.run = run_};
  return sweep;
}

int64_t Delta::latest_predecessor(Slot slot) const {
  int64_t ready = 0;
  const auto see = [&](Slot from) {
    const bool anew = sweep_[from].run == run_ && sweep_[from].served;
    ready = std::max(ready, anew ? play_.served[from].end : accepted_.end(from));
  };
  if (accepted_.has(slot))
    for (int32_t i = before_begin_[slot]; i < before_begin_[slot + 1]; ++i)
      if (edited_[before_[i]] != run_) see(before_[i]);
  if (const auto& [at, run] = added_at_[slot]; run == run_)
    for (size_t i = at; i < added_.size() && added_[i].to == slot; ++i) see(added_[i].from);
  return ready;
}

// It is looked at no later than at `ready`.
void Delta::offer(Slot slot, int64_t ready) {
  Sweep& sweep = swept(slot);
  if (ready >= sweep.offered) return;
  sweep.offered = ready;
  offers_.push_back({ready, graph_.pool.tasks[slot].key, slot});
  std::push_heap(offers_.begin(), offers_.end(), later);
}

void Delta::set_open(Slot slot) {
  swept(slot).open = true;
  const Task& task = graph_.pool.tasks[slot];
  for (int32_t i = 0; i < task.num_next; ++i) {
    Sweep& next = swept(task.next[i]);
    ++next.unresolved;
    next.dirty = true;
  }
}

// Which tasks have other successors than in what was adopted.
void Delta::mark_edited() {
  const auto edit = [&](const SlotRun& run) {
    for (const Slot slot : run.slots()) edited_[slot] = run_;
  };
  for (const auto& run : graph_.changes().gone) edit(run);
  for (const auto& run : graph_.changes().fresh) edit(run);
  for (const auto& run : graph_.changes().rewired) edit(run);
}

// The edges of such tasks now, by target.
void Delta::collect_added() {
  const auto add = [&](const SlotRun& run) {
    for (const Slot slot : run.slots()) {
      const Task& task = graph_.pool.tasks[slot];
      for (int32_t i = 0; i < task.num_next; ++i) added_.push_back({slot, task.next[i]});
    }
  };
  added_.clear();
  for (const auto& run : graph_.changes().rewired) add(run);
  for (const auto& run : graph_.changes().fresh) add(run);
  std::sort(added_.begin(), added_.end(), [](const Edge& a, const Edge& b) { return a.to < b.to; });
  for (size_t i = 0; i < added_.size(); ++i)
    if (i == 0 || added_[i - 1].to != added_[i].to) added_at_[added_[i].to] = {static_cast<int32_t>(i), run_};
}

// New tasks are open from the start, and whatever lost or gained a predecessor is looked at. An edge that only an
// unchanged op lost is one that follows from others, so losing it moves nothing.
void Delta::open_fresh() {
  std::vector<Slot> touched;
  for (const auto& run : graph_.changes().gone)
    for (const Slot slot : run.slots()) {
      const Task& task = graph_.pool.tasks[slot];
      touched.insert(touched.end(), task.next, task.next + task.num_next);
      swept(slot).served = true;  // never again
    }
  for (const auto& edge : added_) touched.push_back(edge.to);
  if (graph_.loss.op() != none) touched.push_back(graph_.loss.task());  // it waits for copies until somebody reads them
  for (const auto& run : graph_.changes().fresh)
    for (const Slot slot : run.slots()) {
      set_open(slot);
      touched.push_back(slot);
    }
  for (const Slot slot : touched) {
    Sweep& sweep = swept(slot);
    if (sweep.served || (accepted_.has(slot) && accepted_.position(slot) < play_.cut)) continue;
    sweep.dirty = sweep.loose = true;
    if (sweep.unresolved == 0 && sweep.offered == never) offer(slot, latest_predecessor(slot));
  }
}

// Lets successors know that a task's end is known, or another than it was.
void Delta::notify(Slot slot, bool was_open, int64_t end) {
  const bool old = accepted_.has(slot);
  if (!was_open && old && end == accepted_.end(slot)) return;
  const Task& task = graph_.pool.tasks[slot];
  for (int32_t i = 0; i < task.num_next; ++i) {
    const Slot next = task.next[i];
    Sweep& sweep = swept(next);
    sweep.dirty = true;
    if (was_open) --sweep.unresolved;
    if (sweep.served) continue;
    sweep.known = std::max(sweep.known, end);
    if (old && end < accepted_.end(slot) && accepted_.end(slot) == accepted_.ready(next)) sweep.loose = true;
    if (sweep.unresolved > 0) continue;
    if (sweep.open || (sweep.loose && end < accepted_.ready(next))) offer(next, end);
  }
}

bool Delta::serve_anew(Slot slot, int64_t ready, int64_t limit, const Bounds& bounds) {
  if (!play_.serve(play_.main, slot, ready, limit, bounds)) return false;
  Sweep& sweep = swept(slot);
  const int64_t end = play_.served[slot].end;
  sweep.served = true;
  play_.num_served += !accepted_.has(slot) || end != accepted_.end(slot);
  notify(slot, sweep.open, end);
  return true;
}

// A task whose offered time has come. False where the limit is passed.
bool Delta::take_offer(int64_t limit, const Bounds& bounds) {
  std::pop_heap(offers_.begin(), offers_.end(), later);
  const auto [offered, key, slot] = offers_.back();
  offers_.pop_back();
  Sweep& sweep = swept(slot);
  if (sweep.served || offered != sweep.offered) return true;
  sweep.offered = never;
  if (sweep.unresolved > 0) return true;
  const int64_t ready = sweep.known > offered ? sweep.known : latest_predecessor(slot);
  assert(ready >= offered);
  if (ready == offered) return serve_anew(slot, ready, limit, bounds);
  if (sweep.open || ready < accepted_.ready(slot)) offer(slot, ready);
  return true;
}

// An old task at the time at which it stood. False where the limit is passed.
bool Delta::take_old(Slot slot, int64_t limit, const Bounds& bounds) {
  Sweep& sweep = swept(slot);
  const bool known = sweep.unresolved == 0;
  const int64_t ready = sweep.dirty && known ? latest_predecessor(slot) : accepted_.ready(slot);
  assert(ready >= accepted_.ready(slot));
  if (known && ready == accepted_.ready(slot)) return serve_anew(slot, ready, limit, bounds);
  set_open(slot);
  if (known) offer(slot, ready);
  return true;
}

bool Delta::sweep(int64_t limit, const Bounds& bounds) {
  begin_run();
  mark_edited();
  collect_added();
  open_fresh();
  Stretch& all = play_.main;
  Position at = play_.cut;
  const auto is_passed = [&](Slot slot) {
    const Sweep& sweep = sweep_[slot];
    return sweep.run == run_ && (sweep.served || sweep.open);
  };
  while (true) {
    while (at < accepted_.past() && is_passed(accepted_.slot(at))) ++at;
    if (at == accepted_.past() && offers_.empty()) return all.latest <= limit;
    const bool old = offers_.empty() || (at < accepted_.past() && as_accepted(accepted_.slot(at)) < offers_.front());
    if (all.order.size() >= all.next_checkpoint)
      play_.checkpoint(all, old ? accepted_.ready(accepted_.slot(at)) : offers_.front().ready);
    if (!(old ? take_old(accepted_.slot(at++), limit, bounds) : take_offer(limit, bounds))) return false;
  }
}

}  // namespace soapstone
