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

constexpr std::int64_t kMostPadding = 16;  // of a row of scores

struct KeySet {
  CacheView cache;
  const std::int64_t* rows;  // [tokens, per_token], negative where there is none
  std::int64_t per_token;
};

// Decoded rows of the keys of neighbouring tokens, which share most of them in a prefill.
class DecodedRows {
 public:
  // Forgets what it holds. `most` rows are asked for between two calls of make_room().
  void begin(const RecordVersion& version, std::int64_t width, std::int64_t most) {
    constexpr std::int64_t kBytes = 1 << 20;  // of a second-level cache
    version_ = &version;
    width_ = width;
    most_ = most;
    capacity_ = std::max(most, kBytes / (2 * width));
    rows_ = memory_.get<std::uint16_t>(static_cast<std::size_t>(capacity_ * width));
    std::size_t size = 64;
    while (size < 2 * static_cast<std::size_t>(capacity_)) size *= 2;
    if (entries_.size() < size) entries_.assign(size, Entry{});
    clear();
  }

  // Pointers given out before may become invalid.
  void make_room() {
    if (count_ + most_ > capacity_) clear();
  }

  const std::uint16_t* row(const CacheView& cache, int set, std::int64_t number) {
    const std::uint64_t key = 2 * static_cast<std::uint64_t>(number) + static_cast<unsigned>(set);
    std::size_t place = static_cast<std::size_t>(key * 0x9E3779B97F4A7C15ull >> 32);
    for (;; ++place) {
      Entry& entry = entries_[place & (entries_.size() - 1)];
      if (entry.age != age_) {
        const std::uint8_t* bytes = cache.row(number);
        entry = {key, age_, count_++};
        version_->decode(cache.record, bytes, {rows_ + entry.index * width_, true});
        return rows_ + entry.index * width_;
      }
      if (entry.key == key) return rows_ + entry.index * width_;
    }
  }

 private:
  struct Entry {
    std::uint64_t key = 0, age = 0;
    std::int64_t index = 0;
  };

  void clear() {
    ++age_;
    count_ = 0;
  }

  const RecordVersion* version_ = nullptr;
  std::int64_t width_ = 0, most_ = 0, capacity_ = 0, count_ = 0;
  std::uint64_t age_ = 0;
  Workspace memory_;
  std::uint16_t* rows_ = nullptr;
  std::vector<Entry> entries_;
};

// Keys of one token, in order.
std::int64_t gather(const KeySet* sets, int num_sets, std::int64_t token, DecodedRows& decoded,
                    const std::uint16_t** out) {
  decoded.make_room();
  std::int64_t count = 0;
  for (int s = 0; s < num_sets; ++s) {
    const KeySet& set = sets[s];
    for (std::int64_t i = token * set.per_token; i < (token + 1) * set.per_token; ++i) {
      if (set.rows[i] >= 0) out[count++] = decoded.row(set.cache, s, set.rows[i]);
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
  constexpr std::int64_t kHeads = 16;  // of one part, where tokens are few
  const AttentionVersion& version = current_attention();
  const KeySet sets[] = {
      {cache_view(window, window_kind, window_width, window_blocks, window_rows_per_block,
                  window_block_stride, window_row_stride),
       at<const std::int64_t>(window_rows), window_per_token},
      {cache_view(selected, selected_kind, selected_width, selected_blocks,
                  selected_rows_per_block, selected_block_stride, selected_row_stride),
       at<const std::int64_t>(selected_rows), selected_per_token}};
  const int num_sets = selected == 0 ? 1 : 2;
  const std::int64_t most = window_per_token + (num_sets == 2 ? selected_per_token : 0);
  const bool few = tokens < 2 * num_threads;
  const std::int64_t heads_at_once = few ? kHeads : heads;
  const std::int64_t head_parts = (heads + heads_at_once - 1) / heads_at_once;
  const std::int64_t tokens_at_once = few ? 1 : (tokens + num_threads - 1) / num_threads;
  const std::int64_t token_parts = (tokens + tokens_at_once - 1) / tokens_at_once;

  const auto attend = [&](std::int64_t token, std::int64_t first_head, DecodedRows& decoded) {
    static thread_local Workspace key_memory, query_memory, score_memory;
    const std::int64_t count = std::min(heads_at_once, heads - first_head);
    const std::int64_t element = (token * heads + first_head) * width;
    auto** keys = key_memory.get<const std::uint16_t*>(static_cast<std::size_t>(most));
    const std::int64_t num_keys = gather(sets, num_sets, token, decoded, keys);
    float* scratch =
        score_memory.get<float>(static_cast<std::size_t>(count * (num_keys + kMostPadding)));
    Values queries = Values{at<const void>(query), is_bf16}.from(element);
    if (!is_bf16) {
      float* split = query_memory.get<float>(static_cast<std::size_t>(count * width));
      version.split(static_cast<const float*>(queries.data), count * width, split);
      queries.data = split;
    }
    version.attend({keys, num_keys, width}, queries, static_cast<int>(count),
                   at<const float>(sink) + first_head, scale, scratch,
                   Results{at<void>(out), out_is_bf16}.from(element));
  };
  run_parts(threads_for(2 * tokens * heads * most * width, num_threads), token_parts * head_parts,
            [&](std::int64_t part) {
              static thread_local DecodedRows decoded;
              decoded.begin(current_records(), width, most);
              const std::int64_t first = part / head_parts * tokens_at_once;
              const std::int64_t last = std::min(first + tokens_at_once, tokens);
              for (std::int64_t token = first; token < last; ++token) {
                attend(token, part % head_parts * heads_at_once, decoded);
              }
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
