#include "operands.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "pool.h"

namespace innkeeper {

namespace {

// Weights below which another thread is not worth waking.
constexpr int64_t kLeastWeights = 1 << 14;

thread_local Scratch prepared_scratch;  // both of the stream's thread
thread_local Scratch gathered_scratch;

// Room for so many rows; `copied`: for their floats, too.
Activations room(Scratch& scratch, int rows, int columns, bool copied, const FormatKernels& format) {
  Activations to;
  to.rows = rows;
  to.columns = columns;
  to.padded = (columns + 255) / 256 * 256;
  to.groups = format.group ? to.padded / format.group : 0;
  const size_t grouped = aligned(sizeof(float) * rows * to.groups);
  const size_t floats = copied ? aligned(sizeof(float) * rows * columns) : 0;
  const size_t codes = format.group ? aligned(static_cast<size_t>(rows) * to.padded) : 0;
  uint8_t* memory = scratch.take(floats + codes + 3 * grouped);
  if (copied) to.x = reinterpret_cast<float*>(memory);
  if (format.group == 0) return to;
  memory += floats;
  to.codes = reinterpret_cast<int8_t*>(memory);
  memory += codes;
  to.scales = reinterpret_cast<float*>(memory);
  memory += grouped;
  to.sums = reinterpret_cast<float*>(memory);
  memory += grouped;
  to.starts = reinterpret_cast<int32_t*>(memory);
  return to;
}

// Row `from_row` of [.., width] to row `to_row`.
template <typename T>
void copy_row(const T* from, int64_t from_row, T* to, int64_t to_row, int64_t width) {
  std::memcpy(to + to_row * width, from + from_row * width, sizeof(T) * width);
}

}  // namespace

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t Weights::scratch_bytes() const { return aligned(format->panel_bytes + kernels().lanes * row_bytes); }

Weights weights_of(const mx::array& blocks, int type) {
  const int rows_axis = static_cast<int>(blocks.ndim()) - 2;
  const bool several = rows_axis == 1;
  return {blocks.data<uint8_t>(), blocks.strides(rows_axis),     several ? blocks.strides(0) : 0, several ? blocks.shape(0) : 1,
          blocks.shape(rows_axis), kernels().format(type)};
}

Activations prepare(const View& x, int64_t begin, int count, const FormatKernels& format) {
  Activations to = room(prepared_scratch, count, x.width(), !x.contiguous(), format);
  if (x.contiguous()) {
    to.x = x.data() + begin * x.width();
  } else {
    x.gather(begin, count, const_cast<float*>(to.x));
  }
  if (format.group == 0) return to;
  const Kernels& use = kernels();
  ThreadPool::shared().run(count, std::max(1, (1 << 16) / std::max(1, to.padded)),
                           [&](int64_t first, int64_t last) { use.quantize(format, to, first, last); });
  return to;
}

Activations gather(const Activations& from, const int64_t* rows, int count, const FormatKernels& format) {
  Activations to = room(gathered_scratch, count, from.columns, format.group == 0, format);
  ThreadPool::shared().run(count, std::max(1, (1 << 18) / std::max(1, to.padded)), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      if (format.group == 0) {
        copy_row(from.x, rows[i], const_cast<float*>(to.x), i, to.columns);
      } else {
        copy_row(from.codes, rows[i], to.codes, i, to.padded);
        copy_row(from.scales, rows[i], to.scales, i, to.padded / 32);
        copy_row(from.sums, rows[i], to.sums, i, to.groups);
        copy_row(from.starts, rows[i], to.starts, i, to.groups);
      }
    }
  });
  return to;
}

Scratch& tile_scratch() {
  thread_local Scratch mine;
  return mine;
}

int64_t grain_of(int64_t units, int64_t unit_weights, int64_t work_factor) {
  const int64_t least = std::max<int64_t>(1, kLeastWeights / std::max<int64_t>(1, unit_weights * work_factor));
  return std::min<int64_t>(8, std::max(least, units / (4 * ThreadPool::shared().size())));
}

int columns_of(const mx::array& blocks, int type, int axes) {
  const FormatKernels* format = kernels().format(type);
  if (format == nullptr) throw std::invalid_argument("[innkeeper] this quant type has no kernel");
  if (blocks.dtype() != mx::uint8 || static_cast<int>(blocks.ndim()) != axes || blocks.shape(-1) % format->bytes != 0) {
    throw std::invalid_argument(axes == 2 ? "[innkeeper] blocks are uint8 [rows, row bytes], whole blocks a row"
                                          : "[innkeeper] blocks are uint8 [matrices, rows, row bytes], whole blocks a row");
  }
  return blocks.shape(-1) / format->bytes * format->block;
}

void check_input(const mx::array& x, int width) {
  if (!mx::issubdtype(x.dtype(), mx::floating)) throw std::invalid_argument("[innkeeper] activations must be floating");
  if (x.ndim() == 0 || x.shape(-1) != width) throw std::invalid_argument("[innkeeper] activations do not fit the weights");
}

mx::array floats(const mx::array& x, mx::Stream stream) {
  return x.dtype() == mx::float32 ? x : mx::astype(x, mx::float32, stream);
}

mx::array in_dtype_of(const mx::array& x, mx::array out, mx::Stream stream) {
  return x.dtype() == mx::float32 ? out : mx::astype(out, x.dtype(), stream);
}

mx::array whole_rows(const mx::array& blocks, mx::Stream stream) {
  return blocks.has_primitive() || blocks.strides(-1) != 1 ? mx::contiguous(blocks, false, stream) : blocks;
}

mx::Shape with_last(mx::Shape shape, int last) {
  shape.back() = last;
  return shape;
}

}  // namespace innkeeper
