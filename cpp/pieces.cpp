#include "pieces.hpp"

#include <algorithm>
#include <set>

namespace soapstone {

namespace {

using Holders = std::vector<int32_t>;

std::map<std::vector<std::pair<int64_t, int64_t>>, Holders> by_box(const std::map<int32_t, std::vector<Box>>& reads) {
  std::map<std::vector<std::pair<int64_t, int64_t>>, Holders> result;
  for (const auto& [device, boxes] : reads)
    for (const auto& box : boxes) {
      std::vector<std::pair<int64_t, int64_t>> key;
      for (const auto& interval : box) key.emplace_back(interval.lo, interval.hi);
      auto& holders = result[key];
      if (holders.empty() || holders.back() != device) holders.push_back(device);
    }
  return result;
}

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

}  // namespace

std::vector<Piece> pieces_of(const std::map<int32_t, std::vector<Box>>& reads) {
  const auto distinct = by_box(reads);
  if (distinct.empty()) return {};
  const size_t rank = distinct.begin()->first.size();
  std::vector<std::vector<int64_t>> cuts(rank);
  for (size_t dim = 0; dim < rank; ++dim) {
    std::set<int64_t> marks;
    for (const auto& [box, holders] : distinct) marks.insert({box[dim].first, box[dim].second});
    cuts[dim].assign(marks.begin(), marks.end());
  }
  int64_t num_cells = 1;
  for (const auto& marks : cuts) num_cells *= static_cast<int64_t>(marks.size()) - 1;

  std::map<Holders, size_t> index;
  std::vector<Piece> pieces;
  std::vector<size_t> cell(rank, 0);
  for (int64_t n = 0; n < num_cells; ++n, next_cell(cell, cuts)) {
    Box box(rank);
    for (size_t dim = 0; dim < rank; ++dim) box[dim] = {cuts[dim][cell[dim]], cuts[dim][cell[dim] + 1]};
    std::set<int32_t> holders;
    for (const auto& [read, devices] : distinct) {
      bool inside = true;
      for (size_t dim = 0; dim < rank && inside; ++dim)
        inside = read[dim].first <= box[dim].lo && box[dim].hi <= read[dim].second;
      if (inside) holders.insert(devices.begin(), devices.end());
    }
    if (holders.empty()) continue;
    const Holders key(holders.begin(), holders.end());
    const auto [at, fresh] = index.try_emplace(key, pieces.size());
    if (fresh) pieces.push_back({key, {}, 0});
    auto& piece = pieces[at->second];
    piece.elements += volume(box);
    piece.boxes.push_back(std::move(box));
  }
  for (auto& piece : pieces)
    for (size_t dim = rank; dim-- > 0;) join_along(piece.boxes, dim);
  return pieces;
}

}  // namespace soapstone
