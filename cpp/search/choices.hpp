// An op's options as bounds see them: what each part takes with nothing in its way, and what follows from it.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "tasks/taskgraph.hpp"

namespace soapstone {

using Column = By<Part, int64_t>;
using Matrix = By<Part, Column>;

constexpr int64_t never = -(int64_t{1} << 60);  // where there is no path

// What a device and its host have to do, each one after the other.
struct Load {
  int64_t busy = 0, launching = 0;  // ns

  Load& operator+=(const Load& more) {
    busy += more.busy;
    launching += more.launching;
    return *this;
  }
};

struct Choice {
  struct Elements {
    int32_t parameter;
    Device device;
    int64_t count;
  };

  Configuration configuration;
  Column forward, backward, finish_forward, finish_backward;
  std::vector<std::vector<Part>> groups;  // that combine
  std::vector<int64_t> combine;           // by group
  Column sync;                            // the sum of its gradients, where no other op has a share
  std::vector<std::pair<Device, Load>> work;
  std::vector<Elements> elements;   // of parameters that are updated
  By<Part, bool> updates;           // some update waits for its gradients
  std::map<int32_t, int64_t> read;  // by parameter: elements that its parts read, or fewer
  Matrix turnaround;                // from a part's output to a part's gradient, at least
};

// From when each part can begin to when its output is whole.
void go_forward(const Choice&, const Column& ready, Column& done);
// From when each part's gradient has come to the end of its backward.
void go_backward(const Choice&, const Column& ready, Column& done);
// The other way round: what follows a part's gradient, from what follows its backward.
void what_follows(const Choice&, const Column& after, Column& follows);

// Of a message with nothing in its way.
int64_t time_of(const std::vector<Hold>& holds, int64_t latency);

class ChoiceMaker {
 public:
  // `parameters` has, by tensor, the number of a trained parameter, or -1.
  ChoiceMaker(const Graph& graph, const Machine& machine, const Times& times, const std::vector<int32_t>& parameters)
      : graph_(graph), machine_(machine), times_(times), parameters_(parameters), layouts_(graph) {}

  Choice make(OpIndex op, const Configuration&);  // all but the turnaround

 private:
  int64_t all_reduce(const std::vector<Device>& devices, int64_t bytes) const;
  void add_times(OpIndex op, Choice&) const;
  void add_parameter(int32_t tensor, const Share<Part>&, Choice&) const;

  const Graph& graph_;
  const Machine& machine_;
  const Times& times_;
  const std::vector<int32_t>& parameters_;
  Layouts layouts_;
  std::shared_ptr<const Layout> layout_;
};

}  // namespace soapstone
