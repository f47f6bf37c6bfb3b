// The tile unit in plain C++, for machines without AMX: what the instructions do by Intel's
// Software Developer's Manual (volume 2; palette 1), and an exception where they would fault. Slow:
// for tests. Included inside a version's namespace, in place of tile_unit.h.

struct EmulatedTile {
  int rows = 0, bytes = 0;
  std::uint8_t data[kTileRowsMost][kTileBytesMost] = {};
};

// Eight a thread, like the registers.
inline EmulatedTile* emulated_tiles() {
  static thread_local EmulatedTile tiles[8];
  return tiles;
}

inline void fault_unless(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("the tile unit faults: ") + what);
}

inline EmulatedTile& configured_tile(int number) {
  EmulatedTile& tile = emulated_tiles()[number];
  fault_unless(tile.rows > 0, "a tile that is not configured");
  return tile;
}

inline float wide(const std::uint8_t* half) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, half, sizeof bits);
  return from_bf16(bits);
}

// TDPBF16PS: a row's products of even values and of odd ones are added pair by pair, apart, by
// fused multiply-adds; then the two sums, and these to the tile. Called with subnormals flushed.
__attribute__((noinline)) inline void add_products_flushed(EmulatedTile& sums,
                                                           const EmulatedTile& left,
                                                           const EmulatedTile& right) {
  const int columns = sums.bytes / 4;
  for (int m = 0; m < sums.rows; ++m) {
    float even[kTileBytesMost / 4] = {}, odd[kTileBytesMost / 4] = {};
    for (int k = 0; k < left.bytes / 4; ++k) {
      const float left_even = wide(&left.data[m][4 * k]), left_odd = wide(&left.data[m][4 * k + 2]);
      for (int n = 0; n < columns; ++n) {
        even[n] = __builtin_fmaf(left_even, wide(&right.data[k][4 * n]), even[n]);
        odd[n] = __builtin_fmaf(left_odd, wide(&right.data[k][4 * n + 2]), odd[n]);
      }
    }
    for (int n = 0; n < columns; ++n) {
      float sum;
      __builtin_memcpy(&sum, &sums.data[m][4 * n], sizeof sum);
      sum += even[n] + odd[n];
      __builtin_memcpy(&sums.data[m][4 * n], &sum, sizeof sum);
    }
  }
}

struct TileUnit {
  static void configure(const TileConfig& config) {
    fault_unless(config.palette == 1 && config.start_row == 0, "palette and first row");
    for (std::uint8_t byte : config.reserved) fault_unless(byte == 0, "a reserved byte");
    for (int i = 0; i < 16; ++i) {
      const int rows = config.num_rows[i], bytes = config.row_bytes[i];
      fault_unless((rows == 0) == (bytes == 0), "rows without columns, or columns without rows");
      fault_unless(rows <= kTileRowsMost && bytes <= kTileBytesMost, "a tile too large");
      fault_unless(i < 8 || rows == 0, "a ninth tile");
      if (i < 8) emulated_tiles()[i] = {rows, bytes, {}};
    }
  }

  static void release() {
    for (int i = 0; i < 8; ++i) emulated_tiles()[i] = {};
  }

  template <int kTile>
  static void zero() {
    EmulatedTile& tile = configured_tile(kTile);
    tile = {tile.rows, tile.bytes, {}};
  }

  template <int kTile>
  static void load(const void* data, std::int64_t stride) {
    EmulatedTile& tile = configured_tile(kTile);
    for (int row = 0; row < tile.rows; ++row) {
      std::memcpy(tile.data[row], static_cast<const char*>(data) + row * stride,
                  static_cast<std::size_t>(tile.bytes));
    }
  }

  template <int kTile>
  static void store(void* data, std::int64_t stride) {
    const EmulatedTile& tile = configured_tile(kTile);
    for (int row = 0; row < tile.rows; ++row) {
      std::memcpy(static_cast<char*>(data) + row * stride, tile.data[row],
                  static_cast<std::size_t>(tile.bytes));
    }
  }

  template <int kSums, int kLeft, int kRight>
  static void add_products() {
    static_assert(kSums != kLeft && kSums != kRight && kLeft != kRight);
    EmulatedTile& sums = configured_tile(kSums);
    const EmulatedTile &left = configured_tile(kLeft), &right = configured_tile(kRight);
    fault_unless(sums.bytes % 4 == 0 && left.bytes % 4 == 0, "half a pair");
    fault_unless(sums.rows == left.rows && sums.bytes == right.bytes &&
                     left.bytes / 4 == right.rows,
                 "shapes of a product that do not fit");
    // Rounds to nearest even, takes and gives no subnormal, and leaves the thread's flags alone.
    constexpr unsigned kFlushed = 0x1F80 | 0x8000 | 0x0040;
    const unsigned own = _mm_getcsr();
    _mm_setcsr(kFlushed);
    add_products_flushed(sums, left, right);
    _mm_setcsr(own);
  }
};
