// Rows of the caches as bytes: values followed by scales; see vllm_deepinfer/ops/records.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "rowwise.h"

namespace deepinfer {

enum class RecordKind { fp8 = 0, fp4 = 1, fp4_fine = 2, bf16 = 3 };

struct Record {
  RecordKind kind;
  std::int64_t width;  // a multiple of 32

  std::int64_t num_bytes() const {
    if (kind == RecordKind::fp8) return width + width / 32;
    if (kind == RecordKind::fp4) return width / 2 + width / 32;
    return kind == RecordKind::fp4_fine ? width / 2 + width / 16 : 2 * width;
  }
};

// A cache [blocks, rows_per_block, bytes], contiguous within a row only.
struct CacheView {
  Record record;
  std::uint8_t* data;
  std::int64_t num_blocks, rows_per_block, block_stride, row_stride;

  // Row block * rows_per_block + offset.
  std::uint8_t* row(std::int64_t number) const {
    const std::int64_t block = number / rows_per_block;
    if (number < 0 || block >= num_blocks) {
      throw std::out_of_range("row " + std::to_string(number) + " of a cache of " +
                              std::to_string(num_blocks) + " blocks of " +
                              std::to_string(rows_per_block) + " rows");
    }
    return data + block * block_stride + number % rows_per_block * row_stride;
  }
};

struct RotatedRow {
  Values x;
  const float* cos;
  const float* sin;
  std::int64_t pairs;
  bool round_to_bf16;  // after the rotation
};

struct RecordVersion {
  // scratch: 2 * width floats.
  void (*encode_rotated)(const Record& record, const RotatedRow& row, float* scratch,
                         std::uint8_t* out);
  // Every value is exact in bfloat16.
  void (*decode)(const Record& record, const std::uint8_t* bytes, Results out);
  // Codes and scales that lie apart, as in the engram tables.
  void (*decode_fp8_row)(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t width,
                         Results out);
};

const RecordVersion& portable_records();
#if defined(__x86_64__)
const RecordVersion& avx2_records();
const RecordVersion& avx512_records();
#endif

const RecordVersion& current_records();

}  // namespace deepinfer
