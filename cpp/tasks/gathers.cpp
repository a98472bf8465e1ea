#include "tasks/gathers.hpp"

#include <algorithm>

#include "support/sorting.hpp"
#include "tasks/listing.hpp"
#include "tasks/taskgraph.hpp"

namespace soapstone {

namespace {

// Whether an op comes before or after all that reads a group's weights. Others may share weights with it, and wait for
// them.
bool is_before(OpIndex op, const SyncGroup& group) { return op < group.ops.front(); }
bool is_after(OpIndex op, const SyncGroup& group) { return op > group.ops.back(); }

// The last task of a part that needs its weights in forward.
Slot end_of_forward(const OpState& state, Part part) {
  const auto& block = *state.block;
  return block.finish_forward.empty() ? block.forward[part] : block.finish_forward[block.first_on_device[part]];
}

class GatherBuilder {
 public:
  GatherBuilder(TaskGraph& graph, int32_t group, GatherBlock& block)
      : graph_(graph), group_(graph.syncs.groups()[group]), sums_(*graph.syncs[group]), block_(block) {}

  // `before` and `after` are the groups that it waits for, or null.
  void find(const SyncGroup* before, const SyncGroup* after) {
    add_gathers(false);
    block_.num_before = block_.first_after = block_.holds.size();
    add_gathers(true);
    for (size_t i = 0; i < block_.gathers.size(); ++i) add_gates(static_cast<int32_t>(i), before, after);
    std::sort(block_.gates.begin(), block_.gates.end());
  }

  void join() {
    block_.count = static_cast<int32_t>(block_.gathers.size());
    block_.begin = graph_.pool.take(block_.count);
    for (size_t i = 0; i < block_.gathers.size(); ++i) {
      Gather& gather = block_.gathers[i];
      gather.slot = block_.begin + static_cast<int32_t>(i);
      graph_.pool.write(gather.slot, key_of(gather), graph_.no_tail(), block_.holds, gather.trip);
    }
    add_next();
    for (const auto& [op, part, gather] : block_.gates)
      block_.edges.push_back({{slot_of(op, part, block_.gathers[gather].backward), block_.gathers[gather].slot}, op});
  }

 private:
  const Bucket& bucket_of(const Gather& gather) const { return sums_.tasks->buckets[gather.bucket]; }

  void add_gathers(bool backward) {
    const auto& buckets = sums_.tasks->buckets;
    for (size_t i = 0; i < buckets.size(); ++i) {
      if (buckets[i].shard == Shard::none || (backward && buckets[i].shard != Shard::all)) continue;
      const size_t begin = block_.holds.size();
      const auto& topology = graph_.machine.topology;
      const int64_t latency = topology.all_gather(buckets[i].holders, buckets[i].gathered_bytes, block_.holds);
      block_.gathers.push_back({static_cast<int32_t>(i), backward, none, Trip::of(block_.holds, begin, latency)});
    }
  }

  void add_gates(int32_t index, const SyncGroup* before, const SyncGroup* after) {
    const Gather& gather = block_.gathers[index];
    const size_t num_others = block_.gates.size();
    if (const SyncGroup* other = gather.backward ? after : before) add_gates_of(index, *other);
    if (block_.gates.size() > num_others) return;
    if (!gather.backward) {
      block_.starts_at_once = true;
    } else if (const OpIndex loss = graph_.loss.op(); loss != none) {
      block_.gates.push_back({loss, none, index});
      block_.waits_for_loss = true;
    } else {
      add_own_gates(index);
    }
  }

  void add_gates_of(int32_t index, const SyncGroup& other) {
    const bool backward = block_.gathers[index].backward;
    for (const OpIndex op : other.ops)
      if (backward ? is_after(op, group_) && graph_.graph.ops[op].backward : is_before(op, group_)) add_gate(index, op);
  }

  // Without a loss, backward's gathers wait for their own forwards.
  void add_own_gates(int32_t index) {
    for (const OpIndex op : group_.ops) add_gate(index, op);
  }

  void add_gate(int32_t index, OpIndex op) {
    const auto& holders = bucket_of(block_.gathers[index]).holders;
    const auto& devices = graph_.ops[op].configuration.devices;
    for (const Part part : devices.indices())
      if (std::binary_search(holders.begin(), holders.end(), devices[part])) block_.gates.push_back({op, part, index});
  }

