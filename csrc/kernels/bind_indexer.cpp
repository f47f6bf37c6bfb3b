// The indexer: scores of index keys, candidate blocks, and the choice of the highest.
#include <algorithm>
#include <limits>
#include <vector>

#include "attention.h"
#include "highest.h"
#include "packed_rows.h"
#include "parts.h"
#include "prepared_rows.h"
#include "records.h"

namespace deepinfer {
namespace {

// -- scores ---------------------------------------------------------------------------------------

// Queries as bfloat16 rows, as if they had been stored as index keys.
std::uint16_t* stored_queries(const Record& record, Values query, std::int64_t rows,
                              Workspace& memory, int num_threads) {
  const RecordVersion& version = current_records();
  auto* out = memory.get<std::uint16_t>(static_cast<std::size_t>(rows * record.width));
  run_parts(threads_for(16 * rows * record.width, num_threads), rows, [&](std::int64_t row) {
    static thread_local Workspace floats, bytes;
    auto* stored = bytes.get<std::uint8_t>(static_cast<std::size_t>(record.num_bytes()));
    const RotatedRow unchanged{query.from(row * record.width), nullptr, nullptr, 0, false};
    version.encode_rotated(record, unchanged,
                           floats.get<float>(2 * static_cast<std::size_t>(record.width)), stored);
    version.decode(record, stored, {out + row * record.width, true});
  });
  return out;
}

struct Scores {
  const LinearVersion& linear;
  const AttentionVersion& attention;
  const PreparedRows& queries;
  const PackedRows& packed;
  const float* weights;  // [tokens, heads]
  std::int64_t heads;
  CacheView keys;
  const std::int32_t* block_table;  // of the request of each token
  std::int64_t table_stride, table_width;
  const std::int64_t* requests;
  const std::int64_t* num_visible;
  bool rounded;
  float* out;  // [tokens, num_keys]
  std::int64_t num_keys;
  RowKind kind;

  // Up to 32 keys of one cache block.
  WeightBlock key_block(std::int64_t request, std::int64_t first, std::int64_t count) const {
    const std::int64_t column = first / keys.rows_per_block;
    if (column >= table_width) throw std::out_of_range("more visible rows than the block table");
    const std::int64_t block = block_table[request * table_stride + column];
    const std::uint8_t* row = keys.row(block * keys.rows_per_block + first % keys.rows_per_block);
    const bool is_fp4 = keys.record.kind == RecordKind::fp4;
    return {is_fp4 ? WeightFormat::fp4_rows : WeightFormat::bf16,
            static_cast<int>(count),
            keys.record.width,
            row,
            keys.row_stride,
            row + keys.record.width / 2,
            keys.row_stride};
  }

