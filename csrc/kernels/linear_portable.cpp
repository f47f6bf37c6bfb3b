// The version for every machine: plain loops, right before fast.
#include "linear.h"

namespace deepinfer {
namespace portable {

#include "rows_body.h"

constexpr bool kHasHalf = false;

struct Single {
  using Element = float;
  static constexpr int kTileRows = 4;
  static constexpr bool kReadsBf16 = false;

  static void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales,
                         std::int64_t chunks, float* out) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, codes += kChunk, out += kChunk) {
      const float scale = scale_value(scales[chunk]);
      float values[kChunk];
      for (int i = 0; i < kChunk; ++i) values[i] = kCodes.e4m3[codes[i]] * scale;
      split_chunk(values, out);
    }
  }

  static void decode_fp4(const std::uint8_t* packed, const std::uint8_t* scales,
                         std::int64_t chunks, float* out) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, packed += kChunk / 2, out += kChunk) {
      const float scale = scale_value(scales[chunk]);
      for (int lane = 0; lane < kChunk / 2; ++lane) {
        out[lane] = kCodes.e2m1[packed[lane] >> 4] * scale;
        out[kChunk / 2 + lane] = kCodes.e2m1[packed[lane] & 15] * scale;
      }
    }
  }

  static void decode_bf16(const std::uint16_t* values, std::int64_t columns, float* out) {
    for (std::int64_t first = 0; first < columns; first += kChunk) {
      float wide[kChunk] = {};
      const std::int64_t left = columns - first;
      widen(values, true, first, static_cast<int>(left < kChunk ? left : kChunk), wide);
      split_chunk(wide, out + first);
    }
  }

  template <int T>
  static void tile(const float* const* rows, const float* const* weights, std::int64_t chunks,
                   float* out) {
    for (int t = 0; t < T; ++t) {
      for (int output = 0; output < 4; ++output) {
        out[t * kBlockRows + output] = dot(rows[t], weights[output], chunks);
      }
    }
  }

  static float dot(const float* row, const float* weight, std::int64_t chunks) {
    constexpr int kLanes = kChunk / 2;
    float lanes[kLanes] = {};
    for (std::int64_t i = 0; i < chunks * kChunk; i += kChunk) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = __builtin_fmaf(weight[i + lane], row[i + lane], lanes[lane]);
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] =
            __builtin_fmaf(weight[i + kLanes + lane], row[i + kLanes + lane], lanes[lane]);
      }
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }

  static bool narrow(const WeightBlock&, const Rows&, float*, void*) { return false; }
};

using Half = Single;  // never asked for

#include "linear_body.h"

}  // namespace portable

const LinearVersion& portable_linear() { return portable::kVersion; }

}  // namespace deepinfer
