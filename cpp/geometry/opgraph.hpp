// The operator graph as geometry sees it: ops made of steps, each of which says what part of its inputs a part
// of its output needs. What the steps compute is of no concern here.
#pragma once

#include "geometry/boxes.hpp"
#include "support/index.hpp"

namespace soapstone {

// lo -> floor((p * lo + b) / q), and likewise hi -> ceil(...).
struct Line {
  int64_t p = 1, b = 0, q = 1;
};

// One dim of an input, read through an interval map of the step's dim `dim` (-1: the map is constant).
struct Factor {
  int64_t size = 1;
  int32_t dim = -1;
  Line lower, upper;
};

struct Step {
  std::vector<int32_t> inputs, outputs;                   // values of the op
  Sizes dims;                                             // sizes of the step's dims
  std::vector<bool> whole;                                // by dim: never computed in part
  std::vector<std::vector<std::vector<Factor>>> reads;    // input, axis, dim
  std::vector<std::vector<std::vector<int32_t>>> writes;  // output, axis, dim -> step dim
  std::vector<Factoring> factorings;                      // of what it reads; Graph::add_op finds them
};

struct OpDim {
  int64_t size = 1;
  int32_t step = 0, step_dim = 0;
  bool combinable = false, extra = false;  // extra: no output has it
};

// What a combine makes whole: a partial over some dims of the head, `factor` numbers an element; where
// `gather` is set every part's partial is kept, not their sum.
struct Combine {
  bool gather = false, finish = false;
  std::vector<int32_t> dims;
  int64_t factor = 1, item_size = 4;
};

struct Operand {
  int32_t tensor = 0, value = 0;
};

struct Op {
  std::vector<Factoring> values;
  std::vector<Step> steps;
  std::vector<OpDim> dims;
  std::vector<Operand> inputs, outputs;
  int32_t head = 0;
  Combine combine;
  bool backward = false;
  std::vector<int64_t> item_sizes;                 // by value
  std::vector<int32_t> saved;                      // values that stay for backward, and
  int64_t extra = 0;                               // bytes that stay with them
  std::vector<std::pair<int32_t, int32_t>> casts;  // of the saved values those that are a parameter in another type,
                                                   // each with the parameter's index in the inputs
};

enum class Source : int32_t { op, input, parameter };

struct Tensor {
  Source source = Source::op;
  int64_t item_size = 4;
  int64_t read_size = 4;  // of an item as all who read it use it: a parameter may be cast first
  bool grad = false;
  Factoring factoring;  // the common refinement of what writes and reads it
  OpIndex producer = none;
  int32_t output = 0;
  std::vector<std::pair<OpIndex, int32_t>> readers;  // with an index in its inputs
};

// The boxes of one part: every step's dims, what it needs of each input, and every value.
struct Regions {
  std::vector<Box> step_dims;
  std::vector<std::vector<Box>> needs;
  std::vector<Box> values;
};

struct Graph {
  std::vector<Tensor> tensors;
  By<OpIndex, Op> ops;

  int32_t add_tensor(Source source, int64_t item_size, int64_t read_size, bool grad, const Factoring& axes);
  OpIndex add_op(Op op);
};

Box op_box(const Op&, const std::vector<int32_t>& degrees, int64_t part);

// Goes over an op's steps from the last to the first, for one part after the other in the same memory.
class RegionFinder {
 public:
  explicit RegionFinder(const Op& op);
  const Regions& of(const Box& op_box);  // until the next call

 private:
  void find_dims(size_t step, const Box& op_box);

  const Op& op_;
  Regions regions_;
  std::vector<bool> needed_, asked_;
};

}  // namespace soapstone
