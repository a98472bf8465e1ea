#include "machine/topology.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

namespace soapstone {
namespace {

constexpr int64_t largest_latency = int64_t{1} << 40;  // ns, some 18 minutes: far from overflow in sums over hops
constexpr int64_t largest_launch = INT32_MAX;          // ns
constexpr int64_t routing_bytes = 1 << 20;

void check_bytes(int64_t bytes) {
  if (bytes < 0 || bytes > largest_whole) throw std::invalid_argument("bytes out of range: " + std::to_string(bytes));
}

bool is_rate(double rate) { return rate >= 1.0 && rate <= static_cast<double>(largest_whole); }

void check_host(const Host& host) {
  for (const int64_t ns : {host.send, host.receive, host.sum, host.iteration})
    if (ns < 0 || ns > largest_launch) throw std::invalid_argument("a host's time is out of range");
  if (host.copying != 0.0 && !is_rate(host.copying)) throw std::invalid_argument("a host's copying is out of range");
}

int64_t share(double part, int64_t time) { return std::llround(part * static_cast<double>(time)); }

int64_t at_least_one(int64_t latency, int64_t longest) { return longest + latency < 1 ? 1 : latency; }

}  // namespace

Topology::Topology(int32_t num_devices, int32_t num_switches, By<Device, int32_t> node_of_device,
                   std::vector<Link> links, By<Device, Host> hosts, std::vector<MeasuredSum> sums,
                   std::vector<double> buses)
    : num_devices_(num_devices),
      node_of_device_(std::move(node_of_device)),
      links_(std::move(links)),
      hosts_(std::move(hosts)),
      sums_(std::move(sums)),
      buses_(std::move(buses)) {
  if (num_devices < 1 || num_switches < 0) throw std::invalid_argument("a topology has at least one device");
  if (node_of_device_.size() != static_cast<size_t>(num_devices)) {
    throw std::invalid_argument("node_of_device needs one entry a device");
  }
  if (hosts_.empty()) hosts_.resize(num_devices);
  if (hosts_.size() != static_cast<size_t>(num_devices)) throw std::invalid_argument("hosts need one entry a device");
  for (const Host& host : hosts_) {
    check_host(host);
    kind_of_host_.try_emplace(host, static_cast<int32_t>(kind_of_host_.size()));
  }
  std::stable_sort(sums_.begin(), sums_.end(),
                   [](const MeasuredSum& a, const MeasuredSum& b) { return a.members < b.members; });
  const int32_t num_vertices = num_devices + num_switches;
  edges_.resize(num_vertices);
  routes_.resize(num_devices);
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    check_link(link, num_vertices);
    link.bandwidth = std::round(link.bandwidth);
    link.summing = std::round(link.summing);
    link.sharp = std::round(link.sharp);
    const int64_t weight = link.latency + hold_time(link, routing_bytes);
    edges_[link.source].push_back({link.target, first_bus(), weight});
    link_of_resource_.push_back(static_cast<int32_t>(i));
    if (link.duplex) link_of_resource_.push_back(static_cast<int32_t>(i));
    edges_[link.target].push_back({link.source, Resource(first_bus().value - 1), weight});
  }
  check_connected();
  std::map<std::tuple<double, double, double, int64_t, int64_t, double, Curve>, int32_t> kinds;
  for (const Link& link : links_) {
    const auto kind =
        std::tuple(link.bandwidth, link.summing, link.sharp, link.overhead, link.latency, link.exposed, link.times);
    kind_of_link_.push_back(kinds.try_emplace(kind, static_cast<int32_t>(kinds.size())).first->second);
    has_direct_links_between_nodes_ |= std::max(link.source, link.target) < num_devices &&
                                       node_of(Device(link.source)) != node_of(Device(link.target));
  }
  std::map<double, int32_t> rates;
  for (double& rate : buses_) {
    if (!is_rate(rate)) throw std::invalid_argument("a bus's bandwidth is out of range");
    rate = std::round(rate);
    kind_of_bus_.push_back(rates.try_emplace(rate, static_cast<int32_t>(rates.size())).first->second);
  }
}

