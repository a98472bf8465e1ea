#include "engines/engine.hpp"

namespace soapstone {

Engine::Engine(TaskGraph& graph)
    : graph_(graph),
      accepted_(graph),
      play_(graph, accepted_),
      touch_(graph, accepted_),
      full_(play_, accepted_),
      resume_(play_, accepted_, touch_),
      delta_(play_, accepted_, touch_),
      repeat_(graph) {}

bool Engine::play(Method method, int64_t limit, const Bounds& bounds) {
  if (repeats()) return repeat_.run(limit, bounds);
  accepted_.resize(graph_.pool.tasks.size());
  if (method == Method::full || accepted_.empty()) return full_.run(limit, bounds);
  if (method == Method::delta) return delta_.run(limit, bounds);
  const auto outcome = resume_.run(limit, bounds);
  return outcome == Resume::Outcome::starts_earlier ? full_.run(limit, bounds) : outcome == Resume::Outcome::done;
}

void Engine::commit() {
  if (repeats()) return;
  accepted_.commit(play_.cut, play_.main, play_.served, play_.leads);
  resume_.commit();
  delta_.commit();
  rollback();
}

void Engine::rollback() {
  if (repeats())
    repeat_.forget();
  else
    play_.forget();
}

}  // namespace soapstone
