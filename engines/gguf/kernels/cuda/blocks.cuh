// How each quant type's blocks come apart in registers, for a warp whose lanes stand as mma.m16n8k16 wants them.
//
// The four lanes of a quad (t = lane % 4) share a row and take its weights in units of 256. Of a unit each lane takes 64, in
// 8 pieces of 8 neighbouring weights: `column(t, i)` says where piece i begins. Which of the weights are a lane's is chosen
// so that it reads few wide words; the sum over the columns does not mind the order.
//
// A type T has
//   UNIT_BYTES, BLOCK_BYTES, BLOCK (weights), ALIGN (what block addresses are a multiple of, if the first block's is)
//   load(p, t, left)   reads the lane's part of the unit at p; `left` blocks of the row remain
//   ready(t)           works out scales and offsets, once the loads have arrived
//   piece(i, w)        8 weights, times KQ_SCALE, as four pairs of float16
//   weight(row, column) one weight in float32, from scalar.h or octets.h
//
// Codes become float16 by their bits: 0x6400 | code is 1024 + code, exactly. Scales are applied in float16, at KQ_SCALE times
// their value so that small ones keep their precision.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KQ_FN __device__ __forceinline__
#define KQ_BYTES const unsigned char*
#define KQ_TABLE static __device__ const
KQ_FN float kq_half_bits(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }
KQ_FN float kq_float_bits(unsigned int bits) { return __uint_as_float(bits); }

#include "../source/octets.h"

typedef unsigned int kq_u32;

// The run-time compiler has no standard headers.
template <class A, class B>
constexpr bool kq_same = false;
template <class A>
constexpr bool kq_same<A, A> = true;

#define KQ_SCALE 64.0f

// COUNT little-endian words at p, whose address is a multiple of ALIGN. Where that is 1 or 2 and the address a multiple of 4, the
// word that follows is not read: it may be past the end of the array.
template <int ALIGN, int COUNT>
KQ_FN void kq_words(KQ_BYTES p, kq_u32 (&out)[COUNT]) {
  if constexpr (ALIGN >= 16 && COUNT == 4) {
    uint4 v = *reinterpret_cast<const uint4*>(p);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else if constexpr (ALIGN >= 8 && COUNT % 2 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
      uint2 v = reinterpret_cast<const uint2*>(p)[i];
      out[2 * i] = v.x, out[2 * i + 1] = v.y;
    }
  } else if constexpr (ALIGN >= 4) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) out[i] = reinterpret_cast<const kq_u32*>(p)[i];
  } else {
    constexpr int ODD = ALIGN == 1 ? 3 : 2;
    size_t address = reinterpret_cast<size_t>(p);
    const kq_u32* aligned = reinterpret_cast<const kq_u32*>(p - (address & ODD));
    kq_u32 shift = (address & ODD) * 8, low = aligned[0];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      kq_u32 high = i + 1 < COUNT || shift ? aligned[i + 1] : 0;
      out[i] = __funnelshift_r(low, high, shift);
      low = high;
    }
  }
}

KQ_FN __half2 kq_pair_of(kq_u32 bits) { return *reinterpret_cast<__half2*>(&bits); }
KQ_FN kq_u32 kq_bits_of(__half2 pair) { return *reinterpret_cast<kq_u32*>(&pair); }
KQ_FN __half2 kq_both(float value) { return __float2half2_rn(value); }

// d at p, times KQ_SCALE, twice.
KQ_FN __half2 kq_factor(KQ_BYTES p) {
  return __hmul2(__half2half2(__ushort_as_half(*reinterpret_cast<const unsigned short*>(p))), kq_both(KQ_SCALE));
}

// Bytes of `word` that the selector names, as 1024 + byte.
KQ_FN __half2 kq_magic(kq_u32 word, kq_u32 selector) { return kq_pair_of(__byte_perm(word, 0x64646464u, selector)); }

// Four codes, one a byte, less `bias`, times the scale.
KQ_FN void kq_scaled(kq_u32 codes, float bias, __half2 scale, kq_u32& first, kq_u32& second) {
  __half2 less = kq_both(-1024.0f - bias);
  first = kq_bits_of(__hmul2(__hadd2(kq_magic(codes, 0x4140), less), scale));
  second = kq_bits_of(__hmul2(__hadd2(kq_magic(codes, 0x4342), less), scale));
}

