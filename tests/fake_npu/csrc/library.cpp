// What Python calls: torch.ops.fake_npu.*
#include "device.h"
#include "fallback.h"
#include "graph.h"

namespace fake_npu {
namespace {

at::Generator generator_of(int64_t device) {
  return default_generator(static_cast<DeviceIndex>(device));
}

}  // namespace

TORCH_LIBRARY(fake_npu, library) {
  library.def("device_count", [] { return static_cast<int64_t>(num_devices()); });
  library.def("set_device_count", [](int64_t count) { set_num_devices(count); });
  library.def("current_device", [] { return static_cast<int64_t>(current_device()); });
  library.def("set_device",
              [](int64_t index) { set_current_device(static_cast<DeviceIndex>(index)); });
  library.def("set_memory_size", [](int64_t num_bytes) { set_memory_size_bytes(num_bytes); });

  library.def("sync_mode", [] { return static_cast<int64_t>(sync_mode()); });
  library.def("set_sync_mode", [](int64_t mode) { set_sync_mode(mode); });
  library.def("num_waits", [] { return num_waits(); });

  library.def("num_operations", [] { return num_operations(); });
  library.def("count_operations", [](bool on) { count_operations(on); });
  library.def("operation_counts", [] { return operation_counts(); });
  library.def("serve_operations", [](std::string name) { return serve_operations(name); });

  library.def("new_graph", [] { return new_graph(); });
  library.def("free_graph", [](int64_t graph) { free_graph(graph); });
  library.def("begin_capture", [](int64_t graph) { begin_capture(graph); });
  library.def("end_capture", [] { end_capture(); });
  library.def("replay", [](int64_t graph) { replay(graph); });
  library.def("reset_graph", [](int64_t graph) { reset_graph(graph); });
  library.def("num_nodes", [](int64_t graph) { return num_nodes(graph); });
  library.def("capturing", [] { return capturing(); });
  library.def("record_host_call", [](int64_t call) { record_host_call(call); });
  library.def("host_call(int call) -> ()");  // its kernel is Python's

  library.def("manual_seed",
              [](int64_t device, int64_t seed) { generator_of(device).set_current_seed(seed); });
  library.def("initial_seed", [](int64_t device) {
    return static_cast<int64_t>(generator_of(device).current_seed());
  });
  library.def("rng_state", [](int64_t device) { return generator_of(device).get_state(); });
  library.def("set_rng_state", [](int64_t device, const Tensor& state) {
    generator_of(device).set_state(state);
  });

  library.def("cpu_alias(Tensor npu) -> Tensor");
}

TORCH_LIBRARY_IMPL(fake_npu, PrivateUse1, library) {
  library.impl("cpu_alias", [](const Tensor& npu) { return cpu_alias(npu); });
}

}  // namespace fake_npu
