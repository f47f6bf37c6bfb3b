// The row kernels for machines with AVX-512.
#if defined(__x86_64__)

#include "attention.h"
#include "choice.h"
#include "linear.h"
#include "records.h"
#include "rowwise.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector leaves this file

namespace deepinfer {
namespace avx512 {

#include "rows_body.h"

typedef float Lanes __attribute__((vector_size(64)));

inline __attribute__((always_inline)) Lanes fused(Lanes a, Lanes b, Lanes c) {
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

#include "lanes16.h"

// Adds the products of two pairs to each lane, odd values first.
DEEPINFER_INLINE Lanes add_pairs(Words a, Words b, Lanes sum) {
  return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
}

// Bit l is the sign of lane l.
DEEPINFER_INLINE unsigned mask_of(Words x) { return _mm512_movepi32_mask((__m512i)x); }

#include "rowwise_body.h"
#include "records_body.h"
#include "attention_body.h"
#include "choice_body.h"

}  // namespace avx512

const RowVersion& avx512_rows() { return avx512::kRowVersion; }
const RecordVersion& avx512_records() { return avx512::kRecordVersion; }
const AttentionVersion& avx512_attention() { return avx512::kAttentionVersion; }
const ChoiceVersion& avx512_choice() { return avx512::kChoiceVersion; }

}  // namespace deepinfer

#endif
