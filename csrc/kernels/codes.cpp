#include <cmath>

#include "linear.h"
#include "machine.h"

namespace deepinfer {

CodeTables::CodeTables() {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    float value = exponent ? std::ldexp(1.0f + mantissa / 8.0f, exponent - 7)
                           : std::ldexp(mantissa / 8.0f, -6);
    if ((code & 0x7F) == 0x7F) value = std::nanf("");
    e4m3[code] = code & 0x80 ? -value : value;
  }
  constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int code = 0; code < 16; ++code) {
    e2m1[code] = code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
  }
}

const CodeTables kCodes;

const LinearVersion& current_linear() {
#if defined(__x86_64__)
  if (current_isa() == Isa::avx512) return avx512_linear();
  if (current_isa() == Isa::avx2) return avx2_linear();
#endif
  return portable_linear();
}

}  // namespace deepinfer
