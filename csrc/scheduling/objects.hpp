// Reading vLLM's requests, and arrays of which an element's type and shape are known.
#pragma once

#include "../python/extension.hpp"

namespace scheduling {

using namespace python;

// Names of attributes, made once.
struct Names {
  PyObject *all_token_ids, *drop_stale_output, *is_prefill_chunk, *max_tokens,
      *num_computed_tokens, *num_in_flight_tokens, *num_prompt_tokens, *num_stale_output_tokens,
      *request_id, *spec_token_ids, *status;
};
extern Names names;
void make_names();

// The attributes of one object. Those of a request are in its instance dictionary, where finding
// one takes a third of what getattr takes; getattr finds the others.
class Attributes {
 public:
  explicit Attributes(PyObject* object)
      : object_(object), dict_(PyObject_GenericGetDict(object, nullptr)) {
    if (!dict_) PyErr_Clear();  // an object without one
  }
  ~Attributes() { Py_XDECREF(dict_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  Owned get(PyObject* name) const {
    if (dict_) {
      if (PyObject* value = PyDict_GetItemWithError(dict_, name)) return Owned(Py_NewRef(value));
      require(!PyErr_Occurred());
    }
    return Owned(PyObject_GetAttr(object_, name));
  }
  std::int64_t integer(PyObject* name) const { return as_int(get(name).get()); }
  bool flag(PyObject* name) const {
    const Owned value = get(name);
    return value.get() == Py_True || (value.get() != Py_False && as_bool(value.get()));
  }
  Py_ssize_t length(PyObject* name) const { return length_of(get(name).get()); }

  static Py_ssize_t length_of(PyObject* object) {
    if (PyList_CheckExact(object)) return PyList_GET_SIZE(object);
    const Py_ssize_t length = PyObject_Size(object);
    require(length >= 0);
    return length;
  }

 private:
  PyObject* object_;
  PyObject* dict_;
};

// Walks objects with those ahead on their way from memory: between two steps a model ran, and
// nothing of a request is in a cache any more. vLLM reads the same right after.
class Ahead {
 public:
  Ahead(PyObject* const* objects, Py_ssize_t count) : objects_(objects), count_(count) {
    for (Py_ssize_t i = -kObject; i < 0; ++i) fetch(i);
  }
  PyObject* at(Py_ssize_t index) const {
    fetch(index);
    return objects_[index];
  }

 private:
  static constexpr Py_ssize_t kObject = 24, kDict = 16, kKeys = 8;
  static constexpr std::size_t kLine = 64;

  static void prefetch(const void* address) { __builtin_prefetch(address); }
  PyObject* dict_of(Py_ssize_t index) const {
    PyObject** place = _PyObject_GetDictPtr(objects_[index]);
    return place ? *place : nullptr;
  }
  bool holds(Py_ssize_t index) const { return index >= 0 && index < count_; }

  void fetch(Py_ssize_t index) const {
    if (holds(index + kObject)) {
      const char* object = reinterpret_cast<const char*>(objects_[index + kObject]);
      prefetch(object - 32);
      prefetch(object);
    }
    if (holds(index + kDict)) prefetch(dict_of(index + kDict));
    if (holds(index + kKeys)) {
      const auto* dict = reinterpret_cast<PyDictObject*>(dict_of(index + kKeys));
      if (!dict) return;
      const char* keys = reinterpret_cast<const char*>(dict->ma_keys);
      const std::size_t size = 160 + 16 * static_cast<std::size_t>(dict->ma_used);
      for (std::size_t offset = 0; offset < size; offset += kLine) prefetch(keys + offset);
    }
  }

  PyObject* const* objects_;
  Py_ssize_t count_;
};

// A borrowed value of a dict, or null.
inline PyObject* find(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  require(value || !PyErr_Occurred());
  return value;
}

inline PyObject* checked(PyObject* object, PyTypeObject* type, const char* name) {
  if (PyObject_TypeCheck(object, type)) return object;
  PyErr_Format(PyExc_TypeError, "%s must be a %s", name, type->tp_name);
  throw PythonError{};
}
inline PyObject* checked_list(PyObject* object, const char* name) {
  return checked(object, &PyList_Type, name);
}
inline PyObject* checked_dict(PyObject* object, const char* name) {
  return checked(object, &PyDict_Type, name);
}

inline PyObject* appended(PyObject* list, PyObject* item) {
  require(PyList_Append(list, item) == 0);
  return list;
}

template <typename T>
struct TypeCode;
template <>
struct TypeCode<float> {
  static constexpr char value[] = "f";
};
template <>
struct TypeCode<double> {
  static constexpr char value[] = "d";
};
template <>
struct TypeCode<bool> {
  static constexpr char value[] = "?";
};
template <>
struct TypeCode<std::int32_t> {
  static constexpr char value[] = "i";
};
template <>
struct TypeCode<std::int64_t> {
  static constexpr char value[] = "l";
};

// A C-contiguous array of one or two dimensions.
template <typename T>
class Array {
 public:
  Array(PyObject* array, int num_dimensions, const char* name, int flags = 0)
      : view_(array, flags) {
    if (!view_.has_type(TypeCode<T>::value[0]) || (*view_).ndim != num_dimensions)
      throw std::invalid_argument(std::string(name) + " is " + (*view_).format + " " +
                                  shape_of(*view_) + "; expected type " + TypeCode<T>::value +
                                  " and " + std::to_string(num_dimensions) + " dimension(s)");
  }
  T* data() const { return static_cast<T*>((*view_).buf); }
  Py_ssize_t rows() const { return (*view_).shape[0]; }
  Py_ssize_t columns() const { return (*view_).shape[1]; }
  T* row(std::int64_t index) const { return data() + index * columns(); }

 private:
  View view_;
};

template <typename T>
class Written : public Array<T> {
 public:
  Written(PyObject* array, int num_dimensions, const char* name)
      : Array<T>(array, num_dimensions, name, PyBUF_WRITABLE) {}
};

inline void check_length(const char* name, Py_ssize_t given, Py_ssize_t expected) {
  if (given != expected)
    throw std::invalid_argument(std::string(name) + " has length " + std::to_string(given) +
                                "; expected " + std::to_string(expected));
}

// A row of the table: 0, that of requests which never drafted, where `rows` has none.
inline std::int64_t row_of(PyObject* rows, PyObject* request_id, Py_ssize_t num_rows) {
  PyObject* found = find(rows, request_id);
  if (!found) return 0;
  const std::int64_t row = as_int(found);
  if (row < 0 || row >= num_rows)
    throw std::invalid_argument("row " + std::to_string(row) + " is not one of " +
                                std::to_string(num_rows));
  return row;
}

using Function = PyObject*(PyObject*, PyObject* const*, Py_ssize_t);
Function survey, collect, trim, verified, settle, receive;

}  // namespace scheduling
