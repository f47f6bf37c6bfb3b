// Few rows: weights are decoded in registers and never stored. Included by linear_avx512.cpp.
// Bits are those of the general way: the same products are added in the same order.

constexpr int kNarrowRows = 4;

// Four weight rows and T activation rows, scaled beforehand by the weights' scales.
template <int T>
void narrow_fp8(const std::uint8_t* const* weights, std::int64_t chunks,
                const std::uint16_t* rows, std::int64_t row_stride, float* out) {
  const Fp8Decoder decoder;
  __m512 sums[T][4];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_setzero_ps();
  }
  std::int64_t i = 0;
  for (; i + 64 <= chunks * kChunk; i += 64) {
    for (int r = 0; r < 4; ++r) {
      const Pair values = decoder.values(_mm512_loadu_si512(weights[r] + i));
      for (int t = 0; t < T; ++t) {
        const std::uint16_t* row = rows + t * row_stride + i;
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values.first), load_pairs(row));
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values.second), load_pairs(row + 32));
      }
    }
  }
  if (i < chunks * kChunk) {
    for (int r = 0; r < 4; ++r) {
      const Pair values = decoder.values(load_codes(weights[r] + i, false));
      for (int t = 0; t < T; ++t) {
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values.first),
                                      load_pairs(rows + t * row_stride + i));
      }
    }
  }
  for (int t = 0; t < T; ++t) store_four_sums(sums[t], out + t * kBlockRows);
}

template <int T>
void narrow_fp4(const std::uint8_t* const* weights, const std::int16_t* scales,
                std::int64_t chunks, const std::uint16_t* const* rows, float* out) {
  __m512 sums[T][4];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < 4; ++r) sums[t][r] = _mm512_setzero_ps();
  }
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int r = 0; r < 4; ++r) {
      const __m512i values =
          fp4_values(weights[r] + chunk * (kChunk / 2), scales[r * chunks + chunk]);
      for (int t = 0; t < T; ++t) {
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], as_pairs(values),
                                      load_pairs(rows[t] + chunk * kChunk));
      }
    }
  }
  for (int t = 0; t < T; ++t) store_four_sums(sums[t], out + t * kBlockRows);
}

inline bool are_moderate(const std::uint8_t* scales, std::int64_t count, int lowest, int highest) {
  bool all = true;
  for (std::int64_t i = 0; i < count; ++i) all &= scales[i] >= lowest && scales[i] <= highest;
  return all;
}

// One scale for 32 outputs: it multiplies the activations, once, instead of every weight. NaN codes
// need no care, because nothing is added to a weight's bits.
inline bool narrow_fp8_block(const WeightBlock& weight, const Rows& rows, float* out,
                             void* scratch) {
  const std::int64_t chunks = num_chunks(weight.columns);
  if (!rows.moderate || !are_moderate(weight.scales, chunks, 67, 187)) return false;
  auto* scaled_rows = static_cast<std::uint16_t*>(scratch);
  const std::int64_t stride = chunks * kChunk;
  for (std::int64_t t = 0; t < rows.count; ++t) {
    const auto* row = static_cast<const std::uint16_t*>(rows.rows[t]);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      _mm512_storeu_si512(
          scaled_rows + t * stride + chunk * kChunk,
          scaled(_mm512_loadu_si512(row + chunk * kChunk), weight.scales[chunk]));
    }
  }
  using Function = void (*)(const std::uint8_t* const*, std::int64_t, const std::uint16_t*,
                            std::int64_t, float*);
  static constexpr Function table[] = {&narrow_fp8<1>, &narrow_fp8<2>, &narrow_fp8<3>,
                                       &narrow_fp8<4>};
  for (int output = 0; output < weight.num_outputs; output += 4) {
    const std::uint8_t* four[4];
    for (int r = 0; r < 4; ++r) {
      const int last = weight.num_outputs - 1;
      four[r] = weight.data + (output + r < last ? output + r : last) * weight.row_bytes;
    }
    table[rows.count - 1](four, chunks, scaled_rows, stride, out + output);
  }
  return true;
}

inline bool narrow_fp4_block(const WeightBlock& weight, const Rows& rows, float* out,
                             void* scratch) {
  const std::int64_t chunks = num_chunks(weight.columns);
  for (int output = 0; output < weight.num_outputs; ++output) {
    if (!are_moderate(weight.scales + output * weight.scale_row_bytes, chunks, 27, 227)) {
      return false;
    }
  }
  using Function = void (*)(const std::uint8_t* const*, const std::int16_t*, std::int64_t,
                            const std::uint16_t* const*, float*);
  static constexpr Function table[] = {&narrow_fp4<1>, &narrow_fp4<2>, &narrow_fp4<3>,
                                       &narrow_fp4<4>};
  auto* words = static_cast<std::int16_t*>(scratch);
  const auto* all = reinterpret_cast<const std::uint16_t* const*>(rows.rows);
  for (int output = 0; output < weight.num_outputs; output += 4) {
    const std::uint8_t* four[4];
    for (int r = 0; r < 4; ++r) {
      const int last = weight.num_outputs - 1, row = output + r < last ? output + r : last;
      const std::uint8_t* scales = weight.scales + row * weight.scale_row_bytes;
      for (std::int64_t i = 0; i < chunks; ++i) words[r * chunks + i] = scale_word(scales[i]);
      four[r] = weight.data + row * weight.row_bytes;
    }
    table[rows.count - 1](four, words, chunks, all, out + output);
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
