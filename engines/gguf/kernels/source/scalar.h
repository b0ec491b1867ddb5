// One weight of a quant type from a row's bytes, in the C that CUDA and Metal share.
//
// The including source defines KQ_FN (how a device function is declared), KQ_BYTES (pointer to bytes of device memory) and
// kq_half_bits(unsigned short), the float of a float16's bits. Layouts are documented in engines/gguf/quants.

KQ_FN float kq_half(KQ_BYTES p) { return kq_half_bits((unsigned short)(p[0] | (p[1] << 8))); }

// A 2-bit field of Q2_K, Q3_K and Q6_K: 32 bytes hold 128 weights.
KQ_FN int kq_pair(KQ_BYTES field, int i) { return (field[(i >> 7) * 32 + (i & 31)] >> ((i >> 5 & 3) * 2)) & 3; }

KQ_FN float kq_q2_k(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 8) * 84;
  int i = column & 255;
  int packed = block[i >> 4];
  return kq_half(block + 80) * (float)(packed & 15) * (float)kq_pair(block + 16, i) -
         kq_half(block + 82) * (float)(packed >> 4);
}

KQ_FN float kq_q3_k(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 8) * 110;
  int i = column & 255;
  int group = i >> 4;
  int low = (block[96 + (group & 7)] >> (group >> 3) * 4) & 15;
  int high = (block[104 + (group & 3)] >> (group >> 2) * 2) & 3;
  int third = (block[i & 31] >> (i >> 5)) & 1;
  int code = kq_pair(block + 32, i) + 4 * third - 4;
  return kq_half(block + 108) * (float)(low + 16 * high - 32) * (float)code;
}

// Scale (at = 4) or minimum (at = 8) of a group of Q4_K and Q5_K.
KQ_FN int kq_six_bits(KQ_BYTES block, int group, int at) {
  if (group < 4) return block[at + group] & 63;
  return (((at == 4 ? block[8 + group] : block[8 + group] >> 4) & 15)) | ((block[at + group - 4] >> 6) << 4);
}

KQ_FN float kq_q4_k(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 8) * 144;
  int i = column & 255;
  int group = i >> 5;
  int code = (block[16 + (i >> 6) * 32 + (i & 31)] >> (group & 1) * 4) & 15;
  return kq_half(block) * (float)kq_six_bits(block, group, 4) * (float)code -
         kq_half(block + 2) * (float)kq_six_bits(block, group, 8);
}

KQ_FN float kq_q5_k(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 8) * 176;
  int i = column & 255;
  int group = i >> 5;
  int code = (block[48 + (i >> 6) * 32 + (i & 31)] >> (group & 1) * 4) & 15;
  code += 16 * ((block[16 + (i & 31)] >> group) & 1);
  return kq_half(block) * (float)kq_six_bits(block, group, 4) * (float)code -
         kq_half(block + 2) * (float)kq_six_bits(block, group, 8);
}

KQ_FN float kq_q6_k(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 8) * 210;
  int i = column & 255;
  int low = (block[(i >> 7) * 64 + (i & 63)] >> (i >> 6 & 1) * 4) & 15;
  int code = low + 16 * kq_pair(block + 128, i) - 32;
  return kq_half(block + 208) * (float)(signed char)block[192 + (i >> 4)] * (float)code;
}

KQ_FN float kq_q4_0(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 5) * 18;
  int i = column & 31;
  return kq_half(block) * (float)(((block[2 + (i & 15)] >> (i >> 4) * 4) & 15) - 8);
}

KQ_FN float kq_q4_1(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 5) * 20;
  int i = column & 31;
  return kq_half(block) * (float)((block[4 + (i & 15)] >> (i >> 4) * 4) & 15) + kq_half(block + 2);
}

KQ_FN float kq_q5_0(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 5) * 22;
  int i = column & 31;
  int code = ((block[6 + (i & 15)] >> (i >> 4) * 4) & 15) + 16 * ((block[2 + (i >> 3)] >> (i & 7)) & 1);
  return kq_half(block) * (float)(code - 16);
}

KQ_FN float kq_q5_1(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 5) * 24;
  int i = column & 31;
  int code = ((block[8 + (i & 15)] >> (i >> 4) * 4) & 15) + 16 * ((block[4 + (i >> 3)] >> (i & 7)) & 1);
  return kq_half(block) * (float)code + kq_half(block + 2);
}

KQ_FN float kq_q8_0(KQ_BYTES row, int column) {
  KQ_BYTES block = row + (column >> 5) * 34;
  return kq_half(block) * (float)(signed char)block[2 + (column & 31)];
}
