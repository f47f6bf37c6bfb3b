// What the two types need of Python's C interface.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <new>

#include "plan_core.hpp"

namespace planner {

// Thrown where Python's error is set already.
struct PythonError {};

inline void require(bool good) {
  if (!good) throw PythonError{};
}

// Runs `body`; null, with Python's error set, where it throws.
template <typename Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (const PythonError&) {
  } catch (const InputError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

inline std::int64_t as_int(PyObject* object) {
  const std::int64_t value = PyLong_AsLongLong(object);
  require(value != -1 || !PyErr_Occurred());
  return value;
}

inline double as_double(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  require(value != -1.0 || !PyErr_Occurred());
  return value;
}

inline void check_count(const char* name, Py_ssize_t given, Py_ssize_t expected) {
  if (given == expected) return;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, given);
  throw PythonError{};
}

// A reference that is given up at the end of its scope.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) { require(object != nullptr); }
  ~Owned() { Py_XDECREF(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

struct CostObject {
  PyObject_HEAD
  CostCore* core;
};

extern PyType_Spec cost_type_spec;
extern PyType_Spec planner_type_spec;
extern PyTypeObject* cost_type;

}  // namespace planner
