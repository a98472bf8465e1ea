// How ops lie in parts, wherever the parts run: computed once for each op and its degrees, and once for each edge and
// the degrees at its ends. Ops of the same geometry, such as the cells of one recurrent layer, share all of it.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "geometry/extents.hpp"

namespace soapstone {

// The boxes of one operand, over its tensor's dims: the distinct ones, and which parts, or output parts, have them.
template <typename P>
struct Share {
  std::vector<std::vector<Box>> boxes;  // distinct; a region is several boxes where dims do not meet
  By<P, int32_t> of_part;               // which of them each has
  std::vector<int32_t> begin;           // boxes[i] is had by parts[begin[i]] up to parts[begin[i + 1]]
  std::vector<P> parts;
  bool disjoint = false;         // of a parameter: no two regions share an element,
  bool in_order = false;         // and each is one box, in the order of their first elements
  std::vector<int32_t> regions;  // likewise: by boxes[i], a number that the same boxes of it have; -1: none

  std::span<const P> parts_of(size_t box) const { return {parts.data() + begin[box], parts.data() + begin[box + 1]}; }
};

struct Layout {
  int32_t id = 0;  // no two layouts of one graph share it
  Degrees degrees;
  int32_t num_parts = 1, num_output_parts = 1, copies = 1;  // copies: parts that share one output part
  bool combines = false;
  By<Part, int32_t> group_of;
  std::vector<std::vector<Part>> groups;  // the parts that combine; none where the op does not
  std::vector<int64_t> combine_bytes;     // by group
  std::vector<Share<Part>> inputs;
  std::vector<Share<OutputPart>> outputs;
  Extents extents;
  // Bytes: what stays for backward, is put out, is held at work; and what it reads, of values and of trained
  // parameters. `casts`, a part of `saved`, are casts of parameters that several parts read.
  By<Part, int64_t> saved, made, working, read, trained, casts;

  auto parts() const { return range<Part>(num_parts); }
  std::vector<Part> all_parts() const { return {parts().begin(), parts().end()}; }
  auto output_parts() const { return range<OutputPart>(num_output_parts); }
  // Each output part is made by `copies` parts in a row.
  OutputPart output_of(Part part) const { return OutputPart(part.value / copies); }
  Part first_copy(OutputPart output) const { return Part(output.value * copies); }
};

// What one op makes of a tensor against what another reads of it.
struct Overlaps {
  std::vector<int32_t> begin;   // what meets the maker's box i stands from begin[i] up to begin[i + 1]
  std::vector<int32_t> read;    // the reader's box, increasing for each i
  std::vector<Interval> hulls;  // of what they share, one interval for each dim of the tensor
  bool all_met = true;          // every box of the maker
  bool all_reached = true;      // every box of the reader

  bool meet(int32_t made, int32_t read) const;
};

class Layouts {
 public:
  explicit Layouts(const Graph&);

  std::shared_ptr<const Layout> of(OpIndex op, const Degrees&);

  // `reader` is an index in the tensor's readers. Valid until the next call of `forget`.
  const Overlaps& between(int32_t tensor, int32_t reader, const Layout& made, const Layout& read);

  int32_t num_regions() const { return static_cast<int32_t>(regions_.size()); }

  // Drops what was computed where it has grown large; layouts in use stay.
  void forget();

 private:
  void number_regions(const Op&, Layout&);
  const Overlaps& find(int32_t output, int32_t input, const Layout& made, const Layout& read);

  struct PairHash {
    size_t operator()(const std::pair<uint64_t, uint64_t>& key) const {
      return (key.first * 0x9e3779b97f4a7c15u) ^ (key.second * 0xc2b2ae3d27d4eb4fu);
    }
  };

  const Graph& graph_;
  By<OpIndex, int32_t> class_of_;
  std::vector<std::map<Degrees, std::shared_ptr<const Layout>>> layouts_;  // by class
  std::unordered_map<std::pair<uint64_t, uint64_t>, std::unique_ptr<const Overlaps>, PairHash> overlaps_;
  struct Recent {
    int32_t made = -1, read = -1;  // ids of layouts
    const Overlaps* overlaps = nullptr;
  };
  std::vector<std::vector<std::array<Recent, 2>>> recent_;  // by tensor and reader: the last two answers
  std::map<std::vector<int64_t>, int32_t> regions_;         // by the ends of their boxes; never forgotten
  int32_t num_layouts_ = 0;
  size_t bytes_ = 0;  // of all that is kept, roughly
};

}  // namespace soapstone
