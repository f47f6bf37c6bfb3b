// The tile unit of a machine with AMX: one function an instruction. Included inside a version's
// namespace, in place of emulated_tile_unit.h. The compiler's own intrinsics are not used: GCC 12's
// do not say that a load reads memory and that a configuration is 64 bytes long, so that it may
// drop or delay the stores before them.

struct TileUnit {
  static void configure(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }

  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }

  template <int kTile>
  static void load(const void* data, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(data), "r"(stride), "i"(kTile) : "memory");
  }

  template <int kTile>
  static void store(void* data, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(data), "r"(stride), "i"(kTile)
                 : "memory");
  }

  // Adds the products of pairs of bfloat16 values, kLeft [rows, pairs] by kRight [pairs, columns].
  template <int kSums, int kLeft, int kRight>
  static void add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kLeft), "i"(kRight));
  }
};
