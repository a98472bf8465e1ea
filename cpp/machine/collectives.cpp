#include "machine/collectives.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "machine/topology.hpp"

namespace soapstone {
namespace {

int64_t duration(const Pattern& pattern, const Pattern::Load& load, int64_t bytes) {
  if (!pattern.measured.empty()) return pattern.measured.time(bytes);
  int64_t time = load.overhead + wire_time(load.summing, bytes, load.count, pattern.parts);
  if (load.in_switch > 0) time += wire_time(load.sharp, bytes, load.in_switch, pattern.parts);
  return time;
}

int64_t rounds(size_t count) { return std::bit_width(count - 1); }  // ceil(log2 count)

// The hop from one end of a link to the other, where a switch there sums; else none.
const Topology::Hop* summing_hop(const Topology& topology, int32_t from, int32_t to) {
  for (const Topology::Hop& hop : topology.hops_from(from))
    if (hop.target == to && topology.link(hop.resource).sharp > 0) return &hop;
  return nullptr;
}

// Counts crossings, and makes a pattern of them.
class Crossings {
 public:
  explicit Crossings(const Topology& topology) : topology_(topology) {
    counts_.resize(topology.num_resources() - topology.num_devices());
  }

  // Each returns the latency of one hop.
  int64_t cross(Device from, Device to, int64_t count) {
    const Topology::Path path = topology_.path(from, to);
    for (const Resource resource : path.resources) add(resource, {count, 0});
    for (const Resource resource : topology_.buses_of(path.resources)) add(resource, {count, 0});
    exposed_ = std::max(exposed_, path.exposed);
    return path.latency;
  }
  int64_t ring(std::span<const Device> order, int64_t count) {
    int64_t latency = 0;
    for (size_t i = 0; i < order.size(); ++i)
      latency = std::max(latency, cross(order[i], order[(i + 1) % order.size()], count));
    return latency;
  }
  int64_t both_ways(Device a, Device b, int64_t count) { return std::max(cross(a, b, count), cross(b, a, count)); }
  int64_t in_switch(std::span<const Device> devices, int32_t vertex, int64_t count) {
    int64_t latency = 0;
    for (const Device device : devices) {
      const Resource up = summing_hop(topology_, device.value, vertex)->resource;
      const Resource down = summing_hop(topology_, vertex, device.value)->resource;
      for (const Resource resource : {up, down}) add(resource, {0, count});
      latency = std::max(latency, topology_.link(up).latency);
      exposed_ = std::max(exposed_, topology_.link(up).exposed);
    }
    return 2 * latency;
  }

  Pattern pattern(int64_t parts, int64_t latency, int64_t whole_messages = 0) const {
    Pattern result{{}, {}, parts, latency, whole_messages, exposed_, {}};
    std::map<std::tuple<int32_t, int64_t, int64_t>, int32_t> index;
    for (const Resource resource : resources_) {
      const Count& count = counts_[place(resource)];
      const auto fresh = static_cast<int32_t>(result.loads.size());
      const auto key = std::tuple(topology_.kind_of(resource), count.summed, count.in_switch);
      const auto [at, added] = index.try_emplace(key, fresh);
      if (added) result.loads.push_back(load(resource, count));
      result.resources.emplace_back(resource, at->second);
    }
    return result;
  }

 private:
  struct Count {
    int64_t summed = 0, in_switch = 0;
  };

  Pattern::Load load(Resource resource, const Count& count) const {
    if (topology_.is_bus(resource)) return {0, topology_.bus(resource), 0, count.summed, 0};
    const Link& link = topology_.link(resource);
    return {link.overhead, link.summing, link.sharp, count.summed, count.in_switch};
  }
  int32_t place(Resource resource) const { return resource.value - topology_.num_devices(); }
  void add(Resource resource, Count more) {
    Count& count = counts_[place(resource)];
    if (count.summed + count.in_switch == 0) resources_.push_back(resource);
    count.summed += more.summed;
    count.in_switch += more.in_switch;
  }

  const Topology& topology_;
  std::vector<Count> counts_;        // by resource that is no device
  std::vector<Resource> resources_;  // in the order of their first crossing
  double exposed_ = 0;
};

// A group with as many members in every node: node i has members[i * per_node] and those after it.
struct Nodes {
  std::span<const Device> members;
  size_t per_node, count;

