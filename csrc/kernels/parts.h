// The parts of the extension: one bind function per source file, false with a Python error set.
#pragma once

#include "python.h"

namespace deepinfer {

bool bind_machine(PyObject* module);
bool bind_linear(PyObject* module);
bool bind_experts(PyObject* module);

}  // namespace deepinfer
