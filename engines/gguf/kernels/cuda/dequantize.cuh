// Weights of whole rows: out [count, k] of the rows that ids name, or of the rows from 0 on where ids is null.
//
// A warp takes a unit of 256 columns of 8 rows apart, and writes it through shared memory, so that each row's part goes out in
// one piece.

#define KQ_DEQUANTIZE_STRIDE (512 + 16)  // bytes of a row's part in shared memory

template <class T>
KQ_FN uint4 kq_weights(const kq_u32 (&w)[4]) {
  kq_u32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (kq_same<T, __nv_bfloat16>) {
      float2 pair = __half22float2(kq_pair_of(w[i]));
      __nv_bfloat162 rounded = __floats2bfloat162_rn(pair.x * (1 / KQ_SCALE), pair.y * (1 / KQ_SCALE));
      words[i] = *reinterpret_cast<kq_u32*>(&rounded);
    } else {
      words[i] = kq_bits_of(__hmul2(kq_pair_of(w[i]), kq_both(1 / KQ_SCALE)));
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// WARPS warps a thread block.
template <class Q, class T, int WARPS>
KQ_FN void kq_dequantize(KQ_BYTES blocks, const int* ids, T* out, int count, int k, int row_bytes) {
  __shared__ __align__(16) unsigned char kq_parts[WARPS][8 * KQ_DEQUANTIZE_STRIDE];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int units = (k + 255) / 256;
  const long long index = (long long)blockIdx.x * WARPS + warp;
  const int unit = (int)(index % units), row0 = (int)(index / units) * 8, row = row0 + g;
  if (row0 >= count) return;
  if ((size_t)blocks & (Q::ALIGN - 1)) {
    if (row >= count) return;
    KQ_BYTES from = blocks + (size_t)(ids == nullptr ? row : ids[row]) * row_bytes;
    for (int i = unit * 256 + t; i < min(k, unit * 256 + 256); i += 4) out[(size_t)row * k + i] = (T)Q::weight(from, i);
    return;
  }
  if (row < count) {
    Q q;
    q.load(blocks + (size_t)(ids == nullptr ? row : ids[row]) * row_bytes + (size_t)unit * Q::UNIT_BYTES, t,
           k / Q::BLOCK - unit * (256 / Q::BLOCK));
    q.ready(t);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      kq_u32 w[4];
      q.piece(i, w);
      *reinterpret_cast<uint4*>(kq_parts[warp] + g * KQ_DEQUANTIZE_STRIDE + 2 * Q::column(t, i)) = kq_weights<T>(w);
    }
  }
  __syncwarp();
  const int at = unit * 256 + 8 * lane;
#pragma unroll
  for (int r = 0; r < 8; r++) {
    if (row0 + r < count && at < k) {
      *reinterpret_cast<uint4*>(out + (size_t)(row0 + r) * k + at) =
          *reinterpret_cast<const uint4*>(kq_parts[warp] + r * KQ_DEQUANTIZE_STRIDE + 16 * lane);
    }
  }
}
