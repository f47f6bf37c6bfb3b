// Sixteen float32 lanes. Included once by each version of the row kernels, inside its namespace and
// under its instruction set, after rows_body.h and the version's own fused(); the compiler splits the
// lanes where registers are narrower. Every version computes the same bits.

#define DEEPINFER_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;

using Bf16 = std::uint16_t;
typedef std::uint16_t Halves __attribute__((vector_size(32)));
typedef std::uint32_t Words __attribute__((vector_size(64)));
typedef std::int32_t Integers __attribute__((vector_size(64)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

DEEPINFER_INLINE Lanes all_lanes(float x) { return x - Lanes{}; }

DEEPINFER_INLINE Lanes load(const float* x) {
  Lanes lanes;
  __builtin_memcpy(&lanes, x, sizeof lanes);
  return lanes;
}

DEEPINFER_INLINE Lanes load(const Bf16* x) {
  Halves halves;
  __builtin_memcpy(&halves, x, sizeof halves);
  return (Lanes)(__builtin_convertvector(halves, Words) << 16);
}

DEEPINFER_INLINE void store(Lanes lanes, float* out) {
  __builtin_memcpy(out, &lanes, sizeof lanes);
}

// Rounds to nearest even, like to_bf16.
DEEPINFER_INLINE void store(Lanes lanes, Bf16* out) {
  const Words bits = (Words)lanes;
  const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Words is_nan = (Words)((bits & 0x7FFFFFFFu) > kInfinityBits);
  const Halves halves = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7FC0u), Halves);
  __builtin_memcpy(out, &halves, sizeof halves);
}

// Of 16 pairs of bfloat16 values.
DEEPINFER_INLINE Lanes odd_values(Words pairs) { return (Lanes)(pairs & 0xFFFF0000u); }
DEEPINFER_INLINE Lanes even_values(Words pairs) { return (Lanes)(pairs << 16); }

DEEPINFER_INLINE float load_one(const float* x) { return *x; }
DEEPINFER_INLINE float load_one(const Bf16* x) { return from_bf16(*x); }
DEEPINFER_INLINE void store_one(float x, float* out) { *out = x; }
DEEPINFER_INLINE void store_one(float x, Bf16* out) { *out = to_bf16(x); }

// Adds in halves: 16 to 8 to 4 to 2 to 1, lane l to lane l + half.
DEEPINFER_INLINE float sum_of(Lanes x) {
  const Eight eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                    __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

DEEPINFER_INLINE Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
DEEPINFER_INLINE Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }

// exponential() of every lane; arguments are brought to -87..88.
DEEPINFER_INLINE Lanes exponentials(Lanes x) {
  x = smaller(larger(x, all_lanes(-87.0f)), all_lanes(88.0f));
  const Lanes shifted = fused(x, all_lanes(1.44269504f), all_lanes(12582912.0f));
  const Lanes n = shifted - 12582912.0f;
  const Lanes r =
      fused(n, all_lanes(-1.42860677e-6f), fused(n, all_lanes(-0.693145752f), x));
  Lanes p = all_lanes(1.38888889e-3f);
  p = fused(p, r, all_lanes(8.33333333e-3f));
  p = fused(p, r, all_lanes(4.16666667e-2f));
  p = fused(p, r, all_lanes(1.66666667e-1f));
  p = fused(p, r, all_lanes(0.5f));
  p = fused(p, r, all_lanes(1.0f));
  p = fused(p, r, all_lanes(1.0f));
  return p * (Lanes)(((Words)shifted - 0x4B400000u + 127u) << 23);
}

DEEPINFER_INLINE float sigmoid(float x) {
  const float bounded = x < -87.0f ? -87.0f : (x > 87.0f ? 87.0f : x);
  return 1.0f / (1.0f + exponential(-bounded));
}
