// One pool of threads per process, shared by all kernels.
#pragma once

#include <cstdint>
#include <functional>

namespace deepinfer {

using PartFunction = std::function<void(std::int64_t part)>;

// Call function(part) for every part in [0, num_parts), on at most num_threads threads, this one
// included. Threads take contiguous, equal shares decided beforehand; which thread computes a part
// must not change what it computes. Returns when all parts are done; rethrows the first exception.
// Several threads may call it, and take turns; a part must not, as it would wait for itself.
void run_parts(int num_threads, std::int64_t num_parts, const PartFunction& function);

}  // namespace deepinfer
