// Attention of one new token a row over a batch's cache: softmax(scale q . k) v, each row from where its padding ends.

// Lanes that share a key. Each has every eighth piece of a head's features.
constexpr int KQ_SHARING = 8;

// Elements a lane reads at a time: 16 bytes where a head's features are enough for all lanes, else 8.
template <int FEATURES>
constexpr int KQ_PIECE = FEATURES % (8 * KQ_SHARING) == 0 ? 8 : 4;

// A lane's features of one head, as float.
template <class T, int FEATURES>
KQ_FN void kq_read_head(const T* head, int lane, float (&out)[FEATURES / KQ_SHARING]) {
  constexpr int PIECE = KQ_PIECE<FEATURES>;
#pragma unroll
  for (int p = 0; p < FEATURES / KQ_SHARING / PIECE; p++) {
    const T* const from = head + (p * KQ_SHARING + lane) * PIECE;
    if constexpr (PIECE == 8) {
      const uint4 words = *reinterpret_cast<const uint4*>(from);
      const T* const values = reinterpret_cast<const T*>(&words);
#pragma unroll
      for (int i = 0; i < 8; i++) out[p * 8 + i] = (float)values[i];
    } else {
      const uint2 words = *reinterpret_cast<const uint2*>(from);
      const T* const values = reinterpret_cast<const T*>(&words);
#pragma unroll
      for (int i = 0; i < 4; i++) out[p * 4 + i] = (float)values[i];
    }
  }
}

// The largest logit while there is none: below any that can be, and finite, so that no difference is NaN.
constexpr float KQ_NONE = -1e30f;

// What some keys make of one query: the largest logit (base 2), the sum of 2^(logit - largest), and the values weighted by that.
// Two of them become one: what either is multiplied by.
KQ_FN void kq_scales(float most, float other, float& mine, float& theirs, float& both) {
  both = most > other ? most : other;
  mine = exp2f(most - both), theirs = exp2f(other - both);
}

// Queries [rows, heads, FEATURES]; keys and values [rows, kv_heads, room, FEATURES], of which the first `used[0]` are there, the
// first `left[row]` of them padding. A thread block takes QUERIES heads of one kv head, and one of `splits` parts of the keys.
// With one part `out` [rows, heads, FEATURES] is the answer, with more `parts` [rows, heads, splits, FEATURES + 2] is left for
// kq_attend_merge. Shared memory: WARPS * QUERIES * (FEATURES + 2) floats. Reads are wide: arrays begin at 16 bytes.
template <class T, int FEATURES, int QUERIES, int WARPS, bool SPLIT>
KQ_FN void kq_attend(const T* queries, const T* keys, const T* values, const int* left, const int* used, T* out, float* parts,
                     int heads, int kv_heads, int room, int splits, float scale) {
  extern __shared__ __align__(128) unsigned char kq_shared[];
  float* const seen = reinterpret_cast<float*>(kq_shared);
  constexpr int MINE = FEATURES / KQ_SHARING, GROUPS = WARPS * 32 / KQ_SHARING, RECORD = FEATURES + 2;
  constexpr int PIECE = KQ_PIECE<FEATURES>;
  const int group = heads / kv_heads, chunks = (group + QUERIES - 1) / QUERIES;
  const int chunk = blockIdx.y % chunks, kv_head = blockIdx.y / chunks % kv_heads, row = blockIdx.y / chunks / kv_heads;
  const int first = kv_head * group + chunk * QUERIES, count = min(QUERIES, group - chunk * QUERIES);
  const int lane = threadIdx.x % KQ_SHARING, warp = threadIdx.x >> 5;
  const int length = used[0], part = (length + splits - 1) / splits;
  const int end = min(length, ((int)blockIdx.x + 1) * part), padding = left[row], whole = (int)blockIdx.x * part;
  const int begin = whole > padding ? whole : padding;

  float q[QUERIES][MINE], sum[QUERIES][MINE] = {}, most[QUERIES], total[QUERIES] = {};
  const float base2 = scale * 1.44269504f;
#pragma unroll
  for (int r = 0; r < QUERIES; r++) {
    const int head = first + (r < count ? r : 0);
    kq_read_head<T, FEATURES>(queries + ((size_t)row * heads + head) * FEATURES, lane, q[r]);
#pragma unroll
    for (int i = 0; i < MINE; i++) q[r][i] *= base2;
    most[r] = KQ_NONE;
  }
  const size_t base = ((size_t)row * kv_heads + kv_head) * room * FEATURES;
  // All lanes of a warp go round as often: the sums below are theirs together.
  const int rounds = end > begin ? (end - begin + GROUPS - 1) / GROUPS : 0;
  for (int round = 0; round < rounds; round++) {
    const int at = begin + round * GROUPS + threadIdx.x / KQ_SHARING;
    const bool real = at < end;
    float k[MINE], v[MINE];
    const size_t from = base + (size_t)(real ? at : begin) * FEATURES;
    kq_read_head<T, FEATURES>(keys + from, lane, k);
    kq_read_head<T, FEATURES>(values + from, lane, v);
#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
      float logit = 0;
#pragma unroll
      for (int i = 0; i < MINE; i++) logit += q[r][i] * k[i];
#pragma unroll
      for (int distance = KQ_SHARING / 2; distance > 0; distance >>= 1) logit += __shfl_xor_sync(0xFFFFFFFFu, logit, distance);
      if (!real) continue;
      if (logit > most[r]) {
        const float shrink = exp2f(most[r] - logit);
        total[r] *= shrink;
#pragma unroll
        for (int i = 0; i < MINE; i++) sum[r][i] *= shrink;
        most[r] = logit;
      }
      const float weight = exp2f(logit - most[r]);
      total[r] += weight;
#pragma unroll
      for (int i = 0; i < MINE; i++) sum[r][i] += weight * v[i];
    }
  }

  // The groups of a warp become one, then the warps.
