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

template <typename Format>
static void tile_floats(const uint8_t* weights, int64_t row_bytes, int rows, const Activations& from, int m, int count,
                        float* tile, uint8_t* scratch) {
  float* panel = reinterpret_cast<float*>(scratch);  // [column][lane]
  std::memset(tile, 0, sizeof(float) * kLanes * count);
  for (int begin = 0; begin < from.columns; begin += kDenseDepth) {
    const int depth = from.columns - begin < kDenseDepth ? from.columns - begin : kDenseDepth;
    // As in product.h: the next panel's rows follow in memory, and a share of them is asked for now.
    const uint8_t* ahead = weights + kLanes * row_bytes + static_cast<int64_t>(begin) * Format::kBytes * kLanes;
    for (int k = 0; k < depth; k += kLanes) {
      constexpr int kShare = kLanes * Format::kBytes * kLanes;
      for (int i = 0; i < kShare; i += 64) __builtin_prefetch(ahead + k * Format::kBytes * kLanes + i, 0, 1);
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
    const float* x = from.x + static_cast<int64_t>(m) * from.columns + begin;
    int r = 0;
    if constexpr (kLanes == 16) {  // what the registers hold
      for (; r + 8 <= count; r += 8) multiply_panel_floats<8>(panel, x + r * from.columns, from.columns, depth, tile + r * kLanes);
    }
    for (; r + 4 <= count; r += 4) multiply_panel_floats<4>(panel, x + r * from.columns, from.columns, depth, tile + r * kLanes);
    for (; r < count; r++) multiply_panel_floats<1>(panel, x + r * from.columns, from.columns, depth, tile + r * kLanes);
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
