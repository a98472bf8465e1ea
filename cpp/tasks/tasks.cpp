#include "tasks/tasks.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace soapstone {

namespace {

constexpr int phase_bits = 3, op_bits = 16, kind_bits = 4, slot_bits = 7, part_bits = 17;
static_assert(phase_bits + op_bits + kind_bits + slot_bits + 2 * part_bits == 64);
static_assert(most_parts == 1 << part_bits && phase_shift == 64 - phase_bits);

}  // namespace

uint64_t pack_key(uint64_t phase, int64_t op, Kind kind, int64_t slot, int64_t major, int64_t minor) {
  if (op >= 1 << op_bits || slot >= 1 << slot_bits || major >= most_parts || minor >= most_parts)
    throw std::invalid_argument(
        "the task graph has more than 2^16 ops, 2^17 parts or devices, or 128 outputs of one op");
  uint64_t key = phase << op_bits | static_cast<uint64_t>(op);
  key = key << kind_bits | static_cast<uint64_t>(kind);
  key = key << slot_bits | static_cast<uint64_t>(slot);
  key = key << part_bits | static_cast<uint64_t>(major);
  return key << part_bits | static_cast<uint64_t>(minor);
}

namespace {

// Few sizes, so that what one block gives back fits many others: a power of two in four steps.
int32_t size_of(int32_t count) {
  const int32_t step = std::max(1, static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(count))) / 4);
  return (count + step - 1) / step * step;
}

}  // namespace

namespace {

bool any_launches(const Hold* holds, int32_t count) {
  return std::any_of(holds, holds + count, [](const Hold& hold) { return hold.launch > 0; });
}

}  // namespace

Slot TaskPool::take(int32_t count) {
  if (count == 0) return {};
  const int32_t size = size_of(count);
  if (auto& begins = free_[size]; !begins.empty()) {
    const Slot begin = begins.back();
    begins.pop_back();
    for (const Slot slot : range(begin, begin + count)) {
      tasks[slot] = {};
      states[slot] = {};
      waiting[slot] = 0;
    }
    return begin;
  }
  const Slot begin = tasks.end_index();
  tasks.resize(tasks.size() + size);
  states.resize(tasks.size());
  waiting.resize(tasks.size());
  return begin;
}

void TaskPool::write(Slot slot, uint64_t key, int32_t tail, const std::vector<Hold>& holds, const Trip& trip) {
  Task& task = tasks[slot];
  task.key = key;
  task.latency = trip.latency;
  task.tail = tail;
  task.holds = holds.data() + trip.begin;
  task.num_holds = trip.end - trip.begin;
  if (task.num_holds > 0) task.first = *task.holds;
  task.launches = any_launches(task.holds, task.num_holds);
}

Trip Trip::of(const std::vector<Hold>& holds, size_t begin, int64_t latency) {
  Trip trip{static_cast<int32_t>(begin), static_cast<int32_t>(holds.size()), {}, {}, latency, 0};
  int64_t longest = 0;
  for (size_t i = begin; i < holds.size(); ++i) {
    if (holds[i].duration > longest) trip.slowest = holds[i].resource;
    if (holds[i].duration >= longest) trip.last_slowest = holds[i].resource;
    longest = std::max(longest, holds[i].duration);
  }
  check(longest, latency);
  trip.time = longest + latency;
  return trip;
}

void Trip::check(int64_t longest, int64_t latency) {
  if (longest > longest_time || latency > longest_time)
    throw std::invalid_argument("a task takes longer than 2^43 ns, some two hours");
}

void TaskPool::give_back(const Block& block) {
  if (block.count > 0) free_[size_of(block.count)].push_back(block.begin);
}

BlockWriter::BlockWriter(TaskPool& pool, Block& block, int32_t count) : pool_(pool), block_(block) {
  block.count = count;
  block.begin = pool.take(count);
  begins_.reserve(count + 1);
  begins_.push_back(0);
}

BlockWriter::~BlockWriter() {
  if (!finished_) pool_.give_back(block_);
}

BlockWriter::Added BlockWriter::add(uint64_t key, int64_t latency, int32_t tail) {
  const Slot slot = block_.begin + static_cast<int32_t>(begins_.size()) - 1;
  Task& task = pool_.tasks[slot];
  task.key = key;
  task.latency = latency;
  task.tail = tail;
  task.num_holds = static_cast<int32_t>(block_.holds.size() - begins_.back());
  if (task.num_holds > 0) task.first = block_.holds[begins_.back()];
  task.launches = any_launches(block_.holds.data() + begins_.back(), task.num_holds);
  const Trip trip = Trip::of(block_.holds, begins_.back(), latency);
  begins_.push_back(block_.holds.size());
  return {slot, trip.time};
}

void BlockWriter::finish() {
  finished_ = true;
  for (int32_t i = 0; i < block_.count; ++i) pool_.tasks[block_.begin + i].holds = block_.holds.data() + begins_[i];
}

}  // namespace soapstone
