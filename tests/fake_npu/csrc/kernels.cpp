// The operations that cannot be the CPU's: those that make memory, views of it, or cross devices.
#include "device.h"
#include "graph.h"

namespace fake_npu {
namespace {

using at::IntArrayRef;

c10::ScalarType type_or_default(std::optional<c10::ScalarType> type) {
  return type.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<c10::ScalarType> type,
                     std::optional<at::Layout>, std::optional<Device> device,
                     std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  const c10::ScalarType scalar_type = type_or_default(type);
  const auto meta = c10::scalarTypeToTypeMeta(scalar_type);
  const size_t num_bytes = at::detail::computeStorageNbytes(sizes, strides, meta.itemsize());
  c10::DataPtr data = device_allocator()->allocate(num_bytes);
  poison(data.get(), num_bytes, scalar_type);
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), num_bytes, std::move(data), device_allocator(),
                   /*resizable=*/true),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  if (capturing()) keep_in_graph(made);
  return made;
}

Tensor empty(IntArrayRef sizes, std::optional<c10::ScalarType> type,
             std::optional<at::Layout> layout, std::optional<Device> device,
             std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  Tensor made = empty_strided(sizes, strides, type, layout, device, pin);
  if (format && *format != at::MemoryFormat::Contiguous &&
      *format != at::MemoryFormat::Preserve) {
    made.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return made;
}

Tensor view_of(const Tensor& t, IntArrayRef sizes, IntArrayRef strides, int64_t offset) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(t.storage()), t.key_set(), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

Tensor as_strided(const Tensor& t, IntArrayRef sizes, IntArrayRef strides,
                  std::optional<int64_t> offset) {
  const int64_t begin = offset.value_or(t.storage_offset());
  const size_t end = at::detail::computeStorageNbytes(sizes, strides, t.itemsize(), begin);
  TORCH_CHECK(end <= t.storage().nbytes(), "as_strided: sizes ", sizes, ", strides ", strides,
              " and offset ", begin, " need ", end, " bytes of a storage of ",
              t.storage().nbytes());
  return view_of(t, sizes, strides, begin);
}

Tensor reshape_alias(const Tensor& t, IntArrayRef sizes, IntArrayRef strides) {
  return view_of(t, sizes, strides, t.storage_offset());
}

Tensor view(const Tensor& t, IntArrayRef sizes) {
  const auto known = at::infer_size_dv(sizes, t.numel());
  const auto strides = at::detail::computeStride(t.sizes(), t.strides(), known);
  TORCH_CHECK(strides.has_value(), "view size ", sizes,
              " is not compatible with input tensor's size ", t.sizes(), " and stride ",
              t.strides(), ". Use .reshape(...) instead.");
  return view_of(t, known, *strides, t.storage_offset());
}

const Tensor& resize_(const Tensor& t, IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const size_t end =
      (c10::multiply_integers(sizes) + t.storage_offset()) * static_cast<size_t>(t.itemsize());
  if (end > t.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(t.storage(), end);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

Tensor& set_storage_and_sizes(Tensor& t, at::Storage source, int64_t offset, IntArrayRef sizes,
                              IntArrayRef strides) {
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  if (strides.empty() && !sizes.empty()) {
    t.unsafeGetTensorImpl()->set_storage_offset(offset);
    t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  } else {
    t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  }
  return t;
}

Tensor& set_storage(Tensor& t, at::Storage source) {
  const int64_t numel = static_cast<int64_t>(source.nbytes() / t.itemsize());
  return set_storage_and_sizes(t, std::move(source), 0, {numel}, {1});
}

Tensor& set_tensor(Tensor& t, const Tensor& source) {
  return set_storage_and_sizes(t, source.storage(), source.storage_offset(), source.sizes(),
                               source.strides());
}

at::Scalar local_scalar(const Tensor& t) {
  host_waits("Tensor.item");
  finish_copies();
  return cpu_alias(t).item();
}

// A copy from the host's memory that the graph repeats, or one to it.
void check_host_memory_in_capture(const Tensor& host) {
  TORCH_CHECK(!capturing() || is_pinned(host.storage().data()),
              "fake npu: copies between host and device are captured only of pinned memory");
}

Tensor copy_from(const Tensor& source, const Tensor& destination, bool non_blocking) {
  Aliases aliases;
  const Tensor from = aliases.to_cpu(source), to = aliases.to_cpu(destination);
  const bool to_host = !on_device(destination), from_host = !on_device(source);
  if ((to_host || from_host) && !non_blocking) {
    host_waits(to_host ? "blocking copy to the host" : "blocking copy from the host");
  }
  if (to_host || from_host) check_host_memory_in_capture(to_host ? destination : source);
  if (capturing()) {
    static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    record(copy, {to, from, IValue(false)}, {to});
  } else if (to_host && non_blocking) {
    begin_copy_to_host(destination, from);
    return destination;
  } else if (from_host && non_blocking) {
    finish_copies_into(source);
  } else if (to_host || from_host) {
    finish_copies();
  }
  at::AutoDispatchBelowAutograd no_autograd;
  to.copy_(from);
  return destination;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage_and_sizes);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("_copy_from", &copy_from);
}

// Copies read conjugates and negatives as they are. Without this torch would first copy them into
// plain tensors, by this very operation, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace fake_npu
