// The machines: devices and switches joined by links, and what a message over them holds.
//
// A route is the path of least time for 1 MiB. On each link of its route a transfer holds
//
//     overhead + ceil(bytes * 1e9 / bandwidth)
//
// nanoseconds; its latency is the sum of the links' latencies. An all-reduce among n devices is the better of two,
// by (latency + longest hold) without contention; a link that it crosses k times is held
//
//     ring:  overhead + ceil(k * 2(n-1)/n * bytes * 1e9 / summing)       latency: 2(n-1) hops
//     tree:  overhead + ceil(k * bytes * 1e9 / summing)                  latency: 2D hops and 2D-1 messages
//
// where D = ceil(log2 n), a hop counts the largest latency of the routes in use, and a message the slowest link's hold
// for one crossing.
// A link without overlap makes a message hold the devices at its ends, too, each for the longest of the links' holds.
//
// A message also costs the threads at its ends some time, each its own, however fast the links are: where a thread is
// the device itself (a CPU's), the device is held for so long; where it is a host that runs ahead of its device, the
// host launches for so long.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "machine/hold.hpp"

namespace soapstone {

struct Link {
  int32_t source, target;
  double bandwidth;           // bytes/s each way, rounded to whole bytes so that holds are exact
  int64_t latency, overhead;  // ns
  bool duplex;                // false: both directions share one resource
  bool overlap;               // false: a message over it keeps its end devices busy
  double summing;             // bytes/s of an all-reduce over it
};

// What messages cost the thread that sends, receives or takes part in a sum; ns.
struct Host {
  int64_t send = 0, receive = 0, sum = 0;
  bool is_ahead = false;  // it is not the device itself

  auto operator<=>(const Host&) const = default;
};

// Routes and the patterns of all-reduces are found at their first use and kept, so even const calls must come from one
// thread at a time; give each thread a copy of its own.
class Topology {
 public:
  // The vertices are the devices 0 .. num_devices-1, then the switches. No hosts: messages cost threads nothing. Throws
  // std::invalid_argument on bad links or hosts, or unconnected devices.
  Topology(int32_t num_devices, int32_t num_switches, By<Device, int32_t> node_of_device, std::vector<Link> links,
           By<Device, Host> hosts = {});

  int32_t num_devices() const { return num_devices_; }
  auto devices() const { return range<Device>(num_devices_); }
  // Devices first, then the links in order: source to target, and for a duplex link target to source.
  int32_t num_resources() const { return num_devices_ + static_cast<int32_t>(link_of_resource_.size()); }
  bool is_device(Resource resource) const { return resource < first_link(); }

  // What a message of some size holds on any route over links of the same kinds.
  struct Size {
    int64_t bytes = -1, longest = 0, latency = 0;
    int32_t slowest = 0, last_slowest = 0;  // places in the route: the first and the last that is held longest
    std::vector<int64_t> durations;     // by place: links, then the two devices where the message costs them anything
    std::array<int32_t, 2> launches{};  // of these devices' hosts
  };
  // A message between two devices that are not one: the resources on its route. Good until the next call.
  struct Way {
    const Resource* resources;
    const Size& size;
  };
  Way way(Device from, Device to, int64_t bytes) const;

  // Both append the holds of one message and return its latency. A message to its own device, or among one device,
  // holds nothing and takes 1 ns.
  int64_t transfer(Device from, Device to, int64_t bytes, std::vector<Hold>& holds) const;
  int64_t all_reduce(std::span<const Device> devices, int64_t bytes, std::vector<Hold>& holds) const;

  // The link resources that a transfer crosses, in order.
  std::vector<Resource> route(Device from, Device to) const;

 private:
  struct Hop {
    int32_t target;
    Resource resource;
    int64_t weight;
  };
  struct Route {
    int32_t begin;  // in Routes::resources: links, then the devices at both ends where it costs them anything
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
    int64_t latency = 0;
    bool overlap = true;
    Host from, to;
    std::array<Size, 1 << bits> kept;

    bool costs_ends() const { return !overlap || from.send > 0 || to.receive > 0; }
  };
  struct Step {  // the last step on the least path to a vertex
    int64_t time;
    int32_t hops, vertex;
    Resource resource;
  };
  struct Crossings {
    std::vector<int32_t> counts;      // by link resource
    std::vector<Resource> resources;  // in the order of their first crossing
    int64_t hop_latency = 0;
    bool overlap = true;
  };
  // A message's crossings with the links that are held alike put together, so that each time is computed once.
  struct Pattern {
    struct Alike {
      int32_t link;
      int64_t count;
    };
    std::vector<Alike> alike;
    std::vector<std::pair<Resource, int32_t>> holds;  // with an index in `alike`
    int64_t hop_latency = 0;
    bool overlap = true;
  };
  struct Patterns {
    Pattern ring, tree;
  };
  struct Message {
    std::vector<int64_t> durations;  // parallel to Pattern::alike
    int64_t latency, longest;
  };

  Resource first_link() const { return Resource(num_devices_); }
  int32_t link_index(Resource resource) const { return link_of_resource_[resource - first_link()]; }
  const Link& link(Resource resource) const { return links_[link_index(resource)]; }
  void check_link(const Link& link, int32_t num_vertices) const;
  void check_device(Device device) const;
  void check_connected() const;
  std::vector<Step> least_paths(Device source) const;
  Routes find_routes(Device source) const;
  // `kinds` is memory to use.
  int32_t shape_of(std::span<const Resource> resources, const Host& from, const Host& to,
                   std::vector<int32_t>& kinds) const;
  void measure_ends(const Shape& shape, Size& size) const;
  void hold_members(std::span<const Device> devices, int64_t at_least, std::vector<Hold>& holds) const;
  void measure(const Shape& shape, int64_t bytes, Size& size) const;
  const Routes& routes_from(Device source) const {
    if (routes_[source].to.empty()) routes_[source] = find_routes(source);
    return routes_[source];
  }
  std::vector<Device> ring_order(std::span<const Device> devices) const;
  void cross(Device from, Device to, Crossings& crossings) const;
  Pattern pattern(const Crossings& crossings) const;
  const Patterns& patterns_of(std::vector<Device> order) const;
  Message message(const Pattern& pattern, int64_t bytes, int64_t times, int64_t parts) const;
  Message ring(const Pattern& pattern, int64_t bytes, int64_t num_devices) const;
  Message tree(const Pattern& pattern, int64_t bytes, int64_t num_devices) const;

  int32_t num_devices_;
  By<Device, int32_t> node_of_device_;
  std::vector<Link> links_;
  By<Device, Host> hosts_;
  std::map<Host, int32_t> kind_of_host_;
  std::vector<int32_t> link_of_resource_;  // from the first link on
  std::vector<std::vector<Hop>> edges_;    // by vertex
  mutable By<Device, Routes> routes_;      // by source; empty until asked for
  mutable std::map<std::vector<Device>, Patterns> patterns_;
  std::vector<int32_t> kind_of_link_;  // links that take and hold alike have one kind
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
