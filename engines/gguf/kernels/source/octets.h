// Eight neighbouring weights of the types that look theirs up, in the C that CUDA, Metal and the CPU share.
//
// The including source defines, besides what scalar.h asks for, KQ_TABLE (how a table is declared) and kq_float_bits(unsigned),
// the float of a float32's bits. Four codes stand in the bytes of a word, the first in the lowest.

#include "scalar.h"
#include "../../quants/grids.h"

// Weight i is scale times byte i, a signed one, of low and high.
struct kq_octet {
  float scale;
  unsigned int low, high;
};

KQ_FN kq_octet kq_octet_of(float scale, unsigned int low, unsigned int high) {
  kq_octet made;
  made.scale = scale, made.low = low, made.high = high;
  return made;
}
KQ_FN float kq_weight_of(kq_octet from, int i) {
  return from.scale * (float)(signed char)((i & 4 ? from.high : from.low) >> (i & 3) * 8);
}

KQ_FN unsigned int kq_short(KQ_BYTES p) { return (unsigned int)p[0] | (unsigned int)p[1] << 8; }
KQ_FN unsigned int kq_word(KQ_BYTES p) { return kq_short(p) | kq_short(p + 2) << 16; }
// The even (0) or the odd (1) one of the nibbles of a byte.
KQ_FN unsigned int kq_nibble(unsigned int byte, int odd) { return byte >> (odd & 1) * 4 & 15; }

// 8 or 12 bits as four fields of 2 or 3, one a byte.
KQ_FN unsigned int kq_pairs(unsigned int bits) {
  bits = ((bits & 255) | bits << 12) & 0x000F000Fu;
  return (bits | bits << 6) & 0x03030303u;
}
KQ_FN unsigned int kq_triples(unsigned int bits) {
  return (bits & 7) | (bits & 0x38) << 5 | (bits & 0x1C0) << 10 | (bits & 0xE00) << 15;
}
// The bytes of `codes`, none of which is 0, negative where the bit of the lowest four of `signs` is set.
KQ_FN unsigned int kq_negated(unsigned int codes, unsigned int signs) {
  const unsigned int ones = (signs & 15) * 0x00204081u & 0x01010101u;
  return (codes ^ ones * 255) + ones;
}
// Signs of 8 weights from 7 bits: the eighth makes their number even.
KQ_FN unsigned int kq_with_eighth(unsigned int seven) {
  unsigned int odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  return seven | ((odd ^ odd >> 1) & 1) << 7;
}

// ---- Grids of 8 weights, of which a field of 2 bits stands for 8, 25 or 43.

KQ_FN unsigned int kq_iq2_codes(unsigned int fields) { return fields * 17 + (fields >> 1 & 0x01010101u) + 0x08080808u; }
KQ_FN kq_octet kq_iq2_octet(float scale, unsigned int entry, unsigned int signs) {
  return kq_octet_of(scale, kq_negated(kq_iq2_codes(kq_pairs(entry & 255)), signs),
                     kq_negated(kq_iq2_codes(kq_pairs(entry >> 8)), signs >> 4));
}
KQ_FN float kq_iq2_scale(KQ_BYTES block, unsigned int scale) { return kq_half(block) * ((float)scale + 0.5f) * 0.25f; }

KQ_FN kq_octet kq_iq2_xxs_octet(KQ_BYTES block, int octet) {
  KQ_BYTES group = block + 2 + (octet >> 2) * 8;
  const unsigned int word = kq_word(group + 4);
  return kq_iq2_octet(kq_iq2_scale(block, word >> 28), kq_grid_iq2_xxs[group[octet & 3]],
                      kq_with_eighth(word >> 7 * (octet & 3) & 127));
}

KQ_FN kq_octet kq_iq2_xs_octet(KQ_BYTES block, int octet) {
  const unsigned int packed = kq_short(block + 2 + 2 * octet);
  return kq_iq2_octet(kq_iq2_scale(block, kq_nibble(block[66 + (octet >> 2)], octet >> 1)), kq_grid_iq2_xs[packed & 511],
                      kq_with_eighth(packed >> 9));
}

KQ_FN kq_octet kq_iq2_s_octet(KQ_BYTES block, int octet) {
  const unsigned int top = block[66 + (octet >> 2)] >> 2 * (octet & 3) & 3;
  return kq_iq2_octet(kq_iq2_scale(block, kq_nibble(block[74 + (octet >> 2)], octet >> 1)),
                      kq_grid_iq2_s[block[2 + octet] | top << 8], block[34 + octet]);
}

// ---- Grids of 4 weights, in fields of 3 bits.

