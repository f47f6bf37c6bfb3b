#include "estimators.hpp"

#include <algorithm>
#include <cmath>

namespace planner {

namespace {

constexpr std::size_t kContextBinSamples = 32;
constexpr std::size_t kContextBinMinSamples = 8;
constexpr std::size_t kRecentErrors = 24;
constexpr std::size_t kPastErrors = 256;
constexpr std::size_t kMinPastErrors = 96;
constexpr std::size_t kShiftTail = 20;
constexpr double kMinShift = 0.03;

int octave(std::int64_t tokens) {
  return tokens == 0 ? 0 : 64 - __builtin_clzll(static_cast<std::uint64_t>(tokens));
}

}  // namespace

double Ordered::median() const {
  const std::size_t half = size() / 2;
  return size() % 2 ? at(half) : (at(half - 1) + at(half)) / 2;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void RollingMedian::add(double value) {
  values_.push_back(value);
  ordered_.insert(value);
  if (values_.size() > window_) {
    ordered_.remove(values_.front());
    values_.pop_front();
  }
}

std::optional<double> RollingMedian::median() const {
  if (values_.size() < min_samples_) return std::nullopt;
  return ordered_.median();
}

RollingMedian& SamplerTimes::of(std::int64_t num_seqs) {
  return by_num_seqs_.try_emplace(num_seqs, empty_).first->second;
}

void SamplerTimes::add(std::int64_t num_seqs, double ms) {
  overall_.add(ms);
  of(num_seqs).add(ms);
}

void SamplerTimes::restore(std::int64_t num_seqs, double ms) {
  (num_seqs ? of(num_seqs) : overall_).add(ms);
}

double SamplerTimes::ms(std::int64_t num_seqs) const {
  const auto own = by_num_seqs_.find(num_seqs);
  if (own != by_num_seqs_.end())
    if (const auto estimate = own->second.median()) return *estimate;
  return overall_.median().value_or(0.0);
}

void ContextSlope::add(std::int64_t sample_id, int bucket, std::int64_t context_tokens,
                       double residual_ms) {
  Bin& bin = bins_[{bucket, octave(context_tokens)}];
  bin.samples.push_back({sample_id, residual_ms, static_cast<double>(context_tokens)});
  if (bin.samples.size() > kContextBinSamples) bin.samples.pop_front();
  bin.is_fresh = false;
}

void ContextSlope::remove(std::int64_t sample_id, int bucket, std::int64_t context_tokens) {
  const auto found = bins_.find({bucket, octave(context_tokens)});
  if (found == bins_.end()) return;
  Bin& bin = found->second;
  if (bin.samples.empty() || bin.samples.front().id != sample_id) return;
  bin.samples.pop_front();
  bin.is_fresh = false;
}

void ContextSlope::Bin::refresh() {
  std::vector<double> residuals, contexts;
  for (const Sample& sample : samples) {
    residuals.push_back(sample.residual_ms);
    contexts.push_back(sample.context);
  }
  residual_ms = median_of(std::move(residuals));
  context = median_of(std::move(contexts));
  is_fresh = true;
}

void ContextSlope::refit() {
  std::vector<std::pair<double, double>> slopes;  // slope, weight
  double total = 0.0;
  const Bin* before = nullptr;
  int before_bucket = 0;
  for (auto& [key, bin] : bins_) {
    if (bin.samples.size() < kContextBinMinSamples) continue;
    if (!bin.is_fresh) bin.refresh();
    if (before && before_bucket == key.first && bin.context > before->context) {
      const double distance = bin.context - before->context;
      slopes.emplace_back((bin.residual_ms - before->residual_ms) / distance, distance);
      total += distance;
    }
    before = &bin;
    before_bucket = key.first;
  }
  std::sort(slopes.begin(), slopes.end());
  double passed = 0.0;
  for (const auto& [slope, weight] : slopes) {
    passed += weight;
    if (2 * passed >= total) {
      slope_ms = slope > 0.0 ? slope : 0.0;
      return;
    }
  }
}

bool ShiftWatch::add(double error) {
  recent_.push_back(error);
  if (recent_.size() > kRecentErrors) {
    remember(recent_.front());
    recent_.pop_front();
  }
  if (past_.size() < kMinPastErrors) return false;
  const double now = median_of({recent_.begin(), recent_.end()});
  const double then = ordered_.median();
  const std::size_t tail = ordered_.size() / kShiftTail;
  const bool inside = ordered_.at(tail) <= now && now <= ordered_.at(ordered_.size() - 1 - tail);
  return !inside && std::abs(now - then) >= kMinShift;
}

void ShiftWatch::remember(double error) {
  past_.push_back(error);
  ordered_.insert(error);
  if (past_.size() > kPastErrors) {
    ordered_.remove(past_.front());
    past_.pop_front();
  }
}

}  // namespace planner