  std::span<const Device> node(size_t i) const { return members.subspan(i * per_node, per_node); }
  Device member(size_t i, size_t j) const { return members[i * per_node + j % per_node]; }
};

constexpr int32_t no_switch = -1;

// The first switch that sums for all of these.
int32_t summing_switch(const Topology& topology, std::span<const Device> devices) {
  for (const Topology::Hop& hop : topology.hops_from(devices[0].value)) {
    if (hop.target < topology.num_devices()) continue;
    const auto sums_for = [&](Device device) { return summing_hop(topology, device.value, hop.target) != nullptr; };
    if (std::all_of(devices.begin(), devices.end(), sums_for)) return hop.target;
  }
  return no_switch;
}

Pattern ring(const Topology& topology, std::span<const Device> order, int64_t passes) {
  Crossings crossings(topology);
  const auto n = static_cast<int64_t>(order.size());
  const int64_t hop = crossings.ring(order, passes * (n - 1));
  return crossings.pattern(n, passes * (n - 1) * hop);
}

// Binomial: i's parent is i without its lowest set bit; sums go up, the whole comes down.
Pattern tree(const Topology& topology, std::span<const Device> order) {
  Crossings crossings(topology);
  int64_t hop = 0;
  for (size_t i = 1; i < order.size(); ++i) hop = std::max(hop, crossings.both_ways(order[i], order[i & (i - 1)], 1));
  const int64_t depth = rounds(order.size());
  return crossings.pattern(1, 2 * depth * hop, 2 * depth - 1);
}

Pattern measured(const Topology& topology, std::span<const Device> order, const MeasuredSum& sum) {
  Pattern pattern = ring(topology, order, 2);
  pattern.latency = 0;
  pattern.measured = sum.times;
  pattern.exposed = sum.exposed.value_or(pattern.exposed);
  return pattern;
}

Pattern in_switch(const Topology& topology, std::span<const Device> order, int32_t vertex) {
  Crossings crossings(topology);
  const auto n = static_cast<int64_t>(order.size());
  const int64_t hop = crossings.in_switch(order, vertex, n + 1);
  return crossings.pattern(n, 2 * hop);
}

// Ring j enters each node at member j and leaves it from the one before, by that one's own adapter.
Pattern rails(const Topology& topology, const Nodes& nodes, int64_t passes) {
  Crossings crossings(topology);
  const auto n = static_cast<int64_t>(nodes.members.size());
  int64_t hop = 0;
  std::vector<Device> order;
  for (size_t j = 0; j < nodes.per_node; ++j) {
    order.clear();
    for (size_t i = 0; i < nodes.count; ++i)
      for (size_t step = 0; step < nodes.per_node; ++step) order.push_back(nodes.member(i, j + step));
    hop = std::max(hop, crossings.ring(order, passes * (n - 1)));
  }
  return crossings.pattern(n * static_cast<int64_t>(nodes.per_node), passes * (n - 1) * hop);
}

// In-order binary tree over 0 .. count-1, where leaves are odd: the parent of a node that is not 0.
size_t parent(size_t node, size_t count) {
  const size_t bit = node & -node, up = (node ^ bit) | (bit << 1);
  return up < count ? up : node ^ bit;
}

// The second tree is the first one mirrored or, for an odd count, turned by one: who has children there has none here.
int64_t two_trees(const Nodes& nodes, Crossings& crossings) {
  int64_t hop = 0;
  const auto second = [&](size_t i) { return nodes.count % 2 == 0 ? nodes.count - 1 - i : (i + 1) % nodes.count; };
  for (size_t i = 1; i < nodes.count; ++i) {
    const size_t up = parent(i, nodes.count);
    for (size_t j = 0; j < nodes.per_node; ++j) {
      hop = std::max(hop, crossings.both_ways(nodes.member(i, j), nodes.member(up, j), 1));
      hop = std::max(hop, crossings.both_ways(nodes.member(second(i), j), nodes.member(second(up), j), 1));
    }
  }
  return 2 * rounds(nodes.count) * hop;
}

// `switches`: by node, the one that sums inside it, or empty for rings.
Pattern levels(const Topology& topology, const Nodes& nodes, const std::vector<int32_t>& switches) {
  Crossings crossings(topology);
  const auto m = static_cast<int64_t>(nodes.per_node);
  const int64_t parts = 2 * m, hops = switches.empty() ? 2 * (m - 1) : 2;
  int64_t hop = 0;
  for (size_t i = 0; i < nodes.count; ++i) {
    hop = std::max(hop, switches.empty() ? crossings.ring(nodes.node(i), parts * 2 * (m - 1) / m)
                                         : crossings.in_switch(nodes.node(i), switches[i], parts * (m + 1) / m));
  }
  const int64_t across = two_trees(nodes, crossings);
  return crossings.pattern(parts, hops * hop + across);
}

Pattern half_levels(const Topology& topology, const Nodes& nodes) {
  Crossings crossings(topology);
  const auto m = static_cast<int64_t>(nodes.per_node), k = static_cast<int64_t>(nodes.count);
  int64_t inside = 0, across = 0;
  for (size_t i = 0; i < nodes.count; ++i) inside = std::max(inside, crossings.ring(nodes.node(i), k * (m - 1)));
  std::vector<Device> rail(nodes.count);
  for (size_t j = 0; j < nodes.per_node; ++j) {
    for (size_t i = 0; i < nodes.count; ++i) rail[i] = nodes.member(i, j);
    across = std::max(across, crossings.ring(rail, k - 1));
  }
  return crossings.pattern(k * m, (m - 1) * inside + (k - 1) * across);
}

// Whether rails and levels fit: several members in each of several nodes, as many in all.
bool fits(const Topology& topology, const Nodes& nodes) {
  if (nodes.per_node < 2 || nodes.count < 2 || nodes.members.size() % nodes.per_node != 0) return false;
  for (size_t i = 0; i < nodes.count; ++i) {
    const auto node = nodes.node(i);
    if (topology.node_of(node.front()) != topology.node_of(node.back())) return false;
    if (i > 0 && topology.node_of(nodes.member(i - 1, 0)) == topology.node_of(node.front())) return false;
  }
  return true;
}

Nodes split(const Topology& topology, std::span<const Device> order) {
  const auto other = std::find_if(order.begin(), order.end(), [&](Device device) {
    return topology.node_of(device) != topology.node_of(order[0]);
  });
  const auto per_node = static_cast<size_t>(other - order.begin());
  return {order, per_node, order.size() / per_node};
}

std::vector<int32_t> summing_switches(const Topology& topology, const Nodes& nodes) {
  std::vector<int32_t> switches;
  for (size_t i = 0; i < nodes.count; ++i) {
    switches.push_back(summing_switch(topology, nodes.node(i)));
    if (switches.back() == no_switch) return {};
  }
  return switches;
}

}  // namespace

Pattern::Cost Pattern::cost(int64_t bytes, int64_t limit) const {
  Cost cost{latency, 0};
  for (const Load& load : loads) {
    if (cost.sum() >= limit) break;
    cost.longest = std::max(cost.longest, duration(*this, load, bytes));
    if (whole_messages == 0) continue;
    const int64_t whole = load.overhead + wire_time(load.summing, bytes);
    cost.latency = std::max(cost.latency, latency + whole_messages * whole);
  }
  return cost;
}

void Pattern::hold(int64_t bytes, std::vector<Hold>& holds) const {
  std::vector<int64_t> durations;
  for (const Load& load : loads) durations.push_back(duration(*this, load, bytes));
  for (const auto& [resource, load] : resources) holds.push_back({resource, durations[load]});
}

std::vector<Pattern> find_patterns(const Topology& topology, Collective collective, std::span<const Device> order) {
  const bool whole = collective == Collective::all_reduce;
  const int64_t passes = whole ? 2 : 1;
  if (const MeasuredSum* sum = topology.measured_sum(order); whole && sum) return {measured(topology, order, *sum)};
  std::vector<Pattern> patterns{ring(topology, order, passes)};
  if (whole) patterns.push_back(tree(topology, order));
  // Where bytes keep devices from computing they go by gloo, which knows neither rails nor levels.
  if (patterns[0].exposed > 0) return patterns;
  if (const int32_t vertex = summing_switch(topology, order); whole && vertex != no_switch) {
    patterns.push_back(in_switch(topology, order, vertex));
  }
  const Nodes nodes = split(topology, order);
  if (topology.has_direct_links_between_nodes() || !fits(topology, nodes)) return patterns;
  patterns.push_back(rails(topology, nodes, passes));
  if (!whole) {
    patterns.push_back(half_levels(topology, nodes));
    return patterns;
  }
  patterns.push_back(levels(topology, nodes, {}));
  const std::vector<int32_t> switches = summing_switches(topology, nodes);
  if (!switches.empty()) patterns.push_back(levels(topology, nodes, switches));
  return patterns;
}

}  // namespace soapstone
