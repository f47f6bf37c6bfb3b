// The router: which experts a token goes to, and their weights.
#include <algorithm>
#include <vector>

#include "choice.h"
#include "parts.h"
#include "prepared_rows.h"

namespace deepinfer {
namespace {

struct Router {
  const ChoiceVersion& version;
  std::int64_t experts, count;
  bool normalise;
  float factor;

  void compute(const float* logits, const float* bias, std::int64_t* chosen, float* weights) const {
    static thread_local std::vector<float> scores;
    static thread_local std::vector<std::uint64_t> keys;
    scores.resize(static_cast<std::size_t>(experts));
    keys.resize(static_cast<std::size_t>(experts));
    version.affinities(logits, bias, experts, scores.data(), keys.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto key = static_cast<std::uint32_t>(version.largest(keys.data(), experts));
      chosen[i] = static_cast<std::int64_t>(~key);
      keys[static_cast<std::size_t>(chosen[i])] = 0;
    }
    std::sort(chosen, chosen + count);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] = scores[static_cast<std::size_t>(chosen[i])];
      sum += weights[i];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] = (normalise && count > 1 ? weights[i] / (sum + 1e-20f) : weights[i]) * factor;
    }
  }
};

void route(std::uintptr_t logits, std::uintptr_t bias, std::int64_t tokens, std::int64_t experts,
           std::int64_t count, bool normalise, float factor, std::uintptr_t chosen,
           std::uintptr_t weights, int num_threads) {
  const Router router{current_choice(), experts, count, normalise, factor};
  run_parts(threads_for(16 * tokens * experts, num_threads), tokens, [&](std::int64_t token) {
    router.compute(at<const float>(logits) + token * experts, at<const float>(bias),
                   at<std::int64_t>(chosen) + token * count, at<float>(weights) + token * count);
  });
}

}  // namespace

bool bind_router(PyObject* module) { return python::add<&route>(module, "route"); }

}  // namespace deepinfer
