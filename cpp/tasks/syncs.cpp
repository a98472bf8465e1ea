#include "tasks/syncs.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "support/sorting.hpp"
#include "tasks/listing.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

namespace {

class SyncBuilder {
 public:
  // `reading_of` is -1 everywhere between calls.
  SyncBuilder(TaskGraph& graph, const SyncGroup& group, SyncBlock& block, std::vector<int32_t>& reading_of)
      : graph_(graph), group_(group), block_(block), reading_of_(reading_of) {}

  void find(const SyncBlock* before) {
    for (size_t i = 0; i < group_.tensors.size(); ++i)
      block_.pieces.push_back(before && !is_changing(i) ? before->pieces[i] : find_pieces(group_.tensors[i]));
    for (size_t i = 0; i < group_.tensors.size(); ++i) block_.shards.push_back(shard_of(i));
    block_.weights.assign(group_.ops.size(), uncounted);
    block_.tasks = std::make_shared<SyncTasks>();
    if (!group_.grad) return;
    auto buckets = fill_buckets();
    const auto same = [&](const Bucket& a, const Bucket& b) { return a.same_sum(b) && has_same_boxes(a, *before); };
    if (before &&
        std::equal(buckets.begin(), buckets.end(), before->tasks->buckets.begin(), before->tasks->buckets.end(), same))
      block_.tasks = before->tasks;
    else
      add_trips(std::move(buckets));
    weigh();
  }

  void join() {
    if (block_.edges.size() < group_.ops.size()) block_.edges.resize(group_.ops.size());
    if (!group_.grad) return;
    if (block_.tasks->count == 0) add_syncs();
    each_wait([&](const Piece& piece, Slot slot, int64_t) {
      for (const auto& [place, part] : piece.parts)
        if (const OpIndex op = group_.ops[place]; graph_.graph.ops[op].backward)
          block_.edges[place].push_back({graph_.ops[op].block->backward[part], slot});
    });
  }

 private:
  const Tensor& tensor(size_t i) const { return graph_.graph.tensors[group_.tensors[i]]; }

  // As the first of its readers has it; a strategy has all of them agree.
  Shard shard_of(size_t i) const {
    return group_.grad ? graph_.ops[tensor(i).readers.front().first].configuration.shard : Shard::none;
  }

  // Else its gradients may come from others, of unchanged ops.
  bool has_same_boxes(const Bucket& bucket, const SyncBlock& before) const {
    return std::all_of(bucket.pieces.begin(), bucket.pieces.end(), [&](const auto& at) {
      const auto &now = block_.pieces[at.first], &then = before.pieces[at.first];
      return now == then || (*now)[at.second].boxes == (*then)[at.second].boxes;
    });
  }

  bool is_changing(size_t i) const {
    const auto& readers = tensor(i).readers;
    return std::any_of(readers.begin(), readers.end(),
                       [&](const auto& at) { return graph_.ops.is_changing(at.first); });
  }

  std::shared_ptr<const std::vector<Piece>> find_pieces(int32_t index) const {
    const auto& readers = graph_.graph.tensors[index].readers;
    const auto& [op, input] = readers[0];
    const auto& share = graph_.ops[op].layout->inputs[input];
    const bool apart = readers.size() == 1 && share.disjoint && share.in_order;
    return std::make_shared<const std::vector<Piece>>(apart ? by_box(op, input) : by_reading(index));
  }

