// Where the host waits for the device, and whether it may.
#include "device.h"

namespace fake_npu {
namespace {
std::atomic<int64_t> g_mode{0};
std::atomic<int64_t> g_num_waits{0};
}  // namespace

SyncMode sync_mode() { return static_cast<SyncMode>(g_mode.load()); }

void set_sync_mode(int64_t mode) {
  TORCH_CHECK_VALUE(mode >= 0 && mode <= 2, "sync debug mode is ", mode,
                    "; allowed: 0 (default), 1 (warn), 2 (error)");
  g_mode = mode;
}

int64_t num_waits() { return g_num_waits; }

void refuse_in_capture(const std::string& what) {
  TORCH_CHECK(!capturing(), "fake npu: ", what, " is not allowed while a graph is captured");
}

void host_waits(const std::string& what) {
  refuse_in_capture(what);
  ++g_num_waits;
  if (sync_mode() == SyncMode::kWarn) {
    TORCH_WARN("fake npu: called a synchronizing operation: ", what);
  }
  TORCH_CHECK(sync_mode() != SyncMode::kError, "fake npu: called a synchronizing operation: ",
              what);
}

}  // namespace fake_npu
