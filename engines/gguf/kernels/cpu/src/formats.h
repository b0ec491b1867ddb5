// How each quant type's bytes become codes, scales and offsets: weight = scale * code + offset, one scale a group.
//
// A row is read in segments of up to 256 weights (8 blocks of 32, 4 of 64, or one of 256). Codes are unsigned bytes; a type
// whose codes stand around a zero point has it in kZero and no offsets. codes() is one group of 32, two() a pair of them in one
// vector where vectors are that long. The formats are described in engines/gguf/quants.
#pragma once

#include "vector.h"

namespace innkeeper::INNKEEPER_VARIANT {

constexpr int kSegment = 256;  // weights

// The types of 32 weights under one scale.
template <int Bytes_>
struct SmallBlock {
  static constexpr int kBlock = 32;
  static constexpr int kBytes = Bytes_;
  static constexpr int kGroup = 32;
  static constexpr bool kSigned = false;   // codes are signed bytes
  static constexpr bool kOffsets = false;  // groups have offsets
};

#if defined(__F16C__) && defined(__AVX2__)
// The words that four blocks begin with. Spelled out, since the compiler would go through memory.
template <int Bytes_>
INLINE __m128i words_of_four(const uint8_t* p) {
  __m128i words = _mm_cvtsi32_si128(static_cast<int>(load_word(p)));
  words = _mm_insert_epi32(words, static_cast<int>(load_word(p + Bytes_)), 1);
  words = _mm_insert_epi32(words, static_cast<int>(load_word(p + 2 * Bytes_)), 2);
  return _mm_insert_epi32(words, static_cast<int>(load_word(p + 3 * Bytes_)), 3);
}
template <int Bytes_>
INLINE __m256i words_of_eight(const uint8_t* p) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(words_of_four<Bytes_>(p)), words_of_four<Bytes_>(p + 4 * Bytes_), 1);
}
#endif

template <int Bytes_>
INLINE void halves_of_blocks(const uint8_t* p, int groups, float* scales) {
#if defined(__F16C__) && defined(__AVX2__)
  if (groups == 8) {
    const __m256i low = _mm256_and_si256(words_of_eight<Bytes_>(p), _mm256_set1_epi32(0xFFFF));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0xD8);
    _mm256_storeu_ps(scales, _mm256_cvtph_ps(_mm256_castsi256_si128(packed)));
    return;
  }
#endif
  for (int g = 0; g < groups; g++) scales[g] = load_half(p + g * Bytes_);
}

// Two halves at the start of each block.
template <int Bytes_>
INLINE void pairs_of_halves(const uint8_t* p, int groups, float* scales, float* offsets) {
#if defined(__F16C__) && defined(__AVX2__)
  if (groups == 8) {
    const __m256i words = words_of_eight<Bytes_>(p);
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF)), high = _mm256_srli_epi32(words, 16);
    // packus puts {low 0-3, high 0-3 | low 4-7, high 4-7}; the permutation sorts the quarters.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    _mm256_storeu_ps(scales, _mm256_cvtph_ps(_mm256_castsi256_si128(packed)));
    _mm256_storeu_ps(offsets, _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1)));
    return;
  }
#endif
  for (int g = 0; g < groups; g++) {
    scales[g] = load_half(p + g * Bytes_);
    offsets[g] = load_half(p + g * Bytes_ + 2);
  }
}

struct Q4_0 : SmallBlock<18> {
  static constexpr int kZero = 8;
  INLINE Bytes32 codes(const uint8_t* p, int group) { return nibbles(p + group * kBytes + 2); }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    p += 2 * step * kBytes + 2;
    return nibbles_of_two(p, p + kBytes);
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float*) { halves_of_blocks<kBytes>(p, groups, s); }
};

struct Q4_1 : SmallBlock<20> {
  static constexpr int kZero = 0;
  static constexpr bool kOffsets = true;
  INLINE Bytes32 codes(const uint8_t* p, int group) { return nibbles(p + group * kBytes + 4); }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    p += 2 * step * kBytes + 4;
    return nibbles_of_two(p, p + kBytes);
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float* o) { pairs_of_halves<kBytes>(p, groups, s, o); }
};

