#include "machine/topology.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>

namespace soapstone {
namespace {

constexpr int64_t largest = int64_t{1} << 53;          // bytes, bytes/s, ns of a hold: whole numbers in a double
constexpr int64_t largest_latency = int64_t{1} << 40;  // ns, some 18 minutes: far from overflow in sums over hops
constexpr int64_t largest_launch = INT32_MAX;          // ns
constexpr int64_t routing_bytes = 1 << 20;

using Wide = unsigned __int128;

// ceil(times / parts * bytes * 1e9 / bandwidth), exactly: double rounding would make holds depend on how it is written.
int64_t wire_time(double bandwidth, int64_t bytes, int64_t times, int64_t parts) {
  const Wide work = static_cast<Wide>(times) * static_cast<Wide>(bytes) * 1'000'000'000u;
  const Wide rate = static_cast<Wide>(parts) * static_cast<Wide>(bandwidth);
  const Wide time = (work + rate - 1) / rate;
  if (time > static_cast<Wide>(largest)) {
    throw std::invalid_argument("a message of " + std::to_string(bytes) + " bytes takes longer than 2^53 ns");
  }
  return static_cast<int64_t>(time);
}

int64_t hold_time(const Link& link, int64_t bytes) { return link.overhead + wire_time(link.bandwidth, bytes, 1, 1); }

int64_t summing_time(const Link& link, int64_t bytes, int64_t times, int64_t parts) {
  return link.overhead + wire_time(link.summing, bytes, times, parts);
}

void check_bytes(int64_t bytes) {
  if (bytes < 0 || bytes > largest) throw std::invalid_argument("bytes out of range: " + std::to_string(bytes));
}

int64_t at_least_one(int64_t latency, int64_t longest) { return longest + latency < 1 ? 1 : latency; }

}  // namespace

Topology::Topology(int32_t num_devices, int32_t num_switches, By<Device, int32_t> node_of_device,
                   std::vector<Link> links, By<Device, Host> hosts)
    : num_devices_(num_devices),
      node_of_device_(std::move(node_of_device)),
      links_(std::move(links)),
      hosts_(std::move(hosts)) {
  if (num_devices < 1 || num_switches < 0) throw std::invalid_argument("a topology has at least one device");
  if (node_of_device_.size() != static_cast<size_t>(num_devices)) {
    throw std::invalid_argument("node_of_device needs one entry a device");
  }
  if (hosts_.empty()) hosts_.resize(num_devices);
  if (hosts_.size() != static_cast<size_t>(num_devices)) throw std::invalid_argument("hosts need one entry a device");
  for (const Host& host : hosts_) {
    for (const int64_t ns : {host.send, host.receive, host.sum})
      if (ns < 0 || ns > largest_launch) throw std::invalid_argument("a host's time is out of range");
    kind_of_host_.try_emplace(host, static_cast<int32_t>(kind_of_host_.size()));
  }
  const int32_t num_vertices = num_devices + num_switches;
  edges_.resize(num_vertices);
  routes_.resize(num_devices);
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    check_link(link, num_vertices);
    link.bandwidth = std::round(link.bandwidth);
    link.summing = std::round(link.summing);
    const int64_t weight = link.latency + hold_time(link, routing_bytes);
    edges_[link.source].push_back({link.target, Resource(num_resources()), weight});
    link_of_resource_.push_back(static_cast<int32_t>(i));
    if (link.duplex) link_of_resource_.push_back(static_cast<int32_t>(i));
    edges_[link.target].push_back({link.source, Resource(num_resources() - 1), weight});
  }
  check_connected();
  std::map<std::tuple<double, double, int64_t, int64_t, bool>, int32_t> kinds;
  for (const Link& link : links_)
    kind_of_link_.push_back(kinds
                                .try_emplace({link.bandwidth, link.summing, link.overhead, link.latency, link.overlap},
                                             static_cast<int32_t>(kinds.size()))
                                .first->second);
}

