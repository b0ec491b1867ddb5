// What products take: matrices of blocks, and activations made ready for them.
#pragma once

#include <cstdint>

#include "mlx/mlx.h"
#include "scratch.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace mx = mlx::core;

// Rows of activations at a time: their codes stay in the cache while all weights pass by.
constexpr int kBlockRows = 256;

// Matrices of one quant type, one after another.
struct Weights {
  const uint8_t* data;
  int64_t row_bytes;
  int64_t matrix_bytes;  // from one matrix to the next
  int matrices;
  int rows;  // of a matrix
  const FormatKernels* format;

  const uint8_t* row(int64_t index, int64_t matrix = 0) const { return data + matrix * matrix_bytes + index * row_bytes; }
  int64_t tiles() const { return (rows + kernels().lanes - 1) / kernels().lanes; }
  // What FormatKernels::tile needs, in whole cache lines.
  size_t scratch_bytes() const;
};

// blocks [rows, row bytes] or [matrices, rows, row bytes]
Weights weights_of(const mx::array& blocks, int type);

size_t aligned(size_t bytes);  // up to whole cache lines

// Rows [begin, begin + count) of x, ready for the format. They stay valid until the calling thread's next call.
Activations prepare(const View& x, int64_t begin, int count, const FormatKernels& format);
// Rows of `from` by index, one after another; the same memory rule, and `from` stays valid.
Activations gather(const Activations& from, const int64_t* rows, int count, const FormatKernels& format);

// Of the calling thread: for FormatKernels::tile and its answers.
Scratch& tile_scratch();

// Tiles that a thread takes at a time.
int64_t grain_of(int64_t units, int64_t unit_weights, int64_t work_factor);

// Columns of blocks with so many axes; std::invalid_argument when they are not of this type.
int columns_of(const mx::array& blocks, int type, int axes);
// `x` must be floating and its last axis `width` long.
void check_input(const mx::array& x, int width);

mx::array floats(const mx::array& x, mx::Stream stream);
mx::array in_dtype_of(const mx::array& x, mx::array out, mx::Stream stream);
// Blocks whose bytes of a row are neighbours; a slice of rows or matrices is, and stays as it is.
mx::array whole_rows(const mx::array& blocks, mx::Stream stream);
mx::Shape with_last(mx::Shape shape, int last);

}  // namespace innkeeper
