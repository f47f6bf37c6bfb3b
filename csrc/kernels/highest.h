// The highest of a row of scores, by the rule of vllm_deepinfer/ops/indexer.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "choice.h"

namespace deepinfer {

// An order that the `count` highest reach, most likely, and few others; by a sample.
inline std::uint32_t likely_lowest(const ChoiceVersion& version, const float* scores,
                                   std::int64_t num_scores, std::int64_t count) {
  constexpr std::int64_t kSample = 1024;
  const std::int64_t step = num_scores / kSample;
  if (step < 2 || 4 * count > num_scores) return kLowestChosen;
  static thread_local std::vector<float> sample(kSample);
  static thread_local std::vector<Ordered> ordered(kSample);
  for (std::int64_t i = 0; i < kSample; ++i) sample[static_cast<std::size_t>(i)] = scores[i * step];
  const std::int64_t found =
      version.at_least(sample.data(), kSample, kLowestChosen, ordered.data());
  const double expected = static_cast<double>(count * kSample) / static_cast<double>(num_scores);
  const auto rank = static_cast<std::int64_t>(expected + 4.0 * std::sqrt(expected) + 8.0);
  if (rank >= found) return kLowestChosen;
  std::nth_element(ordered.begin(), ordered.begin() + rank, ordered.begin() + found,
                   [](const Ordered& a, const Ordered& b) { return a.order > b.order; });
  return ordered[static_cast<std::size_t>(rank)].order;
}

// Calls function(index), ascending, for the `count` highest scores above minus infinity.
template <class Function>
void for_each_highest(const float* scores, std::int64_t num_scores, std::int64_t count,
                      Function function) {
  static thread_local std::vector<Ordered> reached;
  static thread_local std::vector<std::uint32_t> orders;
  if (count <= 0) return;
  const ChoiceVersion& version = current_choice();
  reached.resize(static_cast<std::size_t>(num_scores));
  const std::uint32_t lowest = likely_lowest(version, scores, num_scores, count);
  std::int64_t found = version.at_least(scores, num_scores, lowest, reached.data());
  if (found < count && lowest > kLowestChosen) {
    found = version.at_least(scores, num_scores, kLowestChosen, reached.data());
  }
  std::uint32_t threshold = 0;
  std::int64_t num_ties = 0;  // to be taken
  if (found > count) {
    orders.resize(static_cast<std::size_t>(found));
    std::transform(reached.begin(), reached.begin() + found, orders.begin(),
                   [](const Ordered& entry) { return entry.order; });
    const auto last = orders.begin() + (count - 1);
    std::nth_element(orders.begin(), last, orders.end(), std::greater<std::uint32_t>());
    threshold = *last;
    num_ties = count - std::count_if(orders.begin(), orders.begin() + count,
                                     [&](std::uint32_t order) { return order > threshold; });
  }
  for (std::int64_t i = 0; i < found; ++i) {
    const Ordered& entry = reached[static_cast<std::size_t>(i)];
    if (entry.order > threshold) {
      function(entry.index);
    } else if (entry.order == threshold && num_ties > 0) {
      --num_ties;
      function(entry.index);
    }
  }
}

}  // namespace deepinfer
