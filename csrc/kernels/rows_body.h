// Element-wise work on activation rows. Included once by each version inside its own namespace and
// under its own instruction set; plain loops, which the compiler vectorises for it. Exact or
// correctly rounded operations only, so that all versions agree.

constexpr std::uint32_t kInfinityBits = 0x7F800000u;

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

inline float from_bf16(std::uint16_t x) { return float_of(static_cast<std::uint32_t>(x) << 16); }

inline std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > kInfinityBits;
  return static_cast<std::uint16_t>(is_nan ? 0x7FC0u : rounded);
}

inline float scale_value(std::uint8_t byte) {
  if (byte == 255) return float_of(0x7FC00000u);
  return byte == 0 ? float_of(0x00400000u) : float_of(static_cast<std::uint32_t>(byte) << 23);
}

inline void widen(const void* x, bool is_bf16, std::int64_t first, int count, float* out) {
  if (is_bf16) {
    const auto* source = static_cast<const std::uint16_t*>(x) + first;
    for (int i = 0; i < count; ++i) out[i] = from_bf16(source[i]);
  } else {
    const auto* source = static_cast<const float*>(x) + first;
    for (int i = 0; i < count; ++i) out[i] = source[i];
  }
}

// Code of a magnitude of at most 464 and its sign; rounds to nearest even.
inline std::uint8_t e4m3_code(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - 960u;
  // Below 2^-6 codes are multiples of 2^-9: what adding 2^14 leaves in the mantissa.
  const std::uint32_t small = bits_of(float_of(magnitude) + 16384.0f) - 0x46800000u;
  const std::uint32_t code = magnitude >= 0x3C800000u ? normal : small;
  return static_cast<std::uint8_t>(code | ((bits >> 24) & 0x80u));
}

// Quantises 32 values; returns the scale byte. See formats.fp8_scale.
inline std::uint8_t quantise_chunk(const float* x, std::uint8_t* codes) {
  std::uint32_t highest = 0;
  for (int i = 0; i < kChunk; ++i) {
    const std::uint32_t magnitude = bits_of(x[i]) & 0x7FFFFFFFu;
    highest = magnitude > highest ? magnitude : highest;
  }
  if (highest >= kInfinityBits) {
    for (int i = 0; i < kChunk; ++i) codes[i] = 0x7F;
    return 255;
  }
  const float amax = float_of(highest) < 1e-4f ? 1e-4f : float_of(highest);
  const std::uint32_t exponent = (bits_of(amax / 448.0f) + 0x007FFFFFu) >> 23;
  const float inverse = float_of((254u - exponent) << 23);
  for (int i = 0; i < kChunk; ++i) codes[i] = e4m3_code(x[i] * inverse);
  return static_cast<std::uint8_t>(exponent);
}

inline void quantise_row(const void* x, bool is_bf16, std::int64_t columns, std::uint8_t* codes,
                         std::uint8_t* scales) {
  float wide[kChunk];
  for (std::int64_t chunk = 0; chunk < columns / kChunk; ++chunk) {
    widen(x, is_bf16, chunk * kChunk, kChunk, wide);
    scales[chunk] = quantise_chunk(wide, codes + chunk * kChunk);
  }
}

inline void store_row(const float* values, std::int64_t count, bool narrow, void* out) {
  if (narrow) {
    auto* target = static_cast<std::uint16_t*>(out);
    for (std::int64_t i = 0; i < count; ++i) target[i] = to_bf16(values[i]);
  } else {
    auto* target = static_cast<float*>(out);
    for (std::int64_t i = 0; i < count; ++i) target[i] = values[i];
  }
}

// exp(x) for -87 <= x <= 88, within two units in the last place; NaN stays NaN.
inline float exponential(float x) {
  const float shifted = __builtin_fmaf(x, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const float r = __builtin_fmaf(n, -1.42860677e-6f, __builtin_fmaf(n, -0.693145752f, x));
  float p = 1.38888889e-3f;
  p = __builtin_fmaf(p, r, 8.33333333e-3f);
  p = __builtin_fmaf(p, r, 4.16666667e-2f);
  p = __builtin_fmaf(p, r, 1.66666667e-1f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r, 1.0f);
  p = __builtin_fmaf(p, r, 1.0f);
  return p * float_of((bits_of(shifted) - 0x4B400000u + 127u) << 23);
}

// silu(min(gate, limit)) * clamp(up, -limit, limit) * weight, all stored where the reference does.
inline void gated_values(const float* gate, const float* up, float limit, float weight,
                         bool narrow, float* out) {
  float g[kChunk], u[kChunk];
  for (int i = 0; i < kChunk; ++i) {
    g[i] = narrow ? from_bf16(to_bf16(gate[i])) : gate[i];
    u[i] = narrow ? from_bf16(to_bf16(up[i])) : up[i];
  }
  for (int i = 0; i < kChunk; ++i) {
    const float bounded = g[i] > limit ? limit : g[i];
    const float above = u[i] > limit ? limit : u[i];
    const float clamped = above < -limit ? -limit : above;
    const float low = -bounded > 88.0f ? 88.0f : -bounded;
    const float silu = bounded / (1.0f + exponential(low < -87.0f ? -87.0f : low));
    const float product = silu * clamped * weight;
    out[i] = narrow ? from_bf16(to_bf16(product)) : product;
  }
}

inline void split_chunk(const float* values, float* out) {
  for (int lane = 0; lane < kChunk / 2; ++lane) {
    out[lane] = values[2 * lane + 1];
    out[kChunk / 2 + lane] = values[2 * lane];
  }
}