  // Every box is a piece, but for those with the same holders.
  std::vector<Piece> by_box(OpIndex op, int32_t input) const {
    const auto& state = graph_.ops[op];
    const auto& share = state.layout->inputs[input];
    const auto place = std::lower_bound(group_.ops.begin(), group_.ops.end(), op) - group_.ops.begin();
    std::vector<Piece> pieces;
    for (size_t box = 0; box < share.boxes.size(); ++box) {
      const auto holders = devices_of(state.configuration, share.parts_of(box));
      auto at =
          std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.holders == holders; });
      if (at == pieces.end()) at = pieces.insert(at, {holders, {}, 0, {}});
      at->elements += volume(share.boxes[box][0]);
      at->boxes.push_back(share.boxes[box][0]);
      for (const Part part : share.parts_of(box)) at->parts.emplace_back(static_cast<int32_t>(place), part);
    }
    return pieces;
  }

  std::vector<Piece> by_reading(int32_t index) const {
    const size_t num_words = (graph_.totals.elements.size() + 63) / 64;
    reading_of_.resize(graph_.layouts.num_regions(), -1);
    std::vector<Reading> readings;
    std::vector<int32_t> regions;
    std::vector<uint64_t> on;  // a bit for each reading and device
    for (const auto& [op, input] : graph_.graph.tensors[index].readers) {
      const auto& [configuration, layout, block] = graph_.ops[op];
      const auto& share = layout->inputs[input];
      const auto place = std::lower_bound(group_.ops.begin(), group_.ops.end(), op) - group_.ops.begin();
      for (const Part part : layout->parts()) {
        const int32_t box = share.of_part[part], region = share.regions[box];
        if (region < 0) continue;
        if (reading_of_[region] < 0) {
          reading_of_[region] = static_cast<int32_t>(readings.size());
          readings.push_back({&share.boxes[box], {}, {}});
          regions.push_back(region);
          on.resize(on.size() + num_words);
        }
        const int32_t reading = reading_of_[region];
        readings[reading].parts.emplace_back(static_cast<int32_t>(place), part);
        const int32_t bit = configuration.devices[part].value;
        on[reading * num_words + (bit >> 6)] |= uint64_t{1} << (bit & 63);
      }
    }
    for (const int32_t region : regions) reading_of_[region] = -1;
    for (size_t i = 0; i < on.size(); ++i)
      for (uint64_t bits = on[i]; bits; bits &= bits - 1)
        readings[i / num_words].devices.emplace_back(i % num_words * 64 + std::countr_zero(bits));
    return pieces_of(readings);
  }

  // Pieces in the order in which backward completes them; a bucket ends where it is full or the next has other holders.
  std::vector<Bucket> fill_buckets() const {
    std::vector<Bucket> buckets;
    for (size_t i = 0; i < group_.tensors.size(); ++i)
      for (size_t p = 0; p < block_.pieces[i]->size(); ++p) {
        const auto& piece = (*block_.pieces[i])[p];
        if (piece.holders.size() < 2) continue;
        if (buckets.empty() || !takes(buckets.back(), i, piece)) {
          buckets.emplace_back().holders = piece.holders;
          buckets.back().shard = block_.shards[i];
        }
        buckets.back().pieces.emplace_back(static_cast<int32_t>(i), static_cast<int32_t>(p));
        buckets.back().bytes += piece.elements * tensor(i).item_size;
        buckets.back().gathered_bytes += piece.elements * tensor(i).read_size;
      }
    return buckets;
  }

  bool takes(const Bucket& bucket, size_t i, const Piece& piece) const {
    return bucket.holders == piece.holders && bucket.shard == block_.shards[i] &&
           tensor(bucket.pieces[0].first).item_size == tensor(i).item_size &&
           (bucket.shard == Shard::none || tensor(bucket.pieces[0].first).read_size == tensor(i).read_size) &&
           bucket.bytes < graph_.machine.bucket_bytes;
  }

  void add_trips(std::vector<Bucket> buckets) {
    auto& holds = block_.tasks->holds;
    for (auto& bucket : buckets) {
      const size_t begin = holds.size();
      const auto& topology = graph_.machine.topology;
      const int64_t latency = bucket.shard == Shard::none
                                  ? topology.all_reduce(bucket.holders, bucket.bytes, holds)
                                  : topology.reduce_scatter(bucket.holders, bucket.bytes, holds);
      bucket.trip = Trip::of(holds, begin, latency);
    }
    block_.tasks->buckets = std::move(buckets);
  }

  void add_syncs() {
    auto& tasks = *block_.tasks;
    tasks.count = static_cast<int32_t>(tasks.buckets.size());
    tasks.begin = graph_.pool.take(tasks.count);
    const auto last_op = static_cast<int64_t>(graph_.graph.ops.size()) - 1;
    Slot slot = tasks.begin;
    for (auto& bucket : tasks.buckets) {
      const auto& [i, p] = bucket.pieces[0];
      const int64_t order = last_op - tensor(i).readers.front().first.value;
      const uint64_t key = pack_key(sync_phase, order, Kind::sync, 0, group_.tensors[i], p);
      graph_.pool.write(slot, key, graph_.sync_tail(), tasks.holds, bucket.trip);
      bucket.slot = slot++;
      for (const Device device : bucket.holders) tasks.next.push_back(graph_.updates.slot_of(device));
    }
    const Slot* at = tasks.next.data();
    for (const auto& bucket : tasks.buckets) {
      auto& task = graph_.pool.tasks[bucket.slot];
      task.next = at;
      task.num_next = static_cast<int32_t>(bucket.holders.size());
      at += task.num_next;
    }
  }

  // What waits for each piece's gradient: its sum, or where it has one holder the update, and how long that takes.
  template <typename Visit>
  void each_wait(Visit visit) const {
    for (const auto& bucket : block_.tasks->buckets)
      for (const auto& [i, p] : bucket.pieces) visit((*block_.pieces[i])[p], bucket.slot, bucket.trip.time);
    for (const auto& pieces : block_.pieces)
      for (const auto& piece : *pieces)
        if (piece.holders.size() == 1) visit(piece, graph_.updates.slot_of(piece.holders[0]), 0);
  }

  // By op: every part's gradients go to a sum that takes at least this long.
  void weigh() {
    std::vector<int32_t> first(group_.ops.size() + 1);  // by op: where its parts begin
    for (size_t i = 0; i < group_.ops.size(); ++i)
      first[i + 1] = first[i] + graph_.ops[group_.ops[i]].layout->num_parts;
    std::vector<int64_t> slowest(first.back(), uncounted);
    each_wait([&](const Piece& piece, Slot, int64_t time) {
      bool waits = false;
      for (const auto& [place, part] : piece.parts) {
        if (!graph_.graph.ops[group_.ops[place]].backward) continue;
        waits = true;
        int64_t& own = slowest[first[place] + part.value];
        own = std::max(own, time);
      }
      block_.all_wait &= waits;
    });
    for (size_t i = 0; i < group_.ops.size(); ++i)
      block_.weights[i] = *std::min_element(slowest.begin() + first[i], slowest.begin() + first[i + 1]);
  }

  TaskGraph& graph_;
  const SyncGroup& group_;
  SyncBlock& block_;
  std::vector<int32_t>& reading_of_;  // by region
};

}  // namespace

