// The version for machines with AMX: the tile unit's products, otherwise AVX-512.
#include "linear.h"

#if defined(DEEPINFER_HAS_AMX)

#include <cstring>

#include "tile_config.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")
#pragma GCC target("amx-tile,amx-bf16")
#include <immintrin.h>

namespace deepinfer {
namespace amx {

#include "rows_body.h"

#include "lanes_avx512.h"
#include "tile_unit.h"

#include "linear_tiles_body.h"

}  // namespace amx

const LinearVersion& amx_linear() {
  static const LinearVersion version = amx::tiled_version();
  return version;
}

}  // namespace deepinfer

#endif
