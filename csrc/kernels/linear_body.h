// Products of weight blocks with rows, for one version. Included after rows_body.h and the version's
// lanes: structs Single and, with kHasHalf, Half, each with
//   Element, kTileRows,
//   decode_fp8(codes, scales, chunks, out), decode_fp4(packed, scales, chunks, out),
//   decode_bf16(values, columns, out)                one row to prepared elements, padded with zeros
//   tile<T>(rows, weights, chunks, out)              T rows by 4 outputs, out[row * 32 + output]
//   narrow(weight, rows, out, scratch)               few rows, decoded in registers; false: not done

constexpr int kQuad = 4;                      // outputs of a tile
constexpr std::size_t kDecodedBytes = 393216;  // of a second-level cache of 1 MiB

template <class Kind>
struct Tiles {
  using Element = typename Kind::Element;
  using Function = void (*)(const Element* const*, const Element* const*, std::int64_t, float*);

  template <int T>
  static void run(const Element* const* rows, const Element* const* weights, std::int64_t chunks,
                  float* out) {
    Kind::template tile<T>(rows, weights, chunks, out);
  }

  static Function of(int num_rows) {
    static constexpr Function table[] = {&run<1>, &run<2>, &run<3>, &run<4>, &run<5>, &run<6>};
    return table[num_rows - 1];
  }
};

template <class Kind>
void decode_row(const WeightBlock& weight, int output, typename Kind::Element* out) {
  const std::uint8_t* data = weight.data + output * weight.row_bytes;
  const std::int64_t chunks = num_chunks(weight.columns);
  if (weight.format == WeightFormat::fp8_blocks) {
    Kind::decode_fp8(data, weight.scales, chunks, out);
  } else if (weight.format == WeightFormat::fp4_rows) {
    Kind::decode_fp4(data, weight.scales + output * weight.scale_row_bytes, chunks, out);
  } else {
    Kind::decode_bf16(reinterpret_cast<const std::uint16_t*>(data), weight.columns, out);
  }
}

// All rows against four outputs at a time; outputs past the last repeat it and are ignored.
template <class Kind>
void multiply(const typename Kind::Element* const* weights, int num_outputs, std::int64_t chunks,
              const Rows& rows, float* out) {
  using Element = typename Kind::Element;
  const auto* all = reinterpret_cast<const Element* const*>(rows.rows);
  for (std::int64_t row = 0; row < rows.count; row += Kind::kTileRows) {
    const std::int64_t left = rows.count - row;
    const auto tile =
        Tiles<Kind>::of(static_cast<int>(left < Kind::kTileRows ? left : Kind::kTileRows));
    for (int output = 0; output < num_outputs; output += kQuad) {
      const Element* four[kQuad];
      for (int i = 0; i < kQuad; ++i) {
        four[i] = weights[output + i < num_outputs ? output + i : num_outputs - 1];
      }
      tile(all + row, four, chunks, out + row * kBlockRows + output);
    }
  }
}

template <class Kind>
void block_product_of(const WeightBlock& weight, const Rows& rows, float* out, void* scratch) {
  using Element = typename Kind::Element;
  if (Kind::narrow(weight, rows, out, scratch)) return;
  const std::int64_t chunks = num_chunks(weight.columns);
  const Element* outputs[kBlockRows];
  if (Kind::kReadsBf16 && weight.format == WeightFormat::bf16 && weight.columns % kChunk == 0) {
    for (int i = 0; i < weight.num_outputs; ++i) {
      outputs[i] = reinterpret_cast<const Element*>(weight.data + i * weight.row_bytes);
    }
    multiply<Kind>(outputs, weight.num_outputs, chunks, rows, out);
    return;
  }
  const std::size_t row_bytes = static_cast<std::size_t>(chunks) * kChunk * sizeof(Element);
  int at_once = kBlockRows;
  while (at_once > kQuad && at_once * row_bytes > kDecodedBytes) at_once /= 2;
  for (int first = 0; first < weight.num_outputs; first += at_once) {
    const int left = weight.num_outputs - first, count = left < at_once ? left : at_once;
    for (int i = 0; i < count; ++i) {
      Element* decoded = static_cast<Element*>(scratch) + i * chunks * kChunk;
      decode_row<Kind>(weight, first + i, decoded);
      outputs[i] = decoded;
    }
    multiply<Kind>(outputs, count, chunks, rows, out + first);
  }
}

inline void block_product(const WeightBlock& weight, const Rows& rows, float* out, void* scratch) {
  if constexpr (kHasHalf) {
    if (rows.kind == RowKind::half) {
      block_product_of<Half>(weight, rows, out, scratch);
      return;
    }
  }
  block_product_of<Single>(weight, rows, out, scratch);
}

inline bool prepare_codes(const std::uint8_t* codes, const std::uint8_t* scales,
                          std::int64_t columns, RowKind kind, void* row) {
  if constexpr (kHasHalf) {
    if (kind == RowKind::half) {
      Half::decode_fp8(codes, scales, columns / kChunk, static_cast<Half::Element*>(row));
      bool moderate = true;  // codes reach from 2^-9 to 2^9
      for (std::int64_t i = 0; i < columns / kChunk; ++i) {
        moderate &= scales[i] >= kScaleBias - 50 && scales[i] <= kScaleBias + 50;
      }
      return moderate;
    }
  }
  Single::decode_fp8(codes, scales, columns / kChunk, static_cast<float*>(row));
  return false;
}

inline bool prepare_plain(const void* x, bool is_bf16, std::int64_t columns, RowKind kind,
                          void* row) {
  if (kind == RowKind::half) {
    const auto* source = static_cast<const std::uint16_t*>(x);
    auto* target = static_cast<std::uint16_t*>(row);
    bool moderate = true;
    for (std::int64_t i = 0; i < columns; ++i) {
      const int exponent = (source[i] >> 7) & 0xFF;
      moderate &= (source[i] & 0x7FFF) == 0 || (exponent >= 67 && exponent <= 187);
      target[i] = source[i];
    }
    for (std::int64_t i = columns; i < num_chunks(columns) * kChunk; ++i) target[i] = 0;
    return moderate;
  }
  for (std::int64_t first = 0; first < columns; first += kChunk) {
    float values[kChunk] = {};
    const std::int64_t left = columns - first;
    widen(x, is_bf16, first, static_cast<int>(left < kChunk ? left : kChunk), values);
    split_chunk(values, static_cast<float*>(row) + first);
  }
  return false;
}

inline bool gated_chunk(const float* gate, const float* up, float limit, float weight, bool narrow,
                        bool quantised, RowKind kind, void* chunk) {
  float values[kChunk];
  gated_values(gate, up, limit, weight, narrow, values);
  if (quantised) {
    std::uint8_t codes[kChunk];
    const std::uint8_t scale = quantise_chunk(values, codes);
    return prepare_codes(codes, &scale, kChunk, kind, chunk);
  }
  std::uint16_t halves[kChunk];
  if (kind == RowKind::half) {
    for (int i = 0; i < kChunk; ++i) halves[i] = to_bf16(values[i]);
    return prepare_plain(halves, true, kChunk, kind, chunk);
  }
  return prepare_plain(values, false, kChunk, kind, chunk);
}

constexpr LinearVersion kVersion = {kHasHalf, &quantise_row,  &prepare_codes, &prepare_plain,
                                    nullptr,  &block_product, &gated_chunk,   &store_row};
