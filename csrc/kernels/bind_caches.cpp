// Rows of the caches: storing, loading, pooling, and attention over them.
#include <algorithm>
#include <vector>

#include "attention.h"
#include "parts.h"
#include "prepared_rows.h"
#include "records.h"

namespace deepinfer {
namespace {

CacheView cache_view(std::uintptr_t data, int kind, std::int64_t width, std::int64_t num_blocks,
                     std::int64_t rows_per_block, std::int64_t block_stride,
                     std::int64_t row_stride) {
  return {{static_cast<RecordKind>(kind), width},
          at<std::uint8_t>(data),
          num_blocks,
          rows_per_block,
          block_stride,
          row_stride};
}

// Negative rows are not stored.
void store_rotated(std::uintptr_t cache, int kind, std::int64_t width, std::int64_t num_blocks,
                   std::int64_t rows_per_block, std::int64_t block_stride, std::int64_t row_stride,
                   std::uintptr_t rows, std::int64_t num_rows, std::uintptr_t x, bool x_is_bf16,
                   std::uintptr_t cos, std::uintptr_t sin, std::int64_t pairs, bool round_to_bf16,
                   int num_threads) {
  const RecordVersion& version = current_records();
  const CacheView view =
      cache_view(cache, kind, width, num_blocks, rows_per_block, block_stride, row_stride);
  const Values all{at<const void>(x), x_is_bf16};
  run_parts(threads_for(8 * num_rows * width, num_threads), num_rows, [&](std::int64_t i) {
    static thread_local Workspace scratch;
    const std::int64_t row = at<const std::int64_t>(rows)[i];
    if (row < 0) return;
    const RotatedRow rotated{all.from(i * width), at<const float>(cos) + i * pairs,
                             at<const float>(sin) + i * pairs, pairs, round_to_bf16};
    version.encode_rotated(view.record, rotated,
                           scratch.get<float>(2 * static_cast<std::size_t>(width)),
                           view.row(row));
  });
}

// Float32 rows; zero where the number is negative.
void load_rows(std::uintptr_t cache, int kind, std::int64_t width, std::int64_t num_blocks,
               std::int64_t rows_per_block, std::int64_t block_stride, std::int64_t row_stride,
               std::uintptr_t rows, std::int64_t num_rows, std::uintptr_t out, int num_threads) {
  const RecordVersion& version = current_records();
  const CacheView view =
      cache_view(cache, kind, width, num_blocks, rows_per_block, block_stride, row_stride);
  run_parts(threads_for(num_rows * width, num_threads), num_rows, [&](std::int64_t i) {
    const std::int64_t row = at<const std::int64_t>(rows)[i];
    float* target = at<float>(out) + i * width;
    if (row < 0) {
      std::fill(target, target + width, 0.0f);
    } else {
      version.decode(view.record, view.row(row), {target, false});
    }
  });
}

struct KeySet {
  CacheView cache;
  const std::int64_t* rows;  // [tokens, per_token], negative where there is none
  std::int64_t per_token;
};

// Keys of one token, in order, decoded one after the other.
std::int64_t gather(const RecordVersion& version, const KeySet* sets, int num_sets,
                    std::int64_t token, std::uint16_t* out) {
  std::int64_t count = 0;
  for (int s = 0; s < num_sets; ++s) {
    const KeySet& set = sets[s];
    for (std::int64_t i = token * set.per_token; i < (token + 1) * set.per_token; ++i) {
      if (set.rows[i] < 0) continue;
      const std::int64_t width = set.cache.record.width;
      version.decode(set.cache.record, set.cache.row(set.rows[i]), {out + count * width, true});
      ++count;
    }
  }
  if (count == 0) throw std::invalid_argument("token " + std::to_string(token) + " sees no key");
  return count;
}

void sink_attention(std::uintptr_t query, bool is_bf16, std::int64_t tokens, std::int64_t heads,
                    std::int64_t width, std::uintptr_t sink, float scale,
                    // the window
                    std::uintptr_t window, int window_kind, std::int64_t window_width,
                    std::int64_t window_blocks, std::int64_t window_rows_per_block,
                    std::int64_t window_block_stride, std::int64_t window_row_stride, std::uintptr_t window_rows,
                    std::int64_t window_per_token,
                    // selected rows; the address is zero without
                    std::uintptr_t selected, int selected_kind, std::int64_t selected_width,
                    std::int64_t selected_blocks, std::int64_t selected_rows_per_block,
                    std::int64_t selected_block_stride, std::int64_t selected_row_stride, std::uintptr_t selected_rows,
                    std::int64_t selected_per_token, std::uintptr_t out, bool out_is_bf16,
                    int num_threads) {
  constexpr std::int64_t kHeads = 16;  // of one part; keys are decoded anew for each
  const RecordVersion& records = current_records();
  const AttentionVersion& version = current_attention();
  const KeySet sets[] = {
      {cache_view(window, window_kind, window_width, window_blocks, window_rows_per_block,
                  window_block_stride, window_row_stride),
       at<const std::int64_t>(window_rows), window_per_token},
      {cache_view(selected, selected_kind, selected_width, selected_blocks, selected_rows_per_block,
                  selected_block_stride, selected_row_stride),
       at<const std::int64_t>(selected_rows), selected_per_token}};
  const int num_sets = selected == 0 ? 1 : 2;
  const std::int64_t most = window_per_token + (num_sets == 2 ? selected_per_token : 0);
  const std::int64_t at_once = tokens >= 2 * num_threads ? heads : kHeads;
  const std::int64_t parts_per_token = (heads + at_once - 1) / at_once;
  run_parts(threads_for(2 * tokens * heads * most * width, num_threads), tokens * parts_per_token,
            [&](std::int64_t part) {
              static thread_local Workspace key_memory, query_memory, score_memory;
              const std::int64_t token = part / parts_per_token;
              const std::int64_t first = part % parts_per_token * at_once;
              const std::int64_t count = std::min(at_once, heads - first);
              const std::int64_t element = (token * heads + first) * width;
              auto* keys = key_memory.get<std::uint16_t>(static_cast<std::size_t>(most * width));
              float* wide = query_memory.get<float>(static_cast<std::size_t>(count * width));
              const std::int64_t num_keys = gather(records, sets, num_sets, token, keys);
              float* scratch =
                  score_memory.get<float>(static_cast<std::size_t>(count * (num_keys + 16)));
              version.widen_row(Values{at<const void>(query), is_bf16}.from(element),
                                count * width, wide);
              version.attend({keys, num_keys, width}, wide, static_cast<int>(count),
                             at<const float>(sink) + first, scale, scratch,
                             Results{at<void>(out), out_is_bf16}.from(element));
            });
}

// Pools closing tokens with the one before, from the ring (row >= 0) or from this step; then keeps
// the newest tokens in the ring, whose rows are values followed by scores.
void pool_pairs(std::uintptr_t values, std::uintptr_t scores, std::int64_t tokens,
                std::int64_t width, std::uintptr_t ring, std::int64_t num_blocks,
                std::int64_t rows_per_block, std::int64_t block_stride, std::int64_t row_stride,
                std::uintptr_t closing, std::uintptr_t partner_rows, std::int64_t num_closing,
                std::uintptr_t kept_tokens, std::uintptr_t kept_rows, std::int64_t num_kept,
                std::uintptr_t out) {
  const RowVersion& version = current_rows();
  const CacheView view = cache_view(ring, static_cast<int>(RecordKind::bf16), width, num_blocks,
                                    rows_per_block, block_stride, row_stride);
  const auto token_at = [&](std::uintptr_t list, std::int64_t i) {
    const std::int64_t token = at<const std::int64_t>(list)[i];
    if (token < 0 || token >= tokens) {
      throw std::out_of_range("token " + std::to_string(token) + " of " + std::to_string(tokens));
    }
    return token;
  };
  for (std::int64_t i = 0; i < num_closing; ++i) {
    const std::int64_t token = token_at(closing, i);
    const std::int64_t row = at<const std::int64_t>(partner_rows)[i];
    if (row < 0 && token == 0) throw std::out_of_range("the first token has no partner");
    const auto* kept = row < 0 ? nullptr : reinterpret_cast<const float*>(view.row(row));
    const float* partner_values = row < 0 ? at<const float>(values) + (token - 1) * width : kept;
    const float* partner_scores =
        row < 0 ? at<const float>(scores) + (token - 1) * width : kept + width;
    version.pool_pair(partner_values, partner_scores, at<const float>(values) + token * width,
                      at<const float>(scores) + token * width, width,
                      at<float>(out) + i * width);
  }
  for (std::int64_t i = 0; i < num_kept; ++i) {
    const std::int64_t token = token_at(kept_tokens, i);
    auto* row = reinterpret_cast<float*>(view.row(at<const std::int64_t>(kept_rows)[i]));
    std::copy_n(at<const float>(values) + token * width, width, row);
    std::copy_n(at<const float>(scores) + token * width, width, row + width);
  }
}

}  // namespace

bool bind_caches(PyObject* module) {
  return python::add<&store_rotated>(module, "store_rotated") &&
         python::add<&load_rows>(module, "load_rows") &&
         python::add<&sink_attention>(module, "sink_attention") &&
         python::add<&pool_pairs>(module, "pool_pairs");
}

}  // namespace deepinfer
