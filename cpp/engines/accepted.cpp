#include "engines/accepted.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace soapstone {

int32_t Accepted::position_at(int64_t time) const {
  const auto at = std::lower_bound(order_.begin(), order_.end(), time,
                                   [&](int32_t slot, int64_t other) { return ready_[slot] < other; });
  return static_cast<int32_t>(at - order_.begin());
}

const Checkpoint* Accepted::checkpoint_at(int32_t position) const {
  const auto after = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), position,
                                      [](int32_t at, const Checkpoint& point) { return at < point.position; });
  return after == checkpoints_.begin() ? nullptr : &*(after - 1);
}

void Accepted::progress_at(int32_t position, std::vector<Progress>& progress) const {
  const Checkpoint* point = checkpoint_at(position);
  if (point)
    progress = point->progress;
  else
    progress.assign(graph_.totals.work.size(), {});
  for (int32_t i = point ? point->position : 0; i < position; ++i) {
    const int32_t slot = order_[i];
    graph_.pool.tasks[slot].each_hold([&](const Hold& hold) {
      auto& [free, served] = progress[hold.resource];
      free = std::max(ready_[slot], free) + hold.duration;
      served += hold.duration;
    });
  }
}

std::vector<std::pair<int32_t, int32_t>> Accepted::widen_reach(int32_t end) {
  std::vector<std::pair<int32_t, int32_t>> before;
  for (const auto& run : graph_.changes().rewired)
    for (const int32_t slot : run.slots())
      if (position_[slot] >= 0 && position_[slot] < end)
        before.emplace_back(position_[slot], std::exchange(reach_[position_[slot]], forever));
  return before;
}

void Accepted::restore_reach(const std::vector<std::pair<int32_t, int32_t>>& before) {
  for (const auto& [position, reach] : before) reach_[position] = reach;
}

void Accepted::resize(size_t num_slots) {
  position_.resize(num_slots, -1);
  ready_.resize(num_slots);
  end_.resize(num_slots);
}

void Accepted::commit(int32_t cut, Stretch& played, const std::vector<Served>& served) {
  for (const auto& run : graph_.changes().gone)
    for (const int32_t slot : run.slots()) position_[slot] = -1;
  order_.resize(cut);
  order_.insert(order_.end(), played.order.begin(), played.order.end());
  latest_.resize(order_.size());
  widen_reach(cut);
  for (size_t i = cut; i < order_.size(); ++i) {
    const int32_t slot = order_[i];
    position_[slot] = static_cast<int32_t>(i);
    ready_[slot] = served[slot].ready;
    end_[slot] = served[slot].end;
    latest_[i] = std::max(i == 0 ? 0 : latest_[i - 1], served[slot].end);
  }
  while (!checkpoints_.empty() && checkpoints_.back().position >= cut) checkpoints_.pop_back();
  for (auto& point : played.checkpoints) {
    point.position += cut;
    checkpoints_.push_back(std::move(point));
  }
  makespan_ = played.latest;
  find_reach(cut);
  find_reaching();
  find_loss();
}

void Accepted::find_reach(int32_t cut) {
  reach_.resize(order_.size(), forever);
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i < static_cast<size_t>(cut) && reach_[i] < cut) continue;
    reach_[i] = -1;
    const Task& task = graph_.pool.tasks[order_[i]];
    for (int32_t k = 0; k < task.num_next; ++k) reach_[i] = std::max(reach_[i], position_[task.next[k]]);
  }
}

void Accepted::find_reaching() {
  std::vector<int32_t> open;
  std::vector<Sums> updates(graph_.machine.topology.num_devices());
  int32_t from = 0;
  for (auto& point : checkpoints_) {
    std::erase_if(open, [&](int32_t position) { return reach_[position] < point.position; });
    for (; from < point.position; ++from) {
      if (reach_[from] < point.position) continue;
      const Task& task = graph_.pool.tasks[order_[from]];
      if (phase_of(task.key) != sync_phase)
        open.push_back(from);
      else if (point.updates.empty())
        for (const int32_t update : std::span(task.next, task.num_next)) {
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
  loss_ = -1;
  if (!graph_.loss.separates()) return;
  const int32_t position = position_[graph_.loss.task()];
  const int64_t end = end_[order_[position]];
  const bool parts = static_cast<size_t>(position) + 1 < order_.size() && latest_[position] == end &&
                     ready_[order_[position + 1]] >= end;
  if (parts) loss_ = position;
}

}  // namespace soapstone
