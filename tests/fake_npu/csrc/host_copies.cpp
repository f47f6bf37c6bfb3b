// Non-blocking copies to the host. The value is taken at once, in stream order, but it is delivered
// when somebody waits for it. Code that reads too early reads poison.
#include "device.h"

namespace fake_npu {
namespace {

struct LateCopy {
  uint64_t ticket;
  Tensor host, value;
};

std::recursive_mutex g_mutex;
std::deque<LateCopy> g_late;
uint64_t g_last_ticket = 0;

}  // namespace

void begin_copy_to_host(const Tensor& host, const Tensor& value) {
  std::lock_guard<std::recursive_mutex> lock(g_mutex);
  if (host.is_non_overlapping_and_dense()) {
    poison(host.data_ptr(), host.numel() * host.itemsize(), host.scalar_type());
  }
  g_late.push_back({++g_last_ticket, host, value.clone()});
}

uint64_t last_ticket() {
  std::lock_guard<std::recursive_mutex> lock(g_mutex);
  return g_last_ticket;
}

template <class Awaited>
void deliver(const Awaited& awaited) {
  std::lock_guard<std::recursive_mutex> lock(g_mutex);
  std::deque<LateCopy> copies;
  copies.swap(g_late);
  c10::InferenceMode no_gradients;
  for (const LateCopy& copy : copies) {
    if (awaited(copy)) {
      copy.host.copy_(copy.value);
    } else {
      g_late.push_back(copy);
    }
  }
}

void finish_copies(uint64_t ticket) {
  deliver([&](const LateCopy& copy) { return copy.ticket <= ticket; });
}

void finish_copies_into(const Tensor& host) {
  const void* memory = host.storage().data();
  deliver([&](const LateCopy& copy) { return copy.host.storage().data() == memory; });
}

}  // namespace fake_npu