KQ_FN unsigned int kq_iq3_xxs_codes(unsigned int fields) {  // 4, 12, 20, … 52 and 62
  return fields * 8 + 0x04040404u + 2 * (fields & fields >> 1 & fields >> 2 & 0x01010101u);
}
KQ_FN kq_octet kq_iq3_xxs_octet(KQ_BYTES block, int octet) {
  const unsigned int word = kq_word(block + 66 + (octet >> 2) * 4);
  const unsigned int signs = kq_with_eighth(word >> 7 * (octet & 3) & 127);
  const unsigned int low = kq_iq3_xxs_codes(kq_triples(kq_grid_iq3_xxs[block[2 + 2 * octet]]));
  const unsigned int high = kq_iq3_xxs_codes(kq_triples(kq_grid_iq3_xxs[block[3 + 2 * octet]]));
  return kq_octet_of(kq_half(block) * ((float)(word >> 28) + 0.5f) * 0.5f, kq_negated(low, signs),
                     kq_negated(high, signs >> 4));
}

KQ_FN unsigned int kq_iq3_s_codes(unsigned int index) {  // 1, 3, 5, … 15
  return kq_triples(kq_grid_iq3_s[index]) * 2 + 0x01010101u;
}
KQ_FN kq_octet kq_iq3_s_octet(KQ_BYTES block, int octet) {
  const unsigned int ninth = block[66 + (octet >> 2)] >> 2 * (octet & 3), signs = block[74 + octet];
  const unsigned int scale = kq_nibble(block[106 + (octet >> 3)], octet >> 2) * 2 + 1;
  return kq_octet_of(kq_half(block) * (float)scale,
                     kq_negated(kq_iq3_s_codes(block[2 + 2 * octet] | (ninth & 1) << 8), signs),
                     kq_negated(kq_iq3_s_codes(block[3 + 2 * octet] | (ninth >> 1 & 1) << 8), signs >> 4));
}

// ---- Grids of 8 weights -1, 0 and 1, to which an eighth is added; codes are eight times that.

KQ_FN unsigned int kq_iq1_codes(unsigned int fields, unsigned int negative) {
  return (fields * 8 + (negative ? 0x77777777u : 0x79797979u)) ^ 0x80808080u;
}
KQ_FN kq_octet kq_iq1_octet(float scale, unsigned int index, unsigned int negative) {
  const unsigned int entry = kq_grid_iq1[index];
  return kq_octet_of(scale * 0.125f, kq_iq1_codes(kq_pairs(entry & 255), negative), kq_iq1_codes(kq_pairs(entry >> 8), negative));
}

KQ_FN kq_octet kq_iq1_s_octet(KQ_BYTES block, int octet) {
  const unsigned int packed = kq_short(block + 34 + (octet >> 2) * 2);
  return kq_iq1_octet(kq_half(block) * (float)((packed >> 12 & 7) * 2 + 1),
                      block[2 + octet] | (packed >> 3 * (octet & 3) & 7) << 8, packed >> 15);
}

KQ_FN kq_octet kq_iq1_m_octet(KQ_BYTES block, int octet) {
  const unsigned int nibble = kq_nibble(block[32 + (octet >> 1)], octet);
  const unsigned int scale = kq_short(block + 48 + (octet >> 3) * 2) >> 3 * (octet >> 1 & 3) & 7;
  const unsigned int d = block[49] >> 4 | block[51] >> 4 << 4 | block[53] >> 4 << 8 | block[55] >> 4 << 12;
  return kq_iq1_octet(kq_half_bits((unsigned short)d) * (float)(scale * 2 + 1), block[octet] | (nibble & 7) << 8, nibble >> 3);
}

// ---- Digits of base 3.

KQ_FN unsigned int kq_digit(unsigned int byte, unsigned int power) { return ((byte * power & 255) * 3 >> 8) + 127; }
KQ_FN unsigned int kq_digits(KQ_BYTES p, unsigned int power) {
  return (kq_digit(p[0], power) | kq_digit(p[1], power) << 8 | kq_digit(p[2], power) << 16 | kq_digit(p[3], power) << 24) ^
         0x80808080u;
}
KQ_FN unsigned int kq_power_of_three(int digit) {
  return digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
}
KQ_FN kq_octet kq_tq1_0_octet(KQ_BYTES block, int octet) {
  const float d = kq_half(block + 52);
  if (octet >= 30) {
    const int digit = 2 * (octet - 30);
    return kq_octet_of(d, kq_digits(block + 48, kq_power_of_three(digit)), kq_digits(block + 48, kq_power_of_three(digit + 1)));
  }
  KQ_BYTES p = octet < 20 ? block + (octet & 3) * 8 : block + 32 + (octet & 1) * 8;
  const unsigned int power = kq_power_of_three(octet < 20 ? octet >> 2 : (octet - 20) >> 1);
  return kq_octet_of(d, kq_digits(p, power), kq_digits(p + 4, power));
}

