#include "geometry/pieces.hpp"

#include <algorithm>
#include <map>

#include "support/sorting.hpp"

namespace soapstone {

namespace {

using Holders = std::vector<Device>;

bool joins(const Box& a, const Box& b, size_t dim) {
  for (size_t i = 0; i < a.size(); ++i)
    if (i != dim && !(a[i] == b[i])) return false;
  return a[dim].hi == b[dim].lo;
}

// Joins boxes that meet along `dim`; `boxes` come in row-major order of their corners.
void join_along(std::vector<Box>& boxes, size_t dim) {
  auto before = [dim](const Box& a, const Box& b) {
    for (size_t i = 0; i < a.size(); ++i)
      if (i != dim && !(a[i] == b[i])) return std::pair(a[i].lo, a[i].hi) < std::pair(b[i].lo, b[i].hi);
    return a[dim].lo < b[dim].lo;
  };
  std::sort(boxes.begin(), boxes.end(), before);
  std::vector<Box> joined;
  for (auto& box : boxes) {
    if (!joined.empty() && joins(joined.back(), box, dim))
      joined.back()[dim].hi = box[dim].hi;
    else
      joined.push_back(std::move(box));
  }
  boxes = std::move(joined);
}

void next_cell(std::vector<size_t>& cell, const std::vector<std::vector<int64_t>>& cuts) {
  for (size_t dim = cell.size(); dim-- > 0;) {
    if (++cell[dim] + 1 < cuts[dim].size() || dim == 0) return;
    cell[dim] = 0;
  }
}

std::vector<std::vector<int64_t>> cuts_of(const std::vector<Reading>& readings, size_t rank) {
  std::vector<std::vector<int64_t>> cuts(rank);
  for (size_t dim = 0; dim < rank; ++dim) {
    for (const auto& reading : readings)
      for (const auto& box : *reading.boxes) cuts[dim].insert(cuts[dim].end(), {box[dim].lo, box[dim].hi});
    sort_unique(cuts[dim]);
  }
  return cuts;
}

bool contains(const Reading& reading, const Box& cell) {
  return std::any_of(reading.boxes->begin(), reading.boxes->end(), [&](const Box& box) { return overlap(box, cell); });
}

Holders holders_of(const std::vector<Reading>& readings, const std::vector<int32_t>& inside) {
  if (inside.size() == 1) return readings[inside[0]].devices;
  Holders all;
  for (const int32_t i : inside) all.insert(all.end(), readings[i].devices.begin(), readings[i].devices.end());
  sort_unique(all);
  return all;
}

}  // namespace

void join(std::vector<Box>& boxes) {
  if (boxes.empty()) return;
  for (size_t dim = boxes[0].size(); dim-- > 0;) join_along(boxes, dim);
}

int64_t share_of(int64_t elements, size_t num_holders, size_t holder) {
  const auto count = static_cast<int64_t>(num_holders), at = static_cast<int64_t>(holder);
  const int64_t share = (elements + count - 1) / count;
  return std::clamp<int64_t>(elements - at * share, 0, share);
}

// All boxes together cut the parameter into cells; a cell lies in a reading wholly or not at all.
std::vector<Piece> pieces_of(const std::vector<Reading>& readings) {
  if (readings.empty()) return {};
  if (readings.size() == 1) {
    const auto& [boxes, parts, devices] = readings[0];
    Piece piece{devices, *boxes, 0, parts};
    for (const auto& box : *boxes) piece.elements += volume(box);
    return {piece};
  }
  const size_t rank = readings[0].boxes->front().size();
  const auto cuts = cuts_of(readings, rank);
  int64_t num_cells = 1;
  for (const auto& marks : cuts) num_cells *= static_cast<int64_t>(marks.size()) - 1;

  std::map<std::vector<int32_t>, size_t> by_readings;
  std::map<Holders, size_t> by_holders;
  std::vector<Piece> pieces;
  std::vector<std::vector<int32_t>> inside_of;  // by piece
  std::vector<size_t> cell(rank, 0);
  std::vector<int32_t> inside;
  Box box(rank);
  for (int64_t n = 0; n < num_cells; ++n, next_cell(cell, cuts)) {
    for (size_t dim = 0; dim < rank; ++dim) box[dim] = {cuts[dim][cell[dim]], cuts[dim][cell[dim] + 1]};
    inside.clear();
    for (size_t i = 0; i < readings.size(); ++i)
      if (contains(readings[i], box)) inside.push_back(static_cast<int32_t>(i));
    if (inside.empty()) continue;
    const auto [seen, fresh] = by_readings.try_emplace(inside, 0);
    if (fresh) {
      const Holders holders = holders_of(readings, inside);
      seen->second = by_holders.try_emplace(holders, pieces.size()).first->second;
      if (seen->second == pieces.size()) {
        pieces.push_back({holders, {}, 0, {}});
        inside_of.emplace_back();
      }
      auto& all = inside_of[seen->second];
      all.insert(all.end(), inside.begin(), inside.end());
    }
    auto& piece = pieces[seen->second];
    piece.elements += volume(box);
    piece.boxes.push_back(box);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto& all = inside_of[i];
    sort_unique(all);
    for (const int32_t reading : all)
      pieces[i].parts.insert(pieces[i].parts.end(), readings[reading].parts.begin(), readings[reading].parts.end());
  }
  return pieces;
}

}  // namespace soapstone
