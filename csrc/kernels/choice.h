// Choices of the highest: rows by their scores, experts by their logits. The rule is written in
// vllm_deepinfer/ops/indexer.py; every version makes the same choice, to the bit.
#pragma once

#include <cstdint>
#include <limits>

namespace deepinfer {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// Orders are integers in the order of scores: zeros are equal whatever their sign, NaN is highest.
constexpr std::uint32_t kLowestChosen = 0x00800000u;  // above minus infinity

struct Ordered {
  std::uint32_t order;
  std::int32_t index;
};

struct ChoiceVersion {
  // Those of `count` scores whose order is at least `lowest`, ascending by index; returns how many.
  // `out` has room for all.
  std::int64_t (*at_least)(const float* scores, std::int64_t count, std::uint32_t lowest,
                           Ordered* out);

  // sqrt(softplus(logit)) of each expert, each of the two rounded once but for one softplus in some
  // thousands, so that a choice between near ties is the reference's. A key holds the order of that
  // plus the bias, and below it what makes the lowest of equal experts the highest: ~number.
  void (*affinities)(const float* logits, const float* bias, std::int64_t experts, float* scores,
                     std::uint64_t* keys);

  // The highest of keys.
  std::uint64_t (*largest)(const std::uint64_t* keys, std::int64_t count);
};

const ChoiceVersion& portable_choice();
#if defined(__x86_64__)
const ChoiceVersion& avx2_choice();
const ChoiceVersion& avx512_choice();
#endif

const ChoiceVersion& current_choice();

}  // namespace deepinfer
