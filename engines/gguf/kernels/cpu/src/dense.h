// Products in float32: with weights stored as floats, and the two products inside attention.
#pragma once

#include "formats.h"
#include "table.h"
#include "transpose.h"

namespace innkeeper::INNKEEPER_VARIANT {

// Rows of the left matrix and vectors of the right one that are multiplied at a time.
#if defined(__AVX512F__)
constexpr int kDenseRows = 6, kDenseVectors = 4;
#else
constexpr int kDenseRows = 4, kDenseVectors = 2;
#endif

// c[Rows][Vectors * kLanes] = (Add: + ) a[Rows][depth] * b[depth][...]. Strides are in floats. `last` is the number of lanes
// of the last vector that exist.
template <int Rows, int Vectors, bool Add>
INLINE void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth, float* c,
                           int64_t c_stride, int last) {
  Floats acc[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      const float* p = c + r * c_stride + v * kLanes;
      acc[r][v] = !Add ? Floats{} : v < Vectors - 1 || last == kLanes ? load(p) : load_some(p, last);
    }
  }
  for (int k = 0; k < depth; k++) {
    Floats right[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      const float* p = b + k * b_stride + v * kLanes;
      right[v] = v < Vectors - 1 || last == kLanes ? load(p) : load_some(p, last);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) {
      const Floats left = splat(a[r * a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) acc[r][v] = fma(left, right[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      float* p = c + r * c_stride + v * kLanes;
      if (v < Vectors - 1 || last == kLanes) {
        store(p, acc[r][v]);
      } else {
        store_some(p, acc[r][v], last);
      }
    }
  }
}

template <int Vectors, bool Add>
static void multiply_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int rows, int depth, float* c,
                          int64_t c_stride, int last) {
  int r = 0;
  for (; r + kDenseRows <= rows; r += kDenseRows) {
    multiply_block<kDenseRows, Vectors, Add>(a + r * a_stride, a_stride, b, b_stride, depth, c + r * c_stride, c_stride, last);
  }
  for (; r + 3 <= rows; r += 3) {
    multiply_block<3, Vectors, Add>(a + r * a_stride, a_stride, b, b_stride, depth, c + r * c_stride, c_stride, last);
  }
  for (; r < rows; r++) {
    multiply_block<1, Vectors, Add>(a + r * a_stride, a_stride, b, b_stride, depth, c + r * c_stride, c_stride, last);
  }
}

// c[rows][columns] = (Add: +) a[rows][depth] * b[depth][columns], all row by row.
template <bool Add>
static void multiply_dense(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int rows, int columns, int depth,
                           float* c, int64_t c_stride) {
  int column = 0;
  for (; column + kDenseVectors * kLanes <= columns; column += kDenseVectors * kLanes) {
    multiply_rows<kDenseVectors, Add>(a, a_stride, b + column, b_stride, rows, depth, c + column, c_stride, kLanes);
  }
  for (; column < columns; column += kLanes) {
    const int last = columns - column < kLanes ? columns - column : kLanes;
    multiply_rows<1, Add>(a, a_stride, b + column, b_stride, rows, depth, c + column, c_stride, last);
  }
}

// --- weights stored as floats ---

constexpr int kDenseDepth = 256;  // columns of a panel

// Adds a panel's product with Count rows of activations to tile[Count][kLanes]. Two sums a row, so that one row alone does not
// wait for each of its additions.
template <int Count>
INLINE void multiply_panel_floats(const float* panel, const float* x, int64_t x_stride, int depth, float* tile) {
  Floats even[Count], odd[Count];
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) even[r] = odd[r] = Floats{};
  int k = 0;
  for (; k + 2 <= depth; k += 2) {
    const Floats first = load(panel + k * kLanes), second = load(panel + (k + 1) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Count; r++) {
      even[r] = fma(first, splat(x[r * x_stride + k]), even[r]);
      odd[r] = fma(second, splat(x[r * x_stride + k + 1]), odd[r]);
    }
  }
  if (k < depth) {
    const Floats last = load(panel + k * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Count; r++) even[r] = fma(last, splat(x[r * x_stride + k]), even[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) store(tile + r * kLanes, load(tile + r * kLanes) + (even[r] + odd[r]));
}

template <typename Format>
static void dequantize_floats(const uint8_t* row, int begin, int end, float* out) {
  int i = begin;
  for (; i + kLanes <= end; i += kLanes) store(out + i - begin, Format::load_floats(row + i * Format::kBytes));
  for (; i < end; i++) out[i - begin] = Format::one(row + i * Format::kBytes);
}

// The same of two panels side by side, with as many sums a row and in the same order: more products for each number of x that is
// loaded.
template <int Count>
INLINE void multiply_panels_floats(const float* const* panels, const float* x, int64_t x_stride, int depth, float* const* tiles) {
  Floats even[Count][2], odd[Count][2];
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = Floats{};
  int k = 0;
  for (; k + 2 <= depth; k += 2) {
    const Floats first[2] = {load(panels[0] + k * kLanes), load(panels[1] + k * kLanes)};
    const Floats second[2] = {load(panels[0] + (k + 1) * kLanes), load(panels[1] + (k + 1) * kLanes)};
#pragma GCC unroll 8
    for (int r = 0; r < Count; r++) {
      const Floats left = splat(x[r * x_stride + k]), right = splat(x[r * x_stride + k + 1]);
      even[r][0] = fma(first[0], left, even[r][0]);
      even[r][1] = fma(first[1], left, even[r][1]);
      odd[r][0] = fma(second[0], right, odd[r][0]);
      odd[r][1] = fma(second[1], right, odd[r][1]);
    }
  }
  if (k < depth) {
    const Floats last[2] = {load(panels[0] + k * kLanes), load(panels[1] + k * kLanes)};
#pragma GCC unroll 8
    for (int r = 0; r < Count; r++) {
      const Floats left = splat(x[r * x_stride + k]);
      even[r][0] = fma(last[0], left, even[r][0]);
      even[r][1] = fma(last[1], left, even[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) {
    for (int p = 0; p < 2; p++) store(tiles[p] + r * kLanes, load(tiles[p] + r * kLanes) + (even[r][p] + odd[r][p]));
  }
}

// Columns [begin, begin + depth) of up to kLanes rows as a panel [column][lane]; lanes beyond `rows` are 0.
template <typename Format>
INLINE void fill_panel(const uint8_t* weights, int64_t row_bytes, int rows, int begin, int depth, float* panel) {
  for (int k = 0; k < depth; k += kLanes) {
    const uint8_t* from_row = weights + static_cast<int64_t>(begin + k) * Format::kBytes;
    if (rows == kLanes && k + kLanes <= depth) {
      Words square[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; r++) square[r] = (Words)Format::load_floats(from_row + r * row_bytes);
      transpose(square);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; r++) store(panel + (k + r) * kLanes, (Floats)square[r]);
      continue;
    }
    alignas(64) float square[kLanes][kLanes] = {};
    const int here = depth - k < kLanes ? depth - k : kLanes;
    for (int r = 0; r < rows; r++) dequantize_floats<Format>(from_row + r * row_bytes, 0, here, square[r]);
    transpose(square[0], kLanes, panel + k * kLanes, kLanes);
  }
}

// As in product.h: the rows behind these follow in memory, and a share of them is asked for now.
template <typename Format>
INLINE void prefetch_rows(const uint8_t* following, int begin, int depth) {
  const uint8_t* ahead = following + static_cast<int64_t>(begin) * Format::kBytes * kLanes;
  for (int i = 0; i < depth * Format::kBytes * kLanes; i += 64) __builtin_prefetch(ahead + i, 0, 1);
}

template <typename Format>
static void tile_floats(const uint8_t* weights, int64_t row_bytes, int rows, const Activations& from, int m, int count,
                        float* tile, uint8_t* scratch) {
  float* panel = reinterpret_cast<float*>(scratch);  // [column][lane]
  std::memset(tile, 0, sizeof(float) * kLanes * count);
  for (int begin = 0; begin < from.columns; begin += kDenseDepth) {
    const int depth = from.columns - begin < kDenseDepth ? from.columns - begin : kDenseDepth;
    prefetch_rows<Format>(weights + kLanes * row_bytes, begin, depth);
    fill_panel<Format>(weights, row_bytes, rows, begin, depth, panel);
    const float* x = from.x + static_cast<int64_t>(m) * from.columns + begin;
    int r = 0;
    if constexpr (kLanes == 16) {  // what the registers hold
      for (; r + 8 <= count; r += 8) multiply_panel_floats<8>(panel, x + r * from.columns, from.columns, depth, tile + r * kLanes);
    }
    for (; r + 4 <= count; r += 4) multiply_panel_floats<4>(panel, x + r * from.columns, from.columns, depth, tile + r * kLanes);
    for (; r < count; r++) multiply_panel_floats<1>(panel, x + r * from.columns, from.columns, depth, tile + r * kLanes);
  }
}

// Two tiles of neighbouring rows of weights, all of which exist.
template <typename Format>
static void pair_floats(const uint8_t* weights, int64_t row_bytes, const Activations& from, int count, float* const* tiles,
                        uint8_t* scratch) {
  constexpr int kTogether = 6;  // what the registers hold
  float* const panels[2] = {reinterpret_cast<float*>(scratch), reinterpret_cast<float*>(scratch) + kDenseDepth * kLanes};
  for (int p = 0; p < 2; p++) std::memset(tiles[p], 0, sizeof(float) * kLanes * count);
  for (int begin = 0; begin < from.columns; begin += kDenseDepth) {
    const int depth = from.columns - begin < kDenseDepth ? from.columns - begin : kDenseDepth;
    for (int p = 0; p < 2; p++) {
      prefetch_rows<Format>(weights + (p + 2) * kLanes * row_bytes, begin, depth);
      fill_panel<Format>(weights + p * kLanes * row_bytes, row_bytes, kLanes, begin, depth, panels[p]);
    }
    const float* x = from.x + begin;
    int r = 0;
    for (; r + kTogether <= count; r += kTogether) {
      float* const here[2] = {tiles[0] + r * kLanes, tiles[1] + r * kLanes};
      multiply_panels_floats<kTogether>(panels, x + r * from.columns, from.columns, depth, here);
    }
    for (int p = 0; p < 2; p++) {
      for (int rest = r; rest < count; rest++) {
        multiply_panel_floats<1>(panels[p], x + rest * from.columns, from.columns, depth, tiles[p] + rest * kLanes);
      }
    }
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
