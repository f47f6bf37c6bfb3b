// The row kernels for x86-64 machines since 2013.
#if defined(__x86_64__)

#include "attention.h"
#include "choice.h"
#include "linear.h"
#include "records.h"
#include "rowwise.h"

#pragma GCC target("avx2,fma")
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector leaves this file

namespace deepinfer {
namespace avx2 {

#include "rows_body.h"

typedef float Lanes __attribute__((vector_size(64)));

inline __attribute__((always_inline)) Lanes fused(Lanes a, Lanes b, Lanes c) {
  __m256 x[2], y[2], z[2];
  __builtin_memcpy(x, &a, sizeof a);
  __builtin_memcpy(y, &b, sizeof b);
  __builtin_memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; ++i) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
  __builtin_memcpy(&c, z, sizeof c);
  return c;
}

#include "lanes16.h"

// Adds the products of two pairs to each lane, odd values first.
DEEPINFER_INLINE Lanes add_pairs(Words a, Words b, Lanes sum) {
  return fused(even_values(a), even_values(b), fused(odd_values(a), odd_values(b), sum));
}

// Bit l is the sign of lane l.
DEEPINFER_INLINE unsigned mask_of(Words x) {
  __m256 halves[2];
  __builtin_memcpy(halves, &x, sizeof x);
  return static_cast<unsigned>(_mm256_movemask_ps(halves[0]) | _mm256_movemask_ps(halves[1]) << 8);
}

#include "rowwise_body.h"
#include "records_body.h"
#include "attention_body.h"
#include "choice_body.h"

}  // namespace avx2

const RowVersion& avx2_rows() { return avx2::kRowVersion; }
const RecordVersion& avx2_records() { return avx2::kRecordVersion; }
const AttentionVersion& avx2_attention() { return avx2::kAttentionVersion; }
const ChoiceVersion& avx2_choice() { return avx2::kChoiceVersion; }

}  // namespace deepinfer

#endif
