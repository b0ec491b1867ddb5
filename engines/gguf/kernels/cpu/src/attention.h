// Attention of a few queries to a slice of keys, without ever holding more than one block of scores a query.
//
// The online softmax of Milakov and Gimelshein (2018): a block's scores raise the running maximum, what was summed before is
// scaled down to it. A query's answer is the same to the last bit whatever other queries go with it.
#pragma once

#include "dense.h"
#include "table.h"
#include "rows.h"

namespace innkeeper::INNKEEPER_VARIANT {

constexpr int kKeys = 64;        // a block
constexpr int kSliceKeys = 512;  // whole blocks

static int64_t attention_scratch(int rows, int width) {
  return static_cast<int64_t>(rows) * (kKeys + width) + static_cast<int64_t>(width + kLanes) * kKeys;
}

constexpr float kMasked = -__builtin_inff();

// Masks the scores of keys [first, first + count); true where a key is left.
INLINE bool mask_row(const AttentionSlice& s, int row, int first, int count, float* scores) {
  if (first >= s.limits[row]) return false;
  for (int i = count - 1; i >= 0 && first + i >= s.limits[row]; i--) scores[i] = kMasked;
  if (s.allowed != nullptr) {
    const uint8_t* allowed = s.allowed[row] + first * s.mask_stride;
    for (int i = 0; i < count; i++) scores[i] = allowed[i * s.mask_stride] ? scores[i] : kMasked;
  }
  if (s.added != nullptr) {
    const float* added = s.added[row] + first * s.mask_stride;
    for (int i = 0; i < count; i++) scores[i] += added[i * s.mask_stride];
  }
  return true;
}

INLINE bool block_is_masked(const AttentionSlice& s, int first, int count) {
  for (int row = 0; row < s.rows; row++) {
    if (first >= s.limits[row]) continue;
    if (s.allowed == nullptr) return false;
    const uint8_t* allowed = s.allowed[row] + first * s.mask_stride;
    for (int i = 0; i < count; i++) {
      if (allowed[i * s.mask_stride]) return false;
    }
  }
  return true;
}

// scores[rows][kKeys] of a block, unscaled.
INLINE void score_block(const AttentionSlice& s, const float* queries, int first, int count, float* turned, float* scores) {
  const float* keys = s.keys + first * s.key_stride;
  for (int i = 0; i < count; i += kLanes) {  // turned[width][kKeys]
    const int here = count - i < kLanes ? count - i : kLanes;
    for (int k = 0; k < s.width; k += kLanes) {
      if (here == kLanes && k + kLanes <= s.width) {
        transpose(keys + i * s.key_stride + k, s.key_stride, turned + k * kKeys + i, kKeys);
      } else {
        for (int c = k; c < s.width && c < k + kLanes; c++) {
          for (int j = i; j < i + kLanes && j < kKeys; j++) {
            turned[c * kKeys + j] = j < count ? keys[j * s.key_stride + c] : 0.0f;
          }
        }
      }
    }
  }
  const int whole = (count + kLanes - 1) / kLanes * kLanes;
  multiply_dense<false>(queries, s.width, turned, kKeys, s.rows, whole, s.width, scores, kKeys);
}

// x *= factor
INLINE void shrink(float* x, int n, float factor) {
  for_each_vector(n, [&](int64_t i, int here) { store_up_to(x + i, load_up_to(x + i, here) * factor, here); });
}

static void attend(const AttentionSlice& s, const Attended& out) {
  float* scores = s.scratch;
  float* queries = scores + static_cast<int64_t>(s.rows) * kKeys;
  float* turned = queries + static_cast<int64_t>(s.rows) * s.width;
  for (int row = 0; row < s.rows; row++) {
    for (int i = 0; i < s.width; i++) queries[row * s.width + i] = s.q[row][i] * s.scale;
    out.largest[row] = kMasked;
    out.weight[row] = 0.0f;
  }
  std::memset(out.sums, 0, sizeof(float) * s.rows * s.value_width);
  for (int first = s.first; first < s.last; first += kKeys) {
    const int count = s.last - first < kKeys ? s.last - first : kKeys;
    if (block_is_masked(s, first, count)) continue;
    score_block(s, queries, first, count, turned, scores);
    for (int row = 0; row < s.rows; row++) {
      float* mine = scores + row * kKeys;
      if (s.cap > 0.0f) {
        for (int i = 0; i < count; i += kLanes) store(mine + i, soft_capped(load(mine + i), s.cap));
      }
      for (int i = count; i < kKeys; i++) mine[i] = kMasked;
      Floats most = splat(kMasked);
      if (mask_row(s, row, first, count, mine)) {
        for (int i = 0; i < kKeys; i += kLanes) most = max(most, load(mine + i));
      }
      const float top = largest(most), before = out.largest[row];
      if (top == kMasked) {  // nothing of this block counts for this query
        std::memset(mine, 0, sizeof(float) * kKeys);
        continue;
      }
      const float now = top > before ? top : before;
      Floats total{};
      for (int i = 0; i < kKeys; i += kLanes) {
        const Floats weight = exp(load(mine + i) - splat(now));
        total += weight;
        store(mine + i, weight);
      }
      if (before != now) {
        const float factor = before == kMasked ? 0.0f : exp(splat(before - now))[0];
        out.weight[row] *= factor;
        shrink(out.sums + row * s.value_width, s.value_width, factor);
        out.largest[row] = now;
      }
      out.weight[row] += sum(total);
    }
    multiply_dense<true>(scores, kKeys, s.values + first * s.value_stride, s.value_stride, s.rows, s.value_width, count,
                         out.sums, s.value_width);
  }
}

static void fold(const Attended& slice, int rows, int value_width, const Attended& into) {
  for (int row = 0; row < rows; row++) {
    const float most = slice.largest[row], before = into.largest[row];
    if (most == kMasked) continue;
    float* to = into.sums + row * value_width;
    const float* from = slice.sums + row * value_width;
    if (most > before) {
      const float factor = before == kMasked ? 0.0f : exp(splat(before - most))[0];
      into.weight[row] *= factor;
      shrink(to, value_width, factor);
      into.largest[row] = most;
    }
    const float factor = exp(splat(most - into.largest[row]))[0];
    into.weight[row] = into.weight[row] + slice.weight[row] * factor;
    for_each_vector(value_width, [&](int64_t i, int n) {
      store_up_to(to + i, fma(load_up_to(from + i, n), splat(factor), load_up_to(to + i, n)), n);
    });
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
