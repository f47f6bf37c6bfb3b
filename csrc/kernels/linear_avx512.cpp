// The version for machines with AVX-512, its byte permutations and its bfloat16 products.
#if defined(__x86_64__)

#include "linear.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")
#include <immintrin.h>

namespace deepinfer {
namespace avx512 {

#include "rows_body.h"

constexpr bool kHasHalf = true;

#include "lanes_avx512.h"
#include "narrow_avx512.h"

struct Half : HalfDecoder {
  static constexpr int kTileRows = 6;
  static constexpr bool kReadsBf16 = true;

  template <int T>
  static void tile(const std::uint16_t* const* rows, const std::uint16_t* const* weights,
                   std::int64_t chunks, float* out) {
    __m512 sums[T][4];
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_setzero_ps();
    }
    for (std::int64_t i = 0; i < chunks * kChunk; i += kChunk) {
      __m512bh weight[4];
      for (int r = 0; r < 4; ++r) weight[r] = load_pairs(weights[r] + i);
      for (int t = 0; t < T; ++t) {
        const __m512bh row = load_pairs(rows[t] + i);
        for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_dpbf16_ps(sums[t][r], weight[r], row);
      }
    }
    for (int t = 0; t < T; ++t) store_four_sums(sums[t], out + t * kBlockRows);
  }

  static bool narrow(const WeightBlock& weight, const Rows& rows, float* out, void* scratch) {
    return narrow_product(weight, rows, out, scratch);
  }
};

struct Single {
  using Element = float;
  static constexpr int kTileRows = 4;
  static constexpr bool kReadsBf16 = false;

  static void split(__m512i pairs, float* out) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    _mm512_storeu_ps(out, _mm512_castsi512_ps(_mm512_and_si512(pairs, high)));
    _mm512_storeu_ps(out + 16, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
  }

  static void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales,
                         std::int64_t chunks, float* out) {
    std::uint16_t halves[kChunk];
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, codes += kChunk, out += kChunk) {
      if (is_moderate(scales[chunk])) {
        Half::decode_fp8(codes, scales + chunk, 1, halves);
        split(_mm512_loadu_si512(halves), out);
      } else {
        float values[kChunk];
        const float scale = scale_value(scales[chunk]);
        for (int i = 0; i < kChunk; ++i) values[i] = kCodes.e4m3[codes[i]] * scale;
        split_chunk(values, out);
      }
    }
  }

  static void decode_fp4(const std::uint8_t* packed, const std::uint8_t* scales,
                         std::int64_t chunks, float* out) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, packed += kChunk / 2, out += kChunk) {
      // Codes are exact in bfloat16 whatever the scale; float32 takes any scale.
      split(fp4_values(packed, 0), out);
      const __m512 scale = _mm512_set1_ps(scale_value(scales[chunk]));
      _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_loadu_ps(out), scale));
      _mm512_storeu_ps(out + 16, _mm512_mul_ps(_mm512_loadu_ps(out + 16), scale));
    }
  }

  static void decode_bf16(const std::uint16_t* values, std::int64_t columns, float* out) {
    for (std::int64_t first = 0; first < columns; first += kChunk, out += kChunk) {
      const std::int64_t left = columns - first;
      const __mmask32 valid = left < kChunk ? (1u << left) - 1u : ~0u;
      split(_mm512_maskz_loadu_epi16(valid, values + first), out);
    }
  }

  template <int T>
  static void tile(const float* const* rows, const float* const* weights, std::int64_t chunks,
                   float* out) {
    if constexpr (T > kTileRows) {
      __builtin_unreachable();
    } else {
      __m512 sums[T][4];
      for (int t = 0; t < T; ++t) {
        for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_setzero_ps();
      }
      for (std::int64_t i = 0; i < chunks * kChunk; i += 16) {
        __m512 weight[4];
        for (int r = 0; r < 4; ++r) weight[r] = _mm512_loadu_ps(weights[r] + i);
        for (int t = 0; t < T; ++t) {
          const __m512 row = _mm512_loadu_ps(rows[t] + i);
          for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_fmadd_ps(weight[r], row, sums[t][r]);
        }
      }
      for (int t = 0; t < T; ++t) store_four_sums(sums[t], out + t * kBlockRows);
    }
  }

  static bool narrow(const WeightBlock&, const Rows&, float*, void*) { return false; }
};

#include "linear_body.h"

}  // namespace avx512

const LinearVersion& avx512_linear() { return avx512::kVersion; }

}  // namespace deepinfer

#endif
