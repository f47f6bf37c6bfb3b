// The row kernels for every machine.
#include "attention.h"
#include "choice.h"
#include "linear.h"
#include "records.h"
#include "rowwise.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector leaves this file

namespace deepinfer {
namespace portable {

#include "rows_body.h"

typedef float Lanes __attribute__((vector_size(64)));

inline __attribute__((always_inline)) Lanes fused(Lanes a, Lanes b, Lanes c) {
  for (int i = 0; i < 16; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}

#include "lanes16.h"

// Adds the products of two pairs to each lane, odd values first.
DEEPINFER_INLINE Lanes add_pairs(Words a, Words b, Lanes sum) {
  return fused(even_values(a), even_values(b), fused(odd_values(a), odd_values(b), sum));
}

// Bit l is the sign of lane l.
DEEPINFER_INLINE unsigned mask_of(Words x) {
  unsigned mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) mask |= (x[lane] >> 31) << lane;
  return mask;
}

#include "rowwise_body.h"
#include "records_body.h"
#include "attention_body.h"
#include "choice_body.h"

}  // namespace portable

const RowVersion& portable_rows() { return portable::kRowVersion; }
const RecordVersion& portable_records() { return portable::kRecordVersion; }
const AttentionVersion& portable_attention() { return portable::kAttentionVersion; }
const ChoiceVersion& portable_choice() { return portable::kChoiceVersion; }

}  // namespace deepinfer
