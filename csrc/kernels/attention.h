// Attention of some heads of one token over keys that are values too.
#pragma once

#include <cstdint>

#include "rowwise.h"

namespace deepinfer {

struct TokenKeys {
  const std::uint16_t* rows;  // bfloat16 [count, width]
  std::int64_t count;
  std::int64_t width;  // a multiple of 16
};

struct AttentionVersion {
  // query, float32, and out are [num_heads, width]; sink [num_heads] joins the denominator only.
  // scratch: num_heads * (count rounded up to a multiple of 16) floats.
  void (*attend)(const TokenKeys& keys, const float* query, int num_heads, const float* sink,
                 float scale, float* scratch, Results out);
  void (*widen_row)(Values x, std::int64_t count, float* out);

  // Indexer scores of 32 keys from dots [num_heads, 32]: heads are added one after the other, and
  // with `rounded` every intermediate value is rounded to bfloat16.
  void (*index_totals)(const float* dots, const float* weights, int num_heads, bool rounded,
                       float* out);
};

const AttentionVersion& portable_attention();
#if defined(__x86_64__)
const AttentionVersion& avx2_attention();
const AttentionVersion& avx512_attention();
#endif

const AttentionVersion& current_attention();

}  // namespace deepinfer