void Topology::check_link(const Link& link, int32_t num_vertices) const {
  const auto outside = [&](int32_t vertex) { return vertex < 0 || vertex >= num_vertices; };
  const auto bad_time = [](int64_t ns) { return ns < 0 || ns > largest_latency; };
  if (outside(link.source) || outside(link.target)) throw std::invalid_argument("a link's end is out of range");
  if (link.source == link.target) throw std::invalid_argument("a link joins a vertex to itself");
  for (const double bandwidth : {link.bandwidth, link.summing}) {
    if (!(bandwidth >= 1.0 && bandwidth <= static_cast<double>(largest))) {
      throw std::invalid_argument("a link's bandwidth is out of range");
    }
  }
  if (bad_time(link.latency) || bad_time(link.overhead)) {
    throw std::invalid_argument("a link's latency or overhead is out of range");
  }
}

void Topology::check_device(Device device) const {
  if (!device.is_below(num_devices_)) throw std::invalid_argument("no device " + std::to_string(device.value));
}

void Topology::check_connected() const {
  std::vector<char> seen(edges_.size());
  std::vector<int32_t> frontier{0};
  seen[0] = true;
  while (!frontier.empty()) {
    const int32_t vertex = frontier.back();
    frontier.pop_back();
    for (const Hop& edge : edges_[vertex]) {
      if (!seen[edge.target]) frontier.push_back(edge.target);
      seen[edge.target] = true;
    }
  }
  for (int32_t device = 0; device < num_devices_; ++device) {
    if (!seen[device]) throw std::invalid_argument("device " + std::to_string(device) + " is not connected");
  }
}

// Dijkstra; equal times go to the fewest hops, then to the smallest vertex before, then to the first link.
std::vector<Topology::Step> Topology::least_paths(Device source) const {
  using Visit = std::tuple<int64_t, int32_t, int32_t>;  // time, hops, vertex
  const auto rank = [](const Step& step) { return std::tuple(step.time, step.hops, step.vertex, step.resource); };
  std::vector<Step> steps(edges_.size(), Step{INT64_MAX, 0, -1, none});
  std::priority_queue<Visit, std::vector<Visit>, std::greater<>> queue;
  steps[source.value] = {0, 0, -1, none};
  queue.emplace(0, 0, source.value);
  while (!queue.empty()) {
    const auto [time, hops, vertex] = queue.top();
    queue.pop();
    if (std::tie(time, hops) != std::tie(steps[vertex].time, steps[vertex].hops)) continue;
    for (const Hop& edge : edges_[vertex]) {
      const Step step{time + edge.weight, hops + 1, vertex, edge.resource};
      Step& best = steps[edge.target];
      if (rank(step) >= rank(best)) continue;
      if (step.time != best.time || step.hops != best.hops) queue.emplace(step.time, step.hops, edge.target);
      best = step;
    }
  }
  return steps;
}

Topology::Routes Topology::find_routes(Device source) const {
  const std::vector<Step> steps = least_paths(source);
  Routes routes;
  std::vector<int32_t> kinds;
  routes.to.reserve(num_devices_);
  for (const Device device : devices()) {
    const auto begin = static_cast<int32_t>(routes.resources.size());
    for (int32_t vertex = device.value; vertex != source.value; vertex = steps[vertex].vertex) {
      routes.resources.push_back(steps[vertex].resource);
    }
    std::reverse(routes.resources.begin() + begin, routes.resources.end());
    const int32_t shape =
        shape_of({routes.resources.begin() + begin, routes.resources.end()}, hosts_[source], hosts_[device], kinds);
    if (shapes_[shape].costs_ends())
      routes.resources.insert(routes.resources.end(), {resource_of(source), resource_of(device)});
    routes.to.push_back({begin, shape});
  }
  return routes;
}

int32_t Topology::shape_of(std::span<const Resource> resources, const Host& from, const Host& to,
                           std::vector<int32_t>& kinds) const {
  kinds = {kind_of_host_.at(from), kind_of_host_.at(to)};
  for (const Resource resource : resources) kinds.push_back(kind_of_link_[link_index(resource)]);
  if (const auto at = shape_index_.find(kinds); at != shape_index_.end()) return at->second;
  Shape& shape = shapes_.emplace_back();
  shape.from = from;
  shape.to = to;
  for (const Resource resource : resources) {
    shape.links.push_back(link_index(resource));
    shape.latency += link(resource).latency;
    shape.overlap &= link(resource).overlap;
  }
  return shape_index_[kinds] = static_cast<int32_t>(shapes_.size()) - 1;
}