void Topology::check_link(const Link& link, int32_t num_vertices) const {
  const auto outside = [&](int32_t vertex) { return vertex < 0 || vertex >= num_vertices; };
  const auto bad_time = [](int64_t ns) { return ns < 0 || ns > largest_latency; };
  if (outside(link.source) || outside(link.target)) throw std::invalid_argument("a link's end is out of range");
  if (link.source == link.target) throw std::invalid_argument("a link joins a vertex to itself");
  for (const double bandwidth : {link.bandwidth, link.summing}) {
    if (!is_rate(bandwidth)) throw std::invalid_argument("a link's bandwidth is out of range");
  }
  if (link.sharp != 0.0 && !is_rate(link.sharp)) throw std::invalid_argument("a link's sharp is out of range");
  if (!(link.exposed >= 0.0 && link.exposed <= 1.0)) throw std::invalid_argument("a link's exposed is not a share");
  for (const int32_t bus : link.buses)
    if (bus < 0 || static_cast<size_t>(bus) >= buses_.size()) throw std::invalid_argument("a link has no such bus");
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
    const std::span<const Resource> links{routes.resources.begin() + begin, routes.resources.end()};
    const std::vector<Resource> buses = buses_of(links);
    const int32_t shape = shape_of(links, buses, hosts_[source], hosts_[device], kinds);
    routes.resources.insert(routes.resources.end(), buses.begin(), buses.end());
    if (shapes_[shape].costs_ends())
      routes.resources.insert(routes.resources.end(), {resource_of(source), resource_of(device)});
    routes.to.push_back({begin, shape});
  }
  return routes;
}

std::vector<Resource> Topology::buses_of(std::span<const Resource> links) const {
  std::vector<Resource> found;
  for (const Resource resource : links)
    for (const int32_t bus : link(resource).buses) {
      const Resource shared(first_bus().value + bus);
      if (std::find(found.begin(), found.end(), shared) == found.end()) found.push_back(shared);
    }
  return found;
}

int32_t Topology::shape_of(std::span<const Resource> links, std::span<const Resource> buses, const Host& from,
                           const Host& to, std::vector<int32_t>& kinds) const {
  kinds = {kind_of_host_.at(from), kind_of_host_.at(to)};
  for (const Resource resource : links) kinds.push_back(kind_of(resource));
  for (const Resource resource : buses) kinds.push_back(kind_of(resource));
  if (const auto at = shape_index_.find(kinds); at != shape_index_.end()) return at->second;
  Shape& shape = shapes_.emplace_back();
  shape.from = from;
  shape.to = to;
  for (const Resource resource : buses) shape.buses.push_back(bus(resource));
  for (const Resource resource : links) {
    shape.links.push_back(link_index(resource));
    shape.latency += link(resource).latency;
    shape.exposed = std::max(shape.exposed, link(resource).exposed);
  }
  return shape_index_[kinds] = static_cast<int32_t>(shapes_.size()) - 1;
}

std::vector<Resource> Topology::route(Device from, Device to) const {
  check_device(from);
  check_device(to);
  const auto resources = path(from, to).resources;
  return {resources.begin(), resources.end()};
}

Topology::Path Topology::path(Device from, Device to) const {
  const Routes& routes = routes_from(from);
  const auto [begin, index] = routes.to[to];
  const Shape& shape = shapes_[index];
  return {{routes.resources.data() + begin, shape.links.size()}, shape.latency, shape.exposed};
}

void Topology::measure(const Shape& shape, int64_t bytes, Size& size) const {
  check_bytes(bytes);
  size.bytes = -1;  // until all is known
  size.durations.clear();
  size.longest = size.slowest = size.last_slowest = 0;
  const auto hold = [&](int64_t duration) {
    const auto place = static_cast<int32_t>(size.durations.size());
    if (duration > size.longest) size.slowest = place;
    if (duration >= size.longest) size.last_slowest = place;
    size.longest = std::max(size.longest, duration);
    size.durations.push_back(duration);
  };
  for (const int32_t link : shape.links) hold(hold_time(links_[link], bytes));
  for (const double rate : shape.buses) hold(wire_time(rate, bytes));
  size.num_between = size.durations.size();
  if (shape.costs_ends()) measure_ends(shape, size);
  size.latency = at_least_one(shape.latency, size.longest);
  size.bytes = bytes;
}

