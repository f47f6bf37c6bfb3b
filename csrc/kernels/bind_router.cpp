// The router: which experts a token goes to, and their weights.
#include <algorithm>
#include <cmath>
#include <vector>

#include "parts.h"
#include "prepared_rows.h"

namespace deepinfer {
namespace {

// sqrt(softplus(logit)), each rounded once: a choice between near ties is the reference's.
float affinity(float logit) {
  const float softplus =
      logit > 20.0f ? logit : static_cast<float>(std::log1p(std::exp(static_cast<double>(logit))));
  return std::sqrt(softplus);
}

void route(std::uintptr_t logits, std::uintptr_t bias, std::int64_t tokens, std::int64_t experts,
           std::int64_t count, bool normalise, float factor, std::uintptr_t chosen,
           std::uintptr_t weights, int num_threads) {
  run_parts(threads_for(64 * tokens * experts, num_threads), tokens, [&](std::int64_t token) {
    static thread_local std::vector<float> scores, ranks;
    static thread_local std::vector<bool> taken;
    scores.resize(static_cast<std::size_t>(experts));
    ranks.resize(static_cast<std::size_t>(experts));
    taken.assign(static_cast<std::size_t>(experts), false);
    for (std::size_t e = 0; e < scores.size(); ++e) {
      scores[e] = affinity(at<const float>(logits)[token * experts + static_cast<int>(e)]);
      ranks[e] = scores[e] + at<const float>(bias)[e];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::size_t best = scores.size();
      for (std::size_t e = 0; e < scores.size(); ++e) {
        if (!taken[e] && (best == scores.size() || ranks[e] > ranks[best])) best = e;
      }
      taken[best] = true;
    }
    std::int64_t* numbers = at<std::int64_t>(chosen) + token * count;
    float* out = at<float>(weights) + token * count;
    float sum = 0.0f;
    std::int64_t found = 0;
    for (std::size_t e = 0; e < scores.size(); ++e) {
      if (!taken[e]) continue;
      numbers[found] = static_cast<std::int64_t>(e);
      out[found++] = scores[e];
      sum += scores[e];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = (normalise && count > 1 ? out[i] / (sum + 1e-20f) : out[i]) * factor;
    }
  });
}

}  // namespace

bool bind_router(PyObject* module) { return python::add<&route>(module, "route"); }

}  // namespace deepinfer
