// Engram: hashed n-grams to rows of a table, and the gated memory added to the streams.
#include <vector>

#include "parts.h"
#include "prepared_rows.h"
#include "records.h"

namespace deepinfer {
namespace {

std::int64_t remainder_above_zero(std::int64_t value, std::int64_t divisor) {
  const std::int64_t rest = value % divisor;
  return rest < 0 ? rest + divisor : rest;
}

// ngrams [tokens, size] newest first; primes and offsets [size - 1, heads]. A token before the start
// or outside the map blocks itself and everything older.
void engram_rows(std::uintptr_t ngrams, std::int64_t tokens, std::int64_t size,
                 std::uintptr_t token_map, std::int64_t map_size, std::int64_t pad_id,
                 std::uintptr_t multipliers, std::uintptr_t primes, std::uintptr_t offsets,
                 std::int64_t heads, std::uintptr_t out) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    bool blocked = false;
    std::uint64_t hashed = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t id = at<const std::int64_t>(ngrams)[t * size + i];
      blocked = blocked || id < 0 || id >= map_size;
      const std::int64_t compressed = blocked ? pad_id : at<const std::int64_t>(token_map)[id];
      hashed ^= static_cast<std::uint64_t>(compressed) *
                static_cast<std::uint64_t>(at<const std::int64_t>(multipliers)[i]);
      for (std::int64_t head = 0; i > 0 && head < heads; ++head) {
        const std::int64_t table = (i - 1) * heads + head;
        at<std::int64_t>(out)[t * (size - 1) * heads + table] =
            remainder_above_zero(static_cast<std::int64_t>(hashed),
                                 at<const std::int64_t>(primes)[table]) +
            at<const std::int64_t>(offsets)[table];
      }
    }
  }
}

void load_table_rows(std::uintptr_t codes, std::uintptr_t scales, std::int64_t table_rows,
                     std::int64_t width, std::uintptr_t rows, std::int64_t num_rows,
                     std::uintptr_t out, bool out_is_bf16, int num_threads) {
  const RecordVersion& version = current_records();
  run_parts(threads_for(2 * num_rows * width, num_threads), num_rows, [&](std::int64_t i) {
    const std::int64_t row = at<const std::int64_t>(rows)[i];
    if (row < 0 || row >= table_rows) {
      throw std::out_of_range("row " + std::to_string(row) + " of a table of " +
                              std::to_string(table_rows));
    }
    version.decode_fp8_row(at<const std::uint8_t>(codes) + row * width,
                           at<const std::uint8_t>(scales) + row * (width / kChunk), width,
                           Results{at<void>(out), out_is_bf16}.from(i * width));
  });
}

// Memory [tokens, (kStreams + 1) * columns]: keys of the streams, then values.
void add_memory(std::uintptr_t streams, bool is_bf16, std::uintptr_t memory, bool memory_is_bf16,
                std::uintptr_t query_weight, std::uintptr_t key_weight, std::int64_t tokens,
                std::int64_t columns, float eps, std::uintptr_t out, int num_threads) {
  const RowVersion& version = current_rows();
  run_parts(threads_for(16 * tokens * columns, num_threads), tokens, [&](std::int64_t t) {
    const Values keys = Values{at<const void>(memory), memory_is_bf16}.from(
        t * (kStreams + 1) * columns);
    version.add_memory(Values{at<const void>(streams), is_bf16}.from(t * kStreams * columns), keys,
                       keys.from(kStreams * columns), at<const std::uint16_t>(query_weight),
                       at<const std::uint16_t>(key_weight), columns, eps,
                       Results{at<void>(out), is_bf16}.from(t * kStreams * columns));
  });
}

}  // namespace

bool bind_engram(PyObject* module) {
  return python::add<&engram_rows>(module, "engram_rows") &&
         python::add<&load_table_rows>(module, "load_table_rows") &&
         python::add<&add_memory>(module, "add_memory");
}

}  // namespace deepinfer
