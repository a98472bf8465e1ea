// Tasks that are ready, by (ready, key). Time is cut into more days than there are tasks; a day's tasks are put in
// order when it comes, so that most cost no comparison at all. A day's tasks are linked through their own states.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "tasks/tasks.hpp"

namespace soapstone {

struct Ready {
  int64_t ready;
  uint64_t key;
  Slot slot;
  bool operator<(const Ready& other) const { return ready != other.ready ? ready < other.ready : key < other.key; }
};

class Calendar {
 public:
  explicit Calendar(TaskPool& pool) : pool_(pool) {}

  // Nothing comes before `start`; most comes before `end`. What comes later waits on the last day, for a new calendar.
  void reset(int64_t start, int64_t end, size_t num_tasks) {
    const size_t days = std::clamp<size_t>(4 * std::bit_ceil(num_tasks), 64, 1 << 20);
    last_ = static_cast<int64_t>(days) - 1;
    some_.resize(days / 64);
    first_.resize(days);
    open(start, end);
  }

  // At the time that stands in its state.
  void push(Slot slot) {
    auto& state = pool_.states[slot];
    const int64_t day = std::min((state.ready - start_) >> shift_, last_);
    if (day == today_) return insert(look(slot));
    uint64_t& word = some_[day >> 6];
    const uint64_t bit = uint64_t{1} << (day & 63);
    state.link = word & bit ? first_[day] : none;
    word |= bit;
    first_[day] = slot;
  }

  // False where none is left.
  bool pop(Ready& task) {
    if (at_ == now_.size()) {
      if (!turn()) return false;
      if (today_ == last_) return renew() && pop(task);
      const Slot slot = first_[today_];
      if (pool_.states[slot].link == none) {  // alone today
        task = look(slot);
        return true;
      }
      gather(slot);
    }
    task = now_[at_++];
    return true;
  }

 private:
  void open(int64_t start, int64_t end) {
    start_ = start;
    span_ = std::max<int64_t>(end - start, last_);
    shift_ = std::bit_width(static_cast<uint64_t>(span_ / last_));
    today_ = -1;
    at_ = 0;
    now_.clear();
    std::fill(some_.begin(), some_.end(), 0);
  }

  // A calendar of twice the time, from the first of those that waited for it.
  bool renew() {
    std::vector<Slot> slots;
    for (Slot slot = first_[today_]; slot != none; slot = pool_.states[slot].link) slots.push_back(slot);
    int64_t start = INT64_MAX;
    for (const Slot slot : slots) start = std::min(start, pool_.states[slot].ready);
    open(start, start + 2 * span_);
    for (size_t i = slots.size(); i-- > 0;) push(slots[i]);
    return true;
  }

  Ready look(Slot slot) const { return {pool_.states[slot].ready, pool_.tasks[slot].key, slot}; }

  void insert(const Ready& task) {
    now_.push_back(task);
    for (size_t i = now_.size() - 1; i > at_ && now_[i] < now_[i - 1]; --i) std::swap(now_[i], now_[i - 1]);
  }

  // To the next day that has tasks.
  bool turn() {
    const int64_t from = today_ + 1;
    now_.clear();
    at_ = 0;
    if (from > last_) return false;
    size_t word = from >> 6;
    uint64_t bits = some_[word] & (~uint64_t{0} << (from & 63));
    while (bits == 0) {
      if (++word == some_.size()) return false;
      bits = some_[word];
    }
    today_ = static_cast<int64_t>(word << 6) + std::countr_zero(bits);
    return true;
  }

  void gather(Slot slot) {
    for (; slot != none; slot = pool_.states[slot].link) now_.push_back(look(slot));
    std::reverse(now_.begin(), now_.end());  // the last to come stands first
    if (!std::is_sorted(now_.begin(), now_.end())) std::sort(now_.begin(), now_.end());
  }

  TaskPool& pool_;
  int64_t start_ = 0, span_ = 0, last_ = 0, today_ = -1;
  int shift_ = 0;
  size_t at_ = 0;
  std::vector<Ready> now_;      // today's, in order
  std::vector<uint64_t> some_;  // a bit a day: has it any tasks?
  std::vector<Slot> first_;     // by day
};

}  // namespace soapstone
