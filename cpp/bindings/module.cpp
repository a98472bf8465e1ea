#include "bindings/rooms.hpp"

NB_MODULE(_core, m) {
  m.doc() = "The compiled core: geometry, machine, tasks, engines, search.";
  nanobind::set_leak_warnings(false);  // a graph that is a global of the user's lives until the interpreter is gone
  bind_geometry(m);
  bind_machine(m);
  bind_tasks(m);
  bind_engines(m);
  bind_search(m);
}
