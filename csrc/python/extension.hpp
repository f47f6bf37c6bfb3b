// What extensions over Python objects and buffers share of Python's C interface.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace python {

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
  } catch (const std::invalid_argument& error) {
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

inline bool as_bool(PyObject* object) {
  const int truth = PyObject_IsTrue(object);
  require(truth >= 0);
  return truth > 0;
}

inline void check_count(const char* name, Py_ssize_t given, Py_ssize_t expected) {
  if (given == expected) return;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, given);
  throw PythonError{};
}

// A METH_FASTCALL function as a method table holds it.
template <typename Function>
PyCFunction fast(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
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

// A C-contiguous view of an array.
class View {
 public:
  View(PyObject* array, int flags) {
    require(PyObject_GetBuffer(array, &buffer_, PyBUF_ND | PyBUF_FORMAT | flags) == 0);
  }
  ~View() { PyBuffer_Release(&buffer_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  const Py_buffer& operator*() const { return buffer_; }

  bool has_type(char type) const { return buffer_.format[0] == type && buffer_.format[1] == 0; }
  bool has_shape(Py_ssize_t rows, Py_ssize_t columns) const {
    return buffer_.ndim == 2 && buffer_.shape[0] == rows && buffer_.shape[1] == columns;
  }

 private:
  Py_buffer buffer_;
};

inline std::string shape_of(const Py_buffer& buffer) {
  std::string text = "(";
  for (int i = 0; i < buffer.ndim; ++i)
    text += (i ? ", " : "") + std::to_string(buffer.shape[i]);
  return text + (buffer.ndim == 1 ? ",)" : ")");
}

}  // namespace python
