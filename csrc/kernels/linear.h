// Products of quantised weights with rows of activations: what the parts of a version have in
// common.
//
// The value of an output is defined here, for any number of rows and of threads. Columns are taken
// in chunks of 32. Lane l of 16 adds, chunk by chunk, first the product of column 2l + 1 and then
// that of column 2l, each by a fused multiply-add in float32. The lanes are then added in halves:
// 16 to 8 to 4 to 2 to 1, lane l to lane l + half. (This is what the AVX512_BF16 instruction does.)
// Inputs and sums below 2^-126 in magnitude may count as zero. Every version computes this, but for
// half rows those with a tile unit: for them, the products of a chunk's even columns are added from
// zero in order, by fused multiply-adds, and so are those of its odd columns; the two sums are
// added, and then this to what the chunks before gave. (This is what TDPBF16PS does.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

constexpr int kChunk = 32;       // columns of a chunk, and of a group with one scale
constexpr int kBlockRows = 32;   // outputs computed together; one FP8 block's rows
constexpr int kScaleBias = 127;  // UE8M0: exponent + 127, 255 is NaN

enum class WeightFormat { fp8_blocks, fp4_rows, bf16 };

// At most 32 outputs of one weight.
struct WeightBlock {
  WeightFormat format;
  int num_outputs;
  std::int64_t columns;
  const std::uint8_t* data;  // first output's row
  std::int64_t row_bytes;
  const std::uint8_t* scales;  // fp8: one byte per 32 columns for all; fp4: the first output's
  std::int64_t scale_row_bytes;
};

// How activation rows are prepared. half: bfloat16, where the version has an instruction for it;
// single: float32, each chunk as its 16 odd columns followed by its 16 even ones.
enum class RowKind { half, single };

struct Rows {
  RowKind kind;
  bool moderate;  // every value is zero or within 2^-60..2^60 in magnitude; for half rows
  std::int64_t count;
  const void* const* rows;  // padded with zeros to whole chunks
  const void* packed = nullptr;  // the same, see LinearVersion::pack_rows
};

constexpr std::int64_t kPackedRows = 16;

inline std::int64_t num_chunks(std::int64_t columns) { return (columns + kChunk - 1) / kChunk; }

inline std::size_t prepared_row_bytes(RowKind kind, std::int64_t columns) {
  return static_cast<std::size_t>(num_chunks(columns)) * kChunk * (kind == RowKind::half ? 2 : 4);
}

// Room block_product needs to decode into.
inline std::size_t decode_bytes(std::int64_t columns) {
  return static_cast<std::size_t>(num_chunks(columns)) * kChunk * kBlockRows * 4;
}

// One version's functions. They allocate nothing and may run in any thread.
struct LinearVersion {
  bool has_half;

  // One row to codes and scale bytes.
  void (*quantise_row)(const void* x, bool is_bf16, std::int64_t columns, std::uint8_t* codes,
                       std::uint8_t* scales);

  // One row of codes and scale bytes, or of plain values, to its prepared form. Return "moderate".
  bool (*prepare_codes)(const std::uint8_t* codes, const std::uint8_t* scales,
                        std::int64_t columns, RowKind kind, void* row);
  bool (*prepare_plain)(const void* x, bool is_bf16, std::int64_t columns, RowKind kind, void* row);

  // Null where block_product reads half rows as they are. Else, of a group of at most kPackedRows,
  // chunks [first, last) in the order in which it reads them; a group takes the room of its rows.
  void (*pack_rows)(const void* const* rows, int count, std::int64_t first, std::int64_t last,
                    void* packed);

  // out[row * 32 + output], float32.
  void (*block_product)(const WeightBlock& weight, const Rows& rows, float* out, void* scratch);

  // 32 inner columns of an expert: gate and up products to the prepared chunk (not the whole row).
  bool (*gated_chunk)(const float* gate, const float* up, float limit, float weight, bool to_bf16,
                      bool quantised, RowKind kind, void* chunk);

  // float32 to the stored type.
  void (*store_row)(const float* values, std::int64_t count, bool to_bf16, void* out);
};

const LinearVersion& portable_linear();
#if defined(__x86_64__)
const LinearVersion& avx2_linear();
const LinearVersion& avx512_linear();
const LinearVersion& emulated_amx_linear();
#if defined(__linux__) && __GNUC__ >= 11
#define DEEPINFER_HAS_AMX
const LinearVersion& amx_linear();
#endif
#endif

const LinearVersion& current_linear();

// Float32 values of all e4m3 and e2m1 codes.
struct CodeTables {
  float e4m3[256];
  float e2m1[16];
  CodeTables();
};
extern const CodeTables kCodes;

}  // namespace deepinfer
