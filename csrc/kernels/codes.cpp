#include <cmath>

#include "attention.h"
#include "choice.h"
#include "linear.h"
#include "machine.h"
#include "records.h"
#include "rowwise.h"

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

#if defined(__x86_64__)
#define DEEPINFER_CURRENT(part)                             \
  if (current_isa() >= Isa::avx512) return avx512_##part(); \
  if (current_isa() == Isa::avx2) return avx2_##part();     \
  return portable_##part()
#else
#define DEEPINFER_CURRENT(part) return portable_##part()
#endif

const LinearVersion& current_linear() {
#if defined(__x86_64__)
  if (current_isa() == Isa::emulated_amx) return emulated_amx_linear();
#endif
#if defined(DEEPINFER_HAS_AMX)
  if (current_isa() == Isa::amx) return amx_linear();
#endif
  DEEPINFER_CURRENT(linear);
}
const RowVersion& current_rows() { DEEPINFER_CURRENT(rows); }
const RecordVersion& current_records() { DEEPINFER_CURRENT(records); }
const AttentionVersion& current_attention() { DEEPINFER_CURRENT(attention); }
const ChoiceVersion& current_choice() { DEEPINFER_CURRENT(choice); }

}  // namespace deepinfer