  Slot slot_of(OpIndex op, Part part, bool backward) const {
    if (part == none) return graph_.loss.task();
    const auto& state = graph_.ops[op];
    return backward && is_after(op, group_) ? state.block->backward[part] : end_of_forward(state, part);
  }

  uint64_t key_of(const Gather& gather) const {
    const auto& [i, piece] = bucket_of(gather).pieces[0];
    const auto& readers = graph_.graph.tensors[group_.tensors[i]].readers;
    const OpIndex op = gather.backward ? readers.back().first : readers.front().first;
    return graph_.key(gather.backward, op, Kind::gather, 0, group_.tensors[i], piece);
  }

  void add_next() {
    std::vector<size_t> begins;
    for (const Gather& gather : block_.gathers) {
      begins.push_back(block_.next.size());
      add_readers(gather);
      std::sort(block_.next.begin() + static_cast<ptrdiff_t>(begins.back()), block_.next.end());
      const auto end = std::unique(block_.next.begin() + static_cast<ptrdiff_t>(begins.back()), block_.next.end());
      block_.next.erase(end, block_.next.end());
    }
    begins.push_back(block_.next.size());
    for (size_t i = 0; i < block_.gathers.size(); ++i) {
      Task& task = graph_.pool.tasks[block_.gathers[i].slot];
      task.next = block_.next.data() + begins[i];
      task.num_next = static_cast<int32_t>(begins[i + 1] - begins[i]);
    }
  }

  void add_readers(const Gather& gather) {
    for (const auto& [i, p] : bucket_of(gather).pieces)
      for (const auto& [place, part] : (*sums_.pieces[i])[p].parts) {
        const OpIndex op = group_.ops[place];
        const auto& block = *graph_.ops[op].block;
        if (!gather.backward) {
          block_.next.push_back(block.forward[part]);
        } else if (graph_.graph.ops[op].backward) {
          block_.next.push_back(block.backward[part]);
          if (!block.finish_backward.empty()) block_.next.push_back(block.finish_backward[block.first_on_device[part]]);
        }
      }
  }

  TaskGraph& graph_;
  const SyncGroup& group_;
  const SyncBlock& sums_;
  GatherBlock& block_;
};

bool is_sharded(const SyncBlock& block) {
  return std::any_of(block.tasks->buckets.begin(), block.tasks->buckets.end(),
                     [](const Bucket& bucket) { return bucket.shard != Shard::none; });
}

}  // namespace

void GatherBlock::clear() {
  begin = {};
  count = 0;
  holds.clear();
  gathers.clear();
  gates.clear();
  edges.clear();
  next.clear();
  starts_at_once = waits_for_loss = false;
}

// Groups come in the order of backward; those without gradients are never gathered.
GatherBlocks::GatherBlocks(TaskGraph& graph)
    : graph_(graph),
      before_(graph.syncs.groups().size(), -1),
      after_(graph.syncs.groups().size(), -1),
      gated_by_(graph.graph.ops.size()),
      blocks_(graph.syncs.groups().size()) {
  std::vector<int32_t> trained;
  for (size_t group = 0; group < blocks_.size(); ++group)
    if (graph.syncs.groups()[group].grad) trained.push_back(static_cast<int32_t>(group));
  find_gates(trained, is_before, before_);
  std::reverse(trained.begin(), trained.end());
  find_gates(trained, is_after, after_);
}

// For each group of an order the first beyond those ahead of it that has an op to wait for.
void GatherBlocks::find_gates(std::span<const int32_t> order, bool (*may_wait_for)(OpIndex, const SyncGroup&),
                              std::vector<int32_t>& gates) {
  const auto& groups = graph_.syncs.groups();
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t group = order[i];
    for (size_t k = i + 1 + graph_.machine.groups_ahead; k < order.size() && gates[group] < 0; ++k)
      for (const OpIndex op : groups[order[k]].ops) {
        if (!may_wait_for(op, groups[group])) continue;
        gates[group] = order[k];
        gated_by_[op].push_back(group);
      }
  }
}

const GatherBlock* GatherBlocks::before(int32_t group) const {
  const auto at = std::find_if(replaced_.begin(), replaced_.end(), [&](const auto& old) { return old.first == group; });
  return at == replaced_.end() ? blocks_[group].get() : at->second.get();
}