struct Q5_0 : SmallBlock<22> {
  static constexpr int kZero = 16;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    p += group * kBytes;
    return nibbles(p + 6) | spread_bits(load_word(p + 2), 16);
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    p += 2 * step * kBytes;
    return nibbles_of_two(p + 6, p + kBytes + 6) | fifth_bits_of_two(load_word(p + 2), load_word(p + kBytes + 2));
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float*) { halves_of_blocks<kBytes>(p, groups, s); }
};

struct Q5_1 : SmallBlock<24> {
  static constexpr int kZero = 0;
  static constexpr bool kOffsets = true;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    p += group * kBytes;
    return nibbles(p + 8) | spread_bits(load_word(p + 4), 16);
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    p += 2 * step * kBytes;
    return nibbles_of_two(p + 8, p + kBytes + 8) | fifth_bits_of_two(load_word(p + 4), load_word(p + kBytes + 4));
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float* o) { pairs_of_halves<kBytes>(p, groups, s, o); }
};

struct Q8_0 : SmallBlock<34> {
  static constexpr bool kSigned = !kWholeBytes;
  static constexpr int kZero = kSigned ? 0 : 128;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    const Bytes32 bytes = load_32(p + group * kBytes + 2);
    return kSigned ? bytes : bytes ^ 0x80;
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    return join(codes(p, 2 * step), codes(p, 2 * step + 1));
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float*) { halves_of_blocks<kBytes>(p, groups, s); }
};

// The types of 256 weights.
template <int Bytes_, int Group_>
struct LargeBlock {
  static constexpr int kBlock = 256;
  static constexpr int kBytes = Bytes_;
  static constexpr int kGroup = Group_;
  static constexpr bool kSigned = false;   // codes are signed bytes
  static constexpr bool kOffsets = false;  // groups have offsets
};

// Eight bytes, of which the first is the lowest of the word, less a bias and times a factor.
template <bool Signed>
INLINE void scale_bytes(uint64_t bytes, int bias, float factor, float* out) {
#if defined(__AVX2__)
  const __m128i packed = _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
  const __m256i wide = Signed ? _mm256_cvtepi8_epi32(packed) : _mm256_cvtepu8_epi32(packed);
  const __m256 values = _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(bias)));
  _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_set1_ps(factor), values));
#else
  for (int i = 0; i < 8; i++) {
    const uint8_t byte = static_cast<uint8_t>(bytes >> (8 * i));
    out[i] = factor * static_cast<float>((Signed ? static_cast<int8_t>(byte) : byte) - bias);
  }
#endif
}
INLINE uint64_t load_long(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}
INLINE uint64_t two_words(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }

// The 6-bit scales and minima that Q4_K and Q5_K blocks begin with, four at a time in the bytes of a word.
INLINE void scales_and_minima(const uint8_t* p, float* s, float* o) {
  const uint32_t first = load_word(p + 4), second = load_word(p + 8), third = load_word(p + 12);
  const uint64_t scales = two_words(first & 0x3F3F3F3F, (third & 0x0F0F0F0F) | ((first >> 2) & 0x30303030));
  const uint64_t minima = two_words(second & 0x3F3F3F3F, ((third >> 4) & 0x0F0F0F0F) | ((second >> 2) & 0x30303030));
  scale_bytes<false>(scales, 0, load_half(p), s);
  scale_bytes<false>(minima, 0, -load_half(p + 2), o);
}

struct Q4_K : LargeBlock<144, 32> {
  static constexpr int kZero = 0;
  static constexpr bool kOffsets = true;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    const Bytes32 packed = load_32(p + 16 + 32 * (group / 2));
    return group % 2 ? packed >> 4 : packed & 15;
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    return fields(twice(p + 16 + 32 * step), 0, 4, 15);
  }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float* o) { scales_and_minima(p, s, o); }
};

struct Q5_K : LargeBlock<176, 32> {
  static constexpr int kZero = 0;
  static constexpr bool kOffsets = true;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    const Bytes32 packed = load_32(p + 48 + 32 * (group / 2));
    const Bytes32 fifth = (load_32(p + 16) >> static_cast<uint8_t>(group)) & 1;
    return (group % 2 ? packed >> 4 : packed & 15) | (fifth << 4);
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    return fields(twice(p + 48 + 32 * step), 0, 4, 15) | fields(twice(p + 16), 2 * step, 2 * step + 1, 1) << 4;
  }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float* o) { scales_and_minima(p, s, o); }
};

