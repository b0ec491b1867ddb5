// An array of floats as a primitive reads it: rows of its last axis, wherever they lie.
#pragma once

#include <cstdint>
#include <cstring>

#include "mlx/mlx.h"

namespace innkeeper {

namespace mx = mlx::core;

// Holds no reference: MLX keeps an input alive until the work that reads it is done.
class View {
 public:
  explicit View(const mx::array& from)
      : data_(from.data<float>()),
        shape_(from.shape()),
        strides_(from.strides()),
        width_(from.ndim() == 0 ? 1 : from.shape(-1)),
        rows_(width_ == 0 ? 0 : static_cast<int64_t>(from.size()) / width_),
        step_(from.ndim() == 0 ? 1 : from.strides(-1)),
        contiguous_(from.flags().row_contiguous) {}

  int64_t rows() const { return rows_; }
  int width() const { return width_; }
  const float* data() const { return data_; }

  // Rows [begin, ...) lie one after another at the result.
  bool contiguous() const { return contiguous_; }

  // The row's floats; copied to `copy` (width floats) where they are not neighbours.
  const float* row(int64_t index, float* copy) const {
    const float* start = data_ + offset(index);
    if (step_ == 1 || width_ == 1) return start;
    for (int i = 0; i < width_; i++) copy[i] = start[i * step_];
    return copy;
  }

  // Whether row() may need its copy.
  bool scattered() const { return step_ != 1 && width_ != 1; }

  // Copies rows [begin, begin + count) to `to`, one after another.
  void gather(int64_t begin, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; i++, to += width_) {
      const float* from = row(begin + i, to);
      if (from != to) std::memcpy(to, from, sizeof(float) * width_);
    }
  }

 private:
  int64_t offset(int64_t index) const {
    if (contiguous_) return index * width_;
    int64_t at = 0;
    for (int axis = static_cast<int>(shape_.size()) - 2; axis >= 0; axis--) {
      at += index % shape_[axis] * strides_[axis];
      index /= shape_[axis];
    }
    return at;
  }

  const float* data_;
  mx::Shape shape_;
  mx::Strides strides_;
  int width_;
  int64_t rows_;
  int64_t step_;
  bool contiguous_;
};

}  // namespace innkeeper
