// Products of bfloat16 rows by a tile unit; everything else is the AVX-512 version's. Included
// after rows_body.h, lanes_avx512.h and a TileUnit: the machine's or the emulated one.
//
// Left tiles hold sixteen outputs of a weight, as they lie in memory, right ones sixteen rows,
// which pack_rows has turned: by pairs of columns, each with its rows side by side. A row's sums
// are a column of its own, so they depend neither on other rows nor on how many there are.

constexpr int kGroupRows = kTileRowsMost;
constexpr std::int64_t kStripChunks = 16;  // decoded, 32 outputs fill 32 KiB: two thirds of a cache

// -- rows -----------------------------------------------------------------------------------------

// Sixteen vectors of sixteen words.
inline void transpose(__m512i (&x)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xEE);
    const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xEE);
    x[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[i + 4] = _mm512_shuffle_i32x4(a, c, 0xDD);
    x[i + 8] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
}

inline void pack_rows(const void* const* rows, int count, std::int64_t first_chunk,
                      std::int64_t last_chunk, void* packed) {
  constexpr std::int64_t kChunkBytes = kChunk * sizeof(std::uint16_t);
  char* out = static_cast<char*>(packed) + first_chunk * kChunkBytes * count;
  if (count == 1) {  // nothing to turn
    std::memcpy(out, static_cast<const char*>(rows[0]) + first_chunk * kChunkBytes,
                static_cast<std::size_t>((last_chunk - first_chunk) * kChunkBytes));
    return;
  }
  const auto valid = static_cast<__mmask16>((1u << count) - 1u);
  for (std::int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    __m512i pairs[kGroupRows];
    for (int row = 0; row < kGroupRows; ++row) {
      pairs[row] = row < count ? _mm512_loadu_si512(static_cast<const char*>(rows[row]) +
                                                    chunk * kChunkBytes)
                               : _mm512_setzero_si512();
    }
    transpose(pairs);
    for (const __m512i& pair : pairs) {
      _mm512_mask_storeu_epi32(out, valid, pair);
      out += 4 * count;
    }
  }
}

// -- tiles ----------------------------------------------------------------------------------------

// What one tile is loaded from, chunk after chunk.
struct Panel {
  const char* data;
  std::int64_t row_stride, chunk_stride;  // bytes

  const char* at(std::int64_t chunk) const { return data + chunk * chunk_stride; }
};

// Sums of 16 outputs and 16 rows are in tiles 0..3, by output, then row; left tiles are 4 and 5,
// right ones 6 and 7.
template <int kOutputTiles, int kRowTiles>
void add_chunks(const Panel* outputs, const Panel* rows, std::int64_t row_chunk,
                std::int64_t chunks) {
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    TileUnit::load<4>(outputs[0].at(chunk), outputs[0].row_stride);
    TileUnit::load<6>(rows[0].at(row_chunk + chunk), rows[0].row_stride);
    TileUnit::add_products<0, 4, 6>();
    if constexpr (kRowTiles == 2) {
      TileUnit::load<7>(rows[1].at(row_chunk + chunk), rows[1].row_stride);
      TileUnit::add_products<1, 4, 7>();
    }
    if constexpr (kOutputTiles == 2) {
      TileUnit::load<5>(outputs[1].at(chunk), outputs[1].row_stride);
      TileUnit::add_products<2, 5, 6>();
      if constexpr (kRowTiles == 2) TileUnit::add_products<3, 5, 7>();
    }
  }
}

// A tile [outputs, rows] to out[row * 32 + output].
template <int kTile>
void store_tile(int num_rows, float* out) {
  alignas(64) float sums[kGroupRows * kGroupRows] = {};
  TileUnit::store<kTile>(sums, kTileBytesMost);
  __m512i by_row[kGroupRows];
  for (int i = 0; i < kGroupRows; ++i) by_row[i] = _mm512_load_si512(sums + i * kGroupRows);
  transpose(by_row);
  for (int row = 0; row < num_rows; ++row) {
    _mm512_storeu_si512(out + row * kBlockRows, by_row[row]);
  }
}

// -- weights --------------------------------------------------------------------------------------

// A weight block as bfloat16: where it lies, or decoded, strip by strip of columns.
class BlockStrips {
 public:
  // With `kept`, every strip has a place of its own in scratch.
  BlockStrips(const WeightBlock& weight, bool kept, void* scratch)
      : weight_(weight),
        chunks_(num_chunks(weight.columns)),
        in_place_(weight.format == WeightFormat::bf16 && weight.columns % kChunk == 0),
        kept_(kept),
        scratch_(static_cast<std::uint16_t*>(scratch)) {}

  std::int64_t strip_chunks() const { return in_place_ ? chunks_ : kStripChunks; }

  std::int64_t chunks_from(std::int64_t first) const {
    return chunks_ - first < strip_chunks() ? chunks_ - first : strip_chunks();
  }

  void decode(std::int64_t first) const {
    if (in_place_) return;
    const std::int64_t chunks = chunks_from(first), column = first * kChunk;
    for (int i = 0; i < weight_.num_outputs; ++i) {
      const std::uint8_t* data = weight_.data + i * weight_.row_bytes;
      std::uint16_t* out = strip(first) + i * chunks * kChunk;
      if (weight_.format == WeightFormat::fp8_blocks) {
        HalfDecoder::decode_fp8(data + column, weight_.scales + first, chunks, out);
      } else if (weight_.format == WeightFormat::fp4_rows) {
        HalfDecoder::decode_fp4(data + column / 2,
                                weight_.scales + i * weight_.scale_row_bytes + first, chunks, out);
      } else {
        const std::int64_t left = weight_.columns - column;
        HalfDecoder::decode_bf16(reinterpret_cast<const std::uint16_t*>(data) + column,
                                 left < chunks * kChunk ? left : chunks * kChunk, out);
      }
    }
  }

