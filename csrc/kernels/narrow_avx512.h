// Few rows: weights are decoded in registers and never stored. Included by linear_avx512.cpp.
// Bits are those of the general way: the same products are added in the same order.

constexpr int kNarrowRows = 6;
// Rows lie one after the other, so this is read soon. Measured: 8 KiB ahead and less is slower.
constexpr int kAheadBytes = 65536;

inline void prefetch(const std::uint8_t* data) {
  _mm_prefetch(reinterpret_cast<const char*>(data), _MM_HINT_T1);
}

// Pointers to four weight rows; rows past the last repeat it and their results are ignored.
struct FourRows {
  const std::uint8_t* data[4];
  int number[4];

  FourRows(const WeightBlock& weight, int first) {
    for (int r = 0; r < 4; ++r) {
      number[r] = first + r < weight.num_outputs ? first + r : weight.num_outputs - 1;
      data[r] = weight.data + number[r] * weight.row_bytes;
    }
  }
};

// Four weight rows and T activation rows, scaled beforehand by the weights' scales.
template <int T>
void narrow_fp8(const FourRows& weights, std::int64_t chunks,
                const std::uint16_t* rows, std::int64_t row_stride, float* out) {
  const Fp8Decoder decoder;
  __m512 sums[T][4];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_setzero_ps();
  }
  std::int64_t i = 0;
  for (; i + 64 <= chunks * kChunk; i += 64) {
    for (int r = 0; r < 4; ++r) {
      prefetch(weights.data[0] + kAheadBytes + 4 * i + 64 * r);
      const Pair values = decoder.values(_mm512_loadu_si512(weights.data[r] + i));
      for (int t = 0; t < T; ++t) {
        const std::uint16_t* row = rows + t * row_stride + i;
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values.first), load_pairs(row));
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values.second), load_pairs(row + 32));
      }
    }
  }
  if (i < chunks * kChunk) {
    for (int r = 0; r < 4; ++r) {
      const Pair values = decoder.values(load_codes(weights.data[r] + i, false));
      for (int t = 0; t < T; ++t) {
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values.first),
                                      load_pairs(rows + t * row_stride + i));
      }
    }
  }
  for (int t = 0; t < T; ++t) store_four_sums(sums[t], out + t * kBlockRows);
}

template <int T>
void narrow_fp4(const FourRows& weights, const std::int16_t* words, std::int64_t chunks,
                const std::uint16_t* const* rows, float* out) {
  __m512 sums[T][4];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_setzero_ps();
  }
  const std::int16_t* scales[4];
  for (int r = 0; r < 4; ++r) scales[r] = words + weights.number[r] * chunks;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int r = 0; r < 4; ++r) {
      if (r == 0) prefetch(weights.data[0] + kAheadBytes + 64 * chunk);
      const __m512i values =
          fp4_values(weights.data[r] + chunk * (kChunk / 2), scales[r][chunk]);
      for (int t = 0; t < T; ++t) {
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values),
                                      load_pairs(rows[t] + chunk * kChunk));
      }
    }
  }
  for (int t = 0; t < T; ++t) store_four_sums(sums[t], out + t * kBlockRows);
}

// Scale bytes to what is added to bfloat16 bits; false if one is not within lowest..highest.
inline bool scale_words(const std::uint8_t* scales, std::int64_t count, int lowest, int highest,
                        std::int16_t* words) {
  const __m512i bias = _mm512_set1_epi16(kScaleBias);
  const __m512i low = _mm512_set1_epi16(static_cast<short>(lowest));
  const __m512i span = _mm512_set1_epi16(static_cast<short>(highest - lowest));
  __mmask32 outside = 0;
  for (std::int64_t i = 0; i < count; i += 32) {
    const std::int64_t left = count - i;
    const __mmask32 valid = left < 32 ? (1u << left) - 1u : ~0u;
    const __m512i wide = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(valid, scales + i));
    outside |= _mm512_mask_cmpgt_epu16_mask(valid, _mm512_sub_epi16(wide, low), span);
    _mm512_mask_storeu_epi16(words + i, valid,
                             _mm512_slli_epi16(_mm512_sub_epi16(wide, bias), 7));
  }
  return outside == 0;
}

// One scale for 32 outputs: it multiplies the activations, once, instead of every weight. NaN codes
// need no care, because nothing is added to a weight's bits.
inline bool narrow_fp8_block(const WeightBlock& weight, const Rows& rows, float* out,
                             void* scratch) {
  const std::int64_t chunks = num_chunks(weight.columns), stride = chunks * kChunk;
  auto* scaled_rows = static_cast<std::uint16_t*>(scratch);
  auto* words = reinterpret_cast<std::int16_t*>(scaled_rows + rows.count * stride);
  if (!rows.moderate || !scale_words(weight.scales, chunks, 67, 187, words)) return false;
  for (std::int64_t t = 0; t < rows.count; ++t) {
    const auto* row = static_cast<const std::uint16_t*>(rows.rows[t]);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      _mm512_storeu_si512(
          scaled_rows + t * stride + chunk * kChunk,
          plus_exponent(_mm512_loadu_si512(row + chunk * kChunk), words[chunk]));
    }
  }
  using Function = void (*)(const FourRows&, std::int64_t, const std::uint16_t*, std::int64_t,
                            float*);
  static constexpr Function table[] = {&narrow_fp8<1>, &narrow_fp8<2>, &narrow_fp8<3>,
                                       &narrow_fp8<4>, &narrow_fp8<5>, &narrow_fp8<6>};
  for (int output = 0; output < weight.num_outputs; output += 4) {
    table[rows.count - 1](FourRows(weight, output), chunks, scaled_rows, stride, out + output);
  }
  return true;
}

inline bool narrow_fp4_block(const WeightBlock& weight, const Rows& rows, float* out,
                             void* scratch) {
  const std::int64_t chunks = num_chunks(weight.columns);
  auto* words = static_cast<std::int16_t*>(scratch);
  for (int output = 0; output < weight.num_outputs; ++output) {
    if (!scale_words(weight.scales + output * weight.scale_row_bytes, chunks, 27, 227,
                     words + output * chunks)) {
      return false;
    }
  }
  using Function = void (*)(const FourRows&, const std::int16_t*, std::int64_t,
                            const std::uint16_t* const*, float*);
  static constexpr Function table[] = {&narrow_fp4<1>, &narrow_fp4<2>, &narrow_fp4<3>,
                                       &narrow_fp4<4>, &narrow_fp4<5>, &narrow_fp4<6>};
  const auto* all = reinterpret_cast<const std::uint16_t* const*>(rows.rows);
  for (int output = 0; output < weight.num_outputs; output += 4) {
    table[rows.count - 1](FourRows(weight, output), words, chunks, all, out + output);
  }
  return true;
}

inline bool narrow_product(const WeightBlock& weight, const Rows& rows, float* out,
                           void* scratch) {
  if (rows.count > kNarrowRows || weight.format == WeightFormat::bf16) return false;
  return weight.format == WeightFormat::fp8_blocks
             ? narrow_fp8_block(weight, rows, out, scratch)
             : narrow_fp4_block(weight, rows, out, scratch);
}
