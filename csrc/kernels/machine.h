// Which instructions this machine has, and which of the kernels' versions run.
#pragma once

#include <string>

namespace deepinfer {

// Every version of a kernel computes the same bits (values below 2^-126 aside, see linear.h).
enum class Isa { portable, avx2, avx512 };

// The best version this machine can run, unless choose_isa() picked another.
Isa current_isa();

// Throws std::invalid_argument for a name that is unknown or that this machine cannot run.
void choose_isa(const std::string& name);

}  // namespace deepinfer
