// The bytes that a task graph keeps on each device.
#pragma once

#include "bindings/convert.hpp"
#include "tasks/taskgraph.hpp"

inline auto memory_of(soapstone::TaskGraph& graph) {
  auto copy = [](const std::vector<int64_t>& column) { return to_array(std::vector<int64_t>(column)); };
  const auto& memory = graph.totals.memory;
  return std::tuple(copy(memory.parameters), copy(memory.gathered), copy(memory.gradients), copy(memory.updated),
                    copy(memory.saved), copy(memory.made), copy(memory.buckets), copy(graph.ops.most_working()));
}

inline constexpr const char* bound_doc =
    "Bytes by device that no order can pass, with so many numbers kept for each element.";
inline constexpr const char* memory_doc =
    "Bytes by device: (parameters, gathered, gradients, updated, saved, made, buckets, transient).";
