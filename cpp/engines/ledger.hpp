// What comes and goes on each device along a play.
//
// A value that passes from op to op lies once on a device, whoever reads it: from when it is made or arrives until its
// last reader is done, or until the backward of those that save it whole. A part that reads it in pieces has a copy of
// its own. What an op keeps inside stays until its backward is over. The gradient of such a value begins with the first
// backward that makes it, and a parameter's lasts until the update; a further one to be added lies beside it meanwhile.
// Of a parameter that several holders share, the whole gradient goes when it is summed and a share stays; gathered
// weights lie there until the last that reads them is done. Each microbatch has values of its own; they share the
// gradients of parameters.
//
// What a recomputed op makes and keeps goes once forward has read it, and is there again from the begin of backward of
// its *stretch*: the recomputed ops of a device next to one another, and the one after them, which they are remade for.
// What came from another device, or from an op that is not recomputed, stays for it, and so does what an op outside of
// the stretch needs.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tasks/taskgraph.hpp"

namespace soapstone {

enum class Content : int32_t { activation, gradient, returned, bucket, working, weight };

struct Holding {
  Device device;
  int64_t since, until, bytes;
  Content content;
  OpIndex op;  // none: the update's
};

struct TaskTimes {
  By<Slot, int64_t> start, end;
};

class Ledger {
 public:
  explicit Ledger(const TaskGraph& graph) : graph_(graph) {}

  // All that is held along a play, or what `only` one device holds, but for parameters and the optimizer's states. An
  // update works on so many numbers for each element. What is done once for all microbatches has the last one's times.
  const std::vector<Holding>& write(std::span<const TaskTimes> microbatches, int64_t num_temporaries,
                                    std::optional<Device> only = std::nullopt);
  // The most that lies on each device at a time, of what was written last.
  By<Device, int64_t> peak() const;

 private:
  // Bytes of each part of a layout.
  struct Parts {
    By<Part, int64_t> kept, forward, backward;       // inside the op: stays, and comes and goes at work
    std::vector<By<Part, int64_t>> inputs, outputs;  // by operand
  };
  struct Span {
    int64_t since, until, back_since, back_until;  // back: -1 where nothing comes back
  };

  // A part of a tensor on a device, and its gradient there.
  struct Store {
    int64_t bytes = 0, since = INT64_MAX, until = 0, back_since = INT64_MAX, back_until = 0;
    int64_t again_since = 0, again_until = 0;  // where it is remade
    bool is_remade = false;
  };
  using Stores = std::map<std::pair<OutputPart, Device>, Store>;

  const Parts& parts_of(OpIndex op);
  using Spans = By<OpIndex, By<Part, Span>>;

  Spans spans_along(const TaskTimes& times) const;
  void find_stretches();
  void write_microbatch(const TaskTimes& times);
  bool is_recomputed(OpIndex op) const;
  bool meets_others(OpIndex op) const;
  struct Remade {
    int32_t stretch = -1;  // -1: none
    int64_t since = 0;
  };
  // Of an op's parts on a device.
  Remade remade(OpIndex op, Device device) const {
    return remade_.empty() ? Remade{} : remade_[op.value * num_devices_ + device.value];
  }
  bool is_wanted(Device device) const { return !only_ || device == *only_; }
  void hold(Device device, int64_t since, int64_t until, int64_t bytes, Content content, OpIndex op);
  void write_parts(OpIndex op, const TaskTimes& times);
  void write_tensor(int32_t tensor, const TaskTimes& times);
  Stores made_stores(int32_t tensor);
  void move(const Flow& flow, OpIndex maker, const TaskTimes& times, Stores& stores);
  void read_stores(int32_t tensor, const TaskTimes& times, Stores& stores);
  void hold_added(int32_t tensor, const Stores& stores);
  void write_sums(const TaskTimes& times, int64_t end);
  void write_gradient(const SyncGroup& group, const Piece& piece, Device device, int64_t bytes, int64_t until);
  void write_weights(const TaskTimes& times);

  const TaskGraph& graph_;
  std::unordered_map<int32_t, Parts> known_;  // by the layout's number
  std::vector<Spans> all_spans_;              // by microbatch
  Spans spans_;                               // of the one that is written
  std::vector<Remade> remade_;                // by op and device; empty where nothing is recomputed
  size_t num_devices_ = 0;
  std::vector<Holding> holdings_;
  std::optional<Device> only_;
};

}  // namespace soapstone
