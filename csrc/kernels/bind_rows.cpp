// Norms, streams, rotations and sums: one row, or the rows of one token, at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "parts.h"
#include "prepared_rows.h"
#include "rowwise.h"

namespace deepinfer {
namespace {

Values values(std::uintptr_t address, bool is_bf16) { return {at<const void>(address), is_bf16}; }
Results results(std::uintptr_t address, bool is_bf16) { return {at<void>(address), is_bf16}; }

void rms_norm(std::uintptr_t x, bool x_is_bf16, std::uintptr_t weight, std::int64_t rows,
              std::int64_t columns, float eps, std::uintptr_t out, bool out_is_bf16,
              int num_threads) {
  const RowVersion& version = current_rows();
  const Values all = values(x, x_is_bf16);
  const Results target = results(out, out_is_bf16);
  run_parts(threads_for(2 * rows * columns, num_threads), rows, [&](std::int64_t row) {
    version.rms_norm(all.from(row * columns), at<const std::uint16_t>(weight), columns, eps,
                     target.from(row * columns));
  });
}

void stream_mixes(std::uintptr_t streams, bool is_bf16, std::int64_t tokens, std::int64_t width,
                  std::uintptr_t projection, std::uintptr_t scale, std::uintptr_t base,
                  float rms_eps, float hc_eps, int iterations, std::uintptr_t pre,
                  std::uintptr_t post, std::uintptr_t comb, int num_threads) {
  constexpr std::int64_t kTokens = 4;
  const RowVersion& version = current_rows();
  const Values all = values(streams, is_bf16);
  const MixWeights weights{at<const float>(projection), at<const float>(scale),
                           at<const float>(base), width, rms_eps, hc_eps, iterations};
  run_parts(threads_for(tokens * width * kMixes, num_threads), (tokens + kTokens - 1) / kTokens,
            [&](std::int64_t part) {
              const std::int64_t first = part * kTokens, count = std::min(kTokens, tokens - first);
              Values rows[kTokens];
              Mixes out[kTokens];
              for (std::int64_t t = 0; t < count; ++t) {
                rows[t] = all.from((first + t) * width);
                out[t] = {at<float>(pre) + (first + t) * kStreams,
                          at<float>(post) + (first + t) * kStreams,
                          at<float>(comb) + (first + t) * kStreams * kStreams};
              }
              version.stream_mixes(rows, static_cast<int>(count), weights, out);
            });
}

void mix_streams(std::uintptr_t streams, bool is_bf16, std::uintptr_t pre, std::int64_t tokens,
                 std::int64_t columns, std::uintptr_t out, bool out_is_bf16, int num_threads) {
  const RowVersion& version = current_rows();
  const Values all = values(streams, is_bf16);
  const Results target = results(out, out_is_bf16);
  run_parts(threads_for(kStreams * tokens * columns, num_threads), tokens, [&](std::int64_t t) {
    version.mix_streams(all.from(t * kStreams * columns), at<const float>(pre) + t * kStreams,
                        columns, target.from(t * columns));
  });
}

void expand_streams(std::uintptr_t rows, bool rows_are_bf16, std::uintptr_t streams, bool is_bf16,
                    std::uintptr_t post, std::uintptr_t comb, std::int64_t tokens,
                    std::int64_t columns, std::uintptr_t out, bool out_is_bf16, int num_threads) {
  const RowVersion& version = current_rows();
  const Values added = values(rows, rows_are_bf16), all = values(streams, is_bf16);
  const Results target = results(out, out_is_bf16);
  run_parts(threads_for(kMixes * tokens * columns, num_threads), tokens, [&](std::int64_t t) {
    version.expand_streams(added.from(t * columns), all.from(t * kStreams * columns),
                           at<const float>(post) + t * kStreams,
                           at<const float>(comb) + t * kStreams * kStreams, columns,
                           target.from(t * kStreams * columns));
  });
}

void rotate(std::uintptr_t x, bool is_bf16, std::int64_t tokens, std::int64_t heads,
            std::int64_t columns, std::uintptr_t cos, std::uintptr_t sin, std::int64_t pairs,
            bool backwards, std::uintptr_t out, bool out_is_bf16, int num_threads) {
  const RowVersion& version = current_rows();
  const Values all = values(x, is_bf16);
  const Results target = results(out, out_is_bf16);
  run_parts(threads_for(tokens * heads * columns, num_threads), tokens, [&](std::int64_t t) {
    for (std::int64_t row = t * heads; row < (t + 1) * heads; ++row) {
      version.rotate(all.from(row * columns), columns, at<const float>(cos) + t * pairs,
                     at<const float>(sin) + t * pairs, pairs, backwards ? -1.0f : 1.0f,
                     target.from(row * columns));
    }
  });
}

// Angles are float32 products; their cosines and sines are rounded once, from double.
void angles(std::uintptr_t positions, std::uintptr_t frequencies, std::int64_t tokens,
            std::int64_t pairs, std::int64_t tokens_per_row, std::uintptr_t cos,
            std::uintptr_t sin, int num_threads) {
  run_parts(threads_for(64 * tokens * pairs, num_threads), tokens, [&](std::int64_t t) {
    const std::int64_t position = at<const std::int64_t>(positions)[t];
    const auto first = static_cast<float>(position / tokens_per_row * tokens_per_row);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = first * at<const float>(frequencies)[pair];
      at<float>(cos)[t * pairs + pair] = static_cast<float>(std::cos(angle));
      at<float>(sin)[t * pairs + pair] = static_cast<float>(std::sin(angle));
    }
  });
}

void swiglu(std::uintptr_t gate, std::uintptr_t up, bool is_bf16, std::int64_t rows,
            std::int64_t columns, float limit, std::uintptr_t out, bool out_is_bf16,
            int num_threads) {
  const RowVersion& version = current_rows();
  const Values gates = values(gate, is_bf16), ups = values(up, is_bf16);
  const Results target = results(out, out_is_bf16);
  run_parts(threads_for(8 * rows * columns, num_threads), rows, [&](std::int64_t row) {
    version.swiglu(gates.from(row * columns), ups.from(row * columns), columns, limit,
                   target.from(row * columns));
  });
}

// Outputs [tokens, per_token, columns] are added by ascending expert number, then `last`.
void sum_experts(std::uintptr_t outputs, std::uintptr_t chosen, std::int64_t per_token,
                 std::uintptr_t last, bool is_bf16, std::int64_t tokens, std::int64_t columns,
                 std::uintptr_t out, bool out_is_bf16, int num_threads) {
  const RowVersion& version = current_rows();
  const Values all = values(outputs, is_bf16), lasts = values(last, is_bf16);
  const Results target = results(out, out_is_bf16);
  run_parts(threads_for(tokens * (per_token + 1) * columns, num_threads), tokens,
            [&](std::int64_t t) {
              const std::int64_t* experts = at<const std::int64_t>(chosen) + t * per_token;
              std::vector<std::int64_t> order(static_cast<std::size_t>(per_token));
              for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
              std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
                return experts[a] < experts[b];
              });
              std::vector<Values> rows;
              for (std::int64_t slot : order) {
                rows.push_back(all.from((t * per_token + slot) * columns));
              }
              version.add_rows(rows.data(), per_token, lasts.from(t * columns), columns,
                               target.from(t * columns));
            });
}

}  // namespace

bool bind_rows(PyObject* module) {
  return python::add<&rms_norm>(module, "rms_norm") &&
         python::add<&stream_mixes>(module, "stream_mixes") &&
         python::add<&mix_streams>(module, "mix_streams") &&
         python::add<&expand_streams>(module, "expand_streams") &&
         python::add<&rotate>(module, "rotate") && python::add<&angles>(module, "angles") &&
         python::add<&swiglu>(module, "swiglu") &&
         python::add<&sum_experts>(module, "sum_experts");
}

}  // namespace deepinfer
