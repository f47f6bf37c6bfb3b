// The routed experts: FP4 weights, two products with the clamped SwiGLU between them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "packed_rows.h"
#include "parts.h"
#include "prepared_rows.h"

namespace deepinfer {
namespace {

constexpr std::int64_t kRowsAtOnce = 384;
static_assert(kRowsAtOnce % kPackedRows == 0);

struct Stack {
  const std::uint8_t* data;
  const std::uint8_t* scales;
  std::int64_t outputs, columns;

  WeightBlock block(std::int64_t expert, std::int64_t number) const {
    const std::int64_t first = number * kBlockRows, row = expert * outputs + first;
    return {WeightFormat::fp4_rows,
            static_cast<int>(std::min<std::int64_t>(kBlockRows, outputs - first)),
            columns,
            data + row * (columns / 2),
            columns / 2,
            scales + row * (columns / kChunk),
            columns / kChunk};
  }

  std::int64_t num_blocks() const { return (outputs + kBlockRows - 1) / kBlockRows; }
};

// Slots (token * per_token + choice) of one held expert: slots[first, last).
struct Assigned {
  std::int64_t expert, first, last;
};

struct Assignment {
  std::vector<std::int64_t> slots, elsewhere;
  std::vector<Assigned> experts;

  Assignment(const std::int64_t* chosen, std::int64_t num_slots, std::int64_t first_expert,
             std::int64_t num_held) {
    std::vector<std::int64_t> starts(static_cast<std::size_t>(num_held) + 1);
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
      const std::int64_t expert = chosen[slot] - first_expert;
      if (expert < 0 || expert >= num_held) {
        elsewhere.push_back(slot);
      } else {
        ++starts[static_cast<std::size_t>(expert) + 1];
      }
    }
    for (std::size_t i = 1; i < starts.size(); ++i) {
      starts[i] += starts[i - 1];
      if (starts[i] > starts[i - 1]) {
        experts.push_back({static_cast<std::int64_t>(i) - 1, starts[i - 1], starts[i]});
      }
    }
    slots.resize(static_cast<std::size_t>(starts.back()));
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
      const std::int64_t expert = chosen[slot] - first_expert;
      if (expert >= 0 && expert < num_held) {
        slots[static_cast<std::size_t>(starts[static_cast<std::size_t>(expert)]++)] = slot;
      }
    }
  }
};

struct Part {
  Assigned assigned;
  std::int64_t block;
};

// Each thread's share holds a stretch of neighbouring blocks of every expert: experts have unequal
// numbers of rows, and weights that follow each other in memory are read faster.
std::vector<Part> parts_in_order(const std::vector<Assigned>& experts, std::int64_t num_blocks,
                                 int num_threads) {
  std::vector<Part> parts;
  parts.reserve(experts.size() * static_cast<std::size_t>(num_blocks));
  for (int thread = 0; thread < num_threads; ++thread) {
    const std::int64_t end = num_blocks * (thread + 1) / num_threads;
    for (const Assigned& assigned : experts) {
      for (std::int64_t block = num_blocks * thread / num_threads; block < end; ++block) {
        parts.push_back({assigned, block});
      }
    }
  }
  return parts;
}

struct Experts {
  const LinearVersion& version;
  RowKind kind;
  bool quantised, out_is_bf16;
  std::int64_t per_token;
  const float* weights;
  float limit;
  Stack w1, w3, w2;
  const Assignment& assignment;
  char* inner;  // prepared rows, in the order of assignment.slots
  char* out;

  std::size_t inner_bytes() const { return prepared_row_bytes(kind, w2.columns); }

  const void* outer_row(const PreparedRows& prepared, std::int64_t position) const {
    return prepared.at(slot(position) / per_token);
  }

  const void* inner_row(std::int64_t position) const {
    return inner + static_cast<std::size_t>(position) * inner_bytes();
  }

  void compute_inner(const PreparedRows& prepared, const PackedRows& packed,
                     const Part& part) const {
    static thread_local Workspace decoded, products;
    const Assigned& assigned = part.assigned;
    const std::int64_t number = part.block;
    void* scratch = decoded.get<char>(decode_bytes(w1.columns));
    float* gate = products.get<float>(2 * kRowsAtOnce * kBlockRows);
    float* up = gate + kRowsAtOnce * kBlockRows;
    const void* pointers[kRowsAtOnce];
    for (std::int64_t first = assigned.first; first < assigned.last; first += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, assigned.last - first);
      for (std::int64_t i = 0; i < count; ++i) {
        pointers[i] = outer_row(prepared, first + i);
      }
      const Rows rows{kind, false, count, pointers, packed.from(first)};
      version.block_product(w1.block(assigned.expert, number), rows, gate, scratch);
      version.block_product(w3.block(assigned.expert, number), rows, up, scratch);
      const std::size_t chunk = prepared_row_bytes(kind, kChunk);
      for (std::int64_t i = 0; i < count; ++i) {
        version.gated_chunk(gate + i * kBlockRows, up + i * kBlockRows, limit,
                            weights[slot(first + i)], out_is_bf16, quantised, kind,
                            inner + static_cast<std::size_t>(first + i) * inner_bytes() +
                                static_cast<std::size_t>(number) * chunk);
      }
    }
  }

  void compute_outer(const PackedRows& packed, const Part& part) const {
    static thread_local Workspace decoded, products;
    const Assigned& assigned = part.assigned;
    const WeightBlock weight = w2.block(assigned.expert, part.block);
    void* scratch = decoded.get<char>(decode_bytes(w2.columns));
    float* values = products.get<float>(kRowsAtOnce * kBlockRows);
    const void* pointers[kRowsAtOnce];
    const std::int64_t item = out_is_bf16 ? 2 : 4;
    for (std::int64_t first = assigned.first; first < assigned.last; first += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, assigned.last - first);
      for (std::int64_t i = 0; i < count; ++i) pointers[i] = inner_row(first + i);
      const Rows rows{kind, false, count, pointers, packed.from(first)};
      version.block_product(weight, rows, values, scratch);
      for (std::int64_t i = 0; i < count; ++i) {
        version.store_row(
            values + i * kBlockRows, weight.num_outputs, out_is_bf16,
            out + (slot(first + i) * w2.outputs + part.block * kBlockRows) * item);
      }
    }
  }

  std::int64_t slot(std::int64_t position) const {
    return assignment.slots[static_cast<std::size_t>(position)];
  }
};

