#include "machine.h"

#include <atomic>
#include <stdexcept>

#include "amx.h"
#include "parts.h"
#include "thread_pool.h"

namespace deepinfer {
namespace {

struct Named {
  const char* name;
  Isa isa;
};

constexpr Named kNames[] = {{"portable", Isa::portable},
                            {"avx2", Isa::avx2},
                            {"avx512", Isa::avx512},
                            {"emulated_amx", Isa::emulated_amx},
                            {"amx", Isa::amx}};

bool can_run(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
  if (isa == Isa::avx512) {
    return can_run(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bf16");
  }
  if (isa == Isa::emulated_amx) return can_run(Isa::avx512);
  if (isa == Isa::amx) return can_run(Isa::avx512) && can_use_amx();
#endif
  return isa == Isa::portable;
}

Isa best_isa() {
  Isa best = Isa::portable;
  for (const Named& entry : kNames) {
    if (entry.isa != Isa::emulated_amx && can_run(entry.isa)) best = entry.isa;
  }
  return best;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

std::string current_isa_name() {
  for (const Named& entry : kNames) {
    if (entry.isa == current_isa()) return entry.name;
  }
  return "";
}

std::string available_isa_names() {
  std::string names;
  for (const Named& entry : kNames) {
    if (can_run(entry.isa)) names += (names.empty() ? "" : " ") + std::string(entry.name);
  }
  return names;
}

// What reading memory alone costs: the bound of every kernel that reads its weights once.
std::uint64_t sum_words(std::uintptr_t address, std::int64_t num_bytes, int num_threads) {
  constexpr std::int64_t kPartWords = 1 << 16;
  const std::int64_t words = num_bytes / 8;
  const auto* data = at<const std::uint64_t>(address);
  std::atomic<std::uint64_t> total{0};
  run_parts(num_threads, (words + kPartWords - 1) / kPartWords, [&](std::int64_t part) {
    const std::int64_t first = part * kPartWords;
    const std::int64_t count = words - first < kPartWords ? words - first : kPartWords;
    std::uint64_t lanes[32] = {};
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      for (int lane = 0; lane < 32; ++lane) lanes[lane] += data[first + i + lane];
    }
    std::uint64_t sum = 0;
    for (; i < count; ++i) sum += data[first + i];
    for (std::uint64_t lane : lanes) sum += lane;
    total += sum;
  });
  return total;
}

}  // namespace

Isa current_isa() { return chosen().load(std::memory_order_relaxed); }

void choose_isa(const std::string& name) {
  for (const Named& entry : kNames) {
    if (name == entry.name && can_run(entry.isa)) {
      chosen().store(entry.isa);
      return;
    }
  }
  throw std::invalid_argument("isa is '" + name + "'; this machine can run: " +
                              available_isa_names() + ".");
}

bool bind_machine(PyObject* module) {
  return python::add<&current_isa_name>(module, "isa") &&
         python::add<&choose_isa>(module, "choose_isa") &&
         python::add<&available_isa_names>(module, "available_isas") &&
         python::add<&sum_words>(module, "sum_words");
}

}  // namespace deepinfer