void SyncBlock::clear() {
  tasks.reset();
  pieces.clear();
  shards.clear();
  for (auto& list : edges) list.clear();
  all_wait = true;
}

SyncBlocks::SyncBlocks(TaskGraph& graph) : graph_(graph) {
  make_groups();
  blocks_.resize(groups_.size());
}

void SyncBlocks::make(const ChangeSet& changes) {
  for (const int32_t group : changes.groups) {
    auto block = spare_.take();
    SyncBuilder(graph_, groups_[group], *block, reading_of_).find(blocks_[group].get());
    if (blocks_[group]) count(group, *blocks_[group], -1);
    count(group, *block, 1);
    num_unawaited_ += !block->all_wait;  // beside the one that it replaces
    std::swap(blocks_[group], block);
    replaced_.emplace_back(group, std::move(block));
  }
}

void SyncBlocks::count(int32_t group, const SyncBlock& block, int64_t sign) {
  auto& memory = graph_.totals.memory;
  graph_.totals.count(*block.tasks, sign);
  for (size_t i = 0; i < groups_[group].tensors.size(); ++i) {
    const int64_t size = sign * graph_.graph.tensors[groups_[group].tensors[i]].item_size;
    const Shard shard = block.shards[i];
    for (const auto& piece : *block.pieces[i])
      for (size_t holder = 0; holder < piece.holders.size(); ++holder) {
        const Device device = piece.holders[holder];
        const int64_t share =
            shard == Shard::none ? piece.elements : share_of(piece.elements, piece.holders.size(), holder);
        memory.parameters[device] += size * (shard == Shard::all ? share : piece.elements);
        if (shard == Shard::all) memory.gathered[device] += size * piece.elements;
        if (!groups_[group].grad) continue;
        memory.gradients[device] += size * piece.elements;
        memory.updated[device] += size * share;
        graph_.totals.elements[device] +=
            sign * std::max<int64_t>(share, 1);  // its sum goes to an update that is there
      }
  }
  for (const auto& bucket : block.tasks->buckets)
    for (const Device device : bucket.holders) memory.buckets[device] += sign * bucket.bytes;
}

const SyncBlock& SyncBlocks::before(int32_t group) const {
  const auto at = std::find_if(replaced_.begin(), replaced_.end(), [&](const auto& old) { return old.first == group; });
  return at == replaced_.end() ? *blocks_[group] : *at->second;
}

