// Operations without a kernel of their own run the CPU's on aliases of their arguments.
#include "device.h"
#include "fallback.h"
#include "graph.h"

namespace fake_npu {
namespace {

std::atomic<int64_t> g_num_calls{0};
std::atomic<bool> g_counting{false};
std::mutex g_counts_mutex;
std::map<std::string, int64_t> g_counts;

void count(const c10::OperatorHandle& op) {
  ++g_num_calls;
  if (!g_counting) return;
  std::lock_guard<std::mutex> lock(g_counts_mutex);
  ++g_counts[c10::toString(op.operator_name())];
}

template <class Change>
IValue change_tensors(const IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> changed;
    for (const Tensor& t : value.toTensorVector()) changed.push_back(change(t));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> changed;
    for (const auto& t : value.toOptionalTensorList().vec()) {
      changed.push_back(t.has_value() ? std::optional<Tensor>(change(*t)) : std::nullopt);
    }
    return changed;
  }
  return value;
}

// ---- what an accelerator cannot do without the host

// The result, or its shape, is known only when the device has computed it.
const std::unordered_set<std::string> kNeedTheirData = {
    "aten::nonzero",           "aten::masked_select",           "aten::equal",
    "aten::_unique",            "aten::_unique2",               "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount",
};
const std::unordered_set<std::string> kIndexing = {
    "aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_",
    "aten::_unsafe_index", "aten::_unsafe_index_put",
};

bool fills_where(const torch::jit::Stack& inputs) {
  return inputs.size() >= 3 && inputs[2].isTensor() && inputs[2].toTensor().numel() == 1;
}

std::string why_host_waits(const std::string& name, const c10::FunctionSchema& schema,
                           const torch::jit::Stack& inputs) {
  if (kNeedTheirData.count(name)) return name;
  if (name == "aten::repeat_interleave" && schema.overload_name() == "Tensor" &&
      inputs[1].isNone()) {
    return name + " without output_size";
  }
  if (!kIndexing.count(name)) return "";
  for (const auto& index : inputs[1].toOptionalTensorList().vec()) {
    if (!index.has_value() || !index->defined()) continue;
    if (index->device().is_cpu() && index->dim() > 0) return name + " by a tensor of the host";
    const bool is_mask =
        index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
    if (is_mask && !fills_where(inputs)) return name + " by a mask";
  }
  return "";
}

// ---- the devices of the arguments

struct Devices {
  std::optional<Device> npu;
  bool host = false;  // a tensor of the host that is more than a scalar

  void see(const Tensor& t, const std::string& name) {
    if (!t.defined()) return;
    if (t.device().type() != kNpu) {
      host |= t.device().is_cpu() && t.dim() > 0;
      return;
    }
    TORCH_CHECK(!npu.has_value() || *npu == t.device(), name,
                ": expected all tensors to be on the same device, but found ", t.device(),
                " and ", *npu);
    npu = t.device();
  }
};

Device device_of(const std::string& name, const torch::jit::Stack& inputs) {
  Devices seen;
  std::optional<Device> asked;
  for (const IValue& value : inputs) {
    if (value.isDevice() && value.toDevice().type() == kNpu) asked = value.toDevice();
    change_tensors(value, [&](const Tensor& t) {
      seen.see(t, name);
      return t;
    });
  }
  TORCH_CHECK(!seen.host || !seen.npu.has_value() || kIndexing.count(name), name,
              ": expected all tensors to be on the same device, but found ",
              seen.npu.value_or(Device(kNpu)), " and cpu");
  if (seen.npu.has_value()) return *seen.npu;
  if (asked.has_value() && asked->has_index()) return *asked;
  return {kNpu, current_device()};
}

torch::jit::Stack cpu_arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& given,
                                Device device, Aliases& aliases) {
  torch::jit::Stack cpu;
  for (size_t i = 0; i < given.size(); ++i) {
    const IValue& value = given[i];
    if (value.isDevice() && value.toDevice().type() == kNpu) {
      cpu.emplace_back(Device(at::kCPU));
    } else if (value.isGenerator()) {
      const at::Generator generator = value.toGenerator();
      cpu.emplace_back(generator.device().type() == kNpu ? cpu_generator_behind(generator)
                                                         : generator);
    } else if (value.isNone() && schema.arguments()[i].name() == "generator") {
      cpu.emplace_back(cpu_generator_behind(default_generator(device.index())));
    } else {
      cpu.push_back(change_tensors(value, [&](const Tensor& t) { return aliases.to_cpu(t); }));
    }
  }
  return cpu;
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const torch::jit::Stack given = torch::jit::pop(*stack, schema.arguments().size());
  count(op);
  const Device device = device_of(schema.name(), given);
  const std::string waits = why_host_waits(schema.name(), schema, given);
  if (!waits.empty()) host_waits(waits);

  Aliases aliases;
  const torch::jit::Stack inputs = cpu_arguments(schema, given, device, aliases);
  torch::jit::Stack outputs = inputs;
  {
    at::AutoDispatchBelowAutograd no_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &outputs);
  }
  if (capturing()) record(op, frozen(inputs, given), outputs);
  aliases.adopt_resized(device);
  for (const IValue& output : outputs) {
    stack->push_back(
        change_tensors(output, [&](const Tensor& t) { return aliases.to_npu(t, device); }));
  }
}

int64_t num_operations() { return g_num_calls; }

void count_operations(bool on) {
  std::lock_guard<std::mutex> lock(g_counts_mutex);
  g_counts.clear();
  g_counting = on;
}

c10::Dict<std::string, int64_t> operation_counts() {
  std::lock_guard<std::mutex> lock(g_counts_mutex);
  c10::Dict<std::string, int64_t> counts;
  for (const auto& [name, calls] : g_counts) counts.insert(name, calls);
  return counts;
}

int64_t serve_operations(const std::string& library) {
  static std::vector<std::unique_ptr<torch::Library>> libraries;
  libraries.push_back(std::make_unique<torch::Library>(
      torch::Library::IMPL, library, std::make_optional(c10::DispatchKey::PrivateUse1), __FILE__,
      __LINE__));
  int64_t served = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != std::optional<std::string_view>(library)) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    libraries.back()->impl(c10::toString(name).c_str(),
                           torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    ++served;
  }
  return served;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace fake_npu
