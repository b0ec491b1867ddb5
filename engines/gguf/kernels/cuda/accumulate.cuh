// The sums of a warp: rows of weights times rows of activations.
//
// A warp multiplies RT tiles of 16 rows of weights with NT tiles of 8 rows of activations by mma.m16n8k16: the weights are
// the 16-row operand, so that one row of activations is enough. A thread block has W parties of R warps. A party takes its
// share of the columns, in chunks of U units of 256; its warps have different rows of weights. At the end the parties' sums are
// added through shared memory.
//
// STAGES 0: blocks are read straight into registers, one unit ahead (U is 1). Otherwise each warp has its rows' chunks copied
// into a ring of so many stages in shared memory by the bulk copy engine: few instructions, any alignment, no registers.
//
// XC 0: activations are read from where they lie, float16. Otherwise a warp brings the unit's activations, XC rows of them at
// most, into its own corner of shared memory and makes them float16 on the way, which costs less than to convert each where
// it is used as long as there are few.
//
// float16 activations are used as they are. bfloat16 ones become float16 at 1/16 of their value, which is exact for all
// between 1e-3 and 1e6, and off by at most 5e-7 below. Rows past the last are read as the last, and their sums dropped.

template <int NT_, int RT_, int W_, int R_, int STAGES_, int U_, int XC_>
struct kq_tile {
  static constexpr int NT = NT_, RT = RT_, W = W_, R = R_, STAGES = STAGES_, U = U_, XC = XC_;
  static constexpr int WARPS = W * R;  // of a thread block
  static constexpr int TALL = 16 * RT;  // rows of weights a warp
};

// The shared memory of a thread block, in bytes: barriers, rings, activations. The sums of the warps lie over the last two.
template <class Q, class T>
struct kq_layout {
  // A chunk of a row with what else is in its lines of 16 bytes; an odd number of lines puts rows into different banks.
  static constexpr int LINES = (T::U * Q::UNIT_BYTES + (Q::ALIGN >= 16 ? 0 : 16 - Q::ALIGN) + 15) / 16;
  static constexpr int STRIDE = (LINES | 1) * 16;
  static constexpr int RING = T::TALL * STRIDE * T::STAGES;  // of a warp
  static constexpr int X_STRIDE = 512 + 16;                  // of a row of activations
  static constexpr int BARRIERS = (T::WARPS * T::STAGES * 8 + 127) / 128 * 128;
};

template <class X>
struct kq_activation {
  static constexpr bool NARROWED = kq_same<X, __nv_bfloat16>;
  static constexpr float FACTOR = NARROWED ? 16.0f : 1.0f;  // times the float16 value is the activation's
};

// 8 activations as float16.
template <class X>
KQ_FN uint4 kq_narrow(uint4 v) {
  if constexpr (kq_activation<X>::NARROWED) {
    kq_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float low = __uint_as_float(words[i] << 16) * 0.0625f, high = __uint_as_float(words[i] & 0xFFFF0000u) * 0.0625f;
      words[i] = kq_bits_of(__floats2half2_rn(low, high));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    return v;
  }
}

// All of x as float16, for a product that reads activations from where they lie. A thread takes 8.
KQ_FN void kq_narrow_all(const __nv_bfloat16* x, __half* out, long long size) {
  const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (at + 8 <= size && ((size_t)x & 15) == 0) {
    *reinterpret_cast<uint4*>(out + at) = kq_narrow<__nv_bfloat16>(*reinterpret_cast<const uint4*>(x + at));
  } else {
    for (long long i = at; i < min(size, at + 8); i++) out[i] = __float2half(__bfloat162float(x[i]) * 0.0625f);
  }
}

