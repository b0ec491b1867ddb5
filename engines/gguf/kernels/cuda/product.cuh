// Activations [m, k] times the transposed weights of K-quant blocks [n, row bytes].
//
// A warp multiplies RT tiles of 16 rows of weights with NT tiles of 8 rows of activations by mma.m16n8k16: the weights are
// the 16-row operand, so that one row of activations is enough. The W warps of a thread block have the same rows and share
// the columns, in chunks of U units of 256; at the end their sums are added through shared memory.
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

KQ_FN void kq_mma(float (&c)[4], kq_u32 a0, kq_u32 a1, kq_u32 a2, kq_u32 a3, kq_u32 b0, kq_u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- Barriers in shared memory that the bulk copy engine completes. Addresses are of shared memory, 32 bits.

KQ_FN kq_u32 kq_shared_address(const void* p) { return (kq_u32)__cvta_generic_to_shared(p); }
KQ_FN void kq_barrier_init(kq_u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
KQ_FN void kq_barrier_expect(kq_u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
KQ_FN void kq_barrier_wait(kq_u32 barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}"
      ::"r"(barrier), "r"(parity) : "memory");
}
KQ_FN void kq_bulk_copy(kq_u32 to, KQ_BYTES from, int bytes, kq_u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// The shared memory of a thread block, in bytes: barriers, the ring, the activations; the sums of the warps lie over the last two.
template <class Q, int NT, int RT, int W, int STAGES, int U, int XC>
struct kq_layout {
  static constexpr int ROWS = 16 * RT;
  // A chunk of a row with what else is in its lines of 16 bytes; an odd number of lines puts rows into different banks.
  static constexpr int LINES = (U * Q::UNIT_BYTES + (Q::ALIGN >= 16 ? 0 : 16 - Q::ALIGN) + 15) / 16;
  static constexpr int STRIDE = (LINES | 1) * 16;
  static constexpr int RING = ROWS * STRIDE * STAGES;   // of a warp
  static constexpr int X_STRIDE = 512 + 16;             // of a row of activations
  static constexpr int BARRIERS = (W * STAGES * 8 + 127) / 128 * 128;
};

// Adds to acc the products of 16 RT rows of weights, from `row0` on, with the activations row_of(0), row_of(1), …
template <class Q, int NT, int RT, int W, int STAGES, int U, int XC, class X, class RowOf>
KQ_FN void kq_accumulate(float (&acc)[RT][NT][4], RowOf row_of, int count, KQ_BYTES blocks, int row0, int k, int n,
                         int row_bytes, unsigned char* shared) {
  using L = kq_layout<Q, NT, RT, W, STAGES, U, XC>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int units = (k + 255) / 256, blocks_in_row = k / Q::BLOCK;
  unsigned char* const own_x = shared + L::BARRIERS + W * L::RING + warp * XC * L::X_STRIDE;
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
    if (warp >= units) return;
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
    load(now, warp);
    if constexpr (XC > 0) bring(warp);
    for (int unit = warp; unit < units; unit += W) {
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
    if (lane < STAGES) kq_barrier_init(barriers + 8 * lane, L::ROWS);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    // Lane r copies row r.
    KQ_BYTES const mine = blocks + (size_t)min(row0 + lane, n - 1) * row_bytes;
    const kq_u32 to = kq_shared_address(ring) + lane * L::STRIDE;
    auto fetch = [&](int chunk, int stage) {
      if (lane < L::ROWS) {
        size_t from = reinterpret_cast<size_t>(mine) + (size_t)chunk * (U * Q::UNIT_BYTES);
        size_t end = reinterpret_cast<size_t>(mine) + min((chunk + 1) * (U * Q::UNIT_BYTES), row_bytes);
        // Whole lines of 16 bytes, each with a byte of the row in it: none lies outside of the allocation.
        from &= ~(size_t)15;
        const int bytes = (int)((end + 15 & ~(size_t)15) - from);
        kq_barrier_expect(barriers + 8 * stage, bytes);
        kq_bulk_copy(to + stage * (L::ROWS * L::STRIDE), reinterpret_cast<KQ_BYTES>(from), bytes, barriers + 8 * stage);
      }
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
      if (warp + s * W < chunks) fetch(warp + s * W, s);
    }
    int stage = 0, parity = 0;
    for (int chunk = warp; chunk < chunks; chunk += W) {
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
          q[r].load(ring + (stage * L::ROWS + 8 * r + g) * L::STRIDE + u * Q::UNIT_BYTES + skew, t,
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

// Adds the warps' sums and calls store(row of the tile, column of the tile, sum).
template <int NT, int RT, int W, class Store>
KQ_FN void kq_combine(const float (&acc)[RT][NT][4], float* sums, Store store) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();  // the ring is free
#pragma unroll
  for (int r = 0; r < RT; r++) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) sums[((warp * RT + r) * NT + j) * 128 + e * 32 + lane] = acc[r][j][e];
    }
  }
  __syncthreads();
  for (int index = threadIdx.x; index < RT * NT * 128; index += W * 32) {
    const int row = index % (16 * RT), column = index / (16 * RT);
    const int r = row >> 4, g = row & 7, j = column >> 3, t = column >> 1 & 3;
    const int at = (r * NT + j) * 128 + ((row >> 3 & 1) * 2 + (column & 1)) * 32 + g * 4 + t;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < W; w++) sum += sums[w * RT * NT * 128 + at];
    store(row, column, sum);
  }
}

template <class T>
KQ_FN T kq_rounded(float value) {
  if constexpr (kq_same<T, __nv_bfloat16>) return __float2bfloat16(value);
  else return __float2half(value);
}

// One product, weight by weight: for arrays that begin at an address no wide load can use.
template <class Q, class X>
__device__ __noinline__ float kq_dot(const X* x, KQ_BYTES row, int k) {
  float sum = 0;
  for (int i = 0; i < k; i++) sum += (float)x[i] * Q::weight(row, i);
  return sum;
}

// Product of all axes of a shape but the last.
template <class Shape>
KQ_FN int kq_leading(const Shape& shape, int axes) {
  int count = 1;
  for (int i = 0; i + 1 < axes; i++) count *= shape[i];
  return count;
}

template <class Q>
KQ_FN bool kq_unaligned(const void* x, const void* blocks) {
  return ((size_t)x & 15) != 0 || ((size_t)blocks & (Q::ALIGN - 1)) != 0;
}

// out [m, n] = factor times x [m, k] times weights [n, k] transposed. Thread block (i, j): rows from 16 RT i, activations from
// 8 NT j.
template <class Q, int NT, int RT, int W, int STAGES, int U, int XC, class X, class T>
KQ_FN void kq_product(const X* x, KQ_BYTES blocks, T* out, int m, int k, int n, int row_bytes, float factor) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  const int row0 = blockIdx.x * 16 * RT, column0 = blockIdx.y * 8 * NT;
  if (kq_unaligned<Q>(x, blocks)) {
    for (int index = threadIdx.x; index < 128 * RT * NT; index += W * 32) {
      const int row = row0 + index % (16 * RT), column = column0 + index / (16 * RT);
      if (row < n && column < m) {
        const float sum = kq_dot<Q>(x + (size_t)column * k, blocks + (size_t)row * row_bytes, k);
        out[(size_t)column * n + row] = kq_rounded<T>(sum * factor);
      }
    }
    return;
  }
  float acc[RT][NT][4] = {};
  auto row_of = [&](int c) { return x + (size_t)(column0 + c) * k; };
  kq_accumulate<Q, NT, RT, W, STAGES, U, XC, X>(acc, row_of, m - column0, blocks, row0, k, n, row_bytes, kq_shared);
  factor *= kq_activation<X>::FACTOR / KQ_SCALE;
  constexpr int SKIP = kq_layout<Q, NT, RT, W, STAGES, U, XC>::BARRIERS;
  kq_combine<NT, RT, W>(acc, reinterpret_cast<float*>(kq_shared + SKIP), [&](int row, int at, float sum) {
    if (row0 + row < n && column0 + at < m) out[(size_t)(column0 + at) * n + row0 + row] = kq_rounded<T>(sum * factor);
  });
}

