// The version for x86-64 machines since 2013: AVX2 and fused multiply-add.
#if defined(__x86_64__)

#include "linear.h"

#pragma GCC target("avx2,fma")
#include <immintrin.h>

namespace deepinfer {
namespace avx2 {

#include "rows_body.h"

constexpr bool kHasHalf = false;

// Lanes l to l + half for four outputs at once; see linear.h.
inline __m128 sum_lanes(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

inline void store_four_sums(const __m128 (&v)[4], float* out) {
  const __m128 first = _mm_add_ps(_mm_unpacklo_ps(v[0], v[1]), _mm_unpackhi_ps(v[0], v[1]));
  const __m128 second = _mm_add_ps(_mm_unpacklo_ps(v[2], v[3]), _mm_unpackhi_ps(v[2], v[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(first, second), _mm_movehl_ps(second, first)));
}

struct Single {
  using Element = float;
  static constexpr int kTileRows = 2;
  static constexpr bool kReadsBf16 = false;

  // Eight words of two codes each: the even columns are their low bytes, the odd ones the high.
  static void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales,
                         std::int64_t chunks, float* out) {
    const __m256i magnitude = _mm256_set1_epi32(0x7F);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, codes += kChunk, out += kChunk) {
      // As float32 bits, exponent and mantissa of a code are those of a value smaller by 2^120.
      const __m256 scale = _mm256_set1_ps(scale_value(scales[chunk]));
      for (int half = 0; half < 2; ++half) {
        const __m256i words = _mm256_cvtepu16_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * half)));
        for (int odd = 0; odd < 2; ++odd) {
          const __m256i code = odd ? _mm256_srli_epi32(words, 8) : words;
          const __m256i size = _mm256_and_si256(code, magnitude);
          const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(
              _mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24));
          const __m256 nan =
              _mm256_castsi256_ps(_mm256_cmpeq_epi32(size, magnitude));
          __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(size, 20)),
                                       _mm256_set1_ps(float_of(247u << 23)));
          value = _mm256_or_ps(_mm256_or_ps(value, sign), nan);
          _mm256_storeu_ps(out + (odd ? 0 : 16) + 8 * half, _mm256_mul_ps(value, scale));
        }
      }
    }
  }

  static void decode_fp4(const std::uint8_t* packed, const std::uint8_t* scales,
                         std::int64_t chunks, float* out) {
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, packed += kChunk / 2, out += kChunk) {
      const __m256 scale = _mm256_set1_ps(scale_value(scales[chunk]));
      for (int half = 0; half < 2; ++half) {
        const __m256i bytes = _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed + 8 * half)));
        for (int odd = 0; odd < 2; ++odd) {
          const __m256i code = odd ? _mm256_srli_epi32(bytes, 4) : bytes;
          const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(
              _mm256_and_si256(code, _mm256_set1_epi32(8)), 28));
          const __m256 value = _mm256_or_ps(_mm256_permutevar8x32_ps(values, code), sign);
          _mm256_storeu_ps(out + (odd ? 0 : 16) + 8 * half, _mm256_mul_ps(value, scale));
        }
      }
    }
  }

  static void decode_bf16(const std::uint16_t* values, std::int64_t columns, float* out) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    for (std::int64_t first = 0; first < columns; first += kChunk, out += kChunk) {
      std::uint16_t padded[kChunk] = {};
      const std::uint16_t* chunk = values + first;
      if (columns - first < kChunk) {
        for (std::int64_t i = 0; i < columns - first; ++i) padded[i] = chunk[i];
        chunk = padded;
      }
      for (int half = 0; half < 2; ++half) {
        const __m256i pairs =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk + 16 * half));
        _mm256_storeu_ps(out + 8 * half, _mm256_castsi256_ps(_mm256_and_si256(pairs, high)));
        _mm256_storeu_ps(out + 16 + 8 * half, _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
      }
    }
  }

  template <int T>
  static void tile(const float* const* rows, const float* const* weights, std::int64_t chunks,
                   float* out) {
    if constexpr (T > kTileRows) {
      __builtin_unreachable();
    } else {
      __m256 low[T][4], high[T][4];
      lanes<T>(rows, weights, chunks, 0, low);
      lanes<T>(rows, weights, chunks, 8, high);
      for (int t = 0; t < T; ++t) {
        __m128 sums[4];
        for (int r = 0; r < 4; ++r) sums[r] = sum_lanes(low[t][r], high[t][r]);
        store_four_sums(sums, out + t * kBlockRows);
      }
    }
  }

  template <int T>
  static void lanes(const float* const* rows, const float* const* weights, std::int64_t chunks,
                    int offset, __m256 (&acc)[T][4]) {
    __m256 sums[T][4];
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < 4; ++r) sums[t][r] = _mm256_setzero_ps();
    }
    for (std::int64_t i = offset; i < chunks * kChunk; i += kChunk) {
      for (int part = 0; part < kChunk; part += kChunk / 2) {
        __m256 row[T];
        for (int t = 0; t < T; ++t) row[t] = _mm256_loadu_ps(rows[t] + i + part);
        for (int r = 0; r < 4; ++r) {
          const __m256 weight = _mm256_loadu_ps(weights[r] + i + part);
          for (int t = 0; t < T; ++t) sums[t][r] = _mm256_fmadd_ps(weight, row[t], sums[t][r]);
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < 4; ++r) acc[t][r] = sums[t][r];
    }
  }

  static bool narrow(const WeightBlock&, const Rows&, float*, void*) { return false; }
};

using Half = Single;  // never asked for

#include "linear_body.h"

}  // namespace avx2

const LinearVersion& avx2_linear() { return avx2::kVersion; }

}  // namespace deepinfer

#endif
