#include "cost_core.hpp"

namespace planner {

namespace {

constexpr std::int64_t kRefitEvery = 64;
constexpr int kKeptAfterShift = 12;

}  // namespace

CostCore::CostCore(std::vector<std::int64_t> sizes, std::vector<double> base_ms,
                   CostSettings settings)
    : sizes_(std::move(sizes)),
      base_ms_(std::move(base_ms)),
      inverse_gaps_(sizes_.size(), 0.0),
      settings_(settings),
      sampler_(settings.sampler_window, settings.sampler_min_samples),
      buckets_(sizes_.size()),
      watches_(sizes_.size()),
      residual_ms_(sizes_.size(), 0.0),
      own_ms_(sizes_.size(), 0.0) {
  for (std::size_t b = 1; b < sizes_.size(); ++b)
    inverse_gaps_[b] = 1.0 / static_cast<double>(sizes_[b] - sizes_[b - 1]);
}

int CostCore::bucket_index(std::int64_t num_tokens) const {
  const auto found = std::lower_bound(sizes_.begin(), sizes_.end(), num_tokens);
  return static_cast<int>(std::min<std::ptrdiff_t>(found - sizes_.begin(), sizes_.size() - 1));
}

double CostCore::extrapolate(const std::vector<double>& values, std::int64_t num_tokens) const {
  const std::size_t last = sizes_.size() - 1;
  if (last == 0)
    return values[0] * static_cast<double>(num_tokens) / static_cast<double>(sizes_[0]);
  const double rise = values[last] - values[last - 1];
  const double slope = (rise > 0.0 ? rise : 0.0) * inverse_gaps_[last];
  return values[last] + slope * static_cast<double>(num_tokens - sizes_[last]);
}

double CostCore::base_ms(int bucket, std::int64_t num_tokens) const {
  if (num_tokens > sizes_.back()) return extrapolate(base_ms_, num_tokens);
  if (is_on_size(bucket, num_tokens)) return base_ms_[bucket];
  return between(base_ms_, bucket, share_of(bucket, num_tokens));
}

void CostCore::observe(std::int64_t num_seqs, std::int64_t num_tokens,
                       std::int64_t context_tokens, double forward_ms, double sampler_ms) {
  sampler_.add(num_seqs, sampler_ms);
  if (num_tokens > sizes_.back() && !settings_.extrapolates) return;
  const int bucket = bucket_index(num_tokens);
  const bool shifted =
      settings_.forgets && is_measured(bucket) &&
      watches_[bucket].add(forward_ms / this->forward_ms(num_tokens, context_tokens) - 1.0);
  add(num_tokens, context_tokens, forward_ms);
  if (samples_.size() > settings_.forward_window) drop_oldest();
  if (shifted) forget(bucket);
  ++num_observed;
  if (settings_.has_context && num_observed % kRefitEvery == 0) context_.refit();
  refresh();
}

double CostCore::slots(int bucket, std::int64_t num_tokens) const {
  const bool pads = settings_.is_padded && num_tokens <= sizes_.back();
  return static_cast<double>(pads ? sizes_[bucket] : num_tokens);
}

void CostCore::add(std::int64_t num_tokens, std::int64_t context_tokens, double forward_ms) {
  const int bucket = bucket_index(num_tokens);
  const double residual = forward_ms - base_ms(bucket, num_tokens);
  const double rate = residual / slots(bucket, num_tokens);
  if (settings_.has_context)
    context_.add(first_id_ + static_cast<std::int64_t>(samples_.size()), bucket, context_tokens,
                 residual);
  samples_.push_back({num_tokens, context_tokens, forward_ms, rate});
  buckets_[bucket].rates.insert(rate);
  buckets_[bucket].contexts.insert(static_cast<double>(context_tokens));
  buckets_[bucket].is_fresh = false;
}

void CostCore::drop_oldest() {
  const StepSample sample = samples_.front();
  samples_.pop_front();
  const int bucket = bucket_index(sample.num_tokens);
  buckets_[bucket].rates.remove(sample.rate);
  buckets_[bucket].contexts.remove(static_cast<double>(sample.context_tokens));
  buckets_[bucket].is_fresh = false;
  if (settings_.has_context) context_.remove(first_id_, bucket, sample.context_tokens);
  ++first_id_;
}

void CostCore::forget(int bucket) {
  std::size_t excess = samples_.size();
  for (int kept = 0; excess > 0 && kept < kKeptAfterShift; --excess)
    if (bucket_index(samples_[excess - 1].num_tokens) == bucket) ++kept;
  // Where the bucket has fewer samples than are kept, its oldest is the first to stay.
  while (excess < samples_.size() && bucket_index(samples_[excess].num_tokens) != bucket) ++excess;
  for (; excess > 0; --excess) drop_oldest();
  watches_.assign(sizes_.size(), ShiftWatch());
  ++num_shifts;
}

void CostCore::refresh() {
  measured_.clear();
  std::vector<double> rates;
  for (int b = 0; b < static_cast<int>(sizes_.size()); ++b) {
    if (!is_measured(b)) continue;
    Bucket& bucket = buckets_[b];
    if (!bucket.is_fresh) {
      bucket.rate = bucket.rates.median();
      bucket.context = bucket.contexts.median();
      bucket.is_fresh = true;
    }
    const double size = static_cast<double>(sizes_[b]);
    const double rate = bucket.rate - context_.slope_ms * bucket.context / size;
    measured_.push_back(b);
    rates.push_back(rate);
    own_ms_[b] = rate * size;
  }
  slope_ms_ = 0.0;
  if (!rates.empty()) slope_ms_ = std::max(0.0, median_of(std::move(rates)));
  for (int b = 0; b < static_cast<int>(sizes_.size()); ++b) {
    if (!settings_.is_local)
      residual_ms_[b] = slope_ms_ * static_cast<double>(sizes_[b]);
    else
      residual_ms_[b] = measured_.empty() ? 0.0 : local(b);
  }
}

double CostCore::local(int bucket) const {
  const auto place = std::lower_bound(measured_.begin(), measured_.end(), bucket);
  if (place != measured_.end() && *place == bucket) return own_ms_[bucket];
  if (place != measured_.begin() && place != measured_.end()) {
    const int low = *(place - 1), high = *place;
    const double share = static_cast<double>(sizes_[bucket] - sizes_[low]) /
                         static_cast<double>(sizes_[high] - sizes_[low]);
    return own_ms_[low] + share * (own_ms_[high] - own_ms_[low]);
  }
  const bool is_below = place == measured_.begin();
  const int edge = is_below ? measured_.front() : measured_.back();
  const double carried = own_ms_[edge] * base_ms_[bucket] / base_ms_[edge];
  return is_below ? carried
                  : std::min(carried, slope_ms_ * static_cast<double>(sizes_[bucket]));
}

}  // namespace planner
