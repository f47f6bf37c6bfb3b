// What the two types need of Python's C interface.
#pragma once

#include <cmath>

#include "../python/extension.hpp"
#include "plan_core.hpp"

namespace planner {

using namespace python;

inline double as_finite(PyObject* object) {
  const double value = as_double(object);
  if (!std::isfinite(value)) throw InputError("a time is not finite");
  return value;
}

inline std::int64_t as_tokens(PyObject* object) {
  const std::int64_t value = as_int(object);
  if (value < 1) throw InputError("a step has no tokens");
  return value;
}

struct CostObject {
  PyObject_HEAD
  CostCore* core;
};

extern PyType_Spec cost_type_spec;
extern PyType_Spec planner_type_spec;
extern PyTypeObject* cost_type;

}  // namespace planner