  // Outputs from `output` on in the strip that begins at chunk `first`.
  Panel panel(std::int64_t first, int output) const {
    constexpr std::int64_t kChunkBytes = kChunk * sizeof(std::uint16_t);
    const std::int64_t stride = in_place_ ? weight_.row_bytes : chunks_from(first) * kChunkBytes;
    const char* data = in_place_ ? reinterpret_cast<const char*>(weight_.data)
                                 : reinterpret_cast<const char*>(strip(first));
    return {data + output * stride, stride, kChunkBytes};
  }

 private:
  std::uint16_t* strip(std::int64_t first) const {
    return scratch_ + (kept_ ? first * kChunk * kBlockRows : 0);
  }

  const WeightBlock& weight_;
  std::int64_t chunks_;
  bool in_place_, kept_;
  std::uint16_t* scratch_;
};

// -- products -------------------------------------------------------------------------------------

// One or two groups of rows.
struct RowPair {
  int num_rows[2];
  Panel panels[2];

  RowPair(const Rows& rows, std::int64_t first, std::int64_t chunks) {
    const auto row_bytes =
        static_cast<std::int64_t>(prepared_row_bytes(rows.kind, chunks * kChunk));
    for (int i = 0; i < 2; ++i) {
      const std::int64_t at = first + i * kGroupRows, left = rows.count - at;
      num_rows[i] = static_cast<int>(left < 0 ? 0 : (left < kGroupRows ? left : kGroupRows));
      const std::int64_t stride = 4 * num_rows[i];
      panels[i] = {static_cast<const char*>(rows.packed) + at * row_bytes, stride,
                   kTileRowsMost * stride};
    }
  }
};

inline TileConfig config_of(int num_outputs, const RowPair& rows) {
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    const int left = num_outputs - i * kGroupRows, outputs = left < kGroupRows ? left : kGroupRows;
    if (outputs > 0) config.set(4 + i, outputs, kTileBytesMost);
    if (rows.num_rows[i] > 0) config.set(6 + i, kTileRowsMost, 4 * rows.num_rows[i]);
    for (int j = 0; j < 2; ++j) {
      if (outputs > 0 && rows.num_rows[j] > 0) config.set(2 * i + j, outputs, 4 * rows.num_rows[j]);
    }
  }
  return config;
}

template <int kOutputTiles, int kRowTiles>
void multiply_pair(const BlockStrips& weights, bool decoded, std::int64_t chunks,
                   const RowPair& rows, float* out) {
  TileUnit::zero<0>();
  if constexpr (kRowTiles == 2) TileUnit::zero<1>();
  if constexpr (kOutputTiles == 2) TileUnit::zero<2>();
  if constexpr (kOutputTiles == 2 && kRowTiles == 2) TileUnit::zero<3>();
  for (std::int64_t first = 0; first < chunks; first += weights.strip_chunks()) {
    if (!decoded) weights.decode(first);
    const Panel outputs[2] = {weights.panel(first, 0), weights.panel(first, kGroupRows)};
    add_chunks<kOutputTiles, kRowTiles>(outputs, rows.panels, first, weights.chunks_from(first));
  }
  float* second = out + kGroupRows * kBlockRows;
  store_tile<0>(rows.num_rows[0], out);
  if constexpr (kRowTiles == 2) store_tile<1>(rows.num_rows[1], second);
  if constexpr (kOutputTiles == 2) store_tile<2>(rows.num_rows[0], out + kGroupRows);
  if constexpr (kOutputTiles == 2 && kRowTiles == 2) {
    store_tile<3>(rows.num_rows[1], second + kGroupRows);
  }
}

struct TilesInUse {
  ~TilesInUse() { TileUnit::release(); }
};

inline void block_product(const WeightBlock& weight, const Rows& rows, float* out, void* scratch) {
  if (rows.kind == RowKind::single) {
    avx512_linear().block_product(weight, rows, out, scratch);
    return;
  }
  constexpr int kPairRows = 2 * kGroupRows;
  const std::int64_t chunks = num_chunks(weight.columns);
  const BlockStrips weights(weight, rows.count > kPairRows, scratch);
  const bool two_tiles = weight.num_outputs > kGroupRows;
  const TilesInUse released_at_the_end;
  for (std::int64_t first = 0; first < rows.count; first += kPairRows) {
    const RowPair pair(rows, first, chunks);
    TileUnit::configure(config_of(weight.num_outputs, pair));
    const auto multiply =
        two_tiles ? (pair.num_rows[1] > 0 ? &multiply_pair<2, 2> : &multiply_pair<2, 1>)
                  : (pair.num_rows[1] > 0 ? &multiply_pair<1, 2> : &multiply_pair<1, 1>);
    multiply(weights, first > 0, chunks, pair, out + first * kBlockRows);
  }
}

inline LinearVersion tiled_version() {
  LinearVersion version = avx512_linear();
  version.pack_rows = &pack_rows;
  version.block_product = &block_product;
  return version;
}