void experts(std::uintptr_t x, int source, std::uintptr_t x_scales, std::int64_t tokens,
             std::int64_t hidden, std::int64_t inter, std::uintptr_t chosen,
             std::uintptr_t weights, std::int64_t per_token, std::uintptr_t w1,
             std::uintptr_t w1_scales, std::uintptr_t w3, std::uintptr_t w3_scales,
             std::uintptr_t w2, std::uintptr_t w2_scales, std::int64_t num_held,
             std::int64_t first_expert, float limit, std::uintptr_t out, bool out_is_bf16,
             int num_threads) {
  static thread_local Workspace row_memory, inner_memory, packed_memory;
  const LinearVersion& version = current_linear();
  const Assignment assignment(at<const std::int64_t>(chosen), tokens * per_token, first_expert,
                              num_held);
  const std::int64_t out_bytes = hidden * (out_is_bf16 ? 2 : 4);
  for (std::int64_t slot : assignment.elsewhere) {
    std::memset(at<char>(out) + slot * out_bytes, 0, static_cast<std::size_t>(out_bytes));
  }
  if (assignment.slots.empty()) return;
  const RowInput input{static_cast<RowSource>(source), at<const void>(x),
                       at<const std::uint8_t>(x_scales), tokens, hidden};
  // Unquantised inner values keep float32 only if they are stored so.
  const bool wide = input.source == RowSource::bf16 && !out_is_bf16;
  const RowKind kind = wide ? RowKind::single : row_kind(version, input.source);
  const PreparedRows prepared(version, input, kind, row_memory, num_threads);
  const auto stack = [](std::uintptr_t data, std::uintptr_t scales, std::int64_t outputs,
                        std::int64_t columns) {
    return Stack{at<const std::uint8_t>(data), at<const std::uint8_t>(scales), outputs, columns};
  };
  const std::size_t inner_bytes = prepared_row_bytes(kind, inter) * assignment.slots.size();
  const Experts layer{version,
                      kind,
                      input.source == RowSource::codes,
                      out_is_bf16,
                      per_token,
                      at<const float>(weights),
                      limit,
                      stack(w1, w1_scales, inter, hidden),
                      stack(w3, w3_scales, inter, hidden),
                      stack(w2, w2_scales, hidden, inter),
                      assignment,
                      inner_memory.get<char>(inner_bytes),
                      at<char>(out)};
  const std::int64_t work =
      work_of_products(3 * hidden * inter, static_cast<std::int64_t>(assignment.slots.size()),
                       static_cast<std::int64_t>(assignment.experts.size()));
  num_threads = std::max(1, threads_for(work, num_threads));
  const auto run = [&](std::int64_t num_blocks, auto&& compute) {
    const std::vector<Part> parts = parts_in_order(assignment.experts, num_blocks, num_threads);
    run_parts(num_threads, static_cast<std::int64_t>(parts.size()),
              [&](std::int64_t part) { compute(parts[static_cast<std::size_t>(part)]); });
  };
  std::vector<RowRange> ranges;
  for (const Assigned& assigned : assignment.experts) {
    ranges.push_back({assigned.first, assigned.last - assigned.first});
  }
  const PackedRows packed(
      version, kind, hidden, ranges, [&](std::int64_t i) { return layer.outer_row(prepared, i); },
      packed_memory, num_threads);
  run(layer.w1.num_blocks(),
      [&](const Part& part) { layer.compute_inner(prepared, packed, part); });
  const PackedRows packed_inner(
      version, kind, inter, ranges, [&](std::int64_t i) { return layer.inner_row(i); },
      packed_memory, num_threads);
  run(layer.w2.num_blocks(), [&](const Part& part) { layer.compute_outer(packed_inner, part); });
}

}  // namespace

bool bind_experts(PyObject* module) {
  return python::add<&experts>(module, "experts");
}

}  // namespace deepinfer
