#include "engines/resume.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace soapstone {

namespace {

constexpr int64_t tasks_a_turn = 256;  // that one half serves before the other is looked at
constexpr double backward_weight = 8;  // gradients queue up for their sums: backward shows sooner what a change costs

// What a half's bound can be expected to rise for each task that it still has to serve: it took so long before.
double gain(const Stretch& half, int64_t took, double num_tasks) {
  const auto left = std::max(num_tasks - static_cast<double>(half.order.size()), 1.0);
  return static_cast<double>(std::max<int64_t>(took - half.least, 1)) / left;
}

}  // namespace

Resume::Resume(Play& play, Accepted& accepted, Touch& touch)
    : play_(play),
      accepted_(accepted),
      touch_(touch),
      graph_(play.graph),
      rejoin_(play, accepted),
      backward_(play.graph.pool) {}

Resume::Outcome Resume::run(int64_t limit, const Bounds& bounds) {
  play_.reset();
  change_ = touch_.waits_for_nothing() ? 0 : touch_.first_change(none);
  play_.cut = accepted_.position_at(change_);
  if (play_.cut == accepted_.past()) play_.cut = {};
  if (play_.cut == Position(0)) change_ = 0;
  const bool halves = play_.cut <= accepted_.loss() && touch_.has_halves();
  if (halves) {
    const auto [outcome, apart] = run_halves(limit, bounds);
    play_.restore();
    if (apart) return outcome;
  }
  const Outcome outcome = run_whole(limit, bounds);
  play_.restore();
  return outcome;
}

Resume::Outcome Resume::run_whole(int64_t limit, const Bounds& bounds) {
  Stretch& all = play_.main;
  all.whole = graph_.totals.work;
  play_.start(all, Half::both, play_.cut, accepted_.past());
  all.calendar.reset(change_, std::max(accepted_.makespan(), bounds.bound()), play_.served.size());
  look_ = {};
  if (!seed(change_)) return Outcome::starts_earlier;
  if (!serve(all, look_, INT64_MAX, limit, bounds)) return Outcome::passes_limit;
  rejoin_.append_rest(all, look_);
  return Outcome::done;
}

// Backward is played as if the loss ended when it did.
Resume::Halves Resume::run_halves(int64_t limit, const Bounds& bounds) {
  Stretch& forward = play_.main;
  forward.whole.resize(graph_.totals.before.size());
  for (const Resource i : forward.whole.indices()) forward.whole[i] = graph_.totals.before[i] + bounds.after_loss();
  play_.start(forward, Half::before_loss, play_.cut, accepted_.loss() + 1);
  forward.calendar.reset(change_, std::max(accepted_.makespan(), bounds.bound()), play_.served.size());
  look_ = {};
  if (!seed(change_)) return {Outcome::starts_earlier};
  const int64_t change = std::min(touch_.first_change(accepted_.loss()), accepted_.makespan());
  const Position to = std::max(accepted_.position_at(change), accepted_.loss() + 1);
  if (!start_backward(to, change)) return {Outcome::starts_earlier};
  if (!serve_in_turns(to, limit, bounds)) return {Outcome::passes_limit, backward_.lead >= 0};
  if (!hosts_are_ahead()) return {Outcome::done, false};
  rejoin_.append_rest(forward, look_);
  rejoin_.append_rest(backward_, backward_look_);
  append_backward(to);
  return {Outcome::done};
}

// Each half is held against what the other takes at least.
bool Resume::serve_in_turns(Position to, int64_t limit, const Bounds& bounds) {
  Stretch& forward = play_.main;
  limit = std::min(limit, INT64_MAX / 2);                           // so that nothing overflows
  const int64_t both = accepted_.loss_end() + bounds.after_loss();  // forward counts the one, backward the other
  forward.stop = accepted_.slot(accepted_.loss());
  forward.least = std::max(forward.least, bounds.before_loss() + bounds.after_loss());
  backward_.least = std::max(backward_.least, both);
  const double num_forward = accepted_.loss() + 1 - play_.cut, num_backward = accepted_.past() - to;
  while (!forward.done || !backward_.done) {
    const double of_forward = forward.done ? 0 : gain(forward, both, num_forward);
    const double of_backward =
        backward_.done ? 0 : backward_weight * gain(backward_, accepted_.makespan(), num_backward);
    const bool back = of_backward >= of_forward;
    Stretch& half = back ? backward_ : forward;
    const Stretch& other = back ? forward : backward_;
    const int64_t count = other.done ? INT64_MAX : tasks_a_turn;
    if (!serve(half, back ? backward_look_ : look_, count, limit + both - other.least, bounds)) return false;
  }
  return true;
}

bool Resume::serve(Stretch& stretch, Rejoin::Look& look, int64_t count, int64_t limit, const Bounds& bounds) {
  return play_.serve_some(stretch, count, limit, bounds, [&](const Ready& next) {
    return stretch.order.size() >= look.next && rejoin_.rejoins(stretch, look, next, bounds);
  });
}

// From a position of the accepted order on, all from the loss to there as it was. False where something is ready
// earlier.
bool Resume::start_backward(Position to, int64_t change) {
  const auto& before = graph_.totals_before().before;
  backward_.whole.resize(before.size());
  for (const Resource i : before.indices()) backward_.whole[i] = graph_.totals.after[i] + before[i];
  play_.start(backward_, Half::after_loss, to, accepted_.past());
  backward_.whole = graph_.totals.work;
  backward_.calendar.reset(change, accepted_.makespan(), play_.served.size());
  backward_look_ = {};
  return give_from(backward_, accepted_.loss(), to, change);
}

