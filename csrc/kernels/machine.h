// Which instructions this machine has, and which of the kernels' versions run.
#pragma once

#include <string>

namespace deepinfer {

// Up to avx512 every version of a kernel computes the same bits (values below 2^-126 aside). The
// last two, which compute the same bits too, differ from them in some products; see linear.h. They
// have the AVX-512 version of everything else.
enum class Isa { portable, avx2, avx512, emulated_amx, amx };

// The best version this machine can run, unless choose_isa() picked another; never an emulated one.
Isa current_isa();

// Throws std::invalid_argument for a name that is unknown or that this machine cannot run.
void choose_isa(const std::string& name);

}  // namespace deepinfer
