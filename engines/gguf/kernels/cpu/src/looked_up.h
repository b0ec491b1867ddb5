// The types whose weights are looked up, as formats.h has the others.
#pragma once

#include "formats.h"

namespace innkeeper::INNKEEPER_VARIANT {

#define KQ_FN static inline
#define KQ_BYTES const uint8_t*
#define KQ_TABLE static constexpr
KQ_FN float kq_half_bits(uint16_t bits) { return half_to_float(bits); }
KQ_FN float kq_float_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

#include "../../source/octets.h"

// The steps that 4 bits stand for, so much higher that they are what dot() takes.
constexpr int kIq4Zero = kWholeBytes ? 128 : 0;
constexpr uint8_t iq4_byte(int step) { return static_cast<uint8_t>(step + kIq4Zero); }
struct Iq4Steps {
  static constexpr uint8_t kSteps[16] = {iq4_byte(-127), iq4_byte(-104), iq4_byte(-83), iq4_byte(-65),
                                         iq4_byte(-49),  iq4_byte(-35),  iq4_byte(-22), iq4_byte(-10),
                                         iq4_byte(1),    iq4_byte(13),   iq4_byte(25),  iq4_byte(38),
                                         iq4_byte(53),   iq4_byte(69),   iq4_byte(89),  iq4_byte(113)};
};
struct E2m1Steps {
  static constexpr uint8_t kSteps[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

// The steps of 16 bytes' nibbles: of the low ones, then of the high ones.
template <typename Steps>
INLINE Bytes32 steps_of(const uint8_t* p) {
  return looked_up(nibbles(p), Steps::kSteps);
}
#if defined(__AVX512F__)
template <typename Steps>
INLINE Bytes steps_of_two(const uint8_t* a, const uint8_t* b) {
  return looked_up(nibbles_of_two(a, b), Steps::kSteps);
}
#endif

struct IQ4_NL : SmallBlock<18> {
  static constexpr bool kSigned = !kWholeBytes;
  static constexpr int kZero = kIq4Zero;
  INLINE Bytes32 codes(const uint8_t* p, int group) { return steps_of<Iq4Steps>(p + group * kBytes + 2); }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    p += 2 * step * kBytes + 2;
    return steps_of_two<Iq4Steps>(p, p + kBytes);
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float*) { halves_of_blocks<kBytes>(p, groups, s); }
};

struct IQ4_XS : LargeBlock<136, 32> {
  static constexpr bool kSigned = !kWholeBytes;
  static constexpr int kZero = kIq4Zero;
  INLINE Bytes32 codes(const uint8_t* p, int group) { return steps_of<Iq4Steps>(p + 8 + group * 16); }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) { return steps_of_two<Iq4Steps>(p + 8 + step * 32, p + 24 + step * 32); }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float*) {
    // Nibbles, then pairs of bits, from a word each to a byte each.
    const uint64_t low = spread(load_word(p + 4), 4, 0x0F0F0F0F0F0F0F0F);
    const uint64_t top = spread(spread(load_word(p) >> 16, 4, 0x0F0F0F0F), 2, 0x0303030303030303);
    scale_bytes<false>(low | top << 4, 32, load_half(p), s);
  }

 private:
  // The bytes of a word become two each: the lowest `bits` of it and the next ones.
  INLINE uint64_t spread(uint64_t word, int bits, uint64_t mask) {
    word = (word | word << 16) & 0x0000FFFF0000FFFF;
    word = (word | word << 8) & 0x00FF00FF00FF00FF;
    return (word | word << (8 - bits)) & mask;
  }
};

struct MXFP4 : SmallBlock<17> {
  static constexpr int kZero = 12;
  INLINE Bytes32 codes(const uint8_t* p, int group) { return steps_of<E2m1Steps>(p + group * kBytes + 1); }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    p += 2 * step * kBytes + 1;
    return steps_of_two<E2m1Steps>(p, p + kBytes);
  }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float*) {
    for (int g = 0; g < groups; g++) s[g] = kq_half_power(p[g * kBytes]);
  }
};

