// The device's random numbers: a CPU generator of its own behind each, so that its numbers depend on
// its seed alone and never on what the CPU draws.
#include "device.h"

namespace fake_npu {
namespace {

struct NpuGenerator final : c10::GeneratorImpl {
  explicit NpuGenerator(DeviceIndex index, at::Generator behind)
      : c10::GeneratorImpl(Device(kNpu, index),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        behind(std::move(behind)) {}

  void set_current_seed(uint64_t seed) override { behind.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { behind.set_offset(offset); }
  uint64_t get_offset() const override { return behind.get_offset(); }
  uint64_t current_seed() const override { return behind.current_seed(); }
  uint64_t seed() override { return behind.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    behind.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return behind.unsafeGetGeneratorImpl()->get_state();
  }
  NpuGenerator* clone_impl() const override {
    return new NpuGenerator(device_.index(), behind.clone());
  }

  mutable at::Generator behind;
};

}  // namespace

at::Generator new_generator(DeviceIndex index) {
  return at::make_generator<NpuGenerator>(index < 0 ? current_device() : index,
                                          at::detail::createCPUGenerator());
}

const at::Generator& default_generator(DeviceIndex index) {
  static std::array<at::Generator, kMaxDevices> generators = [] {
    std::array<at::Generator, kMaxDevices> made;
    for (DeviceIndex i = 0; i < kMaxDevices; ++i) made[i] = new_generator(i);
    return made;
  }();
  return generators.at(index < 0 ? current_device() : index);
}

at::Generator cpu_generator_behind(const at::Generator& generator) {
  return static_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl())->behind;
}

}  // namespace fake_npu
