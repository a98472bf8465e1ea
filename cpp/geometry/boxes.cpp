#include "geometry/boxes.hpp"

#include <algorithm>

namespace soapstone {

bool empty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](Interval i) { return i.empty(); });
}

int64_t volume(const Box& box) {
  int64_t product = 1;
  for (const auto& interval : box) product *= std::max<int64_t>(interval.size(), 0);
  return product;
}

Interval hull(Interval a, Interval b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
}

void extend(Box& box, const Box& other) {
  if (box.empty() || empty(box)) {
    box = other;
  } else if (!empty(other)) {
    for (size_t i = 0; i < box.size(); ++i) box[i] = hull(box[i], other[i]);
  }
}

Box hull(const std::vector<Box>& boxes) {
  Box result;
  for (const auto& box : boxes) extend(result, box);
  return result;
}

bool overlap(const Box& a, const Box& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::max(a[i].lo, b[i].lo) >= std::min(a[i].hi, b[i].hi)) return false;
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  if (!overlap(a, b)) return std::nullopt;  // most pairs do not, and then nothing is allocated
  Box result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = {std::max(a[i].lo, b[i].lo), std::min(a[i].hi, b[i].hi)};
  return result;
}

Interval part_interval(int64_t part, int64_t degree, int64_t size) {
  return {part * size / degree, (part + 1) * size / degree};
}

int64_t num_dims(const Factoring& factoring) {
  int64_t count = 0;
  for (const auto& axis : factoring) count += static_cast<int64_t>(axis.size());
  return count;
}

int64_t num_elements(const Factoring& factoring) {
  int64_t count = 1;
  for (const auto& axis : factoring)
    for (const int64_t size : axis) count *= size;
  return count;
}

Box whole(const Factoring& factoring) {
  Box box;
  for (const auto& axis : factoring)
    for (int64_t size : axis) box.push_back({0, size});
  return box;
}

std::optional<Sizes> refine(const Sizes& a, const Sizes& b) {
  Sizes result;  // innermost first until the end
  auto x = a.rbegin(), y = b.rbegin();
  int64_t left_a = 1, left_b = 1;
  while (true) {
    while (left_a == 1 && x != a.rend()) left_a = *x++;
    while (left_b == 1 && y != b.rend()) left_b = *y++;
    if (left_a == 1 || left_b == 1) break;
    const int64_t step = std::min(left_a, left_b);
    if (left_a % step != 0 || left_b % step != 0) return std::nullopt;
    result.push_back(step);
    left_a /= step;
    left_b /= step;
  }
  if (left_a != left_b) return std::nullopt;
  std::reverse(result.begin(), result.end());
  return result;
}

Factoring refine(const Factoring& a, const Factoring& b) {
  Factoring result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = refine(a[i], b[i]).value_or(*refine(a[i], a[i]));
  return result;
}

namespace {

// The boxes, over the first `count` of `sizes`, of a flat interval; each is appended to `prefix`.
void split_interval(Interval flat, const int64_t* sizes, size_t count, Box& prefix, std::vector<Box>& out) {
  if (flat.empty()) return;
  if (count == 0) {
    out.push_back(prefix);
    return;
  }
  int64_t inner = 1;
  for (size_t i = 1; i < count; ++i) inner *= sizes[i];
  auto emit = [&](Interval outer, Interval rest) {
    prefix.push_back(outer);
    split_interval(rest, sizes + 1, count - 1, prefix, out);
    prefix.pop_back();
  };
  int64_t first = flat.lo / inner;
  const int64_t last = (flat.hi - 1) / inner;
  if (first == last) return emit({first, first + 1}, {flat.lo - first * inner, flat.hi - first * inner});
  if (flat.lo % inner != 0) {
    emit({first, first + 1}, {flat.lo - first * inner, inner});
    ++first;
  }
  const int64_t full_end = flat.hi / inner;
  if (first < full_end) emit({first, full_end}, {0, inner});
  if (flat.hi % inner != 0) emit({full_end, full_end + 1}, {0, flat.hi - full_end * inner});
}

// How many dims of `fine`, from `at` on, make one dim of size `size`; `fine` holds no dim of size 1.
size_t dims_of(int64_t size, const Sizes& fine, size_t at) {
  size_t end = at;
  for (int64_t product = 1; product < size; ++end) product *= fine[end];
  return end - at;
}

std::vector<Box> project_axis(const Interval* box, const Sizes& coarse, const Sizes& fine) {
  std::vector<Box> boxes{{}};
  size_t at = 0;
  for (size_t i = 0; i < coarse.size(); ++i) {
    const size_t count = dims_of(coarse[i], fine, at);
    std::vector<Box> longer;
    for (auto& prefix : boxes) split_interval(box[i], fine.data() + at, count, prefix, longer);
    boxes = std::move(longer);
    at += count;
  }
  return boxes;
}

Box whole_axis(const Sizes& sizes) { return whole(Factoring{sizes}); }

bool refines(const Sizes& fine, const Sizes& coarse) { return refine(coarse, fine) == fine; }

// The smallest box over `coarse` that holds a box over `fine`, which refines it.
Box lift_axis(const Box& box, const Sizes& fine, const Sizes& coarse) {
  Box result;
  size_t at = 0;
  for (int64_t size : coarse) {
    Interval flat{0, 1};
    for (const size_t end = at + dims_of(size, fine, at); at < end; ++at)
      flat = {flat.lo * fine[at] + box[at].lo, (flat.hi - 1) * fine[at] + box[at].hi};
    result.push_back(flat);
  }
  return result;
}

}  // namespace

std::vector<Box> project(const Box& box, const Factoring& coarse, const Factoring& fine) {
  if (empty(box)) return {};
  if (coarse == fine) return {box};
  std::vector<Box> boxes{{}};
  const Interval* at = box.data();
  for (size_t axis = 0; axis < coarse.size(); ++axis) {
    const auto parts = refines(fine[axis], coarse[axis]) ? project_axis(at, coarse[axis], fine[axis])
                                                         : std::vector<Box>{whole_axis(fine[axis])};
    std::vector<Box> longer;
    for (const auto& prefix : boxes)
      for (const auto& part : parts) {
        longer.push_back(prefix);
        longer.back().insert(longer.back().end(), part.begin(), part.end());
      }
    boxes = std::move(longer);
    at += coarse[axis].size();
  }
  return boxes;
}

Box cover(const Box& box, const Factoring& from, const Factoring& to) {
  if (from == to) return box;
  Box result;
  const Interval* at = box.data();
  const bool nothing = empty(box);
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const auto fine = refine(from[axis], to[axis]);
    Box covered;
    if (nothing) {
      covered.assign(to[axis].size(), Interval{0, 0});
    } else if (!fine) {
      covered = whole_axis(to[axis]);
    } else {
      for (const auto& piece : project_axis(at, from[axis], *fine)) extend(covered, lift_axis(piece, *fine, to[axis]));
    }
    result.insert(result.end(), covered.begin(), covered.end());
    at += from[axis].size();
  }
  return result;
}

}  // namespace soapstone
