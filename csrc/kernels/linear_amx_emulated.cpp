// The version for AMX over an emulated tile unit: the same source on a machine without, for tests.
#include "linear.h"

#if defined(__x86_64__)

#include <cstring>
#include <stdexcept>
#include <string>

#include "tile_config.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")
#include <immintrin.h>

namespace deepinfer {
namespace emulated_amx {

#include "rows_body.h"

#include "lanes_avx512.h"
#include "emulated_tile_unit.h"

#include "linear_tiles_body.h"

}  // namespace emulated_amx

const LinearVersion& emulated_amx_linear() {
  static const LinearVersion version = emulated_amx::tiled_version();
  return version;
}

}  // namespace deepinfer

#endif
