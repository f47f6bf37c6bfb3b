// The same bytes as tensors of the CPU and of the device, without a copy.
#include "device.h"

namespace fake_npu {
namespace {

// Keeps the memory that an alias shows, and accounts for what CPU kernels allocated.
struct Kept {
  c10::Storage storage;
  DeviceIndex counted_on;  // -1: not by us
};

void forget(void* context) {
  auto* kept = static_cast<Kept*>(context);
  if (kept->counted_on >= 0) {
    memory_of(kept->counted_on).add(-static_cast<int64_t>(kept->storage.nbytes()));
  }
  delete kept;
}

c10::DataPtr show(const c10::Storage& storage, Device device) {
  const DeviceIndex counted_on = device.is_cpu() ? -1 : device.index();
  if (counted_on >= 0) memory_of(counted_on).add(static_cast<int64_t>(storage.nbytes()));
  return {const_cast<void*>(storage.data()), new Kept{storage, counted_on}, &forget, device};
}

c10::Storage alias_of(const c10::Storage& storage, Device device) {
  auto* allocator =
      device.is_cpu() ? c10::GetAllocator(c10::DeviceType::CPU) : device_allocator();
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), show(storage, device),
                      allocator, /*resizable=*/true);
}

Tensor tensor_over(const c10::Storage& storage, const Tensor& like, Device device) {
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

bool same_storage(const Tensor& a, const Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

Tensor Aliases::to_cpu(const Tensor& npu) {
  if (!on_device(npu)) return npu;
  c10::Storage shared;
  for (const auto& [known, alias] : pairs_) {
    if (known.is_same(npu)) return alias;
    if (same_storage(known, npu)) shared = alias.storage();
  }
  if (!shared) shared = alias_of(npu.storage(), at::kCPU);
  pairs_.emplace_back(npu, tensor_over(shared, npu, at::kCPU));
  return pairs_.back().second;
}

Tensor Aliases::to_npu(const Tensor& cpu, Device device) {
  if (!cpu.defined() || !cpu.device().is_cpu()) return cpu;
  for (const auto& [argument, alias] : pairs_) {
    if (alias.is_same(cpu)) return argument;
  }
  for (const auto& [argument, alias] : pairs_) {
    if (same_storage(alias, cpu)) return tensor_over(argument.storage(), cpu, argument.device());
  }
  return tensor_over(alias_of(cpu.storage(), device), cpu, device);
}

void Aliases::adopt_resized(Device device) {
  for (const auto& [npu, alias] : pairs_) {
    c10::StorageImpl* mine = npu.storage().unsafeGetStorageImpl();
    if (mine->data() != alias.storage().data()) {
      mine->set_data_ptr_noswap(show(alias.storage(), device));
      mine->set_nbytes(alias.storage().nbytes());
    }
    if (npu.sizes() != alias.sizes() || npu.strides() != alias.strides() ||
        npu.storage_offset() != alias.storage_offset()) {
      npu.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                                       alias.storage_offset());
    }
  }
}

Tensor cpu_alias(const Tensor& npu) { return Aliases().to_cpu(npu); }

}  // namespace fake_npu
