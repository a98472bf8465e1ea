// How long bytes take, as measured at a few sizes.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace soapstone {

class Curve {
 public:
  struct Point {
    int64_t bytes, time;  // ns

    auto operator<=>(const Point&) const = default;
  };

  Curve() = default;
  // Throws std::invalid_argument unless there are two points or more, or none, and sizes and times grow.
  explicit Curve(std::vector<Point> points);

  bool empty() const { return points_.empty(); }
  // In proportion between two points, rounded up. Less than the first size takes as long as it; beyond the last it goes
  // on as between the last two. Throws std::invalid_argument beyond 2^53 ns.
  int64_t time(int64_t bytes) const;

  auto operator<=>(const Curve&) const = default;

 private:
  std::vector<Point> points_;
};

}  // namespace soapstone
