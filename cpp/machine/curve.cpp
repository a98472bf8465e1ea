#include "machine/curve.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "machine/link.hpp"

namespace soapstone {

Curve::Curve(std::vector<Point> points) : points_(std::move(points)) {
  if (points_.size() == 1) throw std::invalid_argument("a curve needs two points");
  for (size_t i = 0; i < points_.size(); ++i) {
    const auto& [bytes, time] = points_[i];
    const bool grows = i == 0 || (bytes > points_[i - 1].bytes && time >= points_[i - 1].time);
    if (!grows || bytes < 0 || time < 0 || std::max(bytes, time) > largest_whole)
      throw std::invalid_argument("the sizes and times of a curve must grow");
  }
}

int64_t Curve::time(int64_t bytes) const {
  if (bytes <= points_.front().bytes) return points_.front().time;
  const auto after = std::lower_bound(points_.begin(), points_.end(), bytes,
                                      [](const Point& point, int64_t size) { return point.bytes < size; });
  const auto to = after == points_.end() ? after - 1 : after, from = to - 1;
  return from->time + proportion(to->time - from->time, bytes - from->bytes, to->bytes - from->bytes);
}

}  // namespace soapstone
