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

void finish_copies(uint64_t ticket) {
  std::lock_guard<std::recursive_mutex> lock(g_mutex);
  while (!g_late.empty() && g_late.front().ticket <= ticket) {
    LateCopy copy = std::move(g_late.front());
    g_late.pop_front();
    c10::InferenceMode no_gradients;
    copy.host.copy_(copy.value);
  }
}

}  // namespace fake_npu