std::vector<Resource> Topology::route(Device from, Device to) const {
  check_device(from);
  check_device(to);
  const Routes& routes = routes_from(from);
  const auto [begin, shape] = routes.to[to];
  const auto* resources = routes.resources.data() + begin;
  return {resources, resources + shapes_[shape].links.size()};
}

void Topology::measure(const Shape& shape, int64_t bytes, Size& size) const {
  check_bytes(bytes);
  size.bytes = -1;  // until all is known
  size.durations.clear();
  size.longest = size.slowest = size.last_slowest = 0;
  for (const int32_t link : shape.links) {
    const int64_t duration = hold_time(links_[link], bytes);
    const auto place = static_cast<int32_t>(size.durations.size());
    if (duration > size.longest) size.slowest = place;
    if (duration >= size.longest) size.last_slowest = place;
    size.longest = std::max(size.longest, duration);
    size.durations.push_back(duration);
  }
  if (shape.costs_ends()) measure_ends(shape, size);
  size.latency = at_least_one(shape.latency, size.longest);
  size.bytes = bytes;
}

void Topology::measure_ends(const Shape& shape, Size& size) const {
  const int64_t at_least = shape.overlap ? 0 : size.longest;
  const std::array<std::pair<int64_t, bool>, 2> ends{
      {{shape.from.send, shape.from.is_ahead}, {shape.to.receive, shape.to.is_ahead}}};
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto [time, is_ahead] = ends[i];
    const int64_t duration = std::max(at_least, is_ahead ? 0 : time);
    const auto place = static_cast<int32_t>(size.durations.size());
    if (duration > size.longest) size.slowest = place;
    if (duration > 0 && duration >= size.longest) size.last_slowest = place;
    size.longest = std::max(size.longest, duration);
    size.launches[i] = is_ahead ? static_cast<int32_t>(time) : 0;
    size.durations.push_back(duration);
  }
}

int64_t Topology::transfer(Device from, Device to, int64_t bytes, std::vector<Hold>& holds) const {
  check_device(from);
  check_device(to);
  check_bytes(bytes);
  const auto [resources, size] = way(from, to, bytes);
  const size_t num_links = size.durations.size() - (shapes_[routes_from(from).to[to].shape].costs_ends() ? 2 : 0);
  for (size_t i = 0; i < size.durations.size(); ++i) {
    const int32_t launch = i < num_links ? 0 : size.launches[i - num_links];
    if (i < num_links || launch > 0 || size.durations[i] > 0)
      holds.push_back({resources[i], size.durations[i], launch});
  }
  return size.latency;
}

