// Turns a square of kLanes rows of kLanes 4-byte words.
#pragma once

#include "vector.h"

namespace innkeeper::INNKEEPER_VARIANT {

INLINE void transpose(Words rows[kLanes]) {
#if defined(__AVX512F__)
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {  // quarter q of r[i + c] now has column 4 q + c of rows i to i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 16
  for (int c = 0; c < 4; c++) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88), odd_low = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xDD);
    rows[c] = (Words)_mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[c + 4] = (Words)_mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[c + 8] = (Words)_mm512_shuffle_i32x4(even_low, even_high, 0xDD);
    rows[c + 12] = (Words)_mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
  }
#elif defined(__AVX2__)
  __m256i r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32((__m256i)rows[i], (__m256i)rows[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32((__m256i)rows[i], (__m256i)rows[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 4; c++) {
    rows[c] = (Words)_mm256_permute2x128_si256(r[c], r[c + 4], 0x20);
    rows[c + 4] = (Words)_mm256_permute2x128_si256(r[c], r[c + 4], 0x31);
  }
#else
  uint32_t square[kLanes][kLanes], turned[kLanes][kLanes];
  std::memcpy(square, rows, sizeof square);
  for (int i = 0; i < kLanes; i++) {
    for (int j = 0; j < kLanes; j++) turned[j][i] = square[i][j];
  }
  std::memcpy(rows, turned, sizeof turned);
#endif
}

// Strides are in floats.
INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Words square[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; r++) square[r] = (Words)load(from + r * from_stride);
  transpose(square);
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; r++) store(to + r * to_stride, (Floats)square[r]);
}

}  // namespace innkeeper::INNKEEPER_VARIANT
