// What each room of the core shows to Python. These files convert and forward; whatever decides anything belongs in the
// core itself.
#pragma once

#include <nanobind/nanobind.h>

void bind_geometry(nanobind::module_& m);
void bind_machine(nanobind::module_& m);
void bind_tasks(nanobind::module_& m);
void bind_engines(nanobind::module_& m);
void bind_search(nanobind::module_& m);