#pragma unroll
  for (int r = 0; r < QUERIES; r++) {
#pragma unroll
    for (int distance = KQ_SHARING; distance < 32; distance <<= 1) {
      float mine, theirs, both;
      kq_scales(most[r], __shfl_xor_sync(0xFFFFFFFFu, most[r], distance), mine, theirs, both);
      total[r] = total[r] * mine + __shfl_xor_sync(0xFFFFFFFFu, total[r], distance) * theirs;
#pragma unroll
      for (int i = 0; i < MINE; i++) {
        sum[r][i] = sum[r][i] * mine + __shfl_xor_sync(0xFFFFFFFFu, sum[r][i], distance) * theirs;
      }
      most[r] = both;
    }
    if ((threadIdx.x & 31) < KQ_SHARING) {
      float* const record = seen + (warp * QUERIES + r) * RECORD;
      if (lane == 0) record[0] = most[r], record[1] = total[r];
#pragma unroll
      for (int i = 0; i < MINE; i++) record[2 + ((i / PIECE) * KQ_SHARING + lane) * PIECE + i % PIECE] = sum[r][i];
    }
  }
  __syncthreads();
  for (int index = threadIdx.x; index < count * FEATURES; index += WARPS * 32) {
    const int r = index / FEATURES, feature = index % FEATURES;
    float largest = KQ_NONE, weights = 0, value = 0;
    for (int w = 0; w < WARPS; w++) {
      const float* const record = seen + (w * QUERIES + r) * RECORD;
      float mine, theirs, both;
      kq_scales(largest, record[0], mine, theirs, both);
      weights = weights * mine + record[1] * theirs, value = value * mine + record[2 + feature] * theirs;
      largest = both;
    }
    const size_t head = (size_t)row * heads + first + r;
    if constexpr (SPLIT) {
      float* const to = parts + (head * splits + blockIdx.x) * RECORD;
      if (feature == 0) to[0] = largest, to[1] = weights;
      to[2 + feature] = value;
    } else {
      out[head * FEATURES + feature] = kq_rounded<T>(weights > 0 ? value / weights : 0.0f);
    }
  }
}

// The parts of kq_attend become the answer: [count = rows * heads, splits, FEATURES + 2] to [count, FEATURES]. A thread block a head.
template <class T, int FEATURES>
KQ_FN void kq_attend_merge(const float* parts, T* out, int splits) {
  const float* const mine = parts + (size_t)blockIdx.x * splits * (FEATURES + 2);
  for (int feature = threadIdx.x; feature < FEATURES; feature += blockDim.x) {
    float largest = KQ_NONE, weights = 0, value = 0;
    for (int split = 0; split < splits; split++) {
      const float* const record = mine + split * (FEATURES + 2);
      float before, now, both;
      kq_scales(largest, record[0], before, now, both);
      weights = weights * before + record[1] * now, value = value * before + record[2 + feature] * now;
      largest = both;
    }
    out[(size_t)blockIdx.x * FEATURES + feature] = kq_rounded<T>(weights > 0 ? value / weights : 0.0f);
  }
}
