#pragma once
#include "torch_headers.h"

namespace fake_npu {

int64_t new_graph();
void free_graph(int64_t graph);
void begin_capture(int64_t graph);
void end_capture();
void replay(int64_t graph);
void reset_graph(int64_t graph);
int64_t num_nodes(int64_t graph);
// A call into Python, such as a collective, that replays repeat: fake_npu::host_call(call).
void record_host_call(int64_t call);
// `inputs` with CPU scalars copied, as a launch takes them, so that later changes do not show.
torch::jit::Stack frozen(const torch::jit::Stack& inputs, const torch::jit::Stack& as_given);

}  // namespace fake_npu
