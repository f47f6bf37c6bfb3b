// The step-cost model's arithmetic; vllm_deepinfer/scheduler/step_cost_reference.py computes the
// same to the bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "estimators.hpp"

namespace planner {

struct CostSettings {
  std::size_t forward_window, forward_min_samples, sampler_window, sampler_min_samples;
  bool is_local, has_context, forgets, is_padded, extrapolates;
};

struct StepSample {
  std::int64_t num_tokens, context_tokens;
  double forward_ms, rate;
};

class CostCore {
 public:
  CostCore(std::vector<std::int64_t> sizes, std::vector<double> base_ms, CostSettings settings);

  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  const CostSettings& settings() const { return settings_; }
  int bucket_index(std::int64_t num_tokens) const;
  std::size_t num_samples(int bucket) const { return buckets_[bucket].rates.size(); }
  bool is_measured(int bucket) const {
    return num_samples(bucket) >= settings_.forward_min_samples;
  }
  double slope_ms() const { return slope_ms_; }
  double context_slope_ms() const { return context_.slope_ms; }
  double sampler_ms(std::int64_t num_seqs) const { return sampler_.ms(num_seqs); }
  double forward_ms(std::int64_t num_tokens, std::int64_t context_tokens) const {
    return forward_ms(bucket_index(num_tokens), num_tokens, context_tokens);
  }
  // For a caller that knows bucket_index(num_tokens).
  double forward_ms(int bucket, std::int64_t num_tokens, std::int64_t context_tokens) const {
    double base, residual;
    if (num_tokens > sizes_.back()) {
      base = extrapolate(base_ms_, num_tokens);
      residual = extrapolate(residual_ms_, num_tokens);
    } else if (is_on_size(bucket, num_tokens)) {
      base = base_ms_[bucket];
      residual = residual_ms_[bucket];
    } else {
      const double share = share_of(bucket, num_tokens);
      base = between(base_ms_, bucket, share);
      residual = between(residual_ms_, bucket, share);
    }
    const double extra = residual + context_.slope_ms * static_cast<double>(context_tokens);
    return base + (extra > 0.0 ? extra : 0.0);
  }

  void observe(std::int64_t num_seqs, std::int64_t num_tokens, std::int64_t context_tokens,
               double forward_ms, double sampler_ms);

  // State, for a copy of this core.
  std::int64_t num_observed = 0, num_shifts = 0;
  const std::deque<StepSample>& samples() const { return samples_; }
  SamplerTimes& sampler() { return sampler_; }
  std::vector<ShiftWatch>& watches() { return watches_; }
  void restore_context_slope(double slope_ms) { context_.slope_ms = slope_ms; }
  void add(std::int64_t num_tokens, std::int64_t context_tokens, double forward_ms);
  void refresh();

 private:
  struct Bucket {
    Ordered rates, contexts;
    bool is_fresh = false;
    double rate = 0.0, context = 0.0;  // medians, when fresh
  };

  double base_ms(int bucket, std::int64_t num_tokens) const;
  // Past the last size the line through the last two goes on, never falling.
  double extrapolate(const std::vector<double>& values, std::int64_t num_tokens) const;
  // Whether a step costs what its bucket does; else it lies on the line from the one before.
  bool is_on_size(int bucket, std::int64_t num_tokens) const {
    return settings_.is_padded || bucket == 0 || num_tokens == sizes_[bucket];
  }
  double share_of(int bucket, std::int64_t num_tokens) const {
    return static_cast<double>(num_tokens - sizes_[bucket - 1]) * inverse_gaps_[bucket];
  }
  static double between(const std::vector<double>& values, int bucket, double share) {
    return values[bucket - 1] + share * (values[bucket] - values[bucket - 1]);
  }
  double local(int bucket) const;
  double slots(int bucket, std::int64_t num_tokens) const;
  void drop_oldest();
  void forget(int bucket);

  std::vector<std::int64_t> sizes_;
  std::vector<double> base_ms_, inverse_gaps_;  // 1 / distance to the size before, in tokens
  CostSettings settings_;
  SamplerTimes sampler_;
  ContextSlope context_;
  std::deque<StepSample> samples_;
  std::int64_t first_id_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<ShiftWatch> watches_;
  std::vector<double> residual_ms_, own_ms_;
  std::vector<int> measured_;
  double slope_ms_ = 0.0;
};

}  // namespace planner