int64_t Topology::all_reduce(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const {
  check_bytes(bytes);
  const std::vector<Device> order = ring_order(devices);
  const auto num_devices = static_cast<int64_t>(order.size());
  if (num_devices == 1) return 1;
  const Patterns& patterns = patterns_of(order);
  const Message by_ring = ring(patterns.ring, bytes, num_devices), by_tree = tree(patterns.tree, bytes, num_devices);
  const bool prefer_tree = by_tree.latency + by_tree.longest < by_ring.latency + by_ring.longest;
  const Message& chosen = prefer_tree ? by_tree : by_ring;
  const Pattern& pattern = prefer_tree ? patterns.tree : patterns.ring;
  for (const auto& [resource, alike] : pattern.holds) holds.push_back({resource, chosen.durations[alike]});
  hold_members(order, pattern.overlap ? 0 : chosen.longest, holds);
  return at_least_one(chosen.latency, chosen.longest);
}

void Topology::hold_members(std::span<const Device> devices, int64_t at_least, std::vector<Hold>& holds) const {
  for (const Device device : devices) {
    const Host& host = hosts_[device];
    const int64_t duration = std::max(at_least, host.is_ahead ? 0 : host.sum);
    const auto launch = static_cast<int32_t>(host.is_ahead ? host.sum : 0);
    if (duration > 0 || launch > 0) holds.push_back({resource_of(device), duration, launch});
  }
}

// Node by node, so that a ring enters and leaves each node once.
std::vector<Device> Topology::ring_order(std::span<const Device> devices) const {
  if (devices.empty()) throw std::invalid_argument("an all-reduce needs at least one device");
  for (const Device device : devices) check_device(device);
  std::vector<Device> order(devices.begin(), devices.end());
  std::sort(order.begin(), order.end(),
            [&](Device a, Device b) { return std::tie(node_of_device_[a], a) < std::tie(node_of_device_[b], b); });
  if (std::adjacent_find(order.begin(), order.end()) != order.end()) {
    throw std::invalid_argument("an all-reduce names a device twice");
  }
  return order;
}

void Topology::cross(Device from, Device to, Crossings& crossings) const {
  const Routes& routes = routes_from(from);
  const auto [begin, index] = routes.to[to];
  const Shape& shape = shapes_[index];
  crossings.counts.resize(link_of_resource_.size());
  for (size_t i = begin; i < begin + shape.links.size(); ++i) {
    const Resource resource = routes.resources[i];
    if (crossings.counts[resource - first_link()]++ == 0) crossings.resources.push_back(resource);
  }
  crossings.hop_latency = std::max(crossings.hop_latency, shape.latency);
  crossings.overlap &= shape.overlap;
}

Topology::Pattern Topology::pattern(const Crossings& crossings) const {
  Pattern result;
  result.hop_latency = crossings.hop_latency;
  result.overlap = crossings.overlap;
  std::map<std::pair<int32_t, int64_t>, int32_t> index;
  for (const Resource resource : crossings.resources) {
    const int32_t link = link_index(resource);
    const int64_t count = crossings.counts[resource - first_link()];
    const auto fresh = static_cast<int32_t>(result.alike.size());
    const auto [at, added] = index.try_emplace({kind_of_link_[link], count}, fresh);
    if (added) result.alike.push_back({link, count});
    result.holds.emplace_back(resource, at->second);
  }
  return result;
}

// A ring goes from each device to the next. A tree is binomial: i's parent is i without its lowest set bit; sums go up,
// the whole comes down.
const Topology::Patterns& Topology::patterns_of(std::vector<Device> order) const {
  constexpr size_t most_patterns = 1 << 14;
  if (const auto at = patterns_.find(order); at != patterns_.end()) return at->second;
  if (patterns_.size() >= most_patterns) patterns_.clear();
  Crossings around, up_and_down;
  for (size_t i = 0; i < order.size(); ++i) cross(order[i], order[(i + 1) % order.size()], around);
  for (size_t i = 1; i < order.size(); ++i) {
    cross(order[i], order[i & (i - 1)], up_and_down);
    cross(order[i & (i - 1)], order[i], up_and_down);
  }
  return patterns_[std::move(order)] = {pattern(around), pattern(up_and_down)};
}

// What is held when every crossing carries times/parts of the bytes; the latency is left to the caller.
Topology::Message Topology::message(const Pattern& pattern, int64_t bytes, int64_t times, int64_t parts) const {
  Message message{{}, 0, 0};
  for (const auto& [link, count] : pattern.alike) {
    message.durations.push_back(summing_time(links_[link], bytes, count * times, parts));
    message.longest = std::max(message.longest, message.durations.back());
  }
  return message;
}

Topology::Message Topology::ring(const Pattern& pattern, int64_t bytes, int64_t num_devices) const {
  Message result = message(pattern, bytes, 2 * (num_devices - 1), num_devices);
  result.latency = 2 * (num_devices - 1) * pattern.hop_latency;
  return result;
}

Topology::Message Topology::tree(const Pattern& pattern, int64_t bytes, int64_t num_devices) const {
  int64_t slowest = 0;
  for (const auto& [link, count] : pattern.alike) slowest = std::max(slowest, summing_time(links_[link], bytes, 1, 1));
  const int64_t rounds = 2 * std::bit_width(static_cast<uint64_t>(num_devices - 1));
  Message result = message(pattern, bytes, 1, 1);
  result.latency = rounds * pattern.hop_latency + (rounds - 1) * slowest;
  return result;
}

}  // namespace soapstone
