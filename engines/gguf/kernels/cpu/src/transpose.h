// Turns a square of kLanes rows of kLanes 4-byte words.
#pragma once

#include "vector.h"

namespace innkeeper::INNKEEPER_VARIANT {

// Row i begins at from + i * from_stride, column j's words go to `to` + j * to_stride; strides are in bytes.
INLINE void transpose(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
#if defined(__AVX512F__)
  __m512i r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + i * from_stride);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // quarter q of r[i + c] now has column 4 q + c of rows i to i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; c++) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88), odd_low = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xDD);
    _mm512_storeu_si512(to + c * to_stride, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_storeu_si512(to + (c + 4) * to_stride, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_si512(to + (c + 8) * to_stride, _mm512_shuffle_i32x4(even_low, even_high, 0xDD));
    _mm512_storeu_si512(to + (c + 12) * to_stride, _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD));
  }
#elif defined(__AVX2__)
  __m256i r[8], t[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * from_stride));
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; c++) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c * to_stride), _mm256_permute2x128_si256(r[c], r[c + 4], 0x20));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(to + (c + 4) * to_stride), _mm256_permute2x128_si256(r[c], r[c + 4], 0x31));
  }
#else
  for (int i = 0; i < kLanes; i++) {
    for (int j = 0; j < kLanes; j++) std::memcpy(to + j * to_stride + 4 * i, from + i * from_stride + 4 * j, 4);
  }
#endif
}

}  // namespace innkeeper::INNKEEPER_VARIANT
