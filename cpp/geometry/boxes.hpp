// Boxes of factored tensors: what a part writes and reads, and what two such boxes share.
//
// An axis is factored into dims, outermost first; a box gives each dim an interval. Two factorings of one
// axis meet in their common refinement, where an interval over k dims becomes at most 2k - 1 boxes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace soapstone {

struct Interval {
  int64_t lo = 0, hi = 0;
  int64_t size() const { return hi - lo; }
  bool empty() const { return hi <= lo; }
  bool operator==(const Interval&) const = default;
};

using Box = std::vector<Interval>;     // one interval a dim, all axes in order
using Sizes = std::vector<int64_t>;    // one axis: the sizes of its dims, outermost first
using Factoring = std::vector<Sizes>;  // all axes of a tensor

bool empty(const Box&);
int64_t volume(const Box&);
Interval hull(Interval a, Interval b);
void extend(Box& box, const Box& other);  // box becomes the hull; an empty vector is "nothing yet"
Box hull(const std::vector<Box>&);        // empty vector for no boxes
bool overlap(const Box&, const Box&);
std::optional<Box> intersect(const Box&, const Box&);

Interval part_interval(int64_t part, int64_t degree, int64_t size);

int64_t num_dims(const Factoring&);
int64_t num_elements(const Factoring&);
Box whole(const Factoring&);
std::optional<Sizes> refine(const Sizes& a, const Sizes& b);

// Axis by axis, without dims of size 1; axes that have no common refinement keep a's dims.
Factoring refine(const Factoring& a, const Factoring& b);

// The boxes, in `fine` (a result of refine), of a box in `coarse`; an axis of `coarse` that `fine` does not refine
// counts as whole.
std::vector<Box> project(const Box&, const Factoring& coarse, const Factoring& fine);

// The smallest box in `to` that holds a box in `from`; axes without a common refinement are taken whole.
Box cover(const Box&, const Factoring& from, const Factoring& to);

}  // namespace soapstone
