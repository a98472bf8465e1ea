#include "bounds/bounds.hpp"

#include <algorithm>
#include <stdexcept>

namespace soapstone {

namespace {

// The most that a resource takes, idle or at work.
int64_t longest(const By<Resource, int64_t>& work, const By<Resource, int64_t>& idle) {
  int64_t most = 0;
  for (const Resource i : work.indices()) most = std::max(most, work[i] + idle[i]);
  return most;
}

}  // namespace

// Fills the tails after a backward, its combine and its finish; returns what follows once the op can begin backward.
int64_t Bounds::backward(const TaskGraph& graph, OpIndex op) {
  const auto& [least, sum, combines, finishes, has_copies] = least_times_.op(op);
  int64_t tail = sum == uncounted ? 0 : sum + tails_[graph.sync_tail()];
  for (const auto& [maker, weight] : least_times_.backward(op))
    if (weight != uncounted) tail = std::max(tail, weight + head_backward_[maker]);
  tails_[graph.tail_of(op, role_backward)] = tail;
  int64_t head = tail + least[role_backward];
  if (!combines) return head;
  tails_[graph.tail_of(op, role_combine_backward)] = head;
  head += least[role_combine_backward];
  if (!finishes) return head;
  tails_[graph.tail_of(op, role_finish_backward)] = head;
  return head + least[role_finish_backward];
}

// Likewise for forward.
int64_t Bounds::forward(const TaskGraph& graph, OpIndex op) {
  const auto& [least, sum, combines, finishes, has_copies] = least_times_.op(op);
  const bool ends = op == graph.loss.op();
  int64_t tail = graph.loss.separates() && !ends ? after_loss_ : graph.graph.ops[op].backward ? head_backward_[op] : 0;
  for (const auto& [reader, weight] : least_times_.forward(op)) {
    if (finishes && has_copies) break;  // some copy may have no reader
    if (weight != uncounted) tail = std::max(tail, weight + head_forward_[reader]);
  }
  if (combines) {
    if (finishes) {
      tails_[graph.tail_of(op, role_finish_forward)] = tail;
      tail += least[role_finish_forward];
    }
    if (ends) tail = std::max(tail, after_loss_);
    tails_[graph.tail_of(op, role_combine_forward)] = tail;
    tail += least[role_combine_forward];
  } else if (ends) {
    tail = std::max(tail, after_loss_);
  }
  tails_[graph.tail_of(op, role_forward)] = tail;
  return tail + least[role_forward];
}

// The most that a resource serves in backward, with what at least comes after a link's last task.
int64_t Bounds::least_after(const TaskGraph& graph, const Followers* followers, const Idle& idle, int64_t last) const {
  const auto& exit = *graph.ops[graph.loss.op()].block;
  int64_t most = head_backward_[graph.loss.op()] + (exit.finish_forward.empty() ? 0 : exit.least[role_finish_forward]);
  if (followers) most = std::max(most, messages_backward(graph, *followers));
  for (const Resource i : graph.totals.after.indices())
    most = std::max(most, idle.after[i] + graph.totals.after[i] + (graph.machine.topology.is_device(i) ? 0 : last));
  return most;
}

// From the loss to the end of any of an op's backwards.
int64_t Bounds::ended(const TaskGraph& graph, const Followers& followers, OpIndex op) const {
  if (!has(before_, op)) return followers.lead[op];
  if (!graph.is_changing(op)) return 0;
  int64_t lead = 0;
  for (const auto& output : graph.graph.ops[op].outputs)
    if (graph.is_routed(output.tensor) && graph.flows[output.tensor]->all_return)
      lead = std::max(lead, gradient(graph, followers, output.tensor));
  return lead + graph.ops[op].block->least[role_backward];
}

// From the loss to when the gradient of any part of a tensor is there: after every op that reads all parts, and after
// the messages, which come from the first reader on.
int64_t Bounds::gradient(const TaskGraph& graph, const Followers& followers, int32_t tensor) const {
  const auto& block = *graph.flows[tensor];
  const auto& readers = graph.graph.tensors[tensor].readers;
  int64_t first = INT64_MAX, last = 0;
  for (size_t i = 0; i < readers.size(); ++i) {
    const OpIndex reader = readers[i].first;
    if (!graph.graph.ops[reader].backward) continue;
    const int64_t lead = has(before_, reader) ? 0 : followers.lead[reader];
    first = std::min(first, lead);
    if (block.weight_forward[i] != uncounted) last = std::max(last, lead);
  }
  return std::max(last, first + block.arrival_backward);
}

// A resource that serves many messages of one tensor does so one by one, between the first that can be sent and what
// comes after the last.
int64_t Bounds::messages_backward(const TaskGraph& graph, const Followers& followers) const {
  int64_t most = 0;
  for (const int32_t tensor : graph.changes().routed()) {
    const auto& block = *graph.flows[tensor];
    if (block.most_backward == 0) continue;
    int64_t begin = INT64_MAX;
    for (const auto& [reader, input] : graph.graph.tensors[tensor].readers)
      if (graph.graph.ops[reader].backward) begin = std::min(begin, ended(graph, followers, reader));
    most = std::max(most, begin + block.most_backward + head_backward_[graph.graph.tensors[tensor].producer]);
  }
  return most;
}

// From when the first of a changed op's inputs is there to the end of any of its forwards.
int64_t Bounds::made(const TaskGraph& graph, OpIndex op) const {
  int64_t arrival = 0;
  for (const auto& [tensor, reader] : graph.reads[op])
    if (graph.is_routed(tensor) && !graph.is_changing(graph.graph.tensors[tensor].producer))
      arrival = std::max(arrival, graph.flows[tensor]->arrival_forward[reader]);
  return arrival + graph.ops[op].block->least[role_forward];
}

int64_t Bounds::messages_forward(const TaskGraph& graph, int64_t first) const {
  int64_t most = 0;
  for (const int32_t tensor : graph.changes().routed()) {
    const auto& block = *graph.flows[tensor];
    if (block.most_forward == 0) continue;
    const OpIndex producer = graph.graph.tensors[tensor].producer;
    const int64_t begin = first + (graph.is_changing(producer) ? made(graph, producer) : 0);
    most = std::max(most, begin + block.most_forward + after_message(least_times_.tensors()[tensor]));
  }
  return most;
}

// Whoever reads it.
int64_t Bounds::after_message(const LeastTimes::OfTensor& tensor) const {
  int64_t least = INT64_MAX;
  for (const auto& [reader, weight] : least_times_.readers(tensor)) least = std::min(least, head_forward_[reader]);
  return least;
}

void Bounds::find_changed(const TaskGraph& graph, const Followers* followers) {
  const size_t words = (graph.ops.size() + 63) / 64;
  before_.assign(words, followers ? 0 : ~uint64_t{0});
  after_ = before_;
  if (!followers) return;
  for (const OpIndex op : graph.changes().ops) {
    add(before_, followers->before(op));
    add(after_, followers->after(op));
    set(before_, op);
    set(after_, op);
  }
}

void Bounds::find_transfers(const TaskGraph& graph) {
  int64_t* tail = tails_.data() + graph.transfer_tail(0, false);
  for (const auto& tensor : least_times_.tensors()) {
    int64_t& there = *tail++;
    int64_t& back = *tail++;
    if (!tensor.moves) continue;
    there = after_message(tensor);
    back = head_backward_[tensor.maker];
  }
}

void Bounds::begin(TaskGraph& graph) {
  const size_t num_ops = graph.graph.ops.size();
  least_times_.update(graph);
  tails_.assign(graph.num_tails(), 0);
  head_backward_.assign(num_ops, 0);
  head_forward_.assign(num_ops, 0);
  double total = 0;
  for (const int64_t work : graph.totals.work) total += static_cast<double>(work);
  if (total > static_cast<double>(int64_t{1} << 61)) throw std::invalid_argument("an iteration takes over 2^61 ns");
}

// Goes over all backwards from the loss's on, the last first; returns what at least follows any of them.
int64_t Bounds::go_backward(const TaskGraph& graph, const Followers* followers) {
  int64_t last = INT64_MAX;
  for (const OpIndex op : graph.graph.ops.indices()) {
    if (!graph.graph.ops[op].backward) continue;
    int64_t& head = head_backward_[op];
    head = backward(graph, op);
    int64_t& tail = tails_[graph.tail_of(op, role_backward)];
    last = std::min(last, tail);
    if (has(after_, op)) continue;
    tail = std::max(tail, followers->backward[op].after + last);
    head = std::max(head, followers->backward[op].from + last);
  }
  return last;
}

// Goes over all forwards, the last first; returns the longest way from any of them to the end.
int64_t Bounds::go_forward(const TaskGraph& graph, const Followers* followers) {
  int64_t longest = 0;
  for (const OpIndex op : graph.graph.ops.indices() | std::views::reverse) {
    int64_t& head = head_forward_[op];
    head = forward(graph, op);
    if (graph.loss.separates() && !has(before_, op)) {
      int64_t& tail = tails_[graph.tail_of(op, role_forward)];
      tail = std::max(tail, followers->forward[op].after + after_loss_);
      head = std::max(head, followers->forward[op].from + after_loss_);
    }
    longest = std::max(longest, head);
  }
  return longest;
}

bool Bounds::hold(TaskGraph& graph, const Followers* followers, int64_t first, const Idle& idle, int64_t limit) {
  begin(graph);
  bound_ = *std::max_element(graph.totals.work.begin(), graph.totals.work.end());
  if (bound_ > limit) return false;
  int64_t update = INT64_MAX;
  for (const Device device : graph.machine.topology.devices())
    if (graph.updates.is_there(device)) update = std::min(update, graph.updates.time(device));
  if (update != INT64_MAX) tails_[graph.sync_tail()] = update;

  find_changed(graph, followers);
  const int64_t last = go_backward(graph, followers);
  int64_t through = 0;  // the loss, or any op
  after_loss_ = 0;
  const bool meets = graph.loss.separates();
  if (meets) {
    after_loss_ = least_after(graph, followers, idle, std::min(last, update));
    through = after_loss_ + longest(graph.totals.before, idle.before);
    bound_ = std::max(bound_, through);
    if (bound_ > limit) return false;
  }
  through = std::max(through, go_forward(graph, followers));
  if (meets) through = std::max(through, messages_forward(graph, first));
  before_loss_ = through - after_loss_;
  bound_ = std::max(bound_, through);
  if (bound_ > limit) return false;
  if (graph.changes().unrouted().empty()) find_transfers(graph);
  return true;
}

}  // namespace soapstone
