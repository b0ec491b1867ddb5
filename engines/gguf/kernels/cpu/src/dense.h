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
    for (int k = 0; k < depth; k += kLanes) {
      alignas(64) float square[kLanes][kLanes] = {};
      const int here = depth - k < kLanes ? depth - k : kLanes;
      for (int r = 0; r < rows; r++) dequantize_floats<Format>(weights + r * row_bytes, begin + k, begin + k + here, square[r]);
      transpose(square[0], kLanes, panel + k * kLanes, kLanes);
    }
    multiply_rows<1, true>(from.x + static_cast<int64_t>(m) * from.columns + begin, from.columns, panel, kLanes, count, depth,
                           tile, kLanes, kLanes);
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
