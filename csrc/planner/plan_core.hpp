// The verification planner's arithmetic; vllm_deepinfer/scheduler/verification_reference.py plans
// the same to the bit. Its C++ differs in how it sorts and in pricing only the ends of buckets.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "cost_core.hpp"
#include "keys.hpp"

namespace planner {

// Bad input; becomes Python's ValueError.
struct InputError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct PlannerSettings {
  double min_benefit, static_benefit;
  std::int64_t explore_every;
  double explore_loss;
  bool ties_by_position;
};

enum class Kind { kArgmax, kStatic, kExplore };

// A number of verification rows and what it promises. Score is expected tokens per millisecond,
// -1 where the step has no price.
struct Choice {
  std::int64_t num_rows = 0;
  double expected_tokens = 0.0, step_ms = 0.0, score = -1.0;
  int bucket = 0;
};

// Chances of survival, cumulative along a row, [num_rows, num_columns], row-major.
struct Rates {
  const void* data;
  bool is_double;
  const char* name;
};

struct Step {
  const std::int32_t* limits;  // [n]
  std::int64_t n, context_tokens, other_tokens;
};

class PlannerCore {
 public:
  PlannerCore(const CostCore& cost, int max_drafts, PlannerSettings settings);

  int max_drafts() const { return max_drafts_; }
  // Fills num_drafts [n]; the returned rows, tokens and time are the plan's.
  std::pair<Choice, Kind> plan(const Rates& budget, const Rates& ranking, const Step& step,
                               std::int32_t* num_drafts);

 private:
  using Keys = std::vector<std::uint32_t>;

  void check(const Step& step) const;
  void quantise(const Rates& rates, std::int64_t n, Keys& keys) const;
  void gather_gains(const Step& step);
  Choice price(const Step& step, std::int64_t num_drafts, std::int64_t gain, int bucket) const;
  Choice price(const Step& step, std::int64_t num_drafts, std::int64_t gain) const;
  static double expected_tokens(const Step& step, std::int64_t gain) {
    return static_cast<double>(step.n * kOne + gain) / static_cast<double>(kOne);
  }
  void best_of_buckets(const Step& step);
  std::int64_t best_between(const Step& step, int bucket, std::int64_t begin,
                            std::int64_t end) const;
  void sum_gains();
  std::int64_t total_gain(std::int64_t count) const {
    return totals_[std::min<std::size_t>(count, gains_.size())];
  }
  Choice static_choice(const Step& step);
  bool gains(const Choice& ranked, const Choice& fixed);
  const Choice* explored(const Choice& choice, const Step& step) const;
  void allocate(const Step& step, std::int64_t num_winners, std::int32_t* num_drafts);
  std::uint32_t winning_key(const Step& step, std::int64_t num_winners);
  void share_ties(const Step& step, std::uint32_t key, std::int64_t num_left,
                  std::int32_t* num_drafts) const;

  const CostCore& cost_;
  const int max_drafts_;
  const PlannerSettings settings_;
  std::int64_t num_plans_ = 0;
  int static_length_ = -1;
  bool ranks_ = false;

  // Of the step being planned; kept to reuse their memory.
  Keys budget_, ranking_, gains_, scratch_;
  std::vector<std::int64_t> column_gains_, column_rows_, totals_;
  std::vector<Choice> buckets_;  // best choice of each bucket reached, ascending
  std::int64_t num_allowed_ = 0;
  double sampler_ms_ = 0.0;
};

}  // namespace planner
