#include "tasks/successors.hpp"

#include <numeric>

#include "tasks/taskgraph.hpp"

namespace soapstone {

Successors::Successors(TaskGraph& graph)
    : graph_(graph), lists_(graph.graph.ops.size()), is_marked_(graph.graph.ops.size()) {}

void Successors::mark(OpIndex op) {
  if (is_marked_[op]) return;
  is_marked_[op] = true;
  marked_.push_back(op);
}

void Successors::join(ChangeSet& changes) {
  for (const OpIndex op : marked_) {
    auto list = gathered(op);
    if (!graph_.ops.is_changing(op)) changes.rewired.push_back(graph_.ops[op].block->run());
    if (lists_[op]) graph_.pool.unlink(lists_[op]->slots);
    graph_.pool.link(list->slots);
    std::swap(lists_[op], list);
    replaced_.emplace_back(op, std::move(list));
    point(op);
    is_marked_[op] = false;
  }
  marked_.clear();
}

std::unique_ptr<Successors::List> Successors::gathered(OpIndex op) {
  edges_.clear();
  graph_.add_edges(op, edges_);
  const auto& block = *graph_.ops[op].block;
  auto list = spare_.take();
  list->slots.resize(edges_.size());
  list->end.assign(block.count + 1, 0);
  for (const auto& edge : edges_) ++list->end[edge.from - block.begin + 1];
  std::partial_sum(list->end.begin(), list->end.end(), list->end.begin());
  for (const auto& edge : edges_) list->slots[list->end[edge.from - block.begin]++] = edge.to;
  return list;
}

void Successors::point(OpIndex op) {
  const auto& [slots, end] = *lists_[op];
  const auto& block = *graph_.ops[op].block;
  for (int32_t i = 0, at = 0; i < block.count; at = end[i++]) {
    Task& task = graph_.pool.tasks[block.begin + i];
    task.next = slots.data() + at;
    task.num_next = end[i] - at;
  }
}

void Successors::commit() {
  for (auto& [op, list] : replaced_) spare_.give(std::move(list));
  replaced_.clear();
}

void Successors::rollback() {
  for (auto& [op, list] : replaced_) {
    graph_.pool.unlink(lists_[op]->slots);
    std::swap(lists_[op], list);
    spare_.give(std::move(list));
    if (!lists_[op]) continue;
    graph_.pool.link(lists_[op]->slots);
    point(op);
  }
  replaced_.clear();
}

}  // namespace soapstone
