// Quantisation of rows, and linear layers over FP8 blocks or plain bfloat16 weights.
#include <algorithm>
#include <vector>

#include "packed_rows.h"
#include "parts.h"
#include "prepared_rows.h"

namespace deepinfer {
namespace {

constexpr std::int64_t kRowsAtOnce = 384;  // rows a block is decoded for
static_assert(kRowsAtOnce % kPackedRows == 0);

void quantise_fp8(std::uintptr_t x, bool is_bf16, std::int64_t rows, std::int64_t columns,
                  std::uintptr_t codes, std::uintptr_t scales, int num_threads) {
  const LinearVersion& version = current_linear();
  const std::int64_t row_bytes = columns * (is_bf16 ? 2 : 4);
  run_parts(threads_for(4 * rows * columns, num_threads), rows, [&](std::int64_t row) {
    version.quantise_row(at<const char>(x) + row * row_bytes, is_bf16, columns,
                         at<std::uint8_t>(codes) + row * columns,
                         at<std::uint8_t>(scales) + row * (columns / kChunk));
  });
}

// x [rows, groups * columns], weight [groups * outputs_per_group, columns], out [rows, outputs].
struct Linear {
  const LinearVersion& version;
  RowKind kind;
  std::int64_t rows, groups, columns, outputs_per_group;
  WeightFormat format;
  const std::uint8_t* weight;
  const std::uint8_t* scales;
  char* out;
  bool out_is_bf16;

  std::int64_t blocks_per_group() const {
    return (outputs_per_group + kBlockRows - 1) / kBlockRows;
  }

  WeightBlock block(std::int64_t group, std::int64_t number) const {
    const std::int64_t first = number * kBlockRows, output = group * outputs_per_group + first;
    const std::int64_t row_bytes = columns * (format == WeightFormat::bf16 ? 2 : 1);
    return {format,
            static_cast<int>(std::min<std::int64_t>(kBlockRows, outputs_per_group - first)),
            columns,
            weight + output * row_bytes,
            row_bytes,
            scales + output / kBlockRows * num_chunks(columns),
            0};
  }

  void compute_part(const PreparedRows& prepared, const PackedRows& packed,
                    std::int64_t part) const {
    static thread_local Workspace decoded, products;
    const std::int64_t group = part / blocks_per_group(), number = part % blocks_per_group();
    const WeightBlock weights = block(group, number);
    void* scratch = decoded.get<char>(decode_bytes(columns));
    float* values = products.get<float>(std::min(rows, kRowsAtOnce) * kBlockRows);
    const void* pointers[kRowsAtOnce];
    const std::int64_t first_output = group * outputs_per_group + number * kBlockRows;
    const std::int64_t item = out_is_bf16 ? 2 : 4, outputs = groups * outputs_per_group;
    for (std::int64_t first = 0; first < rows; first += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, rows - first);
      bool moderate = true;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = (first + i) * groups + group;
        pointers[i] = prepared.at(row);
        moderate = moderate && prepared.is_moderate(row);
      }
      const Rows all{kind, moderate, count, pointers, packed.from(group * rows + first)};
      version.block_product(weights, all, values, scratch);
      for (std::int64_t i = 0; i < count; ++i) {
        version.store_row(values + i * kBlockRows, weights.num_outputs, out_is_bf16,
                          out + ((first + i) * outputs + first_output) * item);
      }
    }
  }
};

void linear(std::uintptr_t x, int source, std::uintptr_t x_scales, std::int64_t rows,
            std::int64_t groups, std::int64_t columns, std::uintptr_t weight, bool is_fp8,
            std::uintptr_t weight_scales, std::int64_t outputs, std::uintptr_t out,
            bool out_is_bf16, int num_threads) {
  static thread_local Workspace memory, packed_memory;
  const LinearVersion& version = current_linear();
  const RowInput input{static_cast<RowSource>(source), at<const void>(x),
                       at<const std::uint8_t>(x_scales), rows * groups, columns};
  const RowKind kind = row_kind(version, input.source);
  const PreparedRows prepared(version, input, kind, memory, num_threads);
  std::vector<RowRange> ranges;
  for (std::int64_t group = 0; group < groups; ++group) ranges.push_back({group * rows, rows});
  const auto row_of = [&](std::int64_t i) { return prepared.at(i % rows * groups + i / rows); };
  const PackedRows packed(version, kind, columns, ranges, row_of, packed_memory, num_threads);
  const Linear layer{version,
                     kind,
                     rows,
                     groups,
                     columns,
                     outputs / groups,
                     is_fp8 ? WeightFormat::fp8_blocks : WeightFormat::bf16,
                     at<const std::uint8_t>(weight),
                     at<const std::uint8_t>(weight_scales),
                     at<char>(out),
                     out_is_bf16};
  run_parts(threads_for(work_of_products(outputs * columns, rows, 1), num_threads),
            groups * layer.blocks_per_group(),
            [&](std::int64_t part) { layer.compute_part(prepared, packed, part); });
}

}  // namespace

bool bind_linear(PyObject* module) {
  return python::add<&quantise_fp8>(module, "quantise_fp8") &&
         python::add<&linear>(module, "linear");
}

}  // namespace deepinfer
