#include "engines/accepted.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace soapstone {

Position Accepted::position_at(int64_t time) const {
  const auto at = std::lower_bound(order_.begin(), order_.end(), time,
                                   [&](Slot slot, int64_t other) { return ready_[slot] < other; });
  return Position(at - order_.begin());
}

const Checkpoint* Accepted::checkpoint_at(Position position) const {
  const auto after = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), position,
                                      [](Position at, const Checkpoint& point) { return at < point.position; });
  return after == checkpoints_.begin() ? nullptr : &*(after - 1);
}

void Accepted::progress_at(Position position, By<Resource, Progress>& progress) const {
  const Checkpoint* point = checkpoint_at(position);
  if (point)
    progress = point->progress;
  else
    progress = at_start(graph_.machine.topology);
  for (const Position i : range(point ? point->position : Position(0), position)) {
    const Slot slot = order_[i];
    serve(graph_.pool.tasks[slot], ready_[slot], progress, [](const Hold&, int64_t) {});
  }
}

std::vector<std::pair<Position, Position>> Accepted::widen_reach(Position end) {
  std::vector<std::pair<Position, Position>> before;
  for (const auto& run : graph_.changes().rewired)
    for (const Slot slot : run.slots())
      if (has(slot) && position_[slot] < end)
        before.emplace_back(position_[slot], std::exchange(reach_[position_[slot]], forever));
  return before;
}

void Accepted::restore_reach(const std::vector<std::pair<Position, Position>>& before) {
  for (const auto& [position, reach] : before) reach_[position] = reach;
}

void Accepted::resize(size_t num_slots) {
  position_.resize(num_slots, none);
  ready_.resize(num_slots);
  end_.resize(num_slots);
  slot_lead_.resize(num_slots, never_launched);
}

void Accepted::commit(Position cut, Stretch& played, const By<Slot, Served>& served, const By<Slot, int64_t>& leads) {
  for (const auto& run : graph_.changes().gone)
    for (const Slot slot : run.slots()) position_[slot] = none;
  order_.resize(cut.value);
  order_.insert(order_.end(), played.order.begin(), played.order.end());
  latest_.resize(order_.size());
  widen_reach(cut);
  for (const Position i : range(cut, past())) {
    const Slot slot = order_[i];
    position_[slot] = i;
    ready_[slot] = served[slot].ready;
    end_[slot] = served[slot].end;
    slot_lead_[slot] = graph_.pool.tasks[slot].launches ? leads[slot] : never_launched;
    latest_[i] = std::max(latest_before(i), served[slot].end);
  }
  while (!checkpoints_.empty() && checkpoints_.back().position >= cut) checkpoints_.pop_back();
  for (auto& point : played.checkpoints) {
    point.position += cut.value;
    checkpoints_.push_back(std::move(point));
  }
  makespan_ = played.latest;
  find_leads();
  find_reach(cut);
  find_reaching();
  find_loss();
}

void Accepted::find_leads() {
  lead_.resize(order_.size() + 1);
  lead_[past()] = never_launched;
  for (Position i = past(); i-- > Position(0);) lead_[i] = std::min(lead_[i + 1], slot_lead_[order_[i]]);
}

void Accepted::find_reach(Position cut) {
  reach_.resize(order_.size(), forever);
  for (const Position i : order_.indices()) {
    if (i < cut && reach_[i] < cut) continue;
    Position last = none;
    const Task& task = graph_.pool.tasks[order_[i]];
    for (int32_t k = 0; k < task.num_next; ++k) last = std::max(last, position_[task.next[k]]);
    reach_[i] = last;
  }
}

void Accepted::find_reaching() {
  std::vector<Position> open;
  By<Device, Sums> updates(graph_.machine.topology.num_devices());
  Position from;
  for (auto& point : checkpoints_) {
    std::erase_if(open, [&](Position position) { return reach_[position] < point.position; });
    for (; from < point.position; ++from) {
      if (reach_[from] < point.position) continue;
      const Task& task = graph_.pool.tasks[order_[from]];
      if (phase_of(task.key) != sync_phase)
        open.push_back(from);
      else if (point.updates.empty())
        for (const Slot update : std::span(task.next, task.num_next)) {
          auto& [count, ready] = updates[graph_.updates.device_of(update)];
          ++count;
          ready = std::max(ready, end_[order_[from]]);
        }
    }
    point.reaching = open;
    if (point.updates.empty())
      point.updates = updates;
    else  // it stands before the cut, where all is as it was
      updates = point.updates;
  }
}

void Accepted::find_loss() {
  loss_ = none;
  if (!graph_.loss.separates()) return;
  const Position position = position_[graph_.loss.task()];
  const int64_t end = end_[order_[position]];
  const bool parts = position + 1 < past() && latest_[position] == end && ready_[order_[position + 1]] >= end;
  if (parts) loss_ = position;
}

}  // namespace soapstone
