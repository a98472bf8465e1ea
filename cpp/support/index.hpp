// Indices: a slot is no device and a device no slot, so each has a type of its own. They cost what an int costs.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstdint>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

namespace soapstone {

// Of nothing; it comes before every index.
struct None {};
inline constexpr None none;

template <typename Tag>
struct Index {
  int32_t value = 0;

  constexpr Index() = default;
  constexpr explicit Index(std::integral auto number) : value(static_cast<int32_t>(number)) {}
  constexpr Index(None) : value(-1) {}

  constexpr auto operator<=>(const Index&) const = default;
  constexpr bool is_below(std::integral auto count) const { return value >= 0 && std::cmp_less(value, count); }

  constexpr Index& operator+=(int32_t by) { return value += by, *this; }
  constexpr Index& operator++() { return *this += 1; }
  constexpr Index& operator--() { return *this += -1; }
  constexpr Index operator++(int) { return Index(value++); }
  constexpr Index operator--(int) { return Index(value--); }
  friend constexpr Index operator+(Index index, int32_t by) { return index += by; }
  friend constexpr Index operator-(Index index, int32_t by) { return index += -by; }
  friend constexpr int32_t operator-(Index a, Index b) { return a.value - b.value; }
};

using Slot = Index<struct SlotTag>;          // of a task, in the pool
using Position = Index<struct PositionTag>;  // of a task, in the order in which a play serves them
using Device = Index<struct DeviceTag>;
using Resource = Index<struct ResourceTag>;  // devices come first, then directions of links
using OpIndex = Index<struct OpTag>;
using Part = Index<struct PartTag>;              // of an op
using OutputPart = Index<struct OutputPartTag>;  // of an op, too; several parts may make the same one
static_assert(sizeof(Slot) == sizeof(int32_t) && std::is_trivially_copyable_v<Slot>);

// All from `begin` up to `end`, of which there are none where it comes first; or the first so many.
template <typename I>
constexpr auto range(I begin, I end) {
  return std::views::iota(begin, std::max(begin, end));
}
template <typename I>
constexpr auto range(std::integral auto count) {
  return range(I(0), I(count));
}

// A vector that only one kind of index looks into.
template <typename I, typename T>
struct By : std::vector<T> {
  using std::vector<T>::vector;
  explicit By(std::vector<T> values) : std::vector<T>(std::move(values)) {}

  decltype(auto) operator[](I index) { return std::vector<T>::operator[](index.value); }
  decltype(auto) operator[](I index) const { return std::vector<T>::operator[](index.value); }
  decltype(auto) at(I index) const { return std::vector<T>::at(index.value); }

  auto indices() const { return range<I>(this->size()); }
  I end_index() const { return I(this->size()); }
};

}  // namespace soapstone