void SyncBlocks::join(ChangeSet& changes) {
  for (const auto& [group, old] : replaced_) {
    SyncBuilder(graph_, groups_[group], *blocks_[group], reading_of_).join();
    const auto& block = *blocks_[group];
    const auto& ops = groups_[group].ops;
    for (size_t i = 0; old && i < ops.size(); ++i)
      if (old->edges[i] != block.edges[i]) graph_.successors.mark(ops[i]);
    if (old && old->tasks == block.tasks) continue;
    changes.fresh.push_back(block.tasks->run());
    graph_.pool.link(block.tasks->next);
    if (!old) continue;
    changes.gone.push_back(old->tasks->run());
    graph_.pool.unlink(old->tasks->next);
  }
}

void SyncBlocks::commit() {
  for (auto& [group, old] : replaced_) {
    num_unawaited_ -= old && !old->all_wait;
    drop(std::move(old), blocks_[group].get());
  }
  replaced_.clear();
}

void SyncBlocks::rollback(const ChangeSet& changes) {
  for (auto& [group, old] : replaced_) {
    std::swap(blocks_[group], old);  // `old` is the new one from here on
    const SyncBlock* block = blocks_[group].get();
    num_unawaited_ -= !old->all_wait;
    if (changes.linked && !(block && block->tasks == old->tasks)) {
      graph_.pool.unlink(old->tasks->next);
      if (block) graph_.pool.link(block->tasks->next);
    }
    drop(std::move(old), block);
  }
  replaced_.clear();
}

// One of two blocks of a group, which may share their tasks.
void SyncBlocks::drop(std::unique_ptr<SyncBlock> block, const SyncBlock* other) {
  if (!block) return;
  if (!other || block->tasks != other->tasks) graph_.pool.give_back(*block->tasks);
  spare_.give(std::move(block));
}

void SyncBlocks::add_edges(OpIndex op, std::vector<Edge>& edges) const {
  for (const auto& [group, place] : groups_of_op_[op]) {
    const auto& more = blocks_[group]->edges[place];
    edges.insert(edges.end(), more.begin(), more.end());
  }
}

void SyncBlocks::add_slots(std::vector<SlotRun>& runs) const {
  for (const auto& block : blocks_) runs.push_back(block->tasks->run());
}

void SyncBlocks::list(Listing& listing) const {
  for (size_t group = 0; group < blocks_.size(); ++group)
    for (const auto& bucket : blocks_[group]->tasks->buckets) {
      const auto& tensors = groups_[group].tensors;
      const auto& [first, piece] = bucket.pieces[0];
      TaskRow row;
      row.kind = Kind::sync;
      row.op = graph_.graph.tensors[tensors[first]].readers.front().first;
      row.part = piece;
      row.backward = true;
      row.is_half = bucket.shard != Shard::none;
      row.bytes = bucket.bytes;
      row.devices = bucket.holders;
      for (const auto& [i, p] : bucket.pieces) row.pieces.emplace_back(tensors[i], p);
      listing.add(bucket.slot, std::move(row));
    }
}

// Parameters in the order in which backward completes them. Those that may share a bucket are cut into runs of its
// size, so that a change of one op leaves the buckets of the other runs alone.
void SyncBlocks::make_groups() {
  const auto& tensors = graph_.graph.tensors;
  std::vector<std::pair<int32_t, int32_t>> order;  // (first reader, tensor)
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].source == Source::parameter && !tensors[i].readers.empty())
      order.emplace_back(-tensors[i].readers.front().first.value, static_cast<int32_t>(i));
  std::sort(order.begin(), order.end());
  size_t run = 0;          // its group
  int64_t bytes_left = 0;  // until it is full
  for (const auto& [unused, tensor] : order) {
    if (!tensors[tensor].grad) {
      groups_.push_back({{tensor}, {}, false});
      continue;
    }
    if (bytes_left <= 0) {
      run = groups_.size();
      bytes_left = graph_.machine.bucket_bytes;
      groups_.push_back({{}, {}, true});
    }
    groups_[run].tensors.push_back(tensor);
    bytes_left -= num_elements(tensors[tensor].factoring) * tensors[tensor].item_size;
  }
  groups_of_op_.resize(graph_.graph.ops.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    auto& readers = groups_[i].ops;
    for (const int32_t tensor : groups_[i].tensors)
      for (const auto& [op, input] : graph_.graph.tensors[tensor].readers) readers.push_back(op);
    sort_unique(readers);
    for (size_t k = 0; k < readers.size(); ++k)
      groups_of_op_[readers[k]].emplace_back(static_cast<int32_t>(i), static_cast<int32_t>(k));
  }
}

}  // namespace soapstone
