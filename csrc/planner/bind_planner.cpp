// vllm_deepinfer._planner.PlannerCore, and the module.
#include <cstring>

#include "python.hpp"

namespace planner {

namespace {

struct PlannerObject {
  PyObject_HEAD
  PlannerCore* core;
  PyObject* cost;  // keeps what the core prices with
};

Rates rates_of(const View& view, const char* name, Py_ssize_t n, int max_drafts) {
  const bool is_double = view.has_type('d');
  if (!view.has_shape(n, max_drafts) || !(is_double || view.has_type('f')))
    throw InputError(std::string(name) + " rates are " + (*view).format + " " + shape_of(*view) +
                     "; expected float32 or float64 (" + std::to_string(n) + ", " +
                     std::to_string(max_drafts) + ")");
  return {(*view).buf, is_double, name};
}

const View& int32_row(const View& view, const char* name) {
  if ((*view).ndim != 1 || !view.has_type('i'))
    throw InputError(std::string(name) + " must be int32 of one dimension");
  return view;
}

PyObject* plan(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("plan", count, 6);
    PlannerCore& core = *reinterpret_cast<PlannerObject*>(self)->core;
    const View budget(args[0], 0), ranking(args[1], 0), limits(args[2], 0);
    const View num_drafts(args[3], PyBUF_WRITABLE);
    const Py_ssize_t n = (*int32_row(limits, "limits")).shape[0];
    if ((*int32_row(num_drafts, "num_drafts")).shape[0] != n)
      throw InputError("num_drafts must be as long as limits");
    const Rates budget_rates = rates_of(budget, "budget", n, core.max_drafts());
    const Rates ranking_rates = rates_of(ranking, "ranking", n, core.max_drafts());
    const Step step{static_cast<const std::int32_t*>((*limits).buf), n, as_int(args[4]),
                    as_int(args[5])};
    const auto [choice, kind] = core.plan(budget_rates, ranking_rates, step,
                                          static_cast<std::int32_t*>((*num_drafts).buf));
    return Py_BuildValue("ddLi", choice.expected_tokens, choice.step_ms,
                         static_cast<long long>(choice.num_rows), static_cast<int>(kind));
  });
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&]() -> PyObject* {
    PyObject* cost;
    int max_drafts, ties_by_position;
    PlannerSettings settings;
    long long explore_every;
    require(!kwargs || PyDict_GET_SIZE(kwargs) == 0 ||
            (PyErr_SetString(PyExc_TypeError, "PlannerCore takes no keywords"), false));
    require(PyArg_ParseTuple(args, "O!iddLdp", cost_type, &cost, &max_drafts,
                             &settings.min_benefit, &settings.static_benefit, &explore_every,
                             &settings.explore_loss, &ties_by_position));
    if (max_drafts < 1 || explore_every < 0)
      throw InputError("max_drafts must be >= 1 and explore_every >= 0");
    settings.explore_every = explore_every;
    settings.ties_by_position = ties_by_position;
    Owned self(type->tp_alloc(type, 0));
    auto* object = reinterpret_cast<PlannerObject*>(self.get());
    object->core =
        new PlannerCore(*reinterpret_cast<CostObject*>(cost)->core, max_drafts, settings);
    Py_INCREF(cost);
    object->cost = cost;
    return self.release();
  });
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<PlannerObject*>(self)->core;
  Py_XDECREF(reinterpret_cast<PlannerObject*>(self)->cost);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"plan", fast(plan), METH_FASTCALL,
     "plan(budget_rates, ranking_rates, limits, num_drafts, context_tokens, other_tokens): fills "
     "num_drafts; returns expected tokens, step time, rows and kind."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(create)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "vllm_deepinfer._planner",
                                 "Step costs and verification plans.",
                                 -1,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

}  // namespace

PyType_Spec planner_type_spec = {"vllm_deepinfer._planner.PlannerCore", sizeof(PlannerObject), 0,
                                 Py_TPFLAGS_DEFAULT, slots};

PyObject* make_module() {
  return guarded([]() -> PyObject* {
    Owned module(PyModule_Create(&module_definition));
    const Owned cost(PyType_FromSpec(&cost_type_spec));
    const Owned planner(PyType_FromSpec(&planner_type_spec));
    require(PyModule_AddObjectRef(module.get(), "CostCore", cost.get()) == 0);
    require(PyModule_AddObjectRef(module.get(), "PlannerCore", planner.get()) == 0);
    Py_INCREF(cost.get());  // kept for good: planners are made from it
    cost_type = reinterpret_cast<PyTypeObject*>(cost.get());
    return module.release();
  });
}

}  // namespace planner

PyMODINIT_FUNC PyInit__planner() { return planner::make_module(); }