  // Keys [first, last) of one token.
  void compute(std::int64_t token, std::int64_t first, std::int64_t last) const {
    static thread_local Workspace decoded, products;
    float* target = out + token * num_keys;
    const std::int64_t visible = std::min(num_visible[token], num_keys);
    std::fill(target + std::clamp(visible, first, last), target + last, kNegativeInfinity);
    last = std::min(last, visible);
    std::vector<const void*> rows(static_cast<std::size_t>(heads));
    bool moderate = true;
    for (std::int64_t head = 0; head < heads; ++head) {
      rows[static_cast<std::size_t>(head)] = queries.at(token * heads + head);
      moderate = moderate && queries.is_moderate(token * heads + head);
    }
    void* scratch = decoded.get<char>(decode_bytes(keys.record.width));
    float* dots = products.get<float>(static_cast<std::size_t>(heads + 1) * kBlockRows);
    float* totals = dots + heads * kBlockRows;
    for (std::int64_t key = first; key < last;) {
      const std::int64_t in_block = keys.rows_per_block - key % keys.rows_per_block;
      const std::int64_t count = std::min({in_block, last - key, std::int64_t{kBlockRows}});
      std::fill(dots, dots + heads * kBlockRows, 0.0f);
      linear.block_product(key_block(requests[token], key, count),
                           {kind, moderate, heads, rows.data(), packed.from(token * heads)}, dots,
                           scratch);
      attention.index_totals(dots, weights + token * heads, static_cast<int>(heads), rounded,
                             totals);
      std::copy_n(totals, count, target + key);
      key += count;
    }
  }
};

void index_scores(std::uintptr_t query, bool is_bf16, std::uintptr_t weights, std::int64_t tokens,
                  std::int64_t heads, std::uintptr_t cache, int kind, std::int64_t width,
                  std::int64_t num_blocks, std::int64_t rows_per_block, std::int64_t block_stride,
                  std::int64_t row_stride, std::uintptr_t block_table, std::int64_t table_stride,
                  std::int64_t table_width, std::uintptr_t requests, std::uintptr_t num_visible,
                  bool rounded, std::uintptr_t out, std::int64_t num_keys, int num_threads) {
  constexpr std::int64_t kKeys = 1024;  // of one part
  static thread_local Workspace stored_memory, row_memory, packed_memory;
  const Record record{static_cast<RecordKind>(kind), width};
  const auto* stored = stored_queries(record, {at<const void>(query), is_bf16}, tokens * heads,
                                      stored_memory, num_threads);
  const LinearVersion& linear = current_linear();
  const RowKind row = row_kind(linear, RowSource::bf16);
  const PreparedRows prepared(linear, {RowSource::bf16, stored, nullptr, tokens * heads, width},
                              row, row_memory, num_threads);
  std::vector<RowRange> ranges;
  for (std::int64_t token = 0; token < tokens; ++token) ranges.push_back({token * heads, heads});
  const auto row_of = [&](std::int64_t i) { return prepared.at(i); };
  const PackedRows packed(linear, row, width, ranges, row_of, packed_memory, num_threads);
  const Scores scores{linear,
                      current_attention(),
                      prepared,
                      packed,
                      at<const float>(weights),
                      heads,
                      {record, at<std::uint8_t>(cache), num_blocks, rows_per_block, block_stride,
                       row_stride},
                      at<const std::int32_t>(block_table),
                      table_stride,
                      table_width,
                      at<const std::int64_t>(requests),
                      at<const std::int64_t>(num_visible),
                      rounded,
                      at<float>(out),
                      num_keys,
                      row};
  const std::int64_t spans = (num_keys + kKeys - 1) / kKeys;
  run_parts(threads_for(tokens * heads * num_keys * width, num_threads), tokens * spans,
            [&](std::int64_t part) {
              const std::int64_t first = part % spans * kKeys;
              scores.compute(part / spans, first, std::min(first + kKeys, num_keys));
            });
}

// -- choice ---------------------------------------------------------------------------------------

// Rows [tokens, count], -1 padded. With blocks, only rows of kept blocks are chosen from.
void select_rows(std::uintptr_t scores, std::int64_t tokens, std::int64_t num_scores,
                 std::int64_t count, std::uintptr_t kept_blocks, std::int64_t num_blocks,
                 std::int64_t block_rows, std::uintptr_t out, int num_threads) {
  run_parts(threads_for(16 * tokens * num_scores, num_threads), tokens, [&](std::int64_t token) {
    static thread_local std::vector<float> masked;
    const float* row = at<const float>(scores) + token * num_scores;
    if (kept_blocks != 0) {
      const bool* kept = at<const bool>(kept_blocks) + token * num_blocks;
      masked.assign(row, row + num_scores);
      for (std::int64_t block = 0; block < num_blocks; ++block) {
        if (kept[block]) continue;
        const std::int64_t first = block * block_rows;
        std::fill(masked.data() + first,
                  masked.data() + std::min(first + block_rows, num_scores), kNegativeInfinity);
      }
      row = masked.data();
    }
    std::int64_t* target = at<std::int64_t>(out) + token * count;
    std::fill(target, target + count, -1);
    for_each_highest(row, num_scores, count, [&](std::int64_t i) { *target++ = i; });
  });
}

void candidate_blocks(std::uintptr_t scores, std::uintptr_t num_visible, std::int64_t tokens,
                      std::int64_t num_scores, std::int64_t block_rows, std::int64_t num_blocks,
                      std::int64_t count, std::uintptr_t kept, int num_threads) {
  run_parts(threads_for(16 * tokens * num_scores, num_threads), tokens, [&](std::int64_t token) {
    static thread_local std::vector<float> best;
    const float* row = at<const float>(scores) + token * num_scores;
    const std::int64_t visible = at<const std::int64_t>(num_visible)[token];
    best.resize(static_cast<std::size_t>(num_blocks));
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      float highest = kNegativeInfinity;
      const std::int64_t last = std::min((block + 1) * block_rows, num_scores);
      for (std::int64_t i = block * block_rows; i < last; ++i) {
        if (row[i] > highest || row[i] != row[i]) highest = row[i];
      }
      best[static_cast<std::size_t>(block)] = highest;
    }
    const std::int64_t newest = (visible - 1) / block_rows;
    if (visible > 0 && newest < num_blocks) {
      best[static_cast<std::size_t>(newest)] = std::numeric_limits<float>::infinity();
    }
    bool* target = at<bool>(kept) + token * num_blocks;
    std::fill(target, target + num_blocks, false);
    for_each_highest(best.data(), num_blocks, count, [&](std::int64_t i) { target[i] = true; });
  });
}

}  // namespace

bool bind_indexer(PyObject* module) {
  return python::add<&index_scores>(module, "index_scores") &&
         python::add<&select_rows>(module, "select_rows") &&
         python::add<&candidate_blocks>(module, "candidate_blocks");
}

}  // namespace deepinfer
