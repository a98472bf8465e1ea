// Algorithm 2 of the paper (section "Delta Simulation Algorithm"), each task at most once.
//
// The sweep goes over the old order and merges in, from a heap, tasks that are ready at another time than before. An
// old task whose predecessors end as they did is served where it stood; it tells its successors only where its end
// changes. One whose predecessors end later than it stood is *open*: its successors may not be served until it is.
// A task is offered to the heap at a time that is no later than its true one and looked at again when that time comes,
// so that many notices of one task cost little.
#include <algorithm>
#include <cassert>
#include <utility>

#include "engines/engine.hpp"

namespace soapstone {

namespace {

bool later(const Ready& a, const Ready& b) { return b < a; }

}  // namespace

void Engine::invert() {
  before_begin_.assign(graph_.pool.tasks.size() + 2, 0);
  const auto each_edge = [&](auto visit) {
    for (const int32_t from : order_) {
      const Task& task = graph_.pool.tasks[from];
      for (int32_t i = 0; i < task.num_next; ++i) visit(from, task.next[i]);
    }
  };
  each_edge([&](int32_t, int32_t to) { ++before_begin_[to + 2]; });
  for (size_t i = 2; i < before_begin_.size(); ++i) before_begin_[i] += before_begin_[i - 1];
  before_.resize(before_begin_.back());
  each_edge([&](int32_t from, int32_t to) { before_[before_begin_[to + 1]++] = from; });
  inverted_ = true;
}

// The count of plays has come round, and old marks would look like new ones.
void Engine::forget_plays() {
  sweep_.clear();
  edited_.clear();
  added_at_.clear();
  play_ = 1;
}

Engine::Sweep& Engine::swept(int32_t slot) {
  Sweep& sweep = sweep_[slot];
  if (sweep.play != play_) sweep = Sweep{.play = play_};
  return sweep;
}

int64_t Engine::pull(int32_t slot) const {
  int64_t ready = 0;
  const auto see = [&](int32_t from) {
    const bool anew = sweep_[from].play == play_ && sweep_[from].served;
    ready = std::max(ready, anew ? served_[from].end : old_end_[from]);
  };
  if (is_old(slot))
    for (int32_t i = before_begin_[slot]; i < before_begin_[slot + 1]; ++i)
      if (edited_[before_[i]] != play_) see(before_[i]);
  if (const auto& [at, play] = added_at_[slot]; play == play_)
    for (size_t i = at; i < added_.size() && added_[i].to == slot; ++i) see(added_[i].from);
  return ready;
}

// It is looked at no later than at `ready`.
void Engine::offer(int32_t slot, int64_t ready) {
  Sweep& sweep = swept(slot);
  if (ready >= sweep.offered) return;
  sweep.offered = ready;
  offers_.push_back({ready, graph_.pool.tasks[slot].key, slot});
  std::push_heap(offers_.begin(), offers_.end(), later);
}

void Engine::set_open(int32_t slot) {
  swept(slot).open = true;
  const Task& task = graph_.pool.tasks[slot];
  for (int32_t i = 0; i < task.num_next; ++i) {
    Sweep& next = swept(task.next[i]);
    ++next.unresolved;
    next.dirty = true;
  }
}

// Which tasks have other successors than in what was adopted.
void Engine::mark_edited() {
  const auto edit = [&](const std::pair<int32_t, int32_t>& run) {
    for (int32_t slot = run.first; slot < run.first + run.second; ++slot) edited_[slot] = play_;
  };
  for (const auto& run : graph_.gone()) edit(run);
  for (const auto& run : graph_.fresh()) edit(run);
  for (const auto& run : graph_.rewired()) edit(run);
}

// The edges of such tasks now, by target.
void Engine::collect_added() {
  const auto add = [&](int32_t begin, int32_t count) {
    for (int32_t slot = begin; slot < begin + count; ++slot) {
      const Task& task = graph_.pool.tasks[slot];
      for (int32_t i = 0; i < task.num_next; ++i) added_.push_back({slot, task.next[i]});
    }
  };
  added_.clear();
  for (const auto& [begin, count] : graph_.rewired()) add(begin, count);
  for (const auto& [begin, count] : graph_.fresh()) add(begin, count);
  std::sort(added_.begin(), added_.end(), [](const Edge& a, const Edge& b) { return a.to < b.to; });
  for (size_t i = 0; i < added_.size(); ++i)
    if (i == 0 || added_[i - 1].to != added_[i].to) added_at_[added_[i].to] = {static_cast<int32_t>(i), play_};
}

// New tasks are open from the start, and whatever lost or gained a predecessor is looked at. An edge that only an
// unchanged op lost is one that follows from others, so losing it moves nothing.
void Engine::open_fresh() {
  std::vector<int32_t> touched;
  for (const auto& [begin, count] : graph_.gone())
    for (int32_t slot = begin; slot < begin + count; ++slot) {
      const Task& task = graph_.pool.tasks[slot];
      touched.insert(touched.end(), task.next, task.next + task.num_next);
      swept(slot).served = true;  // never again
    }
  for (const auto& edge : added_) touched.push_back(edge.to);
  if (graph_.exit() >= 0) touched.push_back(graph_.loss());  // it waits for copies until somebody reads them
  for (const auto& [begin, count] : graph_.fresh())
    for (int32_t slot = begin; slot < begin + count; ++slot) {
      set_open(slot);
      touched.push_back(slot);
    }
  for (const int32_t slot : touched) {
    Sweep& sweep = swept(slot);
    if (sweep.served || (is_old(slot) && position_[slot] < cut_)) continue;
    sweep.dirty = sweep.loose = true;
    if (sweep.unresolved == 0 && sweep.offered == never) offer(slot, pull(slot));
  }
}

// Tells successors that a task's end is known, or another than it was.
void Engine::tell(int32_t slot, bool was_open, int64_t end) {
  const bool old = is_old(slot);
  if (!was_open && old && end == old_end_[slot]) return;
  const Task& task = graph_.pool.tasks[slot];
  for (int32_t i = 0; i < task.num_next; ++i) {
    const int32_t next = task.next[i];
    Sweep& sweep = swept(next);
    sweep.dirty = true;
    if (was_open) --sweep.unresolved;
    if (sweep.served) continue;
    sweep.known = std::max(sweep.known, end);
    if (old && end < old_end_[slot] && old_end_[slot] == old_ready_[next]) sweep.loose = true;
    if (sweep.unresolved > 0) continue;
    if (sweep.open || (sweep.loose && end < old_ready_[next])) offer(next, end);
  }
}

bool Engine::serve_anew(int32_t slot, int64_t ready, int64_t limit, const Bounds& bounds) {
  if (!serve(forward_, slot, ready, limit, bounds)) return false;
  Sweep& sweep = swept(slot);
  const int64_t end = served_[slot].end;
  sweep.served = true;
  num_served_ += !is_old(slot) || end != old_end_[slot];
  tell(slot, sweep.open, end);
  return true;
}

// A task whose offered time has come. False where the limit is passed.
bool Engine::take_offer(int64_t limit, const Bounds& bounds) {
  std::pop_heap(offers_.begin(), offers_.end(), later);
  const auto [offered, key, slot] = offers_.back();
  offers_.pop_back();
  Sweep& sweep = swept(slot);
  if (sweep.served || offered != sweep.offered) return true;
  sweep.offered = never;
  if (sweep.unresolved > 0) return true;
  const int64_t ready = sweep.known > offered ? sweep.known : pull(slot);
  assert(ready >= offered);
  if (ready == offered) return serve_anew(slot, ready, limit, bounds);
  if (sweep.open || ready < old_ready_[slot]) offer(slot, ready);
  return true;
}

// An old task at the time at which it stood. False where the limit is passed.
bool Engine::take_old(int32_t slot, int64_t limit, const Bounds& bounds) {
  Sweep& sweep = swept(slot);
  const bool known = sweep.unresolved == 0;
  const int64_t ready = sweep.dirty && known ? pull(slot) : old_ready_[slot];
  assert(ready >= old_ready_[slot]);
  if (known && ready == old_ready_[slot]) return serve_anew(slot, ready, limit, bounds);
  set_open(slot);
  if (known) offer(slot, ready);
  return true;
}

bool Engine::sweep(int64_t limit, const Bounds& bounds) {
  sweep_.resize(served_.size());
  edited_.resize(served_.size());
  added_at_.resize(served_.size());
  offers_.clear();
  mark_edited();
  collect_added();
  open_fresh();
  auto at = static_cast<size_t>(cut_);
  while (true) {
    while (at < order_.size() && sweep_[order_[at]].play == play_ &&
           (sweep_[order_[at]].served || sweep_[order_[at]].open))
      ++at;
    if (at == order_.size() && offers_.empty()) return forward_.latest <= limit;
    const bool old = offers_.empty() || (at < order_.size() && old_look(order_[at]) < offers_.front());
    if (forward_.order.size() >= forward_.next_note)
      note_now(forward_, old ? old_ready_[order_[at]] : offers_.front().ready);
    if (!(old ? take_old(order_[at++], limit, bounds) : take_offer(limit, bounds))) return false;
  }
}

}  // namespace soapstone