// Whether backward, which was played as if forward had taken as long as it did, is the same where it begins now.
bool Resume::hosts_are_ahead() {
  const Stretch& forward = play_.main;
  const Position loss = accepted_.loss();
  const bool rejoined = look_.rest.position != none;
  shift_ = rejoined ? look_.rest.shift : play_.served[accepted_.slot(loss)].end - accepted_.loss_end();
  accepted_.progress_at(rejoined ? look_.rest.position : loss + 1, progress_);
  launched_ = {};
  launched_by_.resize(progress_.size());
  for (const Resource i : progress_.indices()) {
    launched_by_[i] = forward.resources[i].launched - progress_[i].launched;
    launched_.see(launched_by_[i], graph_.machine.topology.is_device(i));
  }
  return launched_.allows(shift_, std::min(backward_.lead, accepted_.lead(loss + 1)));
}

// Backward comes after forward, and between them what was skipped.
void Resume::append_backward(Position to) {
  Stretch& forward = play_.main;
  const Position loss = accepted_.loss();
  const Position begin(forward.order.size());
  const int32_t num_skipped = to - loss - 1;
  const auto later = [&](Checkpoint& point, int32_t by) -> Checkpoint& {
    point.position += by;
    for (const Resource i : point.progress.indices()) {
      point.progress[i].free += shift_;
      point.progress[i].launched += launched_by_[i];
    }
    return point;
  };
  for (const auto& point : accepted_.checkpoints()) {
    if (point.position <= loss || point.position >= to) continue;
    Checkpoint copy{point.position, point.progress, {}, {}};
    for (const Resource i : copy.progress.indices())
      copy.progress[i].served += graph_.totals.before[i] - graph_.totals_before().before[i];
    forward.checkpoints.push_back(std::move(later(copy, begin - loss - 1)));
  }
  for (auto& point : backward_.checkpoints)
    forward.checkpoints.push_back(std::move(later(point, begin.value + num_skipped)));
  const auto add = [&](Slot slot, int64_t ready, int64_t end, int64_t lead) {
    forward.order.push_back(slot);
    play_.served[slot] = {ready + shift_, end + shift_};
    play_.leads[slot] = led(lead, shift_ - launched_.most);
  };
  for (const Position i : range(loss + 1, to)) {
    const Slot slot = accepted_.slot(i);
    add(slot, accepted_.ready(slot), accepted_.end(slot), accepted_.lead_of(slot));
  }
  for (const Slot slot : backward_.order)
    add(slot, play_.served[slot].ready, play_.served[slot].end, play_.leads[slot]);
  forward.latest = backward_.latest + shift_;
}

// What waits at the cut: all that is ready at the start, or for all of whose predecessors the times are known.
bool Resume::seed(int64_t change) {
  if (play_.cut > Position(0)) return give_from(play_.main, Position(0), play_.cut, change);
  play_.seed_all(play_.main);
  return true;
}

// What the tasks at some positions of the accepted order give to those that come after. False where something is ready
// before the change: it lost one that it waited for.
bool Resume::give_from(Stretch& stretch, Position begin, Position end, int64_t change) {
  const auto widened = accepted_.widen_reach(end);
  const Checkpoint* point = accepted_.checkpoint_at(end);
  const Position from = std::max(begin, point ? point->position : Position(0));
  bool in_time = true;
  const auto give_of = [&](Position i) {
    const Task& task = graph_.pool.tasks[accepted_.slot(i)];
    const int64_t ended = accepted_.end(accepted_.slot(i));
    for (const Slot next : std::span(task.next, task.num_next)) {
      if (accepted_.has(next) && accepted_.position(next) < end) continue;
      const auto& state = graph_.pool.states[next];
      in_time = in_time && (state.waiting > 1 || std::max(state.ready, ended) >= change);
      if (!in_time) return;
      if (!graph_.updates.has(next)) stretch.given = std::max(stretch.given, ended);
      play_.give(stretch, &next, 1, ended);
    }
  };
  for (const auto& [position, reach] : widened)
    if (position >= begin && position < from && reach < from) give_of(position);
  if (point) {
    for (const Position position : point->reaching)
      if (position >= begin && accepted_.reach(position) >= end) give_of(position);
    in_time = in_time && give_updates(stretch, point->updates, end, change);
  }
  for (const Position i : range(from, end))
    if (accepted_.reach(i) >= end) give_of(i);
  accepted_.restore_reach(widened);
  return in_time;
}

bool Resume::give_updates(Stretch& stretch, const By<Device, Sums>& updates, Position end, int64_t change) {
  for (const Device device : updates.indices()) {
    const auto [count, ready] = updates[device];
    const Slot slot = graph_.updates.slot_of(device);
    if (count == 0 || accepted_.position(slot) < end) continue;
    auto& state = graph_.pool.states[slot];
    if (state.waiting == count && std::max(state.ready, ready) < change) return false;
    state.waiting -= count - 1;
    play_.give(stretch, &slot, 1, ready);
  }
  return true;
}

}  // namespace soapstone
