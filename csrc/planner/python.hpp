// What the two types need of Python's C interface.
#pragma once

#include "../python/extension.hpp"
#include "plan_core.hpp"

namespace planner {

using namespace python;

struct CostObject {
  PyObject_HEAD
  CostCore* core;
};

extern PyType_Spec cost_type_spec;
extern PyType_Spec planner_type_spec;
extern PyTypeObject* cost_type;

}  // namespace planner
