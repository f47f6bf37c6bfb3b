// Rows of a call once more, in the order in which a version with a tile unit reads them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "linear.h"
#include "prepared_rows.h"
#include "thread_pool.h"
#include "workspace.h"

namespace deepinfer {

// Positions of rows that meet the same weights.
struct RowRange {
  std::int64_t first, count;
};

class PackedRows {
 public:
  // at(position) is the prepared row of a position; ranges follow each other from 0 on. `memory`
  // must outlive the rows. Of a version that reads rows as they are, nothing is packed.
  template <class At>
  PackedRows(const LinearVersion& version, RowKind kind, std::int64_t columns,
             const std::vector<RowRange>& ranges, At at, Workspace& memory, int num_threads)
      : row_bytes_(static_cast<std::int64_t>(prepared_row_bytes(kind, columns))) {
    if (version.pack_rows == nullptr || kind != RowKind::half || ranges.empty()) return;
    const std::int64_t num_rows = ranges.back().first + ranges.back().count;
    data_ = memory.get<char>(static_cast<std::size_t>(num_rows * row_bytes_));
    std::vector<RowRange> groups;
    for (const RowRange& range : ranges) {
      for (std::int64_t i = 0; i < range.count; i += kPackedRows) {
        groups.push_back({range.first + i, std::min(kPackedRows, range.count - i)});
      }
    }
    const std::int64_t chunks = num_chunks(columns), spans = (chunks + kSpan - 1) / kSpan;
    run_parts(threads_for(2 * num_rows * columns, num_threads),
              static_cast<std::int64_t>(groups.size()) * spans, [&](std::int64_t part) {
                const RowRange& group = groups[static_cast<std::size_t>(part / spans)];
                const void* rows[kPackedRows];
                for (std::int64_t i = 0; i < group.count; ++i) rows[i] = at(group.first + i);
                const std::int64_t first = part % spans * kSpan;
                version.pack_rows(rows, static_cast<int>(group.count), first,
                                  std::min(first + kSpan, chunks),
                                  data_ + group.first * row_bytes_);
              });
  }

  // From a multiple of kPackedRows in a range on.
  const void* from(std::int64_t position) const {
    return data_ == nullptr ? nullptr : data_ + position * row_bytes_;
  }

 private:
  static constexpr std::int64_t kSpan = 64;  // chunks of one part

  std::int64_t row_bytes_;
  char* data_ = nullptr;
};

}  // namespace deepinfer
