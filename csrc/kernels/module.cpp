// vllm_deepinfer._kernels: the CPU kernels over plain buffers, without torch headers.
#include "parts.h"

namespace {

constexpr bool (*kParts[])(PyObject*) = {
    &deepinfer::bind_machine,
    &deepinfer::bind_linear,
    &deepinfer::bind_experts,
    &deepinfer::bind_rows,
    &deepinfer::bind_caches,
    &deepinfer::bind_indexer,
    &deepinfer::bind_engram,
    &deepinfer::bind_router,
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_kernels",
    "CPU kernels; their arguments are checked in vllm_deepinfer.ops.",
    -1,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() {
  PyObject* module = PyModule_Create(&definition);
  for (auto bind : kParts) {
    if (module != nullptr && !bind(module)) Py_CLEAR(module);
  }
  return module;
}
