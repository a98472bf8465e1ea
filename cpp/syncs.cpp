// Gradient sums: the pieces of parameters, put into buckets of one holder set, and who waits for them.
#include <algorithm>
#include <map>
#include <numeric>

#include "sorting.hpp"
#include "taskgraph.hpp"

namespace soapstone {

class SyncBuilder {
 public:
  SyncBuilder(TaskGraph& graph, const SyncGroup& group, const SyncBlock* before, SyncBlock& block)
      : graph_(graph), group_(group), before_(before), block_(block), slowest_(group.ops.size()) {}

  void build() {
    for (const int32_t tensor : group_.tensors) add_pieces(tensor);
    block_.edges.resize(group_.ops.size());
    block_.weights.assign(group_.ops.size(), uncounted);
    block_.tasks = std::make_shared<SyncTasks>();
    if (!group_.grad) return;
    for (size_t i = 0; i < group_.ops.size(); ++i)
      slowest_[i].assign(graph_.ops[group_.ops[i]].layout->num_parts, uncounted);
    auto buckets = fill_buckets();
    if (before_ && std::equal(buckets.begin(), buckets.end(), before_->tasks->buckets.begin(),
                              before_->tasks->buckets.end(), [](auto& a, auto& b) { return a.same_sum(b); }))
      block_.tasks = before_->tasks;
    else
      add_syncs(std::move(buckets));
    connect();
    for (size_t i = 0; i < group_.ops.size(); ++i)
      block_.weights[i] = *std::min_element(slowest_[i].begin(), slowest_[i].end());
  }

 private:
  const Tensor& tensor(size_t i) const { return graph_.graph.tensors[group_.tensors[i]]; }

  void add_pieces(int32_t index) {
    std::map<std::vector<int64_t>, size_t> known;
    std::vector<Reading> readings;
    const auto& readers = graph_.graph.tensors[index].readers;
    for (const auto& [op, input] : readers) {
      const auto& state = graph_.ops[op];
      const auto& share = state.layout->inputs[input];
      const auto place = std::lower_bound(group_.ops.begin(), group_.ops.end(), op) - group_.ops.begin();
      for (size_t box = 0; box < share.boxes.size(); ++box) {
        if (share.boxes[box].empty()) continue;
        if (readers.size() == 1) readings.push_back({&share.boxes[box], {}, {}});  // its boxes are distinct
        auto& reading = readers.size() == 1 ? readings.back() : reading_of(share.boxes[box], known, readings);
        for (int32_t i = share.begin[box]; i < share.begin[box + 1]; ++i) {
          reading.parts.emplace_back(static_cast<int32_t>(place), share.parts[i]);
          reading.devices.push_back(state.configuration.devices[share.parts[i]]);
        }
      }
    }
    for (auto& reading : readings) {
      sort_unique(reading.devices);
    }
    block_.pieces.push_back(pieces_of(readings));
  }

  static Reading& reading_of(const std::vector<Box>& boxes, std::map<std::vector<int64_t>, size_t>& known,
                             std::vector<Reading>& readings) {
    std::vector<int64_t> key;
    for (const auto& box : boxes)
      for (const auto& interval : box) key.insert(key.end(), {interval.lo, interval.hi});
    const auto [at, fresh] = known.try_emplace(std::move(key), readings.size());
    if (fresh) readings.push_back({&boxes, {}, {}});
    return readings[at->second];
  }

  // Pieces in the order in which backward completes them; a bucket ends where it is full or the next has other holders.
  std::vector<Bucket> fill_buckets() const {
    std::vector<Bucket> buckets;
    for (size_t i = 0; i < group_.tensors.size(); ++i)
      for (size_t p = 0; p < block_.pieces[i].size(); ++p) {
        const auto& piece = block_.pieces[i][p];
        if (piece.holders.size() < 2) continue;
        if (buckets.empty() || !takes(buckets.back(), i, piece)) buckets.push_back({piece.holders, {}});
        buckets.back().pieces.emplace_back(static_cast<int32_t>(i), static_cast<int32_t>(p));
        buckets.back().bytes += piece.elements * tensor(i).item_size;
      }
    return buckets;
  }