void Topology::measure_ends(const Shape& shape, Size& size) const {
  const int64_t slowed = share(shape.exposed, size.longest);
  size.launches = {shape.from.launch(shape.from.send), shape.to.launch(shape.to.receive)};
  for (const int64_t time : {shape.from.on_device(shape.from.send), shape.to.on_device(shape.to.receive)}) {
    const int64_t duration = slowed + time;
    const auto place = static_cast<int32_t>(size.durations.size());
    if (duration > size.longest) size.slowest = place;
    if (duration > 0 && duration >= size.longest) size.last_slowest = place;
    size.longest = std::max(size.longest, duration);
    size.durations.push_back(duration);
  }
}

int64_t Topology::transfer(Device from, Device to, int64_t bytes, std::vector<Hold>& holds) const {
  check_device(from);
  check_device(to);
  check_bytes(bytes);
  const auto [resources, size] = way(from, to, bytes);
  const size_t between = size.num_between;
  for (size_t i = 0; i < size.durations.size(); ++i) {
    const int32_t launch = i < between ? 0 : size.launches[i - between];
    if (i < between || launch > 0 || size.durations[i] > 0) holds.push_back({resources[i], size.durations[i], launch});
  }
  return size.latency;
}

void Topology::hold_members(std::span<const Device> devices, int64_t bytes, int64_t slowed,
                            std::vector<Hold>& holds) const {
  for (const Device device : devices) {
    const Host& host = hosts_[device];
    const int64_t copied = host.copying > 0 ? wire_time(host.copying, bytes) : 0;
    const int64_t duration = slowed + host.on_device(host.sum) + copied;
    const int32_t launch = host.launch(host.sum);
    if (duration > 0 || launch > 0) holds.push_back({resource_of(device), duration, launch});
  }
}

int64_t Topology::all_reduce(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const {
  return collect(Collective::all_reduce, devices, bytes, holds);
}

int64_t Topology::reduce_scatter(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const {
  return collect(Collective::half, devices, bytes, holds);
}

int64_t Topology::all_gather(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const {
  return collect(Collective::half, devices, bytes, holds);
}

int64_t Topology::collect(Collective collective, std::span<const Device> devices, int64_t bytes,
                          std::vector<Hold>& holds) const {
  check_bytes(bytes);
  const std::vector<Device> order = node_by_node(devices);
  if (order.size() == 1) return 1;
  const Pattern* best = nullptr;
  Pattern::Cost least{INT64_MAX, 0};
  for (const Pattern& pattern : patterns_of(collective, order)) {
    const Pattern::Cost cost = pattern.cost(bytes, least.sum());
    if (cost.sum() >= least.sum()) continue;
    best = &pattern;
    least = cost;
  }
  best->hold(bytes, holds);
  hold_members(order, bytes, share(best->exposed, least.longest), holds);
  return at_least_one(least.latency, least.longest);
}

// So that a ring enters and leaves each node once.
std::vector<Device> Topology::node_by_node(std::span<const Device> devices) const {
  if (devices.empty()) throw std::invalid_argument("a collective needs at least one device");
  for (const Device device : devices) check_device(device);
  std::vector<Device> order(devices.begin(), devices.end());
  std::sort(order.begin(), order.end(),
            [&](Device a, Device b) { return std::tie(node_of_device_[a], a) < std::tie(node_of_device_[b], b); });
  if (std::adjacent_find(order.begin(), order.end()) != order.end()) {
    throw std::invalid_argument("a collective names a device twice");
  }
  return order;
}

const MeasuredSum* Topology::measured_sum(std::span<const Device> devices) const {
  if (sums_.empty()) return nullptr;
  std::set<int32_t> nodes;
  for (const Device device : devices) nodes.insert(node_of(device));
  for (const auto& sum : sums_)
    if (static_cast<size_t>(sum.members) >= devices.size() && static_cast<size_t>(sum.nodes) == nodes.size())
      return &sum;
  return nullptr;
}

const std::vector<Pattern>& Topology::patterns_of(Collective collective, std::vector<Device> order) const {
  constexpr size_t most_patterns = 1 << 14;
  PatternCache& cache = patterns_[static_cast<size_t>(collective)];
  if (const auto at = cache.find(order); at != cache.end()) return at->second;
  if (cache.size() >= most_patterns) cache.clear();
  std::vector<Pattern> patterns = find_patterns(*this, collective, order);
  return cache[std::move(order)] = std::move(patterns);
}

}  // namespace soapstone
