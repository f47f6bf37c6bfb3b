// vllm_deepinfer._planner.CostCore
#include "python.hpp"

namespace planner {

PyTypeObject* cost_type = nullptr;

namespace {

CostCore& core_of(PyObject* self) { return *reinterpret_cast<CostObject*>(self)->core; }

std::vector<std::int64_t> ints_of(PyObject* sequence) {
  const Owned fast(PySequence_Fast(sequence, "sizes must be a sequence"));
  std::vector<std::int64_t> values;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
    values.push_back(as_int(PySequence_Fast_GET_ITEM(fast.get(), i)));
  return values;
}

std::vector<double> doubles_of(PyObject* sequence) {
  const Owned fast(PySequence_Fast(sequence, "expected a sequence of numbers"));
  std::vector<double> values;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
    values.push_back(as_finite(PySequence_Fast_GET_ITEM(fast.get(), i)));
  return values;
}

template <typename Values>
PyObject* list_of(const Values& values) {
  Owned list(PyList_New(0));
  for (const double value : values) {
    const Owned item(PyFloat_FromDouble(value));
    require(PyList_Append(list.get(), item.get()) == 0);
  }
  return list.release();
}

void append(PyObject* list, PyObject* new_item) {
  const Owned item(new_item);
  require(PyList_Append(list, item.get()) == 0);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&]() -> PyObject* {
    PyObject *sizes, *base_ms;
    Py_ssize_t windows[4];
    int flags[5];
    require(!kwargs || PyDict_GET_SIZE(kwargs) == 0 ||
            (PyErr_SetString(PyExc_TypeError, "CostCore takes no keywords"), false));
    require(PyArg_ParseTuple(args, "OOnnnnppppp", &sizes, &base_ms, &windows[0], &windows[1],
                             &windows[2], &windows[3], &flags[0], &flags[1], &flags[2],
                             &flags[3], &flags[4]));
    for (const Py_ssize_t window : windows)
      if (window < 1) throw InputError("windows and numbers of samples must be >= 1");
    const CostSettings settings{
        std::size_t(windows[0]), std::size_t(windows[1]), std::size_t(windows[2]),
        std::size_t(windows[3]), bool(flags[0]),          bool(flags[1]),
        bool(flags[2]),          bool(flags[3]),          bool(flags[4])};
    auto size_values = ints_of(sizes);
    auto base_values = doubles_of(base_ms);
    if (size_values.empty() || size_values.size() != base_values.size())
      throw InputError("sizes and times must be as many, and one at least");
    Owned self(type->tp_alloc(type, 0));
    reinterpret_cast<CostObject*>(self.get())->core =
        new CostCore(std::move(size_values), std::move(base_values), settings);
    return self.release();
  });
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<CostObject*>(self)->core;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* observe(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("observe", count, 5);
    core_of(self).observe(as_int(args[0]), as_tokens(args[1]), as_int(args[2]),
                          as_finite(args[3]), as_finite(args[4]));
    Py_RETURN_NONE;
  });
}

PyObject* forward_ms(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("forward_ms", count, 2);
    return PyFloat_FromDouble(core_of(self).forward_ms(as_int(args[0]), as_int(args[1])));
  });
}

PyObject* sampler_ms(PyObject* self, PyObject* num_seqs) {
  return guarded(
      [&]() -> PyObject* { return PyFloat_FromDouble(core_of(self).sampler_ms(as_int(num_seqs))); });
}

PyObject* bucket_index(PyObject* self, PyObject* num_tokens) {
  return guarded(
      [&]() -> PyObject* { return PyLong_FromLong(core_of(self).bucket_index(as_int(num_tokens))); });
}

int bucket_of(PyObject* self, PyObject* index) {
  const std::int64_t bucket = as_int(index);
  const auto count = static_cast<std::int64_t>(core_of(self).sizes().size());
  if (bucket < 0 || bucket >= count)
    throw InputError("bucket " + std::to_string(bucket) + " is not one of " +
                     std::to_string(count));
  return static_cast<int>(bucket);
}

PyObject* is_measured(PyObject* self, PyObject* bucket) {
  return guarded([&]() -> PyObject* {
    return PyBool_FromLong(core_of(self).is_measured(bucket_of(self, bucket)));
  });
}

PyObject* num_samples(PyObject* self, PyObject* bucket) {
  return guarded([&]() -> PyObject* {
    return PyLong_FromSize_t(core_of(self).num_samples(bucket_of(self, bucket)));
  });
}

