// Activation rows of a call, in the form the kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "linear.h"
#include "thread_pool.h"
#include "workspace.h"

namespace deepinfer {

enum class RowSource { codes = 0, bf16 = 1, fp32 = 2 };

struct RowInput {
  RowSource source;
  const void* data;            // contiguous rows
  const std::uint8_t* scales;  // of codes
  std::int64_t count;
  std::int64_t columns;
};

inline RowKind row_kind(const LinearVersion& version, RowSource source) {
  return version.has_half && source != RowSource::fp32 ? RowKind::half : RowKind::single;
}

// Less work, some 15 us, is done by the calling thread: waking another takes as long. One unit is an
// operation on one value.
constexpr std::int64_t kWorkOfOneThread = 1 << 17;

inline int threads_for(std::int64_t work, int num_threads) {
  return work < kWorkOfOneThread ? 1 : num_threads;
}

// Work of `uses` rows meeting weights: products are 32 a vector, and reading and decoding a weight
// costs as much as eight.
inline std::int64_t work_of_products(std::int64_t num_weights, std::int64_t uses,
                                     std::int64_t times_read) {
  return (uses + 8 * times_read) * num_weights / 32;
}

class PreparedRows {
 public:
  // `memory` must outlive the rows.
  PreparedRows(const LinearVersion& version, const RowInput& input, RowKind kind,
               Workspace& memory, int num_threads)
      : moderate_(static_cast<std::size_t>(input.count)),
        bytes_(prepared_row_bytes(kind, input.columns)),
        data_(memory.get<char>(bytes_ * static_cast<std::size_t>(input.count))) {
    run_parts(threads_for(4 * input.count * input.columns, num_threads), input.count,
              [&](std::int64_t row) {
                moderate_[static_cast<std::size_t>(row)] = prepare(version, input, kind, row);
              });
  }

  void* at(std::int64_t row) const { return data_ + static_cast<std::size_t>(row) * bytes_; }
  bool is_moderate(std::int64_t row) const { return moderate_[static_cast<std::size_t>(row)]; }

 private:
  bool prepare(const LinearVersion& version, const RowInput& input, RowKind kind,
               std::int64_t row) const {
    const std::int64_t first = row * input.columns;
    const auto* bytes = static_cast<const std::uint8_t*>(input.data);
    if (input.source == RowSource::codes) {
      return version.prepare_codes(bytes + first, input.scales + first / kChunk, input.columns,
                                   kind, at(row));
    }
    const bool is_bf16 = input.source == RowSource::bf16;
    return version.prepare_plain(bytes + first * (is_bf16 ? 2 : 4), is_bf16, input.columns, kind,
                                 at(row));
  }

  std::vector<char> moderate_;
  std::size_t bytes_;
  char* data_;
};

}  // namespace deepinfer
