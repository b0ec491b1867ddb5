// Attention of a few queries to a range of keys, without ever holding more than one block of scores a query.
//
// The online softmax of Milakov and Gimelshein (2018): a block's scores raise the running maximum, what was summed before is
// scaled down to it. Slices of one query's keys can so be computed apart and joined at the end.
#pragma once

#include "dense.h"
#include "table.h"

namespace innkeeper::INNKEEPER_VARIANT {

constexpr int kKeys = 64;  // a block
constexpr int kFewRows = 6;  // up to so many queries, keys are read as they lie instead of being turned

static int64_t attention_scratch(int rows, int width, int) {
  return static_cast<int64_t>(rows) * kKeys + static_cast<int64_t>(rows) * width + static_cast<int64_t>(width + kLanes) * kKeys;
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
  if (s.rows <= kFewRows) {
    for (int i = 0; i < count; i++) {
      for (int row = 0; row < s.rows; row++) {
        scores[row * kKeys + i] = dot_floats(queries + row * s.width, keys + i * s.key_stride, s.width);
      }
    }
    return;
  }
  for (int i = 0; i < count; i += kLanes) {  // turned[width][kKeys]
    const int here = count - i < kLanes ? count - i : kLanes;
    for (int k = 0; k < s.width; k += kLanes) {
      if (here == kLanes && k + kLanes <= s.width) {
        transpose(reinterpret_cast<const uint8_t*>(keys + i * s.key_stride + k), s.key_stride * 4,
                  reinterpret_cast<uint8_t*>(turned + k * kKeys + i), kKeys * 4);
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

static void attend(const AttentionSlice& s) {
  float* scores = s.scratch;
  float* queries = scores + static_cast<int64_t>(s.rows) * kKeys;
  float* turned = queries + static_cast<int64_t>(s.rows) * s.width;
  for (int row = 0; row < s.rows; row++) {
    for (int i = 0; i < s.width; i++) queries[row * s.width + i] = s.q[row][i] * s.scale;
    s.largest[row] = kMasked;
    s.weight[row] = 0.0f;
  }
  std::memset(s.out, 0, sizeof(float) * s.rows * s.value_width);
  for (int first = s.first; first < s.last; first += kKeys) {
    const int count = s.last - first < kKeys ? s.last - first : kKeys;
    if (block_is_masked(s, first, count)) continue;
    score_block(s, queries, first, count, turned, scores);
    for (int row = 0; row < s.rows; row++) {
      float* mine = scores + row * kKeys;
      for (int i = count; i < kKeys; i++) mine[i] = kMasked;
      Floats most = splat(kMasked);
      if (mask_row(s, row, first, count, mine)) {
        for (int i = 0; i < kKeys; i += kLanes) most = max(most, load(mine + i));
      }
      const float top = largest(most), before = s.largest[row];
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
        const float shrink = before == kMasked ? 0.0f : exp(splat(before - now))[0];
        s.weight[row] *= shrink;
        float* out = s.out + row * s.value_width;
        int i = 0;
        for (; i + kLanes <= s.value_width; i += kLanes) store(out + i, load(out + i) * shrink);
        for (; i < s.value_width; i++) out[i] *= shrink;
        s.largest[row] = now;
      }
      s.weight[row] += sum(total);
    }
    multiply_dense<true>(scores, kKeys, s.values + first * s.value_stride, s.value_stride, s.rows, s.value_width, count, s.out,
                         s.value_width);
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
