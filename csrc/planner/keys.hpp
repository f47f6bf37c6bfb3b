// Chances of survival as integers in units of 2^-22: their sums are exact in any order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace planner {

constexpr std::int64_t kOne = 1 << 22;

// Keys of rates [num_rows, num_columns], rounded to nearest even; false where a rate is not from 0
// to 1 or its key exceeds that of the rate before it.
bool to_keys(const float* rates, std::int64_t num_rows, int num_columns,
             std::vector<std::uint32_t>& keys);
bool to_keys(const double* rates, std::int64_t num_rows, int num_columns,
             std::vector<std::uint32_t>& keys);

// What is wrong with rates that to_keys refused.
template <typename Real>
std::string describe_bad(const Real* rates, std::int64_t num_rows, int num_columns,
                         const std::vector<std::uint32_t>& keys, const char* name);

void sort_descending(std::vector<std::uint32_t>& keys, std::vector<std::uint32_t>& scratch);

// The rank-th largest of keys, rank from 1; reorders them.
std::uint32_t nth_largest(std::vector<std::uint32_t>& keys, std::int64_t rank);

}  // namespace planner
