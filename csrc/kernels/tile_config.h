// Shapes of the eight tiles, as LDTILECFG reads them (Intel's Software Developer's Manual, volume
// 1, "Programming with Intel AMX").
#pragma once

#include <cstdint>

namespace deepinfer {

constexpr int kTileRowsMost = 16;
constexpr int kTileBytesMost = 64;  // of a row

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};

  void set(int tile, int rows, int bytes) {
    num_rows[tile] = static_cast<std::uint8_t>(rows);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace deepinfer
