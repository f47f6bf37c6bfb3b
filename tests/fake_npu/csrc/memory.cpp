// Device memory is host memory that is accounted for and poisoned; pinned memory is host memory
// whose addresses are known.
#include "device.h"

namespace fake_npu {
namespace {

constexpr size_t kAlignment = 512;
std::array<MemoryUse, kMaxDevices> g_use;
std::atomic<int64_t> g_size_bytes{int64_t{16} << 30};

struct Block {  // lies before the bytes it describes
  size_t num_bytes;
  DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  memory_of(block->device).add(-static_cast<int64_t>(block->num_bytes));
  std::free(block);
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    const DeviceIndex device = current_device();
    TORCH_CHECK_WITH(OutOfMemoryError,
                     memory_of(device).allocated + static_cast<int64_t>(num_bytes) <= g_size_bytes,
                     "fake npu:", static_cast<int>(device), " is out of memory: ", num_bytes,
                     " bytes more than ", memory_of(device).allocated.load(), " of ",
                     g_size_bytes.load());
    const size_t rounded = (num_bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
    auto* block = static_cast<Block*>(std::aligned_alloc(kAlignment, rounded));
    TORCH_CHECK(block != nullptr, "fake npu: the host has no ", num_bytes, " bytes");
    *block = {num_bytes, device};
    memory_of(device).add(static_cast<int64_t>(num_bytes));
    void* data = num_bytes ? reinterpret_cast<char*>(block) + kAlignment : nullptr;
    return {data, block, &release, Device(kNpu, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    std::memcpy(to, from, num_bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { refuse_in_capture("emptying the memory cache"); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      (*bytes)[0].current = memory_of(device).allocated;
      (*bytes)[0].peak = memory_of(device).peak;
    }
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    memory_of(device).peak = memory_of(device).allocated.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return {g_size_bytes - memory_of(device).allocated, g_size_bytes};
  }
};

std::mutex g_pinned_mutex;
std::map<const char*, size_t> g_pinned;  // begin -> number of bytes

void release_pinned(void* data) {
  {
    std::lock_guard<std::mutex> lock(g_pinned_mutex);
    g_pinned.erase(static_cast<const char*>(data));
  }
  std::free(data);
}

struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    const size_t rounded = (num_bytes / 64 + 1) * 64;
    auto* data = static_cast<char*>(std::aligned_alloc(64, rounded));
    TORCH_CHECK(data != nullptr, "fake npu: the host has no ", num_bytes, " bytes to pin");
    std::lock_guard<std::mutex> lock(g_pinned_mutex);
    g_pinned[data] = rounded;
    return {data, data, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    std::memcpy(to, from, num_bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

DeviceMemory g_device_memory;
PinnedMemory g_pinned_memory;
REGISTER_ALLOCATOR(kNpu, &g_device_memory);
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_pinned_memory);

}  // namespace

void MemoryUse::add(int64_t num_bytes) {
  const int64_t now = allocated += num_bytes;
  int64_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

MemoryUse& memory_of(DeviceIndex index) { return g_use.at(index < 0 ? current_device() : index); }
int64_t memory_size_bytes() { return g_size_bytes; }
void set_memory_size_bytes(int64_t num_bytes) { g_size_bytes = num_bytes; }
c10::Allocator* device_allocator() { return &g_device_memory; }
at::HostAllocator* pinned_allocator() { return &g_pinned_memory; }

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(g_pinned_mutex);
  auto after = g_pinned.upper_bound(static_cast<const char*>(address));
  if (after == g_pinned.begin()) return false;
  const auto& [begin, num_bytes] = *std::prev(after);
  return static_cast<const char*>(address) < begin + num_bytes;
}

void poison(void* begin, size_t num_bytes, c10::ScalarType type) {
  if (begin == nullptr) return;
  const bool has_nan = c10::isFloatingType(type) || c10::isComplexType(type);
  const int byte = type == c10::ScalarType::Bool ? 0x01 : has_nan ? 0xFF : 0x7F;
  std::memset(begin, byte, num_bytes);
}

}  // namespace fake_npu