// Four codes, one a byte, times the scale, plus the offset.
KQ_FN void kq_affine(kq_u32 codes, __half2 scale, __half2 offset, kq_u32& first, kq_u32& second) {
  __half2 less = kq_both(-1024.0f);
  first = kq_bits_of(__hfma2(__hadd2(kq_magic(codes, 0x4140), less), scale, offset));
  second = kq_bits_of(__hfma2(__hadd2(kq_magic(codes, 0x4342), less), scale, offset));
}

// Bits 0 to 3, each as the fifth bit of a byte.
KQ_FN kq_u32 kq_spread(kq_u32 four) { return (four * 0x02040810u) & 0x10101010u; }

// ---- Q4_K and Q5_K: 8 groups of 32. A lane takes 16 bytes of codes twice: the same half of two neighbouring groups, whose
// codes share bytes, in the first and in the second half of the block.

struct kq_two_level {
  kq_u32 head[4];
  __half2 scale[2], offset[2];  // of the group in the low nibbles and the one in the high nibbles

  KQ_FN void scales(int t) {
    int shift = 16 * (t >> 1);
    kq_u32 first = head[1] >> shift, second = head[2] >> shift, third = head[3] >> shift;
    __half2 factors = __hmul2(kq_pair_of(head[0]), kq_both(KQ_SCALE));
    __half2 d = __low2half2(factors), least = __hneg2(__high2half2(factors)), less = kq_both(-1024.0f);
    scale[0] = __hmul2(d, __hadd2(kq_magic(first & 0x3F3F, 0x4140), less));
    offset[0] = __hmul2(least, __hadd2(kq_magic(second & 0x3F3F, 0x4140), less));
    scale[1] = __hmul2(d, __hadd2(kq_magic((third & 0x0F0F) | ((first >> 2) & 0x3030), 0x4140), less));
    offset[1] = __hmul2(least, __hadd2(kq_magic(((third >> 4) & 0x0F0F) | ((second >> 2) & 0x3030), 0x4140), less));
  }
  KQ_FN __half2 scale_of(int j, int high) { return high ? __high2half2(scale[j]) : __low2half2(scale[j]); }
  KQ_FN __half2 offset_of(int j, int high) { return high ? __high2half2(offset[j]) : __low2half2(offset[j]); }
  KQ_FN static int column(int t, int i) { return 64 * (t >> 1) + 16 * (t & 1) + 128 * (i >> 2) + 32 * (i >> 1 & 1) + 8 * (i & 1); }
};

struct kq_Q4_K : kq_two_level {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 144, UNIT_BYTES = 144, ALIGN = 16;
  kq_u32 codes[2][4];

  KQ_FN void load(KQ_BYTES p, int t, int left) {
    kq_words<16>(p, head);
    kq_words<16>(p + 16 + 16 * t, codes[0]);
    kq_words<16>(p + 80 + 16 * t, codes[1]);
  }
  KQ_FN void ready(int t) { scales(t); }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
    int j = i >> 2, high = i >> 1 & 1;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_u32 word = codes[j][2 * (i & 1) + e];
      kq_affine((high ? word >> 4 : word) & 0x0F0F0F0F, scale_of(j, high), offset_of(j, high), w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q4_k(row, column); }
};

struct kq_Q5_K : kq_two_level {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 176, UNIT_BYTES = 176, ALIGN = 16;
  kq_u32 codes[2][4], fifth[4];

