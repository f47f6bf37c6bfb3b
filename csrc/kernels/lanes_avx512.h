// Vectors of 32 bfloat16 values and their decoding by table. Included by the versions that have
// AVX-512, after rows_body.h.

// bfloat16 bits of the 128 e4m3 magnitudes, high and low bytes apart.
struct Fp8Table {
  alignas(64) std::uint8_t high[128];
  alignas(64) std::uint8_t low[128];

  Fp8Table() {
    for (int code = 0; code < 128; ++code) {
      const std::uint16_t value = to_bf16(kCodes.e4m3[code]);
      high[code] = static_cast<std::uint8_t>(value >> 8);
      low[code] = static_cast<std::uint8_t>(value & 0xFF);
    }
  }
};

inline const Fp8Table& fp8_table() {
  static const Fp8Table table;
  return table;
}

struct Pair {
  __m512i first, second;  // columns 0..31 and 32..63
};

struct Fp8Decoder {
  __m512i high[2], low[2], order, sign;

  Fp8Decoder() {
    const Fp8Table& table = fp8_table();
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(table.high + 64 * i);
      low[i] = _mm512_load_si512(table.low + 64 * i);
    }
    // Unpacking takes the lower halves of 128-bit lanes first: put columns 0..31 there.
    order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    sign = _mm512_set1_epi8(static_cast<char>(0x80));
  }

  // The look-ups take the low seven bits of a code.
  Pair values(__m512i codes) const {
    const __m512i ordered = _mm512_permutexvar_epi64(order, codes);
    __m512i upper = _mm512_permutex2var_epi8(high[0], ordered, high[1]);
    const __m512i lower = _mm512_permutex2var_epi8(low[0], ordered, low[1]);
    upper = _mm512_ternarylogic_epi32(upper, ordered, sign, 0xF8);  // upper | (ordered & sign)
    return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
  }
};

inline __m512i load_codes(const std::uint8_t* codes, bool pair) {
  return _mm512_maskz_loadu_epi8(pair ? ~0ull : 0xFFFFFFFFull, codes);
}

inline bool has_no_nan(__m512i codes) {
  const __m512i magnitude = _mm512_set1_epi8(0x7F);
  return _mm512_cmpeq_epi8_mask(_mm512_and_si512(codes, magnitude), magnitude) == 0;
}

// Scales with which every code is a normal bfloat16 value, so that adding to its exponent is exact.
inline bool is_moderate(std::uint8_t scale) { return scale >= 27 && scale <= 227; }

inline std::int16_t scale_word(std::uint8_t scale) {
  return static_cast<std::int16_t>((static_cast<int>(scale) - kScaleBias) * 128);
}

// bfloat16 values times the power of two whose scale_word is given, where that is moderate.
inline __m512i plus_exponent(__m512i values, std::int16_t word) {
  const __mmask32 nonzero = _mm512_test_epi16_mask(values, _mm512_set1_epi16(0x7FFF));
  return _mm512_mask_add_epi16(values, nonzero, values, _mm512_set1_epi16(word));
}

inline __m512i scaled(__m512i values, std::uint8_t scale) {
  return plus_exponent(values, scale_word(scale));
}

// 32 packed e2m1 codes to bfloat16 in order, with a power of two added to the table beforehand.
inline __m512i fp4_values(const std::uint8_t* packed, std::int16_t scale) {
  alignas(64) static const std::uint16_t magnitudes[32] = {
      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  // 0 .5 1 1.5 2 3 4 6
      0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,
      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
      0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
  // Each word looks up its low five bits: two packed bytes become four words, shifted by 0, 4, 8, 12.
  const __m512i shifts = _mm512_set1_epi64(0x000C000800040000ll);
  const __m512i bytes =
      _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  const __m512i table = _mm512_load_si512(magnitudes);
  const __m512i scaled_table =
      _mm512_mask_add_epi16(table, 0xFEFEFEFEu, table, _mm512_set1_epi16(scale));
  return _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(shifts, bytes), scaled_table);
}

// One row of a weight to bfloat16, scales included.
struct HalfDecoder {
  using Element = std::uint16_t;

  static void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales,
                         std::int64_t chunks, std::uint16_t* out) {
    const Fp8Decoder decoder;
    for (std::int64_t chunk = 0; chunk < chunks; chunk += 2, codes += 64, out += 64) {
      const bool pair = chunk + 1 < chunks;
      const __m512i bytes = load_codes(codes, pair);
      const bool exact = has_no_nan(bytes) && is_moderate(scales[chunk]) &&
                         (!pair || is_moderate(scales[chunk + 1]));
      if (!exact) {
        decode_fp8_exactly(codes, scales + chunk, pair ? 2 : 1, out);
        continue;
      }
      const Pair values = decoder.values(bytes);
      _mm512_storeu_si512(out, scaled(values.first, scales[chunk]));
      if (pair) _mm512_storeu_si512(out + 32, scaled(values.second, scales[chunk + 1]));
    }
  }

  // Any scale, and NaN codes: by float32 arithmetic.
  static void decode_fp8_exactly(const std::uint8_t* codes, const std::uint8_t* scales, int chunks,
                                 std::uint16_t* out) {
    for (int i = 0; i < chunks * kChunk; ++i) {
      out[i] = to_bf16(kCodes.e4m3[codes[i]] * scale_value(scales[i / kChunk]));
    }
  }

  static void decode_fp4(const std::uint8_t* packed, const std::uint8_t* scales,
                         std::int64_t chunks, std::uint16_t* out) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, packed += kChunk / 2, out += kChunk) {
      if (is_moderate(scales[chunk])) {
        _mm512_storeu_si512(out, fp4_values(packed, scale_word(scales[chunk])));
      } else {
        const float scale = scale_value(scales[chunk]);
        for (int i = 0; i < kChunk; ++i) {
          out[i] = to_bf16(kCodes.e2m1[(packed[i / 2] >> (4 * (i % 2))) & 15] * scale);
        }
      }
    }
  }

  static void decode_bf16(const std::uint16_t* values, std::int64_t columns, std::uint16_t* out) {
    std::int64_t i = 0;
    for (; i < columns; ++i) out[i] = values[i];
    for (; i < num_chunks(columns) * kChunk; ++i) out[i] = 0;
  }
};

inline __m512bh as_pairs(__m512i values) { return (__m512bh)values; }

inline __m512bh load_pairs(const std::uint16_t* values) {
  return as_pairs(_mm512_loadu_si512(values));
}

// Lanes added in halves, for four outputs at once; see linear.h.
inline __m128 sum_to_four(__m512 v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

inline void store_four_sums(const __m512 (&sums)[4], float* out) {
  const __m128 a = sum_to_four(sums[0]), b = sum_to_four(sums[1]);
  const __m128 c = sum_to_four(sums[2]), d = sum_to_four(sums[3]);
  const __m128 first = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 second = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(first, second), _mm_movehl_ps(second, first)));
}
