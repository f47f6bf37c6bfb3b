#pragma once
#include "torch_headers.h"

namespace fake_npu {

int64_t num_operations();
// Count operations by name from now on (or no more); forgets what was counted.
void count_operations(bool on);
c10::Dict<std::string, int64_t> operation_counts();
// Operations that compute themselves from others (CompositeExplicitAutograd) never reach a
// fallback. Lead those of one library there, so that they run their CPU kernels as one operation.
// Returns how many were not led there before.
int64_t serve_operations(const std::string& library);

}  // namespace fake_npu
