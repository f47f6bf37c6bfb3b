// The parts of the extension: one bind function per source file, false with a Python error set.
#pragma once

#include "python.h"

namespace deepinfer {

bool bind_machine(PyObject* module);
bool bind_linear(PyObject* module);
bool bind_experts(PyObject* module);
bool bind_rows(PyObject* module);
bool bind_caches(PyObject* module);
bool bind_indexer(PyObject* module);
bool bind_engram(PyObject* module);
bool bind_router(PyObject* module);

}  // namespace deepinfer
