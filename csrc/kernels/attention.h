// Attention of some heads of one token over keys that are values too.
#pragma once

#include <cstdint>

#include "rowwise.h"

namespace deepinfer {

struct TokenKeys {
  const std::uint16_t* const* rows;  // bfloat16
  std::int64_t count;
  std::int64_t width;  // a multiple of 32
};

struct AttentionVersion {
  // query and out are [num_heads, width]; a float32 query is split (see below). Scores add columns
  // in the order of linear.h. sink [num_heads] joins the denominator only.
  // scratch: num_heads * (count rounded up to a multiple of 16) floats.
  void (*attend)(const TokenKeys& keys, Values query, int num_heads, const float* sink,
                 float scale, float* scratch, Results out);

  // Each chunk of 32 as its 16 odd values followed by its 16 even ones.
  void (*split)(const float* x, std::int64_t count, float* out);

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
