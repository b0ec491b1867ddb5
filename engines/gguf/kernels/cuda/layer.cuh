// What stands between the products of a decoder's layer when it decodes: sums with norms, and rotary embeddings.

// Sum over a thread block of WARPS warps; every thread gets it. `sums`: WARPS floats of shared memory.
template <int WARPS>
KQ_FN float kq_block_sum(float value, float* sums) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  __syncthreads();  // the sums of the call before have been read
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = value;
  __syncthreads();
  value = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) value += sums[warp];
  return value;
}

template <class T>
KQ_FN void kq_read_eight(const T* from, float (&out)[8]) {
  if (((size_t)from & 15) == 0) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const T* const values = reinterpret_cast<const T*>(&words);
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = (float)values[i];
  } else {
    for (int i = 0; i < 8; i++) out[i] = (float)from[i];
  }
}

// The answer is aligned: MLX has just made it.
template <class T>
KQ_FN void kq_write_eight(const float (&values)[8], T* to) {
  uint4 words;
  T* const rounded = reinterpret_cast<T*>(&words);
#pragma unroll
  for (int i = 0; i < 8; i++) rounded[i] = kq_rounded<T>(values[i]);
  *reinterpret_cast<uint4*>(to) = words;
}

// v becomes v / sqrt(mean of squares + eps) * weight, rounded as T. A thread has pieces of eight columns, its own first.
template <class T, int WARPS, int PIECES>
KQ_FN void kq_normalise(float (&v)[PIECES][8], const T* weight, int width, float eps, float* sums) {
  float square = 0;
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
#pragma unroll
    for (int i = 0; i < 8; i++) square += v[p][i] * v[p][i];
  }
  const float factor = rsqrtf(kq_block_sum<WARPS>(square, sums) / width + eps);
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int at = (p * WARPS * 32 + threadIdx.x) * 8;
    if (at >= width) continue;
    float w[8];
    kq_read_eight(weight + at, w);
#pragma unroll
    for (int i = 0; i < 8; i++) v[p][i] = (float)kq_rounded<T>(v[p][i] * factor * w[i]);
  }
}

// Rows of `width` columns, a multiple of 8, one a thread block: h = x + r, y = norm(h). With INNER r is normalised first, by a
// norm of its own. PIECES times WARPS times 256 columns are at least `width`.
template <class T, int WARPS, int PIECES, bool INNER>
KQ_FN void kq_sum_norm(const T* x, const T* r, const T* inner, const T* weight, T* h, T* y, int width, float inner_eps, float eps) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  float* const sums = reinterpret_cast<float*>(kq_shared);
  const size_t row = (size_t)blockIdx.x * width;
  float v[PIECES][8] = {};
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int at = (p * WARPS * 32 + threadIdx.x) * 8;
    if (at < width) kq_read_eight(r + row + at, v[p]);
  }
  if constexpr (INNER) kq_normalise<T, WARPS, PIECES>(v, inner, width, inner_eps, sums);
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int at = (p * WARPS * 32 + threadIdx.x) * 8;
    if (at >= width) continue;
    float before[8];
    kq_read_eight(x + row + at, before);
#pragma unroll
    for (int i = 0; i < 8; i++) v[p][i] = (float)kq_rounded<T>(before[i] + v[p][i]);
    kq_write_eight(v[p], h + row + at);
  }
  kq_normalise<T, WARPS, PIECES>(v, weight, width, eps, sums);
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int at = (p * WARPS * 32 + threadIdx.x) * 8;
    if (at < width) kq_write_eight(v[p], y + row + at);
  }
}

// How a rotary embedding turns its pairs: the first `dims` of a head's `features`; pair i by scale * position over
// wavelengths[i], or over base ** (i / (dims / 2)) where there are none. Neighbours are a pair (TRADITIONAL), or the halves.
struct kq_rotation {
  int features, dims;
  const float* wavelengths;
  float log2_base, scale, magnitude;
};

template <class T, bool TRADITIONAL>
KQ_FN void kq_rotate_pair(const T* from, T* to, int pair, float position, const kq_rotation& turn) {
  const int half = turn.dims / 2;
  if (pair >= half) {  // behind what is rotated
    to[2 * pair] = from[2 * pair], to[2 * pair + 1] = from[2 * pair + 1];
    return;
  }
  const float frequency = turn.wavelengths ? 1 / turn.wavelengths[pair] : exp2f(-turn.log2_base * ((float)pair / half));
  const float angle = turn.scale * position * frequency, cosine = cosf(angle), sine = sinf(angle);
  const int first = TRADITIONAL ? 2 * pair : pair, second = TRADITIONAL ? 2 * pair + 1 : pair + half;
  const float a = (float)from[first] * turn.magnitude, b = (float)from[second] * turn.magnitude;
  to[first] = kq_rounded<T>(a * cosine - b * sine), to[second] = kq_rounded<T>(a * sine + b * cosine);
}

// Queries [rows, heads, features] and keys [rows, kv_heads, features] of one token a row, at the position of all rows or of each.
// A thread a pair.
template <class T, bool TRADITIONAL>
KQ_FN void kq_rotate(const T* queries, const T* keys, const int* positions, T* queries_out, T* keys_out, int rows, int heads,
                     int kv_heads, bool one_position, const kq_rotation& turn) {
  const int pairs = turn.features / 2;
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= (long long)rows * (heads + kv_heads) * pairs) return;
  const int pair = (int)(index % pairs), row = (int)(index / pairs / (heads + kv_heads));
  const int head = (int)(index / pairs % (heads + kv_heads));
  const float position = (float)positions[one_position ? 0 : row];
  const bool is_query = head < heads;
  const size_t at = is_query ? ((size_t)row * heads + head) * turn.features
                             : ((size_t)row * kv_heads + head - heads) * turn.features;
  kq_rotate_pair<T, TRADITIONAL>((is_query ? queries : keys) + at, (is_query ? queries_out : keys_out) + at, pair, position, turn);
}
