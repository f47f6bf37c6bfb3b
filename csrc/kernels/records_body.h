// One version's encoding and decoding of cache rows. Included after rowwise_body.h. Encoding is exact
// to the byte; see vllm_deepinfer/ops/formats.py for the rules.

constexpr int kFineGroup = 16;

// Code of a finite value, with saturation; ties go to the even code.
inline std::uint32_t e2m1_code(float x) {
  const float size = __builtin_fabsf(x);
  const std::uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) +
                             (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
  return code | ((bits_of(x) >> 28) & 8u);
}

inline std::uint32_t highest_magnitude(const float* x, int count) {
  std::uint32_t highest = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = bits_of(x[i]) & 0x7FFFFFFFu;
    highest = magnitude > highest ? magnitude : highest;
  }
  return highest;
}

inline void pack_codes(const float* scaled, int count, std::uint8_t* packed) {
  for (int i = 0; i < count / 2; ++i) {
    packed[i] = static_cast<std::uint8_t>(e2m1_code(scaled[2 * i]) |
                                          (e2m1_code(scaled[2 * i + 1]) << 4));
  }
}

// 32 values; returns the scale byte, NaN for a group that is not finite.
inline std::uint8_t encode_fp4(const float* x, std::uint8_t* packed) {
  const std::uint32_t highest = highest_magnitude(x, kChunk);
  if (highest >= kInfinityBits) {
    for (int i = 0; i < kChunk / 2; ++i) packed[i] = 0x77;
    return 255;
  }
  const float floor = 6.0f * float_of(1u << 23);
  const float amax = float_of(highest) < floor ? floor : float_of(highest);
  const std::uint32_t exponent = (bits_of(amax / 6.0f) + 0x007FFFFFu) >> 23;
  const float inverse = float_of((254u - exponent) << 23);
  float scaled[kChunk];
  for (int i = 0; i < kChunk; ++i) scaled[i] = x[i] * inverse;
  pack_codes(scaled, kChunk, packed);
  return static_cast<std::uint8_t>(exponent);
}

// 16 values with an e4m3 scale, whose byte is returned.
inline std::uint8_t encode_fp4_fine(const float* x, std::uint8_t* packed) {
  const std::uint32_t highest = highest_magnitude(x, kFineGroup);
  if (highest > kInfinityBits) {
    for (int i = 0; i < kFineGroup / 2; ++i) packed[i] = 0x77;
    return 0x7F;
  }
  float scale = float_of(highest) / 6.0f;
  scale = scale < 0x1p-9f ? 0x1p-9f : (scale > 448.0f ? 448.0f : scale);
  const std::uint8_t code = e4m3_code(scale);
  float scaled[kFineGroup];
  for (int i = 0; i < kFineGroup; ++i) scaled[i] = x[i] / kCodes.e4m3[code];
  pack_codes(scaled, kFineGroup, packed);
  return code;
}

inline void encode(const Record& record, const float* x, std::uint8_t* out) {
  const std::int64_t width = record.width;
  if (record.kind == RecordKind::fp8) {
    quantise_row(x, false, width, out, out + width);
  } else if (record.kind == RecordKind::fp4) {
    for (std::int64_t i = 0; i < width; i += kChunk) {
      out[width / 2 + i / kChunk] = encode_fp4(x + i, out + i / 2);
    }
  } else if (record.kind == RecordKind::fp4_fine) {
    for (std::int64_t i = 0; i < width; i += kFineGroup) {
      out[width / 2 + i / kFineGroup] = encode_fp4_fine(x + i, out + i / 2);
    }
  } else {
    for (std::int64_t i = 0; i < width; ++i) {
      const Bf16 half = to_bf16(x[i]);
      __builtin_memcpy(out + 2 * i, &half, 2);
    }
  }
}

inline void encode_rotated(const Record& record, const RotatedRow& row, float* scratch,
                           std::uint8_t* out) {
  auto* halves = reinterpret_cast<Bf16*>(scratch + record.width);
  const Results rotated = row.round_to_bf16 ? Results{halves, true} : Results{scratch, false};
  rotate(row.x, record.width, row.cos, row.sin, row.pairs, 1.0f, rotated);
  if (row.round_to_bf16) {
    for (std::int64_t i = 0; i < record.width; ++i) scratch[i] = from_bf16(halves[i]);
  }
  encode(record, scratch, out);
}

// -- decoding -------------------------------------------------------------------------------------

typedef std::uint8_t Bytes __attribute__((vector_size(16)));

DEEPINFER_INLINE Words load_bytes(const std::uint8_t* bytes) {
  Bytes loaded;
  __builtin_memcpy(&loaded, bytes, sizeof loaded);
  return __builtin_convertvector(loaded, Words);
}

// As float32 bits, exponent and mantissa of a code are those of a value smaller by 2^120.
DEEPINFER_INLINE Lanes e4m3_values(const std::uint8_t* codes) {
  const Words code = load_bytes(codes), size = code & 0x7Fu;
  const Words nan = (Words)(size == 0x7Fu);
  const Words value = (Words)((Lanes)(size << 20) * float_of(247u << 23));
  return (Lanes)(value | ((code & 0x80u) << 24) | nan);
}

template <class Out>
void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t width,
                Out* out) {
  for (std::int64_t i = 0; i < width; i += kChunk) {
    const float scale = scale_value(scales[i / kChunk]);
    store(e4m3_values(codes + i) * scale, out + i);
    store(e4m3_values(codes + i + kLanes) * scale, out + i + kLanes);
  }
}

inline void decode_fp8_row(const std::uint8_t* codes, const std::uint8_t* scales,
                           std::int64_t width, Results out) {
  typed(out, [&](auto* target) { decode_fp8(codes, scales, width, target); });
}

template <class Out, class Scale>
void decode_packed(const std::uint8_t* bytes, std::int64_t width, Out* out, Scale scale) {
  const Lanes table = load(kCodes.e2m1);
  for (std::int64_t i = 0; i < width; i += kChunk) {
    const Words packed = load_bytes(bytes + i / 2);
    const Lanes even = __builtin_shuffle(table, (Integers)(packed & 15u));
    const Lanes odd = __builtin_shuffle(table, (Integers)(packed >> 4));
    const Lanes low = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                              6, 22, 7, 23);
    const Lanes high = __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                               29, 14, 30, 15, 31);
    store(low * scale(i), out + i);
    store(high * scale(i + kLanes), out + i + kLanes);
  }
}

inline void decode(const Record& record, const std::uint8_t* bytes, Results out) {
  const std::int64_t width = record.width;
  const std::uint8_t* scales = bytes + width / 2;
  typed(out, [&](auto* target) {
    if (record.kind == RecordKind::fp8) {
      decode_fp8(bytes, bytes + width, width, target);
    } else if (record.kind == RecordKind::fp4) {
      decode_packed(bytes, width, target,
                    [&](std::int64_t i) { return scale_value(scales[i / kChunk]); });
    } else if (record.kind == RecordKind::fp4_fine) {
      decode_packed(bytes, width, target,
                    [&](std::int64_t i) { return kCodes.e4m3[scales[i / kFineGroup]]; });
    } else {
      for (std::int64_t i = 0; i < width; i += kLanes) {
        store(load(reinterpret_cast<const Bf16*>(bytes) + i), target + i);
      }
    }
  });
}

constexpr RecordVersion kRecordVersion = {&encode_rotated, &decode, &decode_fp8_row};
