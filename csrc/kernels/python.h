// Functions of numbers and addresses as Python functions, by CPython's own interface: no binding
// library is needed to build, and a call costs a fraction of a microsecond.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace deepinfer {
namespace python {

template <class T>
T from_python(PyObject* object) {
  if constexpr (std::is_same_v<T, std::string>) {
    const char* text = PyUnicode_AsUTF8(object);
    return text == nullptr ? std::string() : std::string(text);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(PyFloat_AsDouble(object));
  } else if constexpr (std::is_same_v<T, bool>) {
    return PyObject_IsTrue(object) > 0;
  } else if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(PyLong_AsUnsignedLongLong(object));
  } else {
    return static_cast<T>(PyLong_AsLongLong(object));
  }
}

template <class T>
PyObject* to_python(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return PyUnicode_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size()));
  } else {
    return PyLong_FromUnsignedLongLong(value);
  }
}

// Other Python threads run while a kernel does: kernels touch no Python object.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

template <class Result, class... Arguments, std::size_t... I>
PyObject* call(Result (*function)(Arguments...), PyObject* const* objects,
               std::index_sequence<I...>) {
  const std::tuple<std::decay_t<Arguments>...> values{
      from_python<std::decay_t<Arguments>>(objects[I])...};
  if (PyErr_Occurred()) return nullptr;
  try {
    if constexpr (std::is_void_v<Result>) {
      {
        const WithoutGil released;
        function(std::get<I>(values)...);
      }
      Py_RETURN_NONE;
    } else {
      const Result result = [&] {
        const WithoutGil released;
        return function(std::get<I>(values)...);
      }();
      return to_python(result);
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
}

template <class Result, class... Arguments>
PyObject* call_checked(Result (*function)(Arguments...), PyObject* const* objects,
                       Py_ssize_t count) {
  if (count != static_cast<Py_ssize_t>(sizeof...(Arguments))) {
    PyErr_Format(PyExc_TypeError, "takes %zd arguments, got %zd",
                 static_cast<Py_ssize_t>(sizeof...(Arguments)), count);
    return nullptr;
  }
  return call(function, objects, std::index_sequence_for<Arguments...>());
}

template <auto kFunction>
PyObject* entry(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  return call_checked(kFunction, objects, count);
}

// Adds kFunction to the module; false with a Python error set if that fails.
template <auto kFunction>
bool add(PyObject* module, const char* name) {
  static PyMethodDef definitions[2] = {};
  definitions[0] = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(
                              &entry<kFunction>)),
                    METH_FASTCALL, nullptr};
  return PyModule_AddFunctions(module, definitions) == 0;
}

}  // namespace python

// Tensors cross as the address of their first element.
template <class T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace deepinfer