  bool takes(const Bucket& bucket, size_t i, const Piece& piece) const {
    return bucket.holders == piece.holders && tensor(bucket.pieces[0].first).item_size == tensor(i).item_size &&
           bucket.bytes < graph_.machine.bucket_bytes;
  }

  void add_syncs(std::vector<Bucket> buckets) {
    auto& tasks = *block_.tasks;
    tasks.buckets = std::move(buckets);
    BlockWriter writer(graph_.pool, tasks, static_cast<int32_t>(tasks.buckets.size()));
    const auto last_op = static_cast<int64_t>(graph_.graph.ops.size()) - 1;
    for (auto& bucket : tasks.buckets) {
      const auto& [i, p] = bucket.pieces[0];
      const int64_t latency = graph_.machine.topology.all_reduce(bucket.holders, bucket.bytes, tasks.holds);
      const int64_t order = last_op - tensor(i).readers.front().first;
      const uint64_t key = pack_key(sync_phase, order, Kind::sync, 0, group_.tensors[i], p);
      const auto [slot, time] = writer.add(key, latency, graph_.sync_tail());
      bucket.slot = slot;
      bucket.time = time;
      tasks.next.insert(tasks.next.end(), bucket.holders.begin(), bucket.holders.end());
    }
    writer.finish();
    const int32_t* at = tasks.next.data();
    for (const auto& bucket : tasks.buckets) {
      auto& task = graph_.pool.tasks[bucket.slot];
      task.next = at;
      task.num_next = static_cast<int32_t>(bucket.holders.size());
      at += task.num_next;
    }
  }

  // A piece with one holder goes straight to its update.
  void connect() {
    for (const auto& bucket : block_.tasks->buckets)
      for (const auto& [i, p] : bucket.pieces) wait(block_.pieces[i][p], bucket.slot, bucket.time);
    for (const auto& pieces : block_.pieces)
      for (const auto& piece : pieces)
        if (piece.holders.size() == 1) wait(piece, piece.holders[0], 0);
  }

  void wait(const Piece& piece, int32_t slot, int64_t time) {
    bool waits = false;
    for (const auto& [place, part] : piece.parts) {
      const int32_t op = group_.ops[place];
      if (!graph_.graph.ops[op].backward) continue;
      waits = true;
      block_.edges[place].push_back({graph_.ops[op].block->backward[part], slot});
      slowest_[place][part] = std::max(slowest_[place][part], time);
    }
    block_.all_wait &= waits;
  }

  TaskGraph& graph_;
  const SyncGroup& group_;
  const SyncBlock* before_;
  SyncBlock& block_;
  std::vector<std::vector<int64_t>> slowest_;  // by op and part: the longest sum that its gradients go to
};

std::shared_ptr<SyncBlock> TaskGraph::make_sync_block(int32_t group) {
  auto block = std::make_shared<SyncBlock>();
  SyncBuilder(*this, groups[group], syncs[group].get(), *block).build();
  return block;
}

// Parameters in the order in which backward completes them, one a group where nothing shares a bucket.
void TaskGraph::make_groups() {
  std::vector<std::pair<int32_t, int32_t>> order;  // (first reader, tensor)
  for (size_t i = 0; i < graph.tensors.size(); ++i)
    if (graph.tensors[i].source == Source::parameter && !graph.tensors[i].readers.empty())
      order.emplace_back(-graph.tensors[i].readers.front().first, static_cast<int32_t>(i));
  std::sort(order.begin(), order.end());
  int32_t shared = -1;
  for (const auto& [unused, tensor] : order) {
    const bool grad = graph.tensors[tensor].grad;
    if (machine.bucket_bytes > 0 && grad && shared >= 0) {
      groups[shared].tensors.push_back(tensor);
      continue;
    }
    if (grad) shared = static_cast<int32_t>(groups.size());
    groups.push_back({{tensor}, {}, grad});
  }
  groups_of_op.resize(graph.ops.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    auto& readers = groups[i].ops;
    for (const int32_t tensor : groups[i].tensors)
      for (const auto& [op, input] : graph.tensors[tensor].readers) readers.push_back(op);
    sort_unique(readers);
    for (size_t k = 0; k < readers.size(); ++k)
      groups_of_op[readers[k]].emplace_back(static_cast<int32_t>(i), static_cast<int32_t>(k));
  }
}

}  // namespace soapstone
