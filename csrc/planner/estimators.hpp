// Order statistics of recent samples. What each class means is told in
// vllm_deepinfer/scheduler/cost_estimators.py, which computes the same to the bit.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ext/pb_ds/assoc_container.hpp>
#include <ext/pb_ds/tree_policy.hpp>

namespace planner {

// A multiset of numbers that finds any rank; insertion, removal and rank take O(log size).
class Ordered {
 public:
  void insert(double value) { tree_.insert({value, next_id_++}); }
  void remove(double value) { tree_.erase(tree_.lower_bound({value, 0})); }
  std::size_t size() const { return tree_.size(); }
  double at(std::size_t rank) const { return tree_.find_by_order(rank)->first; }
  double median() const;

 private:
  using Entry = std::pair<double, std::uint64_t>;
  using Tree = __gnu_pbds::tree<Entry, __gnu_pbds::null_type, std::less<Entry>,
                                __gnu_pbds::rb_tree_tag,
                                __gnu_pbds::tree_order_statistics_node_update>;
  Tree tree_;
  std::uint64_t next_id_ = 0;
};

double median_of(std::vector<double> values);

class RollingMedian {
 public:
  RollingMedian(std::size_t window, std::size_t min_samples)
      : window_(window), min_samples_(min_samples) {}
  void add(double value);
  std::optional<double> median() const;
  const std::deque<double>& values() const { return values_; }

 private:
  std::size_t window_, min_samples_;
  std::deque<double> values_;
  Ordered ordered_;
};

class SamplerTimes {
 public:
  SamplerTimes(std::size_t window, std::size_t min_samples)
      : empty_(window, min_samples), overall_(window, min_samples) {}
  void add(std::int64_t num_seqs, double ms);
  double ms(std::int64_t num_seqs) const;
  const RollingMedian& overall() const { return overall_; }
  const std::map<std::int64_t, RollingMedian>& by_num_seqs() const { return by_num_seqs_; }
  void restore(std::int64_t num_seqs, double ms);

 private:
  RollingMedian& of(std::int64_t num_seqs);

  RollingMedian empty_, overall_;
  std::map<std::int64_t, RollingMedian> by_num_seqs_;
};

class ContextSlope {
 public:
  double slope_ms = 0.0;

  void add(std::int64_t sample_id, int bucket, std::int64_t context_tokens, double residual_ms);
  void remove(std::int64_t sample_id, int bucket, std::int64_t context_tokens);
  void refit();

 private:
  struct Sample {
    std::int64_t id;
    double residual_ms, context;
  };
  struct Bin {
    std::deque<Sample> samples;
    bool is_fresh = false;
    double residual_ms = 0.0, context = 0.0;  // medians, when fresh
    void refresh();
  };
  std::map<std::pair<int, int>, Bin> bins_;  // by bucket and octave of context
};

class ShiftWatch {
 public:
  bool add(double error);
  void remember(double error);
  void restore_recent(double error) { recent_.push_back(error); }
  const std::deque<double>& past() const { return past_; }
  const std::deque<double>& recent() const { return recent_; }

 private:
  std::deque<double> recent_, past_;
  Ordered ordered_;
};

}  // namespace planner