  KQ_FN void load(KQ_BYTES p, int t, int left) {
    kq_words<16>(p, head);
    kq_words<16>(p + 16 + 16 * (t & 1), fifth);
    kq_words<16>(p + 48 + 16 * t, codes[0]);
    kq_words<16>(p + 112 + 16 * t, codes[1]);
  }
  KQ_FN void ready(int t) {
    scales(t);
#pragma unroll
    for (int i = 0; i < 4; i++) fifth[i] >>= 2 * (t >> 1);
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
    int j = i >> 2, high = i >> 1 & 1;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_u32 word = codes[j][2 * (i & 1) + e], bit = fifth[2 * (i & 1) + e];
      bit = j ? bit >> high : bit << (4 - high);
      kq_affine(((high ? word >> 4 : word) & 0x0F0F0F0F) | (bit & 0x10101010), scale_of(j, high), offset_of(j, high),
                w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q5_k(row, column); }
};

// ---- Q2_K, Q3_K and Q6_K: 16 groups of 16. Piece 4 h + j is in half h of the block, plane j of it, the t-th 8 weights.

struct kq_sixteen {
  __half2 scale[4];  // word i of the scales holds the groups of pieces 2 i and 2 i + 1, low and high
  KQ_FN static int column(int t, int i) { return 32 * i + 8 * t; }
  KQ_FN static kq_u32 selector(int t) { return t < 2 ? 0x4240 : 0x4341; }
  KQ_FN static __half2 one_of(__half2 pair, int i) { return i & 1 ? __high2half2(pair) : __low2half2(pair); }
};

struct kq_Q2_K : kq_sixteen {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 84, UNIT_BYTES = 84, ALIGN = 4;
  kq_u32 codes[2][2], packed[4], factors[1];
  __half2 offset[4];

  KQ_FN void load(KQ_BYTES p, int t, int left) {
    kq_words<4>(p, packed);
    kq_words<4>(p + 16 + 8 * t, codes[0]);
    kq_words<4>(p + 48 + 8 * t, codes[1]);
    kq_words<4>(p + 80, factors);
  }
  KQ_FN void ready(int t) {
    __half2 both = __hmul2(kq_pair_of(factors[0]), kq_both(KQ_SCALE));
    __half2 d = __low2half2(both), least = __hneg2(__high2half2(both)), less = kq_both(-1024.0f);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      scale[i] = __hmul2(d, __hadd2(kq_magic(packed[i] & 0x0F0F0F0F, selector(t)), less));
      offset[i] = __hmul2(least, __hadd2(kq_magic((packed[i] >> 4) & 0x0F0F0F0F, selector(t)), less));
    }
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_affine((codes[i >> 2][e] >> (2 * (i & 3))) & 0x03030303, one_of(scale[i >> 1], i), one_of(offset[i >> 1], i),
                w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q2_k(row, column); }
};

struct kq_Q3_K : kq_sixteen {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 110, UNIT_BYTES = 110, ALIGN = 2;
  kq_u32 codes[2][2], third[2], packed[3];
  __half2 d;

  KQ_FN void load(KQ_BYTES p, int t, int left) {
    kq_words<2>(p + 8 * t, third);
    kq_words<2>(p + 32 + 8 * t, codes[0]);
    kq_words<2>(p + 64 + 8 * t, codes[1]);
    kq_words<2>(p + 96, packed);
    d = kq_factor(p + 108);
  }
  KQ_FN void ready(int t) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      kq_u32 low = (i & 2 ? packed[i & 1] >> 4 : packed[i & 1]) & 0x0F0F0F0F;
      kq_u32 high = ((packed[2] >> (2 * i)) & 0x03030303) << 4;
      scale[i] = __hmul2(d, __hadd2(kq_magic(low | high, selector(t)), kq_both(-1056.0f)));
    }
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_u32 bit = i < 2 ? third[e] << (2 - i) : third[e] >> (i - 2);
      kq_scaled(((codes[i >> 2][e] >> (2 * (i & 3))) & 0x03030303) | (bit & 0x04040404), 4.0f, one_of(scale[i >> 1], i),
                w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q3_k(row, column); }
};

struct kq_Q6_K : kq_sixteen {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 210, UNIT_BYTES = 210, ALIGN = 2;
  kq_u32 low[4][2], high[2][2], packed[4];
  __half2 d;

  KQ_FN void load(KQ_BYTES p, int t, int left) {
#pragma unroll
    for (int i = 0; i < 4; i++) kq_words<2>(p + 32 * i + 8 * t, low[i]);
    kq_words<2>(p + 128 + 8 * t, high[0]);
    kq_words<2>(p + 160 + 8 * t, high[1]);
    kq_words<2>(p + 192, packed);
    d = kq_factor(p + 208);
  }
  KQ_FN void ready(int t) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      scale[i] = __hmul2(d, __hadd2(kq_magic(packed[i] ^ 0x80808080, selector(t)), kq_both(-1152.0f)));
    }
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
    int h = i >> 2, j = i & 3;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_u32 nibbles = low[2 * h + (j & 1)][e], pairs = high[h][e];
      nibbles = (j & 2 ? nibbles >> 4 : nibbles) & 0x0F0F0F0F;
      pairs = (j < 2 ? pairs << (4 - 2 * j) : pairs >> (2 * j - 4)) & 0x30303030;
      kq_scaled(nibbles | pairs, 32.0f, one_of(scale[i >> 1], i), w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q6_k(row, column); }
};