struct Q6_K : LargeBlock<210, 16> {
  static constexpr int kZero = 32;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    const int chunk = group / 4, plane = group % 4;
    const Bytes32 packed = load_32(p + 64 * chunk + 32 * (plane % 2));
    const Bytes32 upper = (load_32(p + 128 + 32 * chunk) >> static_cast<uint8_t>(2 * plane)) & 3;
    return (plane / 2 ? packed >> 4 : packed & 15) | (upper << 4);
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    const int chunk = step / 2, low = step % 2 * 4;
    return fields(load_bytes(p + 64 * chunk), low, low, 15) | fields(twice(p + 128 + 32 * chunk), low, low + 2, 3) << 4;
  }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float*) {
    const float factor = load_half(p + 208);
    scale_bytes<true>(load_long(p + 192), 0, factor, s);
    scale_bytes<true>(load_long(p + 200), 0, factor, s + 8);
  }
};

struct Q2_K : LargeBlock<84, 16> {
  static constexpr int kZero = 0;
  static constexpr bool kOffsets = true;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    return (load_32(p + 16 + 32 * (group / 4)) >> static_cast<uint8_t>(2 * (group % 4))) & 3;
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    const int low = step % 2 * 4;
    return fields(twice(p + 16 + 32 * (step / 2)), low, low + 2, 3);
  }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float* o) {
    constexpr uint64_t kNibbles = 0x0F0F0F0F0F0F0F0F;
    const uint64_t first = load_long(p), second = load_long(p + 8);
    const float factor = load_half(p + 80), offset = -load_half(p + 82);
    scale_bytes<false>(first & kNibbles, 0, factor, s);
    scale_bytes<false>(second & kNibbles, 0, factor, s + 8);
    scale_bytes<false>(first >> 4 & kNibbles, 0, offset, o);
    scale_bytes<false>(second >> 4 & kNibbles, 0, offset, o + 8);
  }
};

struct Q3_K : LargeBlock<110, 16> {
  static constexpr int kZero = 4;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    const Bytes32 pair = (load_32(p + 32 + 32 * (group / 4)) >> static_cast<uint8_t>(2 * (group % 4))) & 3;
    const Bytes32 third = (load_32(p) >> static_cast<uint8_t>(group)) & 1;
    return pair | (third << 2);
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    const int low = step % 2 * 4;
    return fields(twice(p + 32 + 32 * (step / 2)), low, low + 2, 3) | fields(twice(p), 2 * step, 2 * step + 1, 1) << 2;
  }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float*) {
    const uint64_t low = load_long(p + 96);
    const uint32_t upper = load_word(p + 104);
    constexpr uint64_t kNibbles = 0x0F0F0F0F0F0F0F0F;
    const uint32_t pairs = 0x03030303;
    const uint64_t first = two_words(upper & pairs, upper >> 2 & pairs), second = two_words(upper >> 4 & pairs, upper >> 6 & pairs);
    const float factor = load_half(p + 108);
    scale_bytes<false>((low & kNibbles) | first << 4, 32, factor, s);
    scale_bytes<false>((low >> 4 & kNibbles) | second << 4, 32, factor, s + 8);
  }
};

// The types that store floats.
struct F32 {
  static constexpr int kBytes = 4;
  INLINE Floats load_floats(const uint8_t* p) {
    Floats v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  INLINE float one(const uint8_t* p) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
};
struct F16 {
  static constexpr int kBytes = 2;
  INLINE Floats load_floats(const uint8_t* p) { return load_halves(p); }
  INLINE float one(const uint8_t* p) { return load_half(p); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  INLINE Floats load_floats(const uint8_t* p) { return load_brain_floats(p); }
  INLINE float one(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float v;
    std::memcpy(&v, &word, 4);
    return v;
  }
};

}  // namespace innkeeper::INNKEEPER_VARIANT