// out [pairs, n]: row p of the answer is row p / share of x times the weights of expert experts[p]. blocks is [experts, n, row
// bytes]. Thread block (i, j): rows from 16 RT i, pairs from `group` j; neighbours of the same expert are taken together.
template <class Q, int RT, int W, class X>
KQ_FN void kq_gathered(const X* x, KQ_BYTES blocks, const unsigned int* experts, X* out, int pairs, int share, int group, int k,
                       int n, int row_bytes) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  const int row0 = blockIdx.x * 16 * RT;
  const int end = min((int)(blockIdx.y + 1) * group, pairs);
  for (int first = blockIdx.y * group, last; first < end; first = last) {
    const unsigned int expert = experts[first];
    for (last = first + 1; last < end && last < first + 8 && experts[last] == expert; last++) {}
    KQ_BYTES own = blocks + (size_t)expert * n * row_bytes;
    if (kq_unaligned<Q>(x, blocks)) {
      for (int index = threadIdx.x; index < 16 * RT * (last - first); index += W * 32) {
        const int row = row0 + index % (16 * RT), pair = first + index / (16 * RT);
        if (row < n) {
          out[(size_t)pair * n + row] =
              kq_rounded<X>(kq_dot<Q>(x + (size_t)(pair / share) * k, own + (size_t)row * row_bytes, k));
        }
      }
      continue;
    }
    float acc[RT][1][4] = {};
    auto row_of = [&](int c) { return x + (size_t)((first + c) / share) * k; };
    kq_accumulate<Q, 1, RT, W, 0, 1, 0, X>(acc, row_of, last - first, own, row0, k, n, row_bytes, kq_shared);
    kq_combine<1, RT, W>(acc, reinterpret_cast<float*>(kq_shared), [&](int row, int at, float sum) {
      if (row0 + row < n && first + at < last) {
        out[(size_t)(first + at) * n + row0 + row] = kq_rounded<X>(sum * (kq_activation<X>::FACTOR / KQ_SCALE));
      }
    });
    __syncthreads();  // the sums are read before the next expert's are written
  }
}
