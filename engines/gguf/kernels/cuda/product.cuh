// Activations [m, k] times the transposed weights of K-quant blocks [n, row bytes]: what the kernels do with the sums of
// accumulate.cuh.

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

// Rows from `row0` on of out [m, n] = factor times x [m, k] times weights [n, k] transposed; activations from 8 NT times the
// block's y.
template <class Q, class T, class X, class Y>
KQ_FN void kq_rows(const X* x, KQ_BYTES blocks, Y* out, int m, int k, int n, int row_bytes, float factor, int row0) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  constexpr int ROWS = T::TALL * T::R;
  const int column0 = blockIdx.y * 8 * T::NT;
  if (kq_unaligned<Q>(x, blocks)) {
    for (int index = threadIdx.x; index < ROWS * 8 * T::NT; index += T::WARPS * 32) {
      const int row = row0 + index % ROWS, column = column0 + index / ROWS;
      if (row < n && column < m) {
        const float sum = kq_dot<Q>(x + (size_t)column * k, blocks + (size_t)row * row_bytes, k);
        out[(size_t)column * n + row] = kq_rounded<Y>(sum * factor);
      }
    }
    return;
  }
  float acc[T::RT][T::NT][4] = {};
  auto row_of = [&](int c) { return x + (size_t)(column0 + c) * k; };
  const int member = (threadIdx.x >> 5) % T::R;
  kq_accumulate<Q, T, X>(acc, row_of, m - column0, blocks, row0 + T::TALL * member, k, n, row_bytes, kq_shared);
  const float* const sums = kq_share<Q, T>(acc, kq_shared);
  factor *= kq_activation<X>::FACTOR / KQ_SCALE;
  for (int index = threadIdx.x; index < ROWS * 8 * T::NT; index += T::WARPS * 32) {
    const int row = index % ROWS, column = index / ROWS;
    if (row0 + row < n && column0 + column < m) {
      const float sum = kq_sum<T>(sums, row / T::TALL, row % T::TALL, column);
      out[(size_t)(column0 + column) * n + row0 + row] = kq_rounded<Y>(sum * factor);
    }
  }
}

// out [m, n] = factor times x [m, k] times weights [n, k] transposed.
template <class Q, class T, class X, class Y>
KQ_FN void kq_product(const X* x, KQ_BYTES blocks, Y* out, int m, int k, int n, int row_bytes, float factor) {
  kq_rows<Q, T>(x, blocks, out, m, k, n, row_bytes, factor, blockIdx.x * T::TALL * T::R);
}

// Products of the same activations with several matrices of one type, which take the grid's x one after the other.
template <class Q, class T, class X, class Y>
KQ_FN void kq_joined(const X* x, KQ_BYTES first, KQ_BYTES second, KQ_BYTES third, Y* out, Y* out2, Y* out3, int m, int k, int n,
                     int n2, int n3, int row_bytes, float factor) {
  constexpr int ROWS = T::TALL * T::R;
  int tile = blockIdx.x;
  if (tile >= (n + ROWS - 1) / ROWS) {
    tile -= (n + ROWS - 1) / ROWS, first = second, out = out2, n = n2;
    if (tile >= (n + ROWS - 1) / ROWS) tile -= (n + ROWS - 1) / ROWS, first = third, out = out3, n = n3;
  }
  kq_rows<Q, T>(x, first, out, m, k, n, row_bytes, factor, tile * ROWS);
}

// What the gate of an MLP goes through.
enum kq_gate { kq_silu, kq_gelu, kq_gelu_tanh };

template <kq_gate GATE>
KQ_FN float kq_gated_value(float gate, float up) {
  if constexpr (GATE == kq_silu) return gate / (1 + expf(-gate)) * up;
  else if constexpr (GATE == kq_gelu) return 0.5f * gate * (1 + erff(gate * 0.70710678f)) * up;
  else return 0.5f * gate * (1 + tanhf(0.79788456f * (gate + 0.044715f * gate * gate * gate))) * up;
}

