#include "plan_core.hpp"

#include <algorithm>
#include <string>

namespace planner {

PlannerCore::PlannerCore(const CostCore& cost, int max_drafts, PlannerSettings settings)
    : cost_(cost),
      max_drafts_(max_drafts),
      settings_(settings),
      column_gains_(max_drafts),
      column_rows_(max_drafts) {}

std::pair<Choice, Kind> PlannerCore::plan(const Rates& budget, const Rates& ranking,
                                          const Step& step, std::int32_t* num_drafts) {
  check(step);
  if (step.n == 0) return {Choice{}, Kind::kArgmax};
  quantise(budget, step.n, budget_);
  quantise(ranking, step.n, ranking_);
  gather_gains(step);
  sort_descending(gains_, scratch_);
  sampler_ms_ = cost_.sampler_ms(step.n);
  best_of_buckets(step);

  Choice choice = *std::max_element(
      buckets_.begin(), buckets_.end(),
      [](const Choice& left, const Choice& right) { return left.score < right.score; });
  Kind kind = Kind::kArgmax;
  ++num_plans_;
  if (settings_.min_benefit > 0.0) {
    const Choice fixed = static_choice(step);
    if (!gains(choice, fixed)) {
      choice = fixed;
      kind = Kind::kStatic;
    }
  }
  if (const Choice* tried = explored(choice, step)) {
    choice = *tried;
    kind = Kind::kExplore;
  }
  if (kind == Kind::kStatic)
    for (std::int64_t i = 0; i < step.n; ++i)
      num_drafts[i] = std::min(step.limits[i], static_length_);
  else
    allocate(step, choice.num_rows - step.n, num_drafts);
  return {choice, kind};
}

void PlannerCore::check(const Step& step) const {
  for (std::int64_t i = 0; i < step.n; ++i)
    if (step.limits[i] < 0 || step.limits[i] > max_drafts_)
      throw InputError("limit of sequence " + std::to_string(i) + " is " +
                       std::to_string(step.limits[i]) + "; it must be from 0 to " +
                       std::to_string(max_drafts_));
  if (step.context_tokens < 0 || step.other_tokens < 0)
    throw InputError("context_tokens is " + std::to_string(step.context_tokens) +
                     " and other_tokens " + std::to_string(step.other_tokens) +
                     "; both must be >= 0");
}

void PlannerCore::quantise(const Rates& rates, std::int64_t n, Keys& keys) const {
  keys.resize(n * max_drafts_);
  const bool good = rates.is_double
                        ? to_keys(static_cast<const double*>(rates.data), n, max_drafts_, keys)
                        : to_keys(static_cast<const float*>(rates.data), n, max_drafts_, keys);
  if (good) return;
  throw InputError(rates.is_double
                       ? describe_bad(static_cast<const double*>(rates.data), n, max_drafts_,
                                      keys, rates.name)
                       : describe_bad(static_cast<const float*>(rates.data), n, max_drafts_, keys,
                                      rates.name));
}

// Collects the drafts that may be verified and add something, and their sums by position.
void PlannerCore::gather_gains(const Step& step) {
  gains_.resize(step.n * max_drafts_);
  std::fill(column_gains_.begin(), column_gains_.end(), 0);
  std::fill(column_rows_.begin(), column_rows_.end(), 0);
  std::size_t count = 0;
  num_allowed_ = 0;
  const std::uint32_t* row = budget_.data();
  for (std::int64_t i = 0; i < step.n; ++i, row += max_drafts_) {
    const int limit = step.limits[i];
    num_allowed_ += limit;
    for (int j = 0; j < limit; ++j) {
      gains_[count] = row[j];
      count += row[j] > 0;
      column_gains_[j] += row[j];
      ++column_rows_[j];
    }
  }
  gains_.resize(count);
}

Choice PlannerCore::price(const Step& step, std::int64_t num_drafts, std::int64_t gain) const {
  return price(step, num_drafts, gain,
               cost_.bucket_index(step.n + num_drafts + step.other_tokens));
}

Choice PlannerCore::price(const Step& step, std::int64_t num_drafts, std::int64_t gain,
                          int bucket) const {
  Choice choice;
  choice.num_rows = step.n + num_drafts;
  choice.expected_tokens = expected_tokens(step, gain);
  choice.bucket = bucket;
  const std::int64_t tokens = choice.num_rows + step.other_tokens;
  if (tokens > cost_.sizes().back() && !cost_.settings().extrapolates) return choice;
  choice.step_ms = cost_.forward_ms(bucket, tokens, step.context_tokens) + sampler_ms_;
  choice.score = choice.expected_tokens / choice.step_ms;
  return choice;
}

// Where steps are padded, more drafts of the same bucket cost nothing, so that the last one which
// adds something is its best; elsewhere every number of drafts has its price. Drafts that add
// nothing come last, and may reach a larger bucket that was measured to be cheaper.
void PlannerCore::best_of_buckets(const Step& step) {
  const auto& sizes = cost_.sizes();
  const std::int64_t guaranteed = step.n + step.other_tokens;
  const auto num_gains = static_cast<std::int64_t>(gains_.size());
  if (guaranteed > sizes.back() && !cost_.settings().extrapolates)
    throw InputError("a step of " + std::to_string(step.n) + " sequences and " +
                     std::to_string(step.other_tokens) +
                     " other tokens has no price: the largest profiled bucket is " +
                     std::to_string(sizes.back()));
  sum_gains();
  buckets_.clear();
  int bucket = cost_.bucket_index(guaranteed);
  for (std::int64_t begin = 0, end; begin <= num_allowed_; begin = end + 1) {
    if (guaranteed + begin > sizes[bucket] && bucket + 1 < static_cast<int>(sizes.size()))
      ++bucket;
    const bool is_beyond = guaranteed + begin > sizes[bucket];
    if (is_beyond && !cost_.settings().extrapolates) return;
    end = is_beyond ? num_allowed_ : std::min(num_allowed_, sizes[bucket] - guaranteed);
    const std::int64_t best = cost_.settings().is_padded && !is_beyond
                                  ? std::max(begin, std::min(end, num_gains))
                                  : best_between(step, bucket, begin, end);
    const Choice choice = price(step, best, total_gain(best), bucket);
    if (buckets_.empty() || buckets_.back().bucket != bucket)
      buckets_.push_back(choice);
    else if (choice.score > buckets_.back().score)
      buckets_.back() = choice;
  }
}

// The first best number of drafts from begin to end, all of one bucket.
std::int64_t PlannerCore::best_between(const Step& step, int bucket, std::int64_t begin,
                                       std::int64_t end) const {
  double best_score = -1.0;
  std::int64_t best = begin;
  for (std::int64_t count = begin; count <= end; ++count) {
    const std::int64_t tokens = step.n + count + step.other_tokens;
    const double step_ms = cost_.forward_ms(bucket, tokens, step.context_tokens) + sampler_ms_;
    const double score = expected_tokens(step, total_gain(count)) / step_ms;
    if (score > best_score) {
      best_score = score;
      best = count;
    }
  }
  return best;
}

// Makes total_gain(count) the sum of the count largest.
void PlannerCore::sum_gains() {
  totals_.resize(gains_.size() + 1);
  totals_[0] = 0;
  for (std::size_t i = 0; i < gains_.size(); ++i) totals_[i + 1] = totals_[i] + gains_[i];
}

// The choice of the static length, which changes only for a gain.
Choice PlannerCore::static_choice(const Step& step) {
  std::int64_t gain = 0, rows = 0;
  Choice best, held;
  int best_length = 0;
  for (int length = 0; length <= max_drafts_; ++length) {
    if (length > 0) {
      gain += column_gains_[length - 1];
      rows += column_rows_[length - 1];
    }
    const Choice choice = price(step, rows, gain);
    if (length == 0 || choice.score > best.score) {
      best = choice;
      best_length = length;
    }
    if (length == static_length_) held = choice;
  }
  if (static_length_ >= 0 && best.score < held.score * (1.0 + settings_.static_benefit))
    return held;
  static_length_ = best_length;
  return best;
}

bool PlannerCore::gains(const Choice& ranked, const Choice& fixed) {
  const double needed = ranks_ ? settings_.min_benefit / 2.0 : settings_.min_benefit;
  ranks_ = ranked.score >= fixed.score * (1.0 + needed);
  return ranks_;
}

// The best unmeasured bucket, when it is time to try one and it loses little.
const Choice* PlannerCore::explored(const Choice& choice, const Step& step) const {
  if (settings_.explore_every == 0 || num_plans_ % settings_.explore_every != 0) return nullptr;
  if (!cost_.is_measured(cost_.bucket_index(choice.num_rows + step.other_tokens))) return nullptr;
  const Choice* best = nullptr;
  for (const Choice& candidate : buckets_)
    if (!cost_.is_measured(candidate.bucket) && (!best || candidate.score > best->score))
      best = &candidate;
  return best && best->score >= choice.score * (1.0 - settings_.explore_loss) ? best : nullptr;
}

// Drafts of each sequence among the likeliest.
void PlannerCore::allocate(const Step& step, std::int64_t num_winners, std::int32_t* num_drafts) {
  if (num_winners == num_allowed_) {
    std::copy_n(step.limits, step.n, num_drafts);
    return;
  }
  if (num_winners == 0) {
    std::fill_n(num_drafts, step.n, 0);
    return;
  }
  const std::uint32_t key = winning_key(step, num_winners);
  const std::uint32_t* row = ranking_.data();
  for (std::int64_t i = 0; i < step.n; ++i, row += max_drafts_) {
    std::int32_t above = 0;
    for (int j = 0; j < max_drafts_; ++j) above += row[j] > key;
    num_drafts[i] = std::min(above, step.limits[i]);
    num_winners -= num_drafts[i];
  }
  share_ties(step, key, num_winners, num_drafts);
}

// The num_winners-th largest key among the drafts that may be verified.
std::uint32_t PlannerCore::winning_key(const Step& step, std::int64_t num_winners) {
  scratch_.resize(num_allowed_);
  std::uint32_t* out = scratch_.data();
  const std::uint32_t* row = ranking_.data();
  for (std::int64_t i = 0; i < step.n; ++i, row += max_drafts_)
    out = std::copy_n(row, step.limits[i], out);
  return nth_largest(scratch_, num_winners);
}

// Sequences take drafts of exactly this key in the order of the tie rule. A sequence's drafts of
// one key follow each other, and those of larger keys precede them.
void PlannerCore::share_ties(const Step& step, std::uint32_t key, std::int64_t num_left,
                             std::int32_t* num_drafts) const {
  const auto take = [&](std::int64_t i, int j) {
    if (num_left == 0 || j >= step.limits[i] || ranking_[i * max_drafts_ + j] != key) return;
    ++num_drafts[i];
    --num_left;
  };
  if (settings_.ties_by_position) {
    for (int j = 0; j < max_drafts_ && num_left > 0; ++j)
      for (std::int64_t i = 0; i < step.n; ++i) take(i, j);
  } else {
    for (std::int64_t i = 0; i < step.n && num_left > 0; ++i)
      for (int j = 0; j < max_drafts_; ++j) take(i, j);
  }
}

}  // namespace planner
