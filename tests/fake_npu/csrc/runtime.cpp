// Devices, streams and events as torch asks for them.
#include "device.h"

namespace fake_npu {
namespace {

std::atomic<DeviceIndex> g_num_devices{1};
std::atomic<c10::StreamId> g_num_streams{0};
thread_local DeviceIndex t_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> t_stream{};

DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : t_device; }

c10::Stream stream_of(DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, Device(kNpu, index), id);
}

struct Event {
  uint64_t ticket;
  std::chrono::steady_clock::time_point time;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  Device getDevice() const override { return {kNpu, t_device}; }
  void setDevice(Device device) const override { set_current_device(index_of(device)); }
  void uncheckedSetDevice(Device device) const noexcept override { t_device = index_of(device); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return g_num_devices; }

  c10::Stream getStream(Device device) const override {
    return stream_of(index_of(device), t_stream.at(index_of(device)));
  }
  c10::Stream getDefaultStream(Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getNewStream(Device device, int) const override {
    return stream_of(index_of(device), ++g_num_streams);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    t_stream.at(index_of(stream.device())) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(stream.id() + 1));
  }
  bool isStreamCapturing(const c10::Stream&) const override { return capturing(); }

  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {last_ticket(), std::chrono::steady_clock::now()};
  }
  void block(void*, const c10::Stream&) const override {}  // work ends before the next begins
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryEvent(void* event) const override {
    refuse_in_capture("asking an event");
    if (event != nullptr) finish_copies(static_cast<Event*>(event)->ticket);
    return true;
  }
  // Waiting for an event is how late copies are meant to be received: no fault, except in capture.
  void synchronizeEvent(void* event) const override {
    refuse_in_capture("waiting for an event");
    if (event != nullptr) finish_copies(static_cast<Event*>(event)->ticket);
  }
  bool queryStream(const c10::Stream&) const override {
    refuse_in_capture("asking a stream");
    finish_copies();
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {
    host_waits("Stream.synchronize");
    finish_copies();
  }
  void synchronizeDevice(const DeviceIndex) const override {
    host_waits("torch.npu.synchronize");
    finish_copies();
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    TORCH_CHECK(begin != nullptr && end != nullptr, "both events must be recorded");
    const auto took = static_cast<Event*>(end)->time - static_cast<Event*>(begin)->time;
    return std::chrono::duration<double, std::milli>(took).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return g_num_devices > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return g_num_devices; }
  DeviceIndex getCurrentDevice() const override { return t_device; }
  void setCurrentDevice(DeviceIndex index) const override { set_current_device(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = t_device;
    set_current_device(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? t_device : exchangeDevice(index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  Device getDeviceFromPtr(void*) const override { return {kNpu, t_device}; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t num_bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr data = device_allocator()->allocate(num_bytes);
    poison(data.get(), num_bytes, c10::ScalarType::Float);
    if (const size_t kept = std::min(num_bytes, impl->nbytes())) {
      std::memcpy(data.get(), impl->data(), kept);
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(num_bytes);
  }
};

const bool g_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

DeviceIndex num_devices() { return g_num_devices; }

void set_num_devices(int64_t count) {
  TORCH_CHECK_VALUE(count >= 1 && count <= kMaxDevices, "fake npu: ", count,
                    " devices; allowed: 1 to ", static_cast<int>(kMaxDevices));
  g_num_devices = static_cast<DeviceIndex>(count);
}

DeviceIndex current_device() { return t_device; }

void set_current_device(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < g_num_devices, "invalid device ordinal: npu:",
              static_cast<int>(index), "; there are ", static_cast<int>(g_num_devices.load()));
  t_device = index;
}

}  // namespace fake_npu