PyObject* state(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    CostCore& core = core_of(self);
    const Owned samples(PyList_New(0)), sampler(PyList_New(0)), errors(PyList_New(0));
    for (const StepSample& s : core.samples())
      append(samples.get(), Py_BuildValue("[LLd]", static_cast<long long>(s.num_tokens),
                                          static_cast<long long>(s.context_tokens), s.forward_ms));
    append(sampler.get(), Py_BuildValue("[iN]", 0, list_of(core.sampler().overall().values())));
    for (const auto& [num_seqs, times] : core.sampler().by_num_seqs())
      append(sampler.get(), Py_BuildValue("[LN]", static_cast<long long>(num_seqs),
                                          list_of(times.values())));
    for (const ShiftWatch& watch : core.watches()) {
      Owned past(list_of(watch.past())), recent(list_of(watch.recent()));
      append(errors.get(), Py_BuildValue("[NN]", past.release(), recent.release()));
    }
    return Py_BuildValue("{sLsLsdsOsOsO}", "num_observed",
                         static_cast<long long>(core.num_observed), "num_shifts",
                         static_cast<long long>(core.num_shifts), "context_slope_ms",
                         core.context_slope_ms(), "samples", samples.get(), "sampler",
                         sampler.get(), "errors", errors.get());
  });
}

// A borrowed value of a dict.
PyObject* value_of(PyObject* dict, const char* key) {
  if (!PyDict_Check(dict)) {
    PyErr_SetString(PyExc_TypeError, "a state is a dict");
    throw PythonError{};
  }
  const Owned name(PyUnicode_FromString(key));
  PyObject* value = PyDict_GetItemWithError(dict, name.get());
  if (!value && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, name.get());
  require(value != nullptr);
  return value;
}

// Calls `use(items)` with the items of each entry, `size` of them, of a sequence of sequences.
template <typename Use>
void for_each(PyObject* sequence, Py_ssize_t size, Use use) {
  const Owned fast(PySequence_Fast(sequence, "expected a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    const Owned entry(
        PySequence_Fast(PySequence_Fast_GET_ITEM(fast.get(), i), "expected a sequence"));
    if (PySequence_Fast_GET_SIZE(entry.get()) != size)
      throw InputError("an entry of a state has another length");
    use(PySequence_Fast_ITEMS(entry.get()));
  }
}

PyObject* restore(PyObject* self, PyObject* given) {
  return guarded([&]() -> PyObject* {
    CostCore& core = core_of(self);
    for_each(value_of(given, "sampler"), 2, [&](PyObject** items) {
      for (const double ms : doubles_of(items[1])) core.sampler().restore(as_int(items[0]), ms);
    });
    core.restore_context_slope(as_finite(value_of(given, "context_slope_ms")));
    for_each(value_of(given, "samples"), 3, [&](PyObject** items) {
      core.add(as_tokens(items[0]), as_int(items[1]), as_finite(items[2]));
    });
    PyObject* errors = value_of(given, "errors");
    if (PyObject_Size(errors) != static_cast<Py_ssize_t>(core.watches().size()))
      throw InputError("a state holds errors of another number of buckets");
    auto watch = core.watches().begin();
    for_each(errors, 2, [&](PyObject** items) {
      for (const double error : doubles_of(items[0])) watch->remember(error);
      for (const double error : doubles_of(items[1])) watch->restore_recent(error);
      ++watch;
    });
    core.num_observed = as_int(value_of(given, "num_observed"));
    core.num_shifts = as_int(value_of(given, "num_shifts"));
    core.refresh();
    Py_RETURN_NONE;
  });
}

PyObject* get_slope(PyObject* self, void*) {
  return PyFloat_FromDouble(core_of(self).slope_ms());
}
PyObject* get_context_slope(PyObject* self, void*) {
  return PyFloat_FromDouble(core_of(self).context_slope_ms());
}
PyObject* get_num_observed(PyObject* self, void*) {
  return PyLong_FromLongLong(core_of(self).num_observed);
}
PyObject* get_num_shifts(PyObject* self, void*) {
  return PyLong_FromLongLong(core_of(self).num_shifts);
}

PyMethodDef methods[] = {
    {"observe", fast(observe), METH_FASTCALL, "Learn from a step."},
    {"forward_ms", fast(forward_ms), METH_FASTCALL, "Predicted time of the forward pass."},
    {"sampler_ms", sampler_ms, METH_O, "Predicted time of sampling and drafting."},
    {"bucket_index", bucket_index, METH_O, "Index of the bucket that holds the tokens."},
    {"is_measured", is_measured, METH_O, "Whether a bucket has enough samples."},
    {"num_samples", num_samples, METH_O, "Samples of a bucket."},
    {"state", state, METH_NOARGS, "Everything learned, as lists of numbers."},
    {"restore", restore, METH_O, "Take over what state gave; on a new core only."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"slope_ms", get_slope, nullptr, "Milliseconds per token slot.", nullptr},
    {"context_slope_ms", get_context_slope, nullptr, "Milliseconds per context token.", nullptr},
    {"num_observed", get_num_observed, nullptr, "Steps learned from.", nullptr},
    {"num_shifts", get_num_shifts, nullptr, "Times that old samples were dropped.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(create)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {0, nullptr}};

}  // namespace

PyType_Spec cost_type_spec = {"vllm_deepinfer._planner.CostCore", sizeof(CostObject), 0,
                              Py_TPFLAGS_DEFAULT, slots};

}  // namespace planner
