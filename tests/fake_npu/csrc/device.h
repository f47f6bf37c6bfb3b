// What the parts of the device know of each other. It is torch's PrivateUse1 over host memory; an
// operation has ended when it returns, so only copies to the host (host_copies.cpp) are late.
#pragma once
#include "torch_headers.h"

namespace fake_npu {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;

constexpr auto kNpu = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kMaxDevices = 8;

// ---- current device and stream, per thread (runtime.cpp)
DeviceIndex num_devices();
void set_num_devices(int64_t count);
DeviceIndex current_device();
void set_current_device(DeviceIndex index);
inline bool on_device(const Tensor& t) { return t.defined() && t.device().type() == kNpu; }

// ---- memory (memory.cpp)
struct MemoryUse {
  std::atomic<int64_t> allocated{0}, peak{0};
  void add(int64_t num_bytes);
};
MemoryUse& memory_of(DeviceIndex index);
int64_t memory_size_bytes();
void set_memory_size_bytes(int64_t num_bytes);
c10::Allocator* device_allocator();
at::HostAllocator* pinned_allocator();
bool is_pinned(const void* address);
// Fills memory with what no computation wants: NaN, or integers that are out of every range.
void poison(void* begin, size_t num_bytes, c10::ScalarType type);

// ---- waiting for the device (waiting.cpp)
enum class SyncMode : int64_t { kAllow = 0, kWarn = 1, kError = 2 };
SyncMode sync_mode();
void set_sync_mode(int64_t mode);
int64_t num_waits();
// The host waits here: counted, refused while a graph is captured or the mode says so.
void host_waits(const std::string& what);
void refuse_in_capture(const std::string& what);

// ---- copies to the host that nobody has waited for (host_copies.cpp)
// `host` holds poison until the ticket is awaited.
void begin_copy_to_host(const Tensor& host, const Tensor& value);
uint64_t last_ticket();
void finish_copies(uint64_t ticket);
inline void finish_copies() { finish_copies(last_ticket()); }
// Before the device reads host memory itself: what the stream has copied there comes first.
void finish_copies_into(const Tensor& host);

// ---- random numbers (generator.cpp)
const at::Generator& default_generator(DeviceIndex index);
at::Generator new_generator(DeviceIndex index);
at::Generator cpu_generator_behind(const at::Generator& generator);

// ---- the same bytes as a CPU tensor and back (aliases.cpp)
class Aliases {
 public:
  Tensor to_cpu(const Tensor& npu);
  // An argument itself, a view of one, or a new tensor that owns the result of a CPU kernel.
  Tensor to_npu(const Tensor& cpu, Device device);
  // Arguments that the CPU kernel gave other sizes or memory, as `out=` may.
  void adopt_resized(Device device);

 private:
  std::vector<std::pair<Tensor, Tensor>> pairs_;  // (npu, cpu)
};
Tensor cpu_alias(const Tensor& npu);

// ---- graphs (graph.cpp)
bool capturing();
// Called after an operation ran on CPU aliases `inputs` and gave `outputs`.
void record(const c10::OperatorHandle& op, const torch::jit::Stack& inputs,
            const torch::jit::Stack& outputs);
// Called for memory that is allocated during a capture: it belongs to the graph.
void keep_in_graph(const Tensor& made);

// ---- operations without a kernel of their own (fallback.cpp)
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace fake_npu