// ---- Blocks of 32 weights: 8 make a unit, of which a lane takes t and t + 4. A block past the row's end counts as zeros.

template <int BYTES, int AT, int ALIGNMENT, int CODE_WORDS>
struct kq_thirty_two {
  static constexpr int BLOCK = 32, BLOCK_BYTES = BYTES, UNIT_BYTES = 8 * BYTES, ALIGN = ALIGNMENT;
  kq_u32 codes[2][CODE_WORDS];
  __half2 scale[2], offset[2];

  // The block the lane reads for j, one that exists.
  KQ_FN static KQ_BYTES block(KQ_BYTES p, int t, int j, int left) { return p + min(t + 4 * j, left - 1) * BYTES; }
  KQ_FN void load_codes(KQ_BYTES p, int t, int left, bool with_offset) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      KQ_BYTES at = block(p, t, j, left);
      bool within = t + 4 * j < left;
      kq_words<(AT % ALIGNMENT ? 2 : ALIGNMENT)>(at + AT, codes[j]);
      scale[j] = within ? kq_factor(at) : kq_both(0.0f);
      if (with_offset) offset[j] = within ? kq_factor(at + 2) : kq_both(0.0f);
    }
  }
  KQ_FN kq_u32 nibbles(int i, int e) {
    kq_u32 word = codes[i >> 2][2 * (i & 1) + e];
    return (i & 2 ? word >> 4 : word) & 0x0F0F0F0F;
  }
  KQ_FN void ready(int t) {}
  KQ_FN static int column(int t, int i) { return 32 * t + 128 * (i >> 2) + 8 * (i & 3); }
};

struct kq_Q4_0 : kq_thirty_two<18, 2, 2, 4> {
  KQ_FN void load(KQ_BYTES p, int t, int left) { load_codes(p, t, left, false); }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) kq_scaled(nibbles(i, e), 8.0f, scale[i >> 2], w[2 * e], w[2 * e + 1]);
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q4_0(row, column); }
};

struct kq_Q4_1 : kq_thirty_two<20, 4, 4, 4> {
  KQ_FN void load(KQ_BYTES p, int t, int left) { load_codes(p, t, left, true); }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) kq_affine(nibbles(i, e), scale[i >> 2], offset[i >> 2], w[2 * e], w[2 * e + 1]);
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q4_1(row, column); }
};

struct kq_Q5_0 : kq_thirty_two<22, 6, 2, 4> {
  kq_u32 fifth[2][1];
  KQ_FN void load(KQ_BYTES p, int t, int left) {
    load_codes(p, t, left, false);
#pragma unroll
    for (int j = 0; j < 2; j++) kq_words<2>(block(p, t, j, left) + 2, fifth[j]);
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_u32 bits = kq_spread((fifth[i >> 2][0] >> (8 * (i & 3) + 4 * e)) & 15);
      kq_scaled(nibbles(i, e) | bits, 16.0f, scale[i >> 2], w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q5_0(row, column); }
};

struct kq_Q5_1 : kq_thirty_two<24, 8, 8, 4> {
  kq_u32 fifth[2][1];
  KQ_FN void load(KQ_BYTES p, int t, int left) {
    load_codes(p, t, left, true);
#pragma unroll
    for (int j = 0; j < 2; j++) kq_words<4>(block(p, t, j, left) + 4, fifth[j]);
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_u32 bits = kq_spread((fifth[i >> 2][0] >> (8 * (i & 3) + 4 * e)) & 15);
      kq_affine(nibbles(i, e) | bits, scale[i >> 2], offset[i >> 2], w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q5_1(row, column); }
};

struct kq_Q8_0 : kq_thirty_two<34, 2, 2, 8> {
  KQ_FN void load(KQ_BYTES p, int t, int left) { load_codes(p, t, left, false); }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_scaled(codes[i >> 2][2 * (i & 3) + e] ^ 0x80808080, 128.0f, scale[i >> 2], w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_q8_0(row, column); }
};