KQ_FN kq_octet kq_tq2_0_octet(KQ_BYTES block, int octet) {
  KQ_BYTES p = block + (octet >> 4) * 32 + (octet & 3) * 8;
  const int shift = (octet >> 2 & 3) * 2;
  const unsigned int low = (kq_word(p) >> shift & 0x03030303u) + 0x7F7F7F7Fu;
  const unsigned int high = (kq_word(p + 4) >> shift & 0x03030303u) + 0x7F7F7F7Fu;
  return kq_octet_of(kq_half(block + 64), low ^ 0x80808080u, high ^ 0x80808080u);
}

// ---- 4 bits that stand for 16 steps; of 2 n weights, the first n are the low nibbles of n bytes.

KQ_TABLE signed char kq_steps_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
KQ_TABLE signed char kq_steps_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Codes of the low or the high nibbles of four bytes.
#define KQ_STEPS(TABLE)                                                                                 \
  KQ_FN unsigned int kq_four_##TABLE(KQ_BYTES p, int high) {                                            \
    unsigned int codes = 0;                                                                             \
    for (int i = 0; i < 4; i++) {                                                                       \
      codes |= (unsigned int)(unsigned char)kq_steps_##TABLE[kq_nibble(p[i], high)] << 8 * i;           \
    }                                                                                                   \
    return codes;                                                                                       \
  }
KQ_STEPS(iq4)
KQ_STEPS(e2m1)

KQ_FN kq_octet kq_iq4_nl_octet(KQ_BYTES block, int octet) {
  KQ_BYTES p = block + 2 + (octet & 1) * 8;
  return kq_octet_of(kq_half(block), kq_four_iq4(p, octet >> 1), kq_four_iq4(p + 4, octet >> 1));
}

KQ_FN float kq_iq4_xs_scale(KQ_BYTES block, int group) {
  const unsigned int top = kq_short(block + 2) >> 2 * group & 3;
  return kq_half(block) * (float)((int)(kq_nibble(block[4 + (group >> 1)], group) | top << 4) - 32);
}
KQ_FN kq_octet kq_iq4_xs_octet(KQ_BYTES block, int octet) {
  const int group = octet >> 2;
  KQ_BYTES p = block + 8 + group * 16 + (octet & 1) * 8;
  return kq_octet_of(kq_iq4_xs_scale(block, group), kq_four_iq4(p, octet >> 1), kq_four_iq4(p + 4, octet >> 1));
}

// Half of the power of two that MXFP4's exponent stands for.
KQ_FN float kq_half_power(unsigned int exponent) {
  return kq_float_bits(exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
}
KQ_FN kq_octet kq_mxfp4_octet(KQ_BYTES block, int octet) {
  KQ_BYTES p = block + 1 + (octet & 1) * 8;
  return kq_octet_of(kq_half_power(block[0]), kq_four_e2m1(p, octet >> 1), kq_four_e2m1(p + 4, octet >> 1));
}

// Half of what NVFP4's byte stands for.
KQ_FN float kq_half_scale(unsigned int byte) {
  const unsigned int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const float unit = kq_float_bits((116 + (exponent ? exponent : 1)) << 23);
  return byte == 0x7F ? 0.0f : (float)(exponent ? 8 + mantissa : mantissa) * unit;
}
KQ_FN kq_octet kq_nvfp4_octet(KQ_BYTES block, int octet) {
  KQ_BYTES p = block + 4 + (octet >> 1) * 8;
  return kq_octet_of(kq_half_scale(block[octet >> 1]), kq_four_e2m1(p, octet), kq_four_e2m1(p + 4, octet));
}

// ---- One weight from a row's bytes, as scalar.h has it of other types; `BLOCK` weights in `BYTES` bytes.

#define KQ_SCALAR(NAME, BLOCK, BYTES)                                                                            \
  KQ_FN float kq_##NAME(KQ_BYTES row, int column) {                                                              \
    return kq_weight_of(kq_##NAME##_octet(row + column / BLOCK * BYTES, column % BLOCK >> 3), column & 7);       \
  }
KQ_SCALAR(iq4_nl, 32, 18)
KQ_SCALAR(iq4_xs, 256, 136)
KQ_SCALAR(iq3_s, 256, 110)
KQ_SCALAR(iq3_xxs, 256, 98)
KQ_SCALAR(iq2_s, 256, 82)
KQ_SCALAR(iq2_xs, 256, 74)
KQ_SCALAR(iq2_xxs, 256, 66)
KQ_SCALAR(iq1_s, 256, 50)
KQ_SCALAR(iq1_m, 256, 56)
KQ_SCALAR(tq1_0, 256, 54)
KQ_SCALAR(tq2_0, 256, 66)
KQ_SCALAR(mxfp4, 32, 17)
KQ_SCALAR(nvfp4, 64, 36)
