// Graphs: the operations of a capture, with their host arguments as they were and their tensors at
// the addresses they had. A replay runs them again and writes to the same addresses.
//
// Operations also compute while they are captured, since their results have to have shapes. As on
// hardware, nobody can use those results: they are poisoned when the capture ends.
#include "device.h"
#include "graph.h"

namespace fake_npu {
namespace {

struct Node {
  c10::OperatorHandle op;
  torch::jit::Stack inputs, outputs;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Tensor> made;
};

std::mutex g_mutex;
std::map<int64_t, std::shared_ptr<Graph>> g_graphs;
int64_t g_last_graph = 0;
thread_local std::shared_ptr<Graph> t_captured;

std::shared_ptr<Graph> find(int64_t graph) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_graphs.find(graph);
  TORCH_CHECK(found != g_graphs.end(), "fake npu: no graph ", graph);
  return found->second;
}

bool is_host_scalar(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0;
}

void write_to(const Tensor& recorded, const Tensor& computed, const Node& node) {
  if (!recorded.defined() || recorded.data_ptr() == computed.data_ptr()) return;
  TORCH_CHECK(recorded.sizes() == computed.sizes(), "fake npu: ", node.op.operator_name(),
              " gave ", computed.sizes(), " when replayed, ", recorded.sizes(),
              " when captured: the shape depends on data");
  recorded.copy_(computed);
}

void run(const Node& node) {
  torch::jit::Stack stack = node.inputs;
  node.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].isTensor()) {
      write_to(node.outputs[i].toTensor(), stack[i].toTensor(), node);
    } else if (node.outputs[i].isTensorList()) {
      const auto recorded = node.outputs[i].toTensorVector();
      const auto computed = stack[i].toTensorVector();
      for (size_t k = 0; k < recorded.size(); ++k) write_to(recorded[k], computed[k], node);
    }
  }
}

template <class See>
void each_tensor(const torch::jit::Stack& values, const See& see) {
  for (const IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) see(value.toTensor());
    if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorVector()) see(t);
    }
    if (value.isOptionalTensorList()) {
      for (const auto& t : value.toOptionalTensorList().vec()) {
        if (t.has_value() && t->defined()) see(*t);
      }
    }
  }
}

// What the capture made, and not what it found and changed.
void poison_results(const Graph& graph) {
  std::unordered_set<const void*> found;
  std::unordered_map<const void*, Tensor> made;
  for (const Tensor& t : graph.made) made.emplace(t.storage().data(), t);
  for (const Node& node : graph.nodes) {
    each_tensor(node.inputs, [&](const Tensor& t) {
      if (!made.count(t.storage().data())) found.insert(t.storage().data());
    });
    each_tensor(node.outputs, [&](const Tensor& t) {
      if (!found.count(t.storage().data())) made.emplace(t.storage().data(), t);
    });
  }
  for (const auto& [data, t] : made) {
    poison(const_cast<void*>(data), t.storage().nbytes(), t.scalar_type());
  }
}

}  // namespace

bool capturing() { return t_captured != nullptr; }

void record(const c10::OperatorHandle& op, const torch::jit::Stack& inputs,
            const torch::jit::Stack& outputs) {
  t_captured->nodes.push_back({op, inputs, outputs});
}

void keep_in_graph(const Tensor& made) { t_captured->made.push_back(made); }

torch::jit::Stack frozen(const torch::jit::Stack& inputs, const torch::jit::Stack& as_given) {
  torch::jit::Stack kept = inputs;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (is_host_scalar(kept[i]) && as_given[i].toTensor().device().is_cpu()) {
      kept[i] = kept[i].toTensor().clone();
    }
  }
  return kept;
}

int64_t new_graph() {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_graphs[++g_last_graph] = std::make_shared<Graph>();
  return g_last_graph;
}

void free_graph(int64_t graph) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_graphs.erase(graph);
}

void begin_capture(int64_t graph) {
  refuse_in_capture("beginning another capture");
  std::shared_ptr<Graph> captured = find(graph);
  TORCH_CHECK(captured->nodes.empty(), "fake npu: this graph has been captured; reset it first");
  t_captured = captured;
}

void end_capture() {
  TORCH_CHECK(capturing(), "fake npu: no graph is being captured");
  poison_results(*t_captured);
  t_captured = nullptr;
}

void replay(int64_t graph) {
  refuse_in_capture("replaying a graph");
  c10::InferenceMode no_gradients;
  for (const Node& node : find(graph)->nodes) run(node);
}

void reset_graph(int64_t graph) { *find(graph) = {}; }
int64_t num_nodes(int64_t graph) { return static_cast<int64_t>(find(graph)->nodes.size()); }

void record_host_call(int64_t call) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fake_npu::host_call", "");
  TORCH_CHECK(capturing(), "fake npu: no graph is being captured");
  record(op, {IValue(call)}, {});
}

}  // namespace fake_npu