void GatherBlocks::reach(ChangeSet& changes) const {
  changes.gathers = changes.groups;
  for (const OpIndex op : changes.ops) {
    for (const int32_t group : gated_by_[op])
      if (blocks_[group]) changes.gathers.push_back(group);
    if (op != graph_.loss.op()) continue;
    for (size_t group = 0; group < blocks_.size(); ++group)
      if (blocks_[group] && blocks_[group]->waits_for_loss) changes.gathers.push_back(static_cast<int32_t>(group));
  }
  sort_unique(changes.gathers);
}

void GatherBlocks::make(const ChangeSet& changes) {
  const auto group_at = [&](int32_t group) { return group < 0 ? nullptr : &graph_.syncs.groups()[group]; };
  for (const int32_t group : changes.gathers) {
    std::unique_ptr<GatherBlock> block;
    if (is_sharded(*graph_.syncs[group])) {
      block = spare_.take();
      GatherBuilder(graph_, group, *block).find(group_at(before_[group]), group_at(after_[group]));
      graph_.totals.count(*block, 1);
    }
    if (!block && !blocks_[group]) continue;
    if (blocks_[group]) graph_.totals.count(*blocks_[group], -1);
    std::swap(blocks_[group], block);
    replaced_.emplace_back(group, std::move(block));
  }
}

void GatherBlocks::join(ChangeSet& changes) {
  const auto mark = [&](const GatherBlock& block) {
    for (const Gate& gate : block.gates) graph_.successors.mark(gate.op);
  };
  for (const auto& [group, old] : replaced_) {
    if (auto* block = blocks_[group].get()) {
      GatherBuilder(graph_, group, *block).join();
      graph_.pool.link(block->next);
      changes.fresh.push_back(block->run());
      mark(*block);
    }
    if (!old) continue;
    changes.gone.push_back(old->run());
    graph_.pool.unlink(old->next);
    mark(*old);
  }
}

void GatherBlocks::commit() {
  for (auto& [group, old] : replaced_) drop(std::move(old));
  replaced_.clear();
}

void GatherBlocks::rollback(const ChangeSet& changes) {
  for (auto& [group, old] : replaced_) {
    std::swap(blocks_[group], old);  // `old` is the new one from here on
    if (changes.linked && old) graph_.pool.unlink(old->next);
    if (changes.linked && blocks_[group]) graph_.pool.link(blocks_[group]->next);
    drop(std::move(old));
  }
  replaced_.clear();
}

void GatherBlocks::drop(std::unique_ptr<GatherBlock> block) {
  if (!block) return;
  graph_.pool.give_back(*block);
  spare_.give(std::move(block));
}

void GatherBlocks::add_edges(OpIndex op, std::vector<Edge>& edges) const {
  const auto add = [&](const std::unique_ptr<GatherBlock>& block) {
    if (!block) return;
    for (const auto& [edge, from] : block->edges)
      if (from == op) edges.push_back(edge);
  };
  if (op == graph_.loss.op()) {
    for (const auto& block : blocks_) add(block);
    return;
  }
  for (const int32_t group : gated_by_[op]) add(blocks_[group]);
  if (graph_.loss.op() == none)
    for (const auto& [group, place] : graph_.syncs.groups_of(op)) add(blocks_[group]);
}

void GatherBlocks::add_slots(std::vector<SlotRun>& runs) const {
  for (const auto& block : blocks_)
    if (block) runs.push_back(block->run());
}

void GatherBlocks::list(Listing& listing) const {
  for (size_t group = 0; group < blocks_.size(); ++group) {
    if (!blocks_[group]) continue;
    const auto& tensors = graph_.syncs.groups()[group].tensors;
    for (const Gather& gather : blocks_[group]->gathers) {
      const Bucket& bucket = graph_.syncs[group]->tasks->buckets[gather.bucket];
      TaskRow row;
      row.kind = Kind::gather;
      row.op = graph_.graph.tensors[tensors[bucket.pieces[0].first]].readers.front().first;
      row.part = bucket.pieces[0].second;
      row.backward = gather.backward;
      row.is_half = true;
      row.bytes = bucket.gathered_bytes;
      row.devices = bucket.holders;
      for (const auto& [i, p] : bucket.pieces) row.pieces.emplace_back(tensors[i], p);
      listing.add(gather.slot, std::move(row));
    }
  }
}

}  // namespace soapstone
