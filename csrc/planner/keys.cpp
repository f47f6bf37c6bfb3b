#include "keys.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

namespace planner {

namespace {

constexpr int kLowBits = 11;
constexpr std::uint32_t kLowMask = (1u << kLowBits) - 1;
constexpr std::size_t kLowBins = 1u << kLowBits;
constexpr std::size_t kHighBins = (kOne >> kLowBits) + 1;
constexpr std::size_t kSmall = 256;  // below it comparing is faster than counting

// Adding a number whose last bit is worth 2^-22 rounds to that unit, nearest even, and leaves the
// units in the low bits.
std::uint32_t to_key(float rate) {
  const float sum = rate + 2.0f;
  std::uint32_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  return bits - 0x40000000u;
}

std::uint32_t to_key(double rate) {
  const double sum = rate + 1073741824.0;  // 2^30
  std::uint64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  return static_cast<std::uint32_t>(bits);
}

template <typename Real>
bool fill_keys(const Real* rates, std::int64_t num_rows, int num_columns,
               std::vector<std::uint32_t>& keys) {
  const std::int64_t count = num_rows * num_columns;
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    bad |= !(rates[i] >= 0) | !(rates[i] <= 1);  // a NaN is neither
    keys[i] = to_key(rates[i]);
  }
  for (std::int64_t row = 0; row < count; row += num_columns)
    for (int j = 1; j < num_columns; ++j) bad |= keys[row + j] > keys[row + j - 1];
  return !bad;
}

}  // namespace

bool to_keys(const float* rates, std::int64_t num_rows, int num_columns,
             std::vector<std::uint32_t>& keys) {
  return fill_keys(rates, num_rows, num_columns, keys);
}

bool to_keys(const double* rates, std::int64_t num_rows, int num_columns,
             std::vector<std::uint32_t>& keys) {
  return fill_keys(rates, num_rows, num_columns, keys);
}

template <typename Real>
std::string describe_bad(const Real* rates, std::int64_t num_rows, int num_columns,
                         const std::vector<std::uint32_t>& keys, const char* name) {
  const std::string start = std::string(name) + " rate of sequence ";
  const std::int64_t count = num_rows * num_columns;
  for (std::int64_t i = 0; i < count; ++i) {
    if (rates[i] >= 0 && rates[i] <= 1) continue;
    char value[32] = "nan";
    if (!std::isnan(rates[i])) std::snprintf(value, sizeof value, "%.9g", double(rates[i]));
    return start + std::to_string(i / num_columns) + ", draft " +
           std::to_string(i % num_columns) + " is " + value + "; a chance must be from 0 to 1";
  }
  for (std::int64_t i = 0; i < count; ++i)
    if (i % num_columns && keys[i] > keys[i - 1])
      return start + std::to_string(i / num_columns) + " rises at draft " +
             std::to_string(i % num_columns) +
             "; chances to survive are cumulative, so they fall along a row";
  return start + "is wrong";
}

template std::string describe_bad(const float*, std::int64_t, int,
                                  const std::vector<std::uint32_t>&, const char*);
template std::string describe_bad(const double*, std::int64_t, int,
                                  const std::vector<std::uint32_t>&, const char*);

void sort_descending(std::vector<std::uint32_t>& keys, std::vector<std::uint32_t>& scratch) {
  const std::size_t count = keys.size();
  if (count < kSmall) {
    std::sort(keys.begin(), keys.end(), std::greater<>());
    return;
  }
  // Radix sort in two passes: first by the low bits, then by the high ones.
  std::array<std::uint32_t, kLowBins> low{};
  std::array<std::uint32_t, kHighBins> high{};
  for (const std::uint32_t key : keys) {
    ++low[key & kLowMask];
    ++high[key >> kLowBits];
  }
  const auto to_starts = [](auto& bins) {
    std::uint32_t start = 0;
    for (std::size_t bin = bins.size(); bin-- > 0;) {
      const std::uint32_t size = bins[bin];
      bins[bin] = start;
      start += size;
    }
  };
  to_starts(low);
  to_starts(high);
  scratch.resize(count);
  for (const std::uint32_t key : keys) scratch[low[key & kLowMask]++] = key;
  for (const std::uint32_t key : scratch) keys[high[key >> kLowBits]++] = key;
}

std::uint32_t nth_largest(std::vector<std::uint32_t>& keys, std::int64_t rank) {
  std::uint32_t* first = keys.data();
  std::uint32_t* last = first + keys.size();
  if (keys.size() >= kSmall) {
    std::array<std::uint32_t, kHighBins> high{};
    for (const std::uint32_t key : keys) ++high[key >> kLowBits];
    std::size_t bin = kHighBins - 1;
    for (; rank > high[bin]; --bin) rank -= high[bin];
    last = std::copy_if(first, last, first,
                        [bin](std::uint32_t key) { return key >> kLowBits == bin; });
  }
  std::nth_element(first, first + rank - 1, last, std::greater<>());
  return first[rank - 1];
}

}  // namespace planner
