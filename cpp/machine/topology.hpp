// The machines: devices and switches joined by links, and what a message over them holds.
//
// A route is the path of least time for 1 MiB. On each link of its route a transfer holds
//
//     overhead + ceil(bytes * 1e9 / bandwidth)
//
// nanoseconds; its latency is the sum of the links' latencies. A collective takes the best of its patterns
// (collectives.hpp) by latency + longest hold, without contention.
// Links may share buses: a message also holds each bus of its links, once, for its bytes at the bus's bandwidth.
// A link that is exposed makes a message hold the devices at its ends, too, for that share of the longest hold.
//
// A message also costs the threads at its ends some time, each its own, however fast the links are: where a thread is
// the device itself (a CPU's), the device is held for so long; where it is a host that runs ahead of its device, the
// host launches for so long.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "machine/collectives.hpp"
#include "machine/hold.hpp"
#include "machine/link.hpp"

namespace soapstone {

// The thread that issues a device's work, and what it pays for messages and sums and once an iteration; ns.
struct Host {
  int64_t send = 0, receive = 0, sum = 0, iteration = 0;
  double copying = 0;     // bytes/s at which the device copies what is summed; 0: that takes no time
  bool is_ahead = false;  // it is not the device itself

  // What some of its time is for its device: the device's own, or a launch.
  int64_t on_device(int64_t time) const { return is_ahead ? 0 : time; }
  int32_t launch(int64_t time) const { return is_ahead ? static_cast<int32_t>(time) : 0; }

  auto operator<=>(const Host&) const = default;
};

// The times of an all-reduce among so many devices of so many nodes, as measured, and the share of them that keeps its
// members from computing, where that is not its links'.
struct MeasuredSum {
  int32_t members, nodes;
  Curve times;
  std::optional<double> exposed = std::nullopt;
};

// Routes and the patterns of collectives are found at their first use and kept, so even const calls must come from one
// thread at a time; give each thread a copy of its own.
class Topology {
 public:
  // The vertices are the devices 0 .. num_devices-1, then the switches. No hosts: messages cost threads nothing. Throws
  // std::invalid_argument on bad links or hosts, or unconnected devices.
  Topology(int32_t num_devices, int32_t num_switches, By<Device, int32_t> node_of_device, std::vector<Link> links,
           By<Device, Host> hosts = {}, std::vector<MeasuredSum> sums = {}, std::vector<double> buses = {});

  int32_t num_devices() const { return num_devices_; }
  auto devices() const { return range<Device>(num_devices_); }
  // Devices first, then the links in order: source to target, and for a duplex link target to source; then buses.
  int32_t num_resources() const { return first_bus().value + static_cast<int32_t>(buses_.size()); }
  bool is_device(Resource resource) const { return resource < first_link(); }

  // What a message of some size holds on any route over links of the same kinds.
  struct Size {
    int64_t bytes = -1, longest = 0, latency = 0;
    int32_t slowest = 0, last_slowest = 0;  // places in the route: the first and the last that is held longest
    // By place: links, buses, then the two devices where the message costs them anything.
    std::vector<int64_t> durations;
    size_t num_between = 0;             // links and buses
    std::array<int32_t, 2> launches{};  // of these devices' hosts
  };
  // A message between two devices that are not one: the resources on its route. Good until the next call.
  struct Way {
    const Resource* resources;
    const Size& size;
  };
  Way way(Device from, Device to, int64_t bytes) const;