// out [m, n] = GATE(factor times x times the gate's weights) times (factor times x times the up projection's), both transposed
// and of the same shape. The even warps of a party have the gate's rows, the odd ones the same rows of the up projection.
template <class Q, class T, kq_gate GATE, class X, class Y>
KQ_FN void kq_gated(const X* x, KQ_BYTES gate, KQ_BYTES up, Y* out, int m, int k, int n, int row_bytes, float factor) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  constexpr int ROWS = T::TALL * (T::R / 2);
  const int row0 = blockIdx.x * ROWS, column0 = blockIdx.y * 8 * T::NT;
  if (kq_unaligned<Q>(x, gate) || kq_unaligned<Q>(x, up)) {
    for (int index = threadIdx.x; index < ROWS * 8 * T::NT; index += T::WARPS * 32) {
      const int row = row0 + index % ROWS, column = column0 + index / ROWS;
      if (row < n && column < m) {
        const X* const from = x + (size_t)column * k;
        const size_t at = (size_t)row * row_bytes;
        const float left = kq_dot<Q>(from, gate + at, k) * factor, right = kq_dot<Q>(from, up + at, k) * factor;
        out[(size_t)column * n + row] = kq_rounded<Y>(kq_gated_value<GATE>(left, right));
      }
    }
    return;
  }
  float acc[T::RT][T::NT][4] = {};
  auto row_of = [&](int c) { return x + (size_t)(column0 + c) * k; };
  const int member = (threadIdx.x >> 5) % T::R;
  kq_accumulate<Q, T, X>(acc, row_of, m - column0, member & 1 ? up : gate, row0 + T::TALL * (member >> 1), k, n, row_bytes,
                         kq_shared);
  const float* const sums = kq_share<Q, T>(acc, kq_shared);
  factor *= kq_activation<X>::FACTOR / KQ_SCALE;
  for (int index = threadIdx.x; index < ROWS * 8 * T::NT; index += T::WARPS * 32) {
    const int row = index % ROWS, column = index / ROWS, pair = 2 * (row / T::TALL);
    if (row0 + row < n && column0 + column < m) {
      const float left = kq_sum<T>(sums, pair, row % T::TALL, column) * factor;
      const float right = kq_sum<T>(sums, pair + 1, row % T::TALL, column) * factor;
      out[(size_t)(column0 + column) * n + row0 + row] = kq_rounded<Y>(kq_gated_value<GATE>(left, right));
    }
  }
}

// out [pairs, n]: row p of the answer is row p / share of x times the weights of expert experts[p]. blocks is [experts, n, row
// bytes]. Thread block (i, j): rows from 16 RT i, pairs from `group` j; neighbours of the same expert are taken together.
template <class Q, class T, class X>
KQ_FN void kq_gathered(const X* x, KQ_BYTES blocks, const unsigned int* experts, X* out, int pairs, int share, int group, int k,
                       int n, int row_bytes) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  constexpr int ROWS = T::TALL;
  const int row0 = blockIdx.x * ROWS;
  const int end = min((int)(blockIdx.y + 1) * group, pairs);
  for (int first = blockIdx.y * group, last; first < end; first = last) {
    const unsigned int expert = experts[first];
    for (last = first + 1; last < end && last < first + 8 && experts[last] == expert; last++) {}
    KQ_BYTES own = blocks + (size_t)expert * n * row_bytes;
    if (kq_unaligned<Q>(x, blocks)) {
      for (int index = threadIdx.x; index < ROWS * (last - first); index += T::WARPS * 32) {
        const int row = row0 + index % ROWS, pair = first + index / ROWS;
        if (row < n) {
          out[(size_t)pair * n + row] =
              kq_rounded<X>(kq_dot<Q>(x + (size_t)(pair / share) * k, own + (size_t)row * row_bytes, k));
        }
      }
      continue;
    }
    float acc[T::RT][1][4] = {};
    auto row_of = [&](int c) { return x + (size_t)((first + c) / share) * k; };
    kq_accumulate<Q, T, X>(acc, row_of, last - first, own, row0, k, n, row_bytes, kq_shared);
    const float* const sums = kq_share<Q, T>(acc, kq_shared);
    for (int index = threadIdx.x; index < ROWS * (last - first); index += T::WARPS * 32) {
      const int row = index % ROWS, pair = first + index / ROWS;
      if (row0 + row < n) {
        out[(size_t)pair * n + row0 + row] =
            kq_rounded<X>(kq_sum<T>(sums, 0, row, pair - first) * (kq_activation<X>::FACTOR / KQ_SCALE));
      }
    }
    __syncthreads();  // the sums are read before the next expert's are written
  }
}
