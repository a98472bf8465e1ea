#include "engines/play.hpp"

#include <algorithm>
#include <utility>

namespace soapstone {

void Play::reset() {
  const size_t num_slots = graph.pool.tasks.size();
  served.resize(num_slots);
  leads.resize(num_slots, never_launched);
  touched_.resize(num_slots + 1);  // one more: a sentinel for the branch-free append
  num_served = 0;
  cut = {};
}

void Play::forget() {
  cut = accepted_.past();
  main.order.clear();
}

void Play::start(Stretch& stretch, Half half, Position begin, Position end) {
  stretch.half = half;
  stretch.begin = begin;
  stretch.end = end;
  stretch.order.clear();
  stretch.checkpoints.clear();
  stretch.latest = accepted_.latest_before(begin);
  accepted_.progress_at(begin, progress_);
  stretch.resources.resize(progress_.size());
  for (const Resource i : progress_.indices())
    stretch.resources[i] = {progress_[i].free, stretch.whole[i] - progress_[i].served, progress_[i].launched};
  stretch.least = std::max(stretch.latest, least_at(stretch, 0));
  stretch.given = 0;
  stretch.lead = never_launched;
  stretch.next_checkpoint = 0;
  stretch.stop = none;
  stretch.done = false;
}

// Of what is left, where nothing is served before `now`.
int64_t Play::least_at(const Stretch& stretch, int64_t now) {
  int64_t least = 0;
  for (const auto& [free, left, launched] : stretch.resources) least = std::max(least, std::max(free, now) + left);
  return least;
}

// As `hold`, for a task that a host launches.
int64_t Play::hold_launched(Stretch& stretch, Slot slot, int64_t ready) {
  const Task& task = graph.pool.tasks[slot];
  const int64_t start = launch(task, ready, stretch.resources);
  int64_t served = start, otherwise = never_launched;
  task.each_hold([&](const Hold& hold) {
    auto& [free, left, launched] = stretch.resources[hold.resource];
    if (!hold.is_busy()) return;
    otherwise = std::min(otherwise, std::max(ready, free));
    free = std::max(start, free) + hold.duration;
    left -= hold.duration;
    served = std::max(served, free);
    stretch.least = std::max(stretch.least, free + left);
  });
  leads[slot] = std::min(otherwise, served) - start;
  stretch.lead = std::min(stretch.lead, leads[slot]);
  return served + task.latency;
}

void Play::checkpoint(Stretch& stretch, int64_t now) {
  stretch.least = std::max(stretch.least, least_at(stretch, now));
  Checkpoint point{Position(stretch.order.size()), {}, {}, {}};
  point.progress.reserve(stretch.whole.size());
  for (const Resource i : stretch.whole.indices()) {
    const auto& [free, left, launched] = stretch.resources[i];
    point.progress.push_back({free, stretch.whole[i] - left, launched});
  }
  add_checkpoint(stretch, std::move(point));
}

void Play::add_checkpoint(Stretch& stretch, Checkpoint point) {
  stretch.checkpoints.push_back(std::move(point));
  stretch.next_checkpoint = stretch.order.size() + std::max<size_t>(128, 2 * stretch.resources.size());
}

void Play::seed_all(Stretch& stretch) {
  for (const auto& run : graph.slots())
    for (const Slot slot : run.slots())
      if (graph.pool.waiting[slot] == 0) stretch.calendar.push(slot);
}

void Play::restore() {
  for (size_t i = 0; i < num_touched_; ++i) graph.pool.states[touched_[i]] = {0, graph.pool.waiting[touched_[i]], {}};
  num_touched_ = 0;
}

}  // namespace soapstone
