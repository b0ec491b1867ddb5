// Activations to 8-bit codes.
//
// Each 32 neighbours share the scale d = max |x| / 127, and code = round(x / d), so that |x - d * code| <= d / 2.
#pragma once

#include "table.h"
#include "vector.h"

namespace innkeeper::INNKEEPER_VARIANT {

INLINE void quantize_32(const float* x, int8_t* codes, float* scale, int32_t* low_sum, int32_t* high_sum) {
  constexpr int kParts = 32 / kLanes;
  Floats parts[kParts];
  Floats most{};
  for (int i = 0; i < kParts; i++) {
    parts[i] = load(x + i * kLanes);
    most = max(most, abs(parts[i]));
  }
  const float top = largest(most);
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  *scale = top / 127.0f;
  const Floats magic = splat(12582912.0f);  // rounds to the nearest integer, which the low bits then hold
  Ints sums[2] = {};
  for (int i = 0; i < kParts; i++) {
    const Ints code = (Ints)(parts[i] * inverse + magic) - (Ints)magic;
    sums[2 * i / kParts] += code;
    typedef int8_t Narrow __attribute__((vector_size(kLanes)));
    const Narrow narrow = __builtin_convertvector(code, Narrow);
    std::memcpy(codes + i * kLanes, &narrow, kLanes);
  }
  // Codes are at most 127 and floats hold these sums exactly.
  *low_sum = static_cast<int32_t>(sum(to_floats(sums[0])));
  *high_sum = static_cast<int32_t>(sum(to_floats(sums[1])));
}

static void quantize(const FormatKernels& format, Activations& to, int begin, int end) {
  const int whole = to.columns / 32, all = to.padded / 32;
  for (int m = begin; m < end; m++) {
    const float* x = to.x + static_cast<int64_t>(m) * to.columns;
    int8_t* codes = to.codes + static_cast<int64_t>(m) * to.padded;
    float* scales = to.scales + static_cast<int64_t>(m) * all;
    float* sums = to.sums + static_cast<int64_t>(m) * to.groups;
    int32_t* starts = to.starts + static_cast<int64_t>(m) * to.groups;
    for (int i = 0; i < whole; i++) {
      int32_t low, high;
      quantize_32(x + 32 * i, codes + 32 * i, scales + i, &low, &high);
      const float d = scales[i];
      if (format.group == 16) {
        sums[2 * i] = d * static_cast<float>(low);
        sums[2 * i + 1] = d * static_cast<float>(high);
        starts[2 * i] = -format.zero * low;
        starts[2 * i + 1] = -format.zero * high;
      } else {
        sums[i] = d * static_cast<float>(low + high);
        starts[i] = -format.zero * (low + high);
      }
    }
    // Padding is multiplied as a part of the last step of codes, but its scales are never looked at.
    std::memset(codes + 32 * whole, 0, to.padded - 32 * whole);
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
