#include "amx.h"

#include "linear.h"
#include "tile_config.h"

#if defined(DEEPINFER_HAS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace deepinfer {

#if defined(DEEPINFER_HAS_AMX)
namespace {

// Numbers of Intel's Software Developer's Manual (volume 1, chapters 13 and 18) and of Linux 5.16.
constexpr unsigned kFeatureLeaf = 7, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // in edx
constexpr unsigned kTileLeaf = 0x1D, kPalette = 1;
constexpr unsigned kOsxsave = 1u << 27;                // in ecx of leaf 1
constexpr unsigned kTileState = (1u << 17) | (1u << 18);  // of extended control register 0
constexpr long kRequestPermission = 0x1023, kTileData = 18;

bool processor_has_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(kFeatureLeaf, 0, &a, &b, &c, &d)) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  if (!__get_cpuid_count(kTileLeaf, kPalette, &a, &b, &c, &d)) return false;
  // ebx: bytes of a row, number of tiles; ecx: rows.
  return (b & 0xFFFF) == kTileBytesMost && (b >> 16) >= 8 && (c & 0xFFFF) == kTileRowsMost;
}

bool system_saves_tiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & kOsxsave) == 0) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

}  // namespace

bool can_use_amx() {
  static const bool can = processor_has_amx() && system_saves_tiles() &&
                          syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return can;
}
#else
bool can_use_amx() { return false; }
#endif

}  // namespace deepinfer
