// Work on one row at a time, or on the few rows of one token: what a version provides.
//
// A row's result depends on nothing but the row. Sums over columns go to sixteen lanes, column by
// column modulo sixteen, and the lanes are added in halves; widths are multiples of sixteen.
#pragma once

#include <cstdint>

namespace deepinfer {

constexpr int kStreams = 4;  // residual streams of a token
constexpr int kMixes = 2 * kStreams + kStreams * kStreams;

// Values that are bfloat16 or float32.
struct Values {
  const void* data;
  bool is_bf16;

  const void* at(std::int64_t element) const {
    return static_cast<const char*>(data) + element * (is_bf16 ? 2 : 4);
  }
  Values from(std::int64_t element) const { return {at(element), is_bf16}; }
};

struct Results {
  void* data;
  bool is_bf16;

  Results from(std::int64_t element) const {
    return {static_cast<char*>(data) + element * (is_bf16 ? 2 : 4), is_bf16};
  }
};

struct MixWeights {
  const float* projection;  // [kMixes, width]
  const float* scale;       // [3]
  const float* base;        // [kMixes]
  std::int64_t width;       // of all streams together
  float rms_eps, hc_eps;
  int iterations;
};

struct Mixes {
  float* pre;   // [kStreams]
  float* post;  // [kStreams]
  float* comb;  // [kStreams, kStreams]
};

struct RowVersion {
  void (*rms_norm)(Values x, const std::uint16_t* weight, std::int64_t columns, float eps,
                   Results out);

  // Mixing coefficients of up to four tokens.
  void (*stream_mixes)(const Values* streams, int num_tokens, const MixWeights& weights,
                       const Mixes* out);
  // Streams of one token [kStreams, columns] to one row.
  void (*mix_streams)(Values streams, const float* pre, std::int64_t columns, Results out);
  void (*expand_streams)(Values row, Values streams, const float* post, const float* comb,
                         std::int64_t columns, Results out);

  // Rotates the last 2 * pairs columns; direction 1 or, backwards, -1.
  void (*rotate)(Values x, std::int64_t columns, const float* cos, const float* sin,
                 std::int64_t pairs, float direction, Results out);

  void (*swiglu)(Values gate, Values up, std::int64_t columns, float limit, Results out);

  // Sum of rows in the order given, then of one more.
  void (*add_rows)(const Values* rows, std::int64_t num_rows, Values last, std::int64_t columns,
                   Results out);

  // Values of two tokens weighted, per column, by the softmax over their scores.
  void (*pool_pair)(const float* values, const float* scores, const float* other_values,
                    const float* other_scores, std::int64_t columns, float* out);

  // Streams of one token plus gated memory: keys [kStreams, columns] and one row of values.
  void (*add_memory)(Values streams, Values keys, Values value, const std::uint16_t* query_weight,
                     const std::uint16_t* key_weight, std::int64_t columns, float eps, Results out);
};

const RowVersion& portable_rows();
#if defined(__x86_64__)
const RowVersion& avx2_rows();
const RowVersion& avx512_rows();
#endif

const RowVersion& current_rows();

}  // namespace deepinfer