struct NVFP4 {
  static constexpr int kBlock = 64;
  static constexpr int kBytes = 36;
  static constexpr int kGroup = 16;
  static constexpr bool kSigned = false;
  static constexpr bool kOffsets = false;
  static constexpr int kZero = 12;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    typedef uint64_t Eights __attribute__((vector_size(32)));
    const Eights e = (Eights)steps_of<E2m1Steps>(p + group / 2 * kBytes + 4 + group % 2 * 16);
    return (Bytes32)Eights{e[0], e[2], e[1], e[3]};
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) { return join(codes(p, 2 * step), codes(p, 2 * step + 1)); }
#endif
  INLINE void scales(const uint8_t* p, int groups, float* s, float*) {
    for (int g = 0; g < groups; g++) s[g] = kq_half_scale(p[g / 4 * kBytes + g % 4]);
  }
};

struct TQ2_0 : LargeBlock<66, 32> {
  static constexpr int kZero = 1;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    return (load_32(p + 32 * (group / 4)) >> static_cast<uint8_t>(2 * (group % 4))) & 3;
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) {
    const int low = step % 2 * 4;
    return fields(twice(p + 32 * (step / 2)), low, low + 2, 3);
  }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float*) {
    for (int g = 0; g < 8; g++) s[g] = load_half(p + 64);
  }
};

struct TQ1_0 : LargeBlock<54, 32> {
  static constexpr int kZero = 1;
  INLINE Bytes32 codes(const uint8_t* p, int group) {
    constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
    Bytes32 rest;
    if (group < 5) {
      rest = load_32(p) * kPowers[group];
    } else {
      const Bytes16 bytes = load_16(p + 32), first = bytes * kPowers[2 * group % 5];  // powers 0, 2 and 4 for 5, 6 and 7
      Bytes16 second = bytes * kPowers[group == 5 ? 1 : 3];
      if (group == 7) {
        const uint32_t last = load_word(p + 48);
        for (int i = 0; i < 16; i++) second[i] = static_cast<uint8_t>((last >> 8 * (i % 4)) * kPowers[i / 4]);
      }
      std::memcpy(&rest, &first, 16);
      std::memcpy(reinterpret_cast<char*>(&rest) + 16, &second, 16);
    }
    // What three times the byte has above its eight bits.
    return (Bytes32)(-((rest > 85) + (rest > 170)));
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) { return join(codes(p, 2 * step), codes(p, 2 * step + 1)); }
#endif
  INLINE void scales(const uint8_t* p, int, float* s, float*) {
    for (int g = 0; g < 8; g++) s[g] = load_half(p + 52);
  }
};

// All others, eight weights at a time by octets.h: right, and not fast. `Zero` is added to codes, so that they are not negative.
template <int Block, int Bytes_, int Group, int Zero, kq_octet (*Read)(const uint8_t*, int)>
struct ByOctets {
  static constexpr int kBlock = Block;
  static constexpr int kBytes = Bytes_;
  static constexpr int kGroup = Group;
  static constexpr int kZero = Zero;
  static constexpr bool kSigned = false;
  static constexpr bool kOffsets = false;
  static __attribute__((noinline)) Bytes32 codes(const uint8_t* p, int group) {
    p += group * 32 / Block * Bytes_;
    const int first = group * 4 % (Block / 8);
    uint32_t words[8];
    for (int i = 0; i < 4; i++) {
      const kq_octet octet = Read(p, first + i);
      words[2 * i] = octet.low;
      words[2 * i + 1] = octet.high;
    }
    Bytes32 made;
    std::memcpy(&made, words, 32);
    return made + static_cast<uint8_t>(Zero);
  }
#if defined(__AVX512F__)
  INLINE Bytes two(const uint8_t* p, int step) { return join(codes(p, 2 * step), codes(p, 2 * step + 1)); }
#endif
  static __attribute__((noinline)) void scales(const uint8_t* p, int groups, float* s, float*) {
    for (int g = 0; g < groups; g++) s[g] = Read(p + g * Group / Block * Bytes_, g * Group % Block / 8).scale;
  }
};

using IQ3_S = ByOctets<256, 110, 32, 15, kq_iq3_s_octet>;
using IQ3_XXS = ByOctets<256, 98, 32, 62, kq_iq3_xxs_octet>;
using IQ2_S = ByOctets<256, 82, 16, 43, kq_iq2_s_octet>;
using IQ2_XS = ByOctets<256, 74, 16, 43, kq_iq2_xs_octet>;
using IQ2_XXS = ByOctets<256, 66, 32, 43, kq_iq2_xxs_octet>;
using IQ1_S = ByOctets<256, 50, 32, 9, kq_iq1_s_octet>;
using IQ1_M = ByOctets<256, 56, 16, 9, kq_iq1_m_octet>;

}  // namespace innkeeper::INNKEEPER_VARIANT