  // All append the holds of one message and return its latency. A message to its own device, or among one device,
  // holds nothing and takes 1 ns. The bytes of a collective are those of the whole tensor.
  int64_t transfer(Device from, Device to, int64_t bytes, std::vector<Hold>& holds) const;
  int64_t all_reduce(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const;
  int64_t reduce_scatter(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const;
  int64_t all_gather(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const;

  // The link resources that a transfer crosses, in order.
  std::vector<Resource> route(Device from, Device to) const;

  // The same without a copy, for patterns. Good until the next call.
  struct Path {
    std::span<const Resource> resources;
    int64_t latency;
    double exposed;
  };
  Path path(Device from, Device to) const;
  struct Hop {  // over a link, from one of its ends
    int32_t target;
    Resource resource;
    int64_t weight;
  };
  const std::vector<Hop>& hops_from(int32_t vertex) const { return edges_[vertex]; }
  // Of the least group that was measured and is as large as this one, over as many nodes; null where there is none.
  const MeasuredSum* measured_sum(std::span<const Device> devices) const;
  const Host& host_of(Device device) const { return hosts_[device]; }
  int32_t node_of(Device device) const { return node_of_device_[device]; }
  bool is_bus(Resource resource) const { return resource >= first_bus(); }
  const Link& link(Resource resource) const { return links_[link_index(resource)]; }
  double bus(Resource resource) const { return buses_[bus_index(resource)]; }  // bytes/s
  // The buses of these links, each once, in the order in which links name them.
  std::vector<Resource> buses_of(std::span<const Resource> links) const;
  // Links that take and hold alike have one kind, and so have buses; the two kinds differ.
  int32_t kind_of(Resource resource) const {
    return is_bus(resource) ? ~kind_of_bus_[bus_index(resource)] : kind_of_link_[link_index(resource)];
  }
  // Whether some link joins devices of two nodes, as the measured topologies' do: it hides which adapter it goes by.
  bool has_direct_links_between_nodes() const { return has_direct_links_between_nodes_; }

 private:
  struct Route {
    int32_t begin;  // in Routes::resources: links, buses, then the devices at both ends where it costs them anything
    int32_t shape;
  };
  struct Routes {  // of one source, to every device
    By<Device, Route> to;
    std::vector<Resource> resources;
  };
  // Routes over links of the same kinds between hosts that are alike. Messages of one tensor have few sizes, so the
  // last ones are kept.
  struct Shape {
    static constexpr int bits = 3;  // of a size's place among those that are kept

    std::vector<int32_t> links;
    std::vector<double> buses;  // bytes/s
    int64_t latency = 0;
    double exposed = 0;
    Host from, to;
    std::array<Size, 1 << bits> kept;

    bool costs_ends() const { return exposed > 0 || from.send > 0 || to.receive > 0; }
  };
  struct Step {  // the last step on the least path to a vertex
    int64_t time;
    int32_t hops, vertex;
    Resource resource;
  };
  Resource first_link() const { return Resource(num_devices_); }
  Resource first_bus() const { return Resource(num_devices_ + static_cast<int32_t>(link_of_resource_.size())); }
  int32_t bus_index(Resource resource) const { return resource - first_bus(); }
  int32_t link_index(Resource resource) const { return link_of_resource_[resource - first_link()]; }
  void check_link(const Link& link, int32_t num_vertices) const;
  void check_device(Device device) const;
  void check_connected() const;
  std::vector<Step> least_paths(Device source) const;
  Routes find_routes(Device source) const;
  // `kinds` is memory to use.
  int32_t shape_of(std::span<const Resource> links, std::span<const Resource> buses, const Host& from, const Host& to,
                   std::vector<int32_t>& kinds) const;
  void measure_ends(const Shape& shape, Size& size) const;
  void hold_members(std::span<const Device> devices, int64_t bytes, int64_t slowed, std::vector<Hold>& holds) const;
  void measure(const Shape& shape, int64_t bytes, Size& size) const;
  const Routes& routes_from(Device source) const {
    if (routes_[source].to.empty()) routes_[source] = find_routes(source);
    return routes_[source];
  }
  using PatternCache = std::map<std::vector<Device>, std::vector<Pattern>>;
  std::vector<Device> node_by_node(std::span<const Device> devices) const;
  int64_t collect(Collective collective, std::span<const Device> devices, int64_t bytes,
                  std::vector<Hold>& holds) const;
  const std::vector<Pattern>& patterns_of(Collective collective, std::vector<Device> order) const;

  int32_t num_devices_;
  By<Device, int32_t> node_of_device_;
  std::vector<Link> links_;
  By<Device, Host> hosts_;
  std::vector<MeasuredSum> sums_;  // the smaller groups first
  std::vector<double> buses_;      // bytes/s
  std::map<Host, int32_t> kind_of_host_;
  std::vector<int32_t> link_of_resource_;         // from the first link on
  std::vector<std::vector<Hop>> edges_;           // by vertex
  mutable By<Device, Routes> routes_;             // by source; empty until asked for
  mutable std::array<PatternCache, 2> patterns_;  // by collective
  std::vector<int32_t> kind_of_link_, kind_of_bus_;
  bool has_direct_links_between_nodes_ = false;
  mutable std::vector<Shape> shapes_;
  mutable std::map<std::vector<int32_t>, int32_t> shape_index_;  // by kinds
};

inline Topology::Way Topology::way(Device from, Device to, int64_t bytes) const {
  constexpr uint64_t odd = 0x9e3779b97f4a7c15;  // spreads sizes, whose low bits are alike
  const Routes& routes = routes_from(from);
  Shape& shape = shapes_[routes.to[to].shape];
  Size& size = shape.kept[static_cast<uint64_t>(bytes) * odd >> (64 - Shape::bits)];
  if (size.bytes != bytes) measure(shape, bytes, size);
  return {routes.resources.data() + routes.to[to].begin, size};
}

}  // namespace soapstone
