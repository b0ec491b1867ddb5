// The types whose weights are looked up, as blocks.cuh has the others. Codes stand 128 higher in their bytes.

// ---- IQ4_NL and IQ4_XS: 4 bits that stand for 16 steps, which four words hold.

// The steps of the four nibbles in the lower half of `nibbles`: one among the first eight and one among the others, then the
// one that the nibble's top bit means.
template <kq_u32 A, kq_u32 B, kq_u32 C, kq_u32 D>
KQ_FN kq_u32 kq_four_steps(kq_u32 nibbles) {
  const kq_u32 low = __byte_perm(A, B, nibbles & 0x7777u), high = __byte_perm(C, D, nibbles & 0x7777u);
  return __byte_perm(low, high, (nibbles & 0x8888u) >> 1 | 0x3210u);
}
// Those of the low nibbles of a word's bytes, or of the high ones. The compiler makes both at once where both are used.
template <kq_u32 A, kq_u32 B, kq_u32 C, kq_u32 D>
KQ_FN kq_u32 kq_steps(kq_u32 word, bool high) {
  const kq_u32 first = kq_four_steps<A, B, C, D>(word), second = kq_four_steps<A, B, C, D>(word >> 16);
  return __byte_perm(first, second, high ? 0x7531u : 0x6420u);
}
KQ_FN kq_u32 kq_iq4_steps(kq_u32 word, bool high) {
  return kq_steps<0x3F2D1801u, 0x766A5D4Fu, 0xA6998D81u, 0xF1D9C5B5u>(word, high);
}

struct kq_IQ4_NL : kq_thirty_two<18, 2, 2, 4> {
  KQ_FN void load(KQ_BYTES p, int t, int left) { load_codes(p, t, left, false); }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_scaled(kq_iq4_steps(codes[i >> 2][2 * (i & 1) + e], i & 2), 128.0f, scale[i >> 2], w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_iq4_nl(row, column); }
};

// A lane takes groups t and t + 4.
struct kq_IQ4_XS {
  static constexpr int BLOCK = 256, BLOCK_BYTES = 136, UNIT_BYTES = 136, ALIGN = 8;
  kq_u32 head[2], codes[2][4];
  __half2 scale[2];

  KQ_FN void load(KQ_BYTES p, int t, int left) {
    kq_words<8>(p, head);
    kq_words<8>(p + 8 + 16 * t, codes[0]);
    kq_words<8>(p + 72 + 16 * t, codes[1]);
  }
  KQ_FN void ready(int t) {
    const __half2 d = __hmul2(__low2half2(kq_pair_of(head[0])), kq_both(KQ_SCALE));
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const kq_u32 low = head[1] >> (4 * t + 16 * j) & 15, top = head[0] >> (16 + 2 * t + 8 * j) & 3;
      scale[j] = __hmul2(d, __hadd2(kq_magic(low | top << 4, 0x4040), kq_both(-1056.0f)));
    }
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kq_scaled(kq_iq4_steps(codes[i >> 2][2 * (i & 1) + e], i & 2), 128.0f, scale[i >> 2], w[2 * e], w[2 * e + 1]);
    }
  }
  KQ_FN static int column(int t, int i) { return 32 * t + 128 * (i >> 2) + 8 * (i & 3); }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_iq4_xs(row, column); }
};

// ---- MXFP4: 4 bits that are a float of 2 bits of exponent and 1 of mantissa.

// Two nibbles, where float16 has its sign and the lowest bits of its exponent, are float16 of 2^-15 of twice their value, subnormal
// ones too.
KQ_FN kq_u32 kq_e2m1_pair(kq_u32 bytes, bool high, __half2 scale) {
  const kq_u32 bits = high ? (bytes >> 3 & 0x0E000E00u) | (bytes & 0x80008000u)
                           : (bytes << 1 & 0x0E000E00u) | (bytes << 4 & 0x80008000u);
  return kq_bits_of(__hmul2(__hmul2(kq_pair_of(bits), kq_both(32768.0f)), scale));
}

struct kq_MXFP4 : kq_thirty_two<17, 1, 1, 4> {
  KQ_FN void load(KQ_BYTES p, int t, int left) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      KQ_BYTES at = block(p, t, j, left);
      kq_words<1>(at + 1, codes[j]);
      scale[j] = kq_both(t + 4 * j < left ? kq_half_power(at[0]) * KQ_SCALE : 0.0f);
    }
  }
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const kq_u32 word = codes[i >> 2][2 * (i & 1) + e];
      w[2 * e] = kq_e2m1_pair(__byte_perm(word, 0, 0x1404), i & 2, scale[i >> 2]);
      w[2 * e + 1] = kq_e2m1_pair(__byte_perm(word, 0, 0x3424), i & 2, scale[i >> 2]);
    }
  }
  KQ_FN static float weight(KQ_BYTES row, int column) { return kq_mxfp4(row, column); }
};

// ---- All others, eight weights at a time by octets.h, byte by byte: right, and not fast. A lane keeps where its blocks lie;
// piece i is octet 4 i + t of the unit.

template <int WEIGHTS, int BYTES, kq_octet (*READ)(KQ_BYTES, int)>
struct kq_by_octets {
  static constexpr int BLOCK = WEIGHTS, BLOCK_BYTES = BYTES, UNIT_BYTES = 256 / WEIGHTS * BYTES, ALIGN = 1;
  KQ_BYTES unit;
  int lane, blocks;

  KQ_FN void load(KQ_BYTES p, int t, int left) { unit = p, lane = t, blocks = left; }
  KQ_FN void ready(int t) {}
  KQ_FN void piece(int i, kq_u32 (&w)[4]) {
    constexpr int OCTETS = WEIGHTS / 8;
    const int octet = 4 * i + lane, at = octet / OCTETS;
    const kq_octet read = READ(unit + min(at, blocks - 1) * BYTES, octet % OCTETS);
    const __half2 scale = kq_both(at < blocks ? read.scale * KQ_SCALE : 0.0f);
    kq_scaled(read.low ^ 0x80808080u, 128.0f, scale, w[0], w[1]);
    kq_scaled(read.high ^ 0x80808080u, 128.0f, scale, w[2], w[3]);
  }
  KQ_FN static int column(int t, int i) { return 32 * i + 8 * t; }
  KQ_FN static float weight(KQ_BYTES row, int column) {
    return kq_weight_of(READ(row + column / WEIGHTS * BYTES, column % WEIGHTS >> 3), column & 7);
  }
};

struct kq_IQ3_S : kq_by_octets<256, 110, kq_iq3_s_octet> {};
struct kq_IQ3_XXS : kq_by_octets<256, 98, kq_iq3_xxs_octet> {};
struct kq_IQ2_S : kq_by_octets<256, 82, kq_iq2_s_octet> {};
struct kq_IQ2_XS : kq_by_octets<256, 74, kq_iq2_xs_octet> {};
struct kq_IQ2_XXS : kq_by_octets<256, 66, kq_iq2_xxs_octet> {};
struct kq_IQ1_S : kq_by_octets<256, 50, kq_iq1_s_octet> {};
struct kq_IQ1_M : kq_by_octets<256, 56, kq_iq1_m_octet> {};
struct kq_TQ1_0 : kq_by_octets<256, 54, kq_tq1_0_octet> {};
struct kq_TQ2_0 : kq_by_octets<256, 66, kq_tq2_0_octet> {};
struct kq_NVFP4 : kq_by_octets<64, 36, kq_nvfp4_octet> {};
