// The sums of a warp: rows of weights times rows of activations.
//
// A warp multiplies RT tiles of 16 rows of weights with NT tiles of 8 rows of activations by mma.m16n8k16: the weights are
// the 16-row operand, so that one row of activations is enough. A thread block has W parties of R warps. A party takes its
// share of the columns, units of 256 in chunks of U; its warps have different rows of weights and the same activations.
//
// STAGES 0: blocks are read straight into registers, one unit ahead (U is 1). Otherwise each warp has its rows' chunks copied
// into a ring of so many stages in shared memory by the bulk copy engine: few instructions, any alignment, no registers.
//
// XC 0: activations are read from where they lie, float16. Otherwise a party copies the unit's activations, XC rows of them
// at most, to shared memory, one unit ahead, and makes them float16 there. Without that the activations, not the weights, are
// most of what is read: a warp with 32 rows of weights needs as many activations a unit as weights at M = 9.
//
// float16 activations are used as they are. bfloat16 ones become float16 at 1/16 of their value, which is exact for all
// between 1e-3 and 1e6, and off by at most 5e-7 below. Rows past the last are read as the last or not at all, and their sums
// dropped.

template <int NT_, int RT_, int W_, int R_, int STAGES_, int U_, int XC_>
struct kq_tile {
  static constexpr int NT = NT_, RT = RT_, W = W_, R = R_, STAGES = STAGES_, U = U_, XC = XC_;
  static constexpr int WARPS = W * R, PARTY = 32 * R;  // warps a thread block, threads a party
};

// The shared memory of a thread block, in bytes: barriers, rings, activations. The sums of the warps lie over the last two.
template <class Q, class T>
struct kq_layout {
  static constexpr int ROWS = 16 * T::RT;
  // A chunk of a row with what else is in its lines of 16 bytes; an odd number of lines puts rows into different banks.
  static constexpr int LINES = (T::U * Q::UNIT_BYTES + (Q::ALIGN >= 16 ? 0 : 16 - Q::ALIGN) + 15) / 16;
  static constexpr int STRIDE = (LINES | 1) * 16;
  static constexpr int RING = ROWS * STRIDE * T::STAGES;  // of a warp
  static constexpr int X = T::XC * 512;                   // a unit's activations; a party has two
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

// A party's activations in shared memory: two units of them, the one in use and the next.
//
// Cells of 16 bytes, 8 activations. A piece's cells of all rows lie together, lane by lane, so that a warp reads 512 bytes in
// one sweep; the exclusive or spreads what one row's copies write over the banks.
template <class Q, class T, class X>
struct kq_staged {
  unsigned char* const cells;
  const int party, member, count, k;  // which party; which of its threads; rows of activations

  KQ_FN static int cell(int i, int slot) { return i * (4 * T::XC) + (slot ^ (i & (T::XC > 1 ? 7 : 3))); }
  KQ_FN unsigned char* at(int half, int cell) const { return cells + half * (T::XC * 512) + cell * 16; }

