// One version's choices. Included after lanes16.h and the version's mask_of(Words): bit l is the
// sign of lane l. Doubles are multiplied and added apart, so that all versions agree.

typedef double Doubles __attribute__((vector_size(64)));
typedef std::uint64_t LongWords __attribute__((vector_size(64)));

constexpr int kDoubles = 8;

DEEPINFER_INLINE Words orders_of(Lanes scores) {
  const Words bits = (Words)(scores + 0.0f);  // no negative zero
  const Words negative = (Words)((Integers)bits >> 31);
  const Words unordered = (Words)(scores != scores);
  return (bits ^ (negative | 0x80000000u)) | unordered;
}

inline std::uint32_t order_of(float score) {
  const std::uint32_t bits = bits_of(score + 0.0f);
  const std::uint32_t order = bits ^ (bits & 0x80000000u ? 0xFFFFFFFFu : 0x80000000u);
  return score != score ? 0xFFFFFFFFu : order;
}

inline std::int64_t at_least(const float* scores, std::int64_t count, std::uint32_t lowest,
                             Ordered* out) {
  std::int64_t found = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Words orders = orders_of(load(scores + i));
    for (unsigned mask = mask_of((Words)(orders >= lowest)); mask != 0; mask &= mask - 1) {
      const int lane = __builtin_ctz(mask);
      out[found++] = {order_of(scores[i + lane]), static_cast<std::int32_t>(i + lane)};
    }
  }
  for (; i < count; ++i) {
    const std::uint32_t order = order_of(scores[i]);
    if (order >= lowest) out[found++] = {order, static_cast<std::int32_t>(i)};
  }
  return found;
}

// exp(x) for -700 <= x <= 700, to some 2^-37 of it.
DEEPINFER_INLINE Doubles exponentials_of(Doubles x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: rounds to integers
  const Doubles shifted = x * 1.4426950408889634 + kShift;
  const Doubles n = shifted - kShift;
  const Doubles r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  // Even and odd powers apart: they do not wait for each other.
  const Doubles q = r * r;
  const Doubles even = (((q * (1.0 / 40320.0) + 1.0 / 720.0) * q + 1.0 / 24.0) * q + 0.5) * q + 1.0;
  const Doubles odd =
      (((q * (1.0 / 362880.0) + 1.0 / 5040.0) * q + 1.0 / 120.0) * q + 1.0 / 6.0) * q + 1.0;
  const Doubles p = odd * r + even;
  return p * (Doubles)(((LongWords)shifted + 1023u) << 52);
}

// log(1 + y) for 0 <= y < 2^60, to some 2^-39 of it: 1 + y is 2^k times a number f + 1 near one.
DEEPINFER_INLINE Doubles logarithms_of_one_plus(Doubles y) {
  constexpr std::uint64_t kRootOfHalf = 0x3FE6A09E667F3BCDu, kOne = 0x3FF0000000000000u;
  constexpr std::uint64_t kMantissa = 0x000FFFFFFFFFFFFFu, kShiftBits = 0x4338000000000000u;
  const LongWords above = (LongWords)(y + 1.0) + (kOne - kRootOfHalf);
  const LongWords k = (above >> 52) - 1023u;
  const Doubles reduced = (Doubles)((above & kMantissa) + kRootOfHalf) - 1.0;
  const Doubles f = k == 0u ? y : reduced;  // exact however small y is
  const Doubles s = f / (f + 2.0), z = s * s;
  const Doubles q = z * z;
  const Doubles even = ((q * (1.0 / 13.0) + 1.0 / 9.0) * q + 1.0 / 5.0) * q + 1.0;
  const Doubles odd = (q * (1.0 / 11.0) + 1.0 / 7.0) * q + 1.0 / 3.0;
  const Doubles p = odd * z + even;
  const Doubles exponent = (Doubles)(k + kShiftBits) - 6755399441055744.0;
  return exponent * 0.6931471805599453 + 2.0 * s * p;
}

// Below -104 it is zero in float32, and above 20 the number itself.
DEEPINFER_INLINE Eight softplus(Eight x) {
  const Eight bounded = x < -104.0f ? Eight{} - 104.0f : (x > 20.0f ? Eight{} + 20.0f : x);
  const Doubles wide = __builtin_convertvector(bounded, Doubles);
  const Doubles soft = logarithms_of_one_plus(exponentials_of(wide));
  const Eight narrow = __builtin_convertvector(soft, Eight);
  return x <= 20.0f ? narrow : x;  // NaN, too
}

inline void affinities(const float* logits, const float* bias, std::int64_t experts, float* scores,
                       std::uint64_t* keys) {
  std::int64_t i = 0;
  Eight x{};
  for (; i + kDoubles <= experts; i += kDoubles) {
    __builtin_memcpy(&x, logits + i, sizeof x);
    const Eight soft = softplus(x);
    __builtin_memcpy(scores + i, &soft, sizeof soft);
  }
  if (i < experts) {
    const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(experts - i);
    __builtin_memcpy(&x, logits + i, bytes);
    const Eight soft = softplus(x);
    __builtin_memcpy(scores + i, &soft, bytes);
  }
  for (i = 0; i < experts; ++i) scores[i] = __builtin_sqrtf(scores[i]);
  for (i = 0; i < experts; ++i) {
    const std::uint64_t order = order_of(scores[i] + bias[i]);
    keys[i] = order << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(i));
  }
}

inline std::uint64_t largest(const std::uint64_t* keys, std::int64_t count) {
  std::uint64_t highest = 0;
  for (std::int64_t i = 0; i < count; ++i) highest = keys[i] > highest ? keys[i] : highest;
  return highest;
}

constexpr ChoiceVersion kChoiceVersion = {&at_least, &affinities, &largest};