// Adds to acc the products of 16 RT rows of weights, from `row0` on, with the activations row_of(0), row_of(1), …
template <class Q, class T, class X, class RowOf>
KQ_FN void kq_accumulate(float (&acc)[T::RT][T::NT][4], RowOf row_of, int count, KQ_BYTES blocks, int row0, int k, int n,
                         int row_bytes, unsigned char* shared) {
  using L = kq_layout<Q, T>;
  constexpr int NT = T::NT, RT = T::RT, W = T::W, U = T::U, STAGES = T::STAGES, XC = T::XC;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, party = warp / T::R;
  const int units = (k + 255) / 256, blocks_in_row = k / Q::BLOCK;
  unsigned char* const own_x = shared + L::BARRIERS + T::WARPS * L::RING + warp * XC * L::X_STRIDE;
  const X* column[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) column[j] = row_of(min(8 * j + g, count - 1));

  // The unit's activations, on their way to shared memory.
  uint4 staged[XC == 0 ? 1 : XC];
  auto bring = [&](int unit) {
    const int at = min(unit * 256 + 8 * lane, k - 8);
#pragma unroll
    for (int c = 0; c < XC; c++) {
      if (c < count) staged[c] = *reinterpret_cast<const uint4*>(row_of(c) + at);
    }
  };
  auto put = [&]() {
    __syncwarp();  // all have read the last unit's
#pragma unroll
    for (int c = 0; c < XC; c++) {
      if (c < count) *reinterpret_cast<uint4*>(own_x + c * L::X_STRIDE + 16 * lane) = kq_narrow<X>(staged[c]);
    }
    __syncwarp();
  };
  auto multiply = [&](Q(&q)[2 * RT], int unit) {
#pragma unroll
    for (int r = 0; r < 2 * RT; r++) q[r].ready(t);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int at = Q::column(t, i);
      uint4 b[NT];
#pragma unroll
      for (int j = 0; j < NT; j++) {
        if constexpr (XC > 0) {
          b[j] = *reinterpret_cast<const uint4*>(own_x + min(8 * j + g, XC - 1) * L::X_STRIDE + 2 * at);
        } else {
          // Past the row's end the weights are zeros, whatever the activations.
          const int inside = Q::BLOCK == 256 ? unit * 256 + at : min(unit * 256 + at, k - 8);
          b[j] = kq_narrow<X>(*reinterpret_cast<const uint4*>(column[j] + inside));
        }
      }
#pragma unroll
      for (int r = 0; r < RT; r++) {
        kq_u32 upper[4], lower[4];
        q[2 * r].piece(i, upper);
        q[2 * r + 1].piece(i, lower);
#pragma unroll
        for (int j = 0; j < NT; j++) {
          kq_mma(acc[r][j], upper[0], lower[0], upper[1], lower[1], b[j].x, b[j].y);
          kq_mma(acc[r][j], upper[2], lower[2], upper[3], lower[3], b[j].z, b[j].w);
        }
      }
    }
  };

  if constexpr (STAGES == 0) {
    if (party >= units) return;
    KQ_BYTES row[2 * RT];
#pragma unroll
    for (int r = 0; r < 2 * RT; r++) row[r] = blocks + (size_t)min(row0 + 8 * r + g, n - 1) * row_bytes;
    auto load = [&](Q(&q)[2 * RT], int unit) {
#pragma unroll
      for (int r = 0; r < 2 * RT; r++) {
        q[r].load(row[r] + (size_t)unit * Q::UNIT_BYTES, t, blocks_in_row - unit * (256 / Q::BLOCK));
      }
    };
    Q now[2 * RT], next[2 * RT];
    load(now, party);
    if constexpr (XC > 0) bring(party);
    for (int unit = party; unit < units; unit += W) {
      if constexpr (XC > 0) put();
      if (unit + W < units) {
        load(next, unit + W);
        if constexpr (XC > 0) bring(unit + W);
      }
      multiply(now, unit);
#pragma unroll
      for (int r = 0; r < 2 * RT; r++) now[r] = next[r];
    }
  } else {
    const int chunks = (units + U - 1) / U;
    unsigned char* const ring = shared + L::BARRIERS + warp * L::RING;
    const kq_u32 barriers = kq_shared_address(shared) + warp * STAGES * 8;
    if (lane < STAGES) kq_barrier_init(barriers + 8 * lane, T::TALL);
    kq_barriers_ready();
    __syncwarp();
    // Lane r copies row r.
    KQ_BYTES const mine = blocks + (size_t)min(row0 + lane, n - 1) * row_bytes;
    const kq_u32 to = kq_shared_address(ring) + lane * L::STRIDE;
    auto fetch = [&](int chunk, int stage) {
      if (lane < T::TALL) {
        size_t from = reinterpret_cast<size_t>(mine) + (size_t)chunk * (U * Q::UNIT_BYTES);
        size_t end = reinterpret_cast<size_t>(mine) + min((chunk + 1) * (U * Q::UNIT_BYTES), row_bytes);
        // Whole lines of 16 bytes, each with a byte of the row in it: none lies outside of the allocation.
        from &= ~(size_t)15;
        const int bytes = (int)((end + 15 & ~(size_t)15) - from);
        kq_barrier_expect(barriers + 8 * stage, bytes);
        kq_bulk_copy(to + stage * (T::TALL * L::STRIDE), reinterpret_cast<KQ_BYTES>(from), bytes, barriers + 8 * stage);
      }
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
      if (party + s * W < chunks) fetch(party + s * W, s);
    }
    int stage = 0, parity = 0;
    for (int chunk = party; chunk < chunks; chunk += W) {
      if constexpr (XC > 0) bring(chunk * U);
      kq_barrier_wait(barriers + 8 * stage, parity);
#pragma unroll
      for (int u = 0; u < U; u++) {
        const int unit = chunk * U + u;
        if (U > 1 && unit >= units) break;
        if constexpr (XC > 0) {
          put();
          if (u + 1 < U && unit + 1 < units) bring(unit + 1);
        }
        Q q[2 * RT];
#pragma unroll
        for (int r = 0; r < 2 * RT; r++) {
          const int skew = Q::ALIGN >= 16 ? 0
              : (int)(reinterpret_cast<size_t>(blocks) + (size_t)min(row0 + 8 * r + g, n - 1) * row_bytes +
                      (size_t)chunk * (U * Q::UNIT_BYTES)) & 15;
          q[r].load(ring + (stage * T::TALL + 8 * r + g) * L::STRIDE + u * Q::UNIT_BYTES + skew, t,
                    blocks_in_row - unit * (256 / Q::BLOCK));
        }
        multiply(q, unit);
      }
      __syncwarp();  // all have read the stage
      if (chunk + STAGES * W < chunks) fetch(chunk + STAGES * W, stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
}

// The warps' sums, where all threads of the block can add them up. Rings and activations are no longer needed.
template <class Q, class T>
KQ_FN float* kq_share(const float (&acc)[T::RT][T::NT][4], unsigned char* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float* const sums = reinterpret_cast<float*>(shared + kq_layout<Q, T>::BARRIERS);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < T::RT; r++) {
#pragma unroll
    for (int j = 0; j < T::NT; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) sums[((warp * T::RT + r) * T::NT + j) * 128 + e * 32 + lane] = acc[r][j][e];
    }
  }
  __syncthreads();
  return sums;
}

// The sum over all columns for a row of weights of the parties' `member`-th warps, and a row of activations (`column`).
template <class T>
KQ_FN float kq_sum(const float* sums, int member, int row, int column) {
  const int r = row >> 4, g = row & 7, j = column >> 3, t = column >> 1 & 3;
  const int at = ((member * T::RT + r) * T::NT + j) * 128 + ((row >> 3 & 1) * 2 + (column & 1)) * 32 + g * 4 + t;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < T::W; w++) sum += sums[w * (T::R * T::RT * T::NT * 128) + at];
  return sum;
}