  template <class Visit>
  KQ_FN void each(Visit visit) const {
#pragma unroll
    for (int first = 0; first < 32 * T::XC; first += T::PARTY) {
      const int index = first + member, row = index >> 5, p = index & 31;
      if (row < min(count, T::XC)) visit(row, p, cell(Q::index(p), 4 * row + Q::lane(p)));
    }
  }
  template <class RowOf>
  KQ_FN void bring(RowOf row_of, int unit, int half) const {
    each([&](int row, int p, int cell) {
      kq_copy(kq_shared_address(at(half, cell)), row_of(row) + min(unit * 256 + 8 * p, k - 8));
    });
  }
  // Afterwards the half is whole, and nobody reads the other one any more.
  KQ_FN void settle(int half) const {
    kq_copies_wait();
    if constexpr (kq_activation<X>::NARROWED) {
      each([&](int row, int p, int cell) {
        uint4* const own = reinterpret_cast<uint4*>(at(half, cell));
        *own = kq_narrow<X>(*own);
      });
    }
    if constexpr (T::R == 1) __syncwarp();
    else kq_meet(1 + party, T::PARTY);
  }
  KQ_FN uint4 piece(int half, int i, int j, int g, int t) const {
    const int slot = T::XC == 1 ? t : 4 * g + t;
    return *reinterpret_cast<const uint4*>(at(half, (T::XC == 1 ? 0 : 32 * j) + cell(i, slot)));
  }
};

// Adds to acc the products of 16 RT rows of weights, from `row0` on, with the activations row_of(0), row_of(1), …
template <class Q, class T, class X, class RowOf>
KQ_FN void kq_accumulate(float (&acc)[T::RT][T::NT][4], RowOf row_of, int count, KQ_BYTES blocks, int row0, int k, int n,
                         int row_bytes, unsigned char* shared) {
  using L = kq_layout<Q, T>;
  constexpr int NT = T::NT, RT = T::RT, W = T::W, U = T::U, STAGES = T::STAGES;
  constexpr bool STAGED = T::XC > 0;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, party = warp / T::R;
  const int units = (k + 255) / 256, blocks_in_row = k / Q::BLOCK;
  const kq_staged<Q, T, X> staged = {shared + L::BARRIERS + T::WARPS * L::RING + party * 2 * L::X, party,
                                     (int)threadIdx.x - party * T::PARTY, count, k};
  int half = 0;
  const X* column[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) column[j] = row_of(min(8 * j + g, count - 1));

  auto multiply = [&](Q(&q)[2 * RT], int unit) {
#pragma unroll
    for (int r = 0; r < 2 * RT; r++) q[r].ready(t);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint4 b[NT];
#pragma unroll
      for (int j = 0; j < NT; j++) {
        if constexpr (STAGED) {
          b[j] = staged.piece(half, i, j, g, t);
        } else {
          // Past the row's end the weights are zeros, whatever the activations.
          const int at = unit * 256 + Q::column(t, i);
          b[j] = kq_narrow<X>(*reinterpret_cast<const uint4*>(column[j] + (Q::BLOCK == 256 ? at : min(at, k - 8))));
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
    if constexpr (STAGED) staged.bring(row_of, party, 0);
    load(now, party);
    for (int unit = party; unit < units; unit += W) {
      if constexpr (STAGED) staged.settle(half);
      if (unit + W < units) {
        if constexpr (STAGED) staged.bring(row_of, unit + W, half ^ 1);
        load(next, unit + W);
      }
      multiply(now, unit);
      half ^= 1;
#pragma unroll
      for (int r = 0; r < 2 * RT; r++) now[r] = next[r];
    }
  } else {
    const int chunks = (units + U - 1) / U;
    unsigned char* const ring = shared + L::BARRIERS + warp * L::RING;
    const kq_u32 barriers = kq_shared_address(shared) + warp * STAGES * 8;
    if (lane < STAGES) kq_barrier_init(barriers + 8 * lane, L::ROWS);
    kq_barriers_ready();
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
      if (party + s * W < chunks) fetch(party + s * W, s);
    }
    if constexpr (STAGED) {
      if (party < chunks) staged.bring(row_of, party * U, 0);
    }
    int stage = 0, parity = 0;
    for (int chunk = party; chunk < chunks; chunk += W) {
      kq_barrier_wait(barriers + 8 * stage, parity);
#pragma unroll
      for (int u = 0; u < U; u++) {
        const int unit = chunk * U + u;
        if (U > 1 && unit >= units) break;
        if constexpr (STAGED) {
          const int following = u + 1 < U && unit + 1 < units ? unit + 1 : (chunk + W) * U;
          staged.settle(half);
          if (following < units) staged.bring(row_of, following, half ^ 1);
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
        half ^= 1;
      }
      __syncwarp();  // all have read the stage
      if (chunk + STAGES * W < chunks) fetch(chunk + STAGES * W, stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
}

// The warps' sums, where all threads of the block can add them up. The ring and the activations are no longer needed.
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

// The sum over the columns of a row of the `member`-th warps of the parties, and a column of the tile.
template <class T>
KQ_FN float kq_sum(const float* sums, int member, int row, int column) {
  const int r = row >> 4, g = row & 7, j = column >> 3, t = column >> 1 & 3;
  const int at = ((member * T::RT + r) * T::NT + j) * 128 + ((row >> 3 & 1) * 2 + (column & 1)) * 32 + g * 4 + t;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < T::W; w++) sum += sums[w * (T::R * T::RT * T::NT * 128) + at];
  return sum;
}
