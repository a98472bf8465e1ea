// How values cross between Python and the core: columns as arrays, boxes and holds as pairs, configurations as
// (degrees, devices, shard, recompute, in_flight).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "geometry/boxes.hpp"
#include "geometry/configuration.hpp"
#include "machine/hold.hpp"

namespace nb = nanobind;

template <typename T>
using NumpyColumn = nb::ndarray<nb::numpy, const T, nb::ndim<1>, nb::c_contig>;

template <typename T>
auto to_array(std::vector<T>&& values) {
  auto* column = new std::vector<T>(std::move(values));
  nb::capsule owner(column, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(column->data(), {column->size()}, owner);
}

// In Python indices are ints, and what they look into is a list.
namespace nanobind::detail {

template <typename Tag>
struct type_caster<soapstone::Index<Tag>> {
  NB_TYPE_CASTER(soapstone::Index<Tag>, const_name("int"))

  bool from_python(handle from, uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<int32_t> number;
    if (!number.from_python(from, flags, cleanup)) return false;
    value = Value(number.value);
    return true;
  }
  static handle from_cpp(Value index, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<int32_t>::from_cpp(index.value, policy, cleanup);
  }
};

template <typename I, typename T>
struct type_caster<soapstone::By<I, T>> : list_caster<soapstone::By<I, T>, T> {};

}  // namespace nanobind::detail

using HoldPairs = std::vector<std::pair<soapstone::Resource, int64_t>>;

inline HoldPairs to_pairs(const std::vector<soapstone::Hold>& holds) {
  HoldPairs pairs;
  for (const soapstone::Hold& hold : holds) pairs.emplace_back(hold.resource, hold.duration);
  return pairs;
}

using BoxPairs = std::vector<std::pair<int64_t, int64_t>>;
inline BoxPairs to_pairs(const soapstone::Box& box) {
  BoxPairs pairs;
  for (const auto& interval : box) pairs.emplace_back(interval.lo, interval.hi);
  return pairs;
}

inline std::vector<BoxPairs> to_pairs(const std::vector<soapstone::Box>& boxes) {
  std::vector<BoxPairs> result;
  for (const auto& box : boxes) result.push_back(to_pairs(box));
  return result;
}

using soapstone::Configuration;
using ConfigurationTuple =
    std::tuple<std::vector<int32_t>, soapstone::By<soapstone::Part, soapstone::Device>, int32_t, bool, int32_t>;

inline Configuration to_configuration(const ConfigurationTuple& tuple) {
  const auto& [degrees, devices, shard, recompute, in_flight] = tuple;
  if (shard < 0 || shard > static_cast<int32_t>(soapstone::Shard::all))
    throw std::invalid_argument("a configuration's third number is 0, 1 or 2: none, optimizer or all is sharded");
  if (in_flight < 0) throw std::invalid_argument("a configuration has 0 or more microbatches in flight");
  return {degrees, devices, static_cast<soapstone::Shard>(shard), recompute, in_flight};
}

inline std::vector<Configuration> to_configurations(const std::vector<ConfigurationTuple>& tuples) {
  std::vector<Configuration> configurations;
  for (const auto& tuple : tuples) configurations.push_back(to_configuration(tuple));
  return configurations;
}

inline soapstone::Strategy to_strategy(const std::vector<ConfigurationTuple>& tuples) {
  return soapstone::Strategy(to_configurations(tuples));
}

inline std::vector<ConfigurationTuple> to_tuples(const std::vector<Configuration>& strategy) {
  std::vector<ConfigurationTuple> tuples;
  for (const auto& [degrees, devices, shard, recompute, in_flight] : strategy)
    tuples.emplace_back(degrees, devices, static_cast<int32_t>(shard), recompute, in_flight);
  return tuples;
}
