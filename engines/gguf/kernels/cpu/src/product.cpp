// Products with quantised weights, plain and gated, and the rows of an embedding.
#include <algorithm>
#include <memory>

#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "scratch.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace {

// Rows of activations at a time: their codes stay in the cache while all weights pass by.
constexpr int kBlockRows = 256;
// Weights below which another thread is not worth waking.
constexpr int64_t kLeastWeights = 1 << 14;

thread_local Scratch activation_scratch;  // of the stream's thread
thread_local Scratch tile_scratch;        // of each thread of the pool

struct Weights {
  const uint8_t* data;
  int64_t row_bytes;
  int rows;
  const FormatKernels* format;

  const uint8_t* row(int64_t index) const { return data + index * row_bytes; }
  size_t scratch_bytes() const { return format->panel_bytes + kernels().lanes * row_bytes; }
};

Weights weights_of(const mx::array& blocks, int type) {
  return {blocks.data<uint8_t>(), blocks.strides(0), blocks.shape(0), kernels().format(type)};
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows [begin, begin + count) of x, ready for the format.
Activations prepare(const View& x, int64_t begin, int count, const FormatKernels& format) {
  Activations to;
  to.rows = count;
  to.columns = x.width();
  to.padded = (x.width() + 255) / 256 * 256;
  to.groups = format.group ? to.padded / format.group : 0;
  const size_t grouped = aligned(sizeof(float) * count * to.groups);
  const size_t copied = x.contiguous() ? 0 : aligned(sizeof(float) * count * x.width());
  const size_t coded = format.group ? aligned(static_cast<size_t>(count) * to.padded) : 0;
  uint8_t* memory = activation_scratch.take(copied + coded + 3 * grouped);
  if (copied) {
    x.gather(begin, count, reinterpret_cast<float*>(memory));
    to.x = reinterpret_cast<float*>(memory);
    memory += copied;
  } else {
    to.x = x.data() + begin * x.width();
  }
  if (format.group == 0) return to;
  to.codes = reinterpret_cast<int8_t*>(memory);
  memory += coded;
  to.scales = reinterpret_cast<float*>(memory);
  memory += grouped;
  to.sums = reinterpret_cast<float*>(memory);
  memory += grouped;
  to.starts = reinterpret_cast<int32_t*>(memory);
  const Kernels& use = kernels();
  ThreadPool::shared().run(count, std::max(1, (1 << 16) / to.padded),
                           [&](int64_t first, int64_t last) { use.quantize(format, to, first, last); });
  return to;
}

int64_t grain_of(int64_t units, int64_t unit_weights, int64_t work_factor) {
  const int64_t least = std::max<int64_t>(1, kLeastWeights / std::max<int64_t>(1, unit_weights * work_factor));
  return std::max(least, units / (4 * ThreadPool::shared().size()));
}

// out[rows of activations][rows of weights]
void multiply_block(const Activations& from, const Weights& weights, const Weights* up, Gate gate, float* out) {
  const Kernels& use = kernels();
  const int lanes = use.lanes;
  const int64_t tiles = (weights.rows + lanes - 1) / lanes;
  const int64_t grain = grain_of(tiles, static_cast<int64_t>(from.columns) * lanes, from.rows);
  const size_t panel_bytes = aligned(std::max(weights.scratch_bytes(), up ? up->scratch_bytes() : 0));
  ThreadPool::shared().run(tiles, std::min<int64_t>(grain, 8), [&](int64_t begin, int64_t end) {
    const size_t tile_bytes = aligned(sizeof(float) * lanes * from.rows);
    uint8_t* memory = tile_scratch.take(panel_bytes + 2 * tile_bytes);
    float* tile = reinterpret_cast<float*>(memory + panel_bytes);
    float* up_tile = reinterpret_cast<float*>(memory + panel_bytes + tile_bytes);
    for (int64_t index = begin; index < end; index++) {
      const int64_t row = index * lanes;
      const int count = std::min<int64_t>(lanes, weights.rows - row);
      weights.format->tile(weights.row(row), weights.row_bytes, count, from, 0, from.rows, tile, memory);
      if (up != nullptr) {
        up->format->tile(up->row(row), up->row_bytes, count, from, 0, from.rows, up_tile, memory);
        use.gate(gate, tile, up_tile, lanes * from.rows, tile);
      }
      for (int m = 0; m < from.rows; m++) {
        std::copy_n(tile + m * lanes, count, out + static_cast<int64_t>(m) * weights.rows + row);
      }
    }
  });
}

void multiply(const View& x, const Weights& weights, const Weights* up, Gate gate, float* out) {
  for (int64_t begin = 0; begin < x.rows(); begin += kBlockRows) {
    const int count = std::min<int64_t>(kBlockRows, x.rows() - begin);
    const Activations from = prepare(x, begin, count, *weights.format);
    multiply_block(from, weights, up, gate, out + begin * weights.rows);
  }
}

class Product : public CpuPrimitive {
 public:
  Product(mx::Stream stream, int type) : CpuPrimitive(stream), type_(type) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), w = weights_of(inputs[1], type_), to = out.data<float>()] {
      multiply(x, w, nullptr, Gate::kSilu, to);
    });
  }
  const char* name() const override { return "InnkeeperProduct"; }

 private:
  int type_;
};

class GatedProduct : public CpuPrimitive {
 public:
  GatedProduct(mx::Stream stream, int gate_type, int up_type, Gate gate)
      : CpuPrimitive(stream), gate_type_(gate_type), up_type_(up_type), gate_(gate) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), gate_weights = weights_of(inputs[1], gate_type_),
                          up = weights_of(inputs[2], up_type_), gate = gate_, to = out.data<float>()] {
      multiply(x, gate_weights, &up, gate, to);
    });
  }
  const char* name() const override { return "InnkeeperGatedProduct"; }

 private:
  int gate_type_;
  int up_type_;
  Gate gate_;
};

// x [m, rows] times the weights as they are, [rows, columns]. Weights become floats: nobody needs this one fast.
class RowProduct : public CpuPrimitive {
 public:
  RowProduct(mx::Stream stream, int type) : CpuPrimitive(stream), type_(type) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out,
            [x = View(inputs[0]), w = weights_of(inputs[1], type_), columns = out.shape(-1), to = out.data<float>()] {
              run(x, w, columns, to);
            });
  }
  const char* name() const override { return "InnkeeperRowProduct"; }

 private:
  static void run(const View& x, const Weights& weights, int columns, float* out) {
    constexpr int kPart = 256;  // whole blocks of any type
    for (int64_t first = 0; first < x.rows(); first += kBlockRows) {
      const int count = std::min<int64_t>(kBlockRows, x.rows() - first);
      const Activations from = prepare(x, first, count, *kernels().format(0));
      ThreadPool::shared().run((columns + kPart - 1) / kPart, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; part++) {
          const int at = part * kPart, here = std::min(kPart, columns - at);
          float row[kPart];
          for (int m = 0; m < count; m++) std::fill_n(out + (first + m) * columns + at, here, 0.0f);
          for (int r = 0; r < weights.rows; r++) {
            weights.format->dequantize(weights.row(r), at, at + here, row);
            for (int m = 0; m < count; m++) {
              const float factor = from.x[static_cast<int64_t>(m) * weights.rows + r];
              float* to = out + (first + m) * columns + at;
              for (int i = 0; i < here; i++) to[i] += factor * row[i];
            }
          }
        }
      });
    }
  }

  int type_;
};

class Rows : public CpuPrimitive {
 public:
  Rows(mx::Stream stream, int type) : CpuPrimitive(stream), type_(type) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [w = weights_of(inputs[0], type_), ids = inputs[1].data<int32_t>(), count = inputs[1].size(),
                          columns = out.shape(-1), to = out.data<float>()] {
      ThreadPool::shared().run(count, std::max(1, (1 << 15) / columns), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          const int64_t id = ids[i] < 0 ? ids[i] + w.rows : ids[i];
          float* row = to + i * columns;
          if (id >= 0 && id < w.rows) {
            w.format->dequantize(w.row(id), 0, columns, row);
          } else {
            std::fill_n(row, columns, 0.0f);
          }
        }
      });
    });
  }
  const char* name() const override { return "InnkeeperRows"; }

 private:
  int type_;
};

int columns_of(const mx::array& blocks, int type) {
  const FormatKernels* format = kernels().format(type);
  if (format == nullptr) throw std::invalid_argument("[innkeeper] this quant type has no kernel");
  if (blocks.dtype() != mx::uint8 || blocks.ndim() != 2 || blocks.shape(1) % format->bytes != 0) {
    throw std::invalid_argument("[innkeeper] blocks are uint8 [rows, row bytes], whole blocks a row");
  }
  return blocks.shape(1) / format->bytes * format->block;
}

mx::array floats(const mx::array& x, mx::Stream stream) {
  return x.dtype() == mx::float32 ? x : mx::astype(x, mx::float32, stream);
}

// Rows of blocks whose bytes are neighbours; a slice of rows is, and stays as it is.
mx::array whole_rows(const mx::array& blocks, mx::Stream stream) {
  return blocks.has_primitive() || blocks.strides(1) != 1 ? mx::contiguous(blocks, false, stream) : blocks;
}

mx::Shape with_last(mx::Shape shape, int last) {
  shape.back() = last;
  return shape;
}

void check_input(const mx::array& x, int width) {
  if (!mx::issubdtype(x.dtype(), mx::floating)) throw std::invalid_argument("[innkeeper] activations must be floating");
  if (x.ndim() == 0 || x.shape(-1) != width) throw std::invalid_argument("[innkeeper] activations do not fit the weights");
}

mx::array in_dtype_of(const mx::array& x, mx::array out, mx::Stream stream) {
  return x.dtype() == mx::float32 ? out : mx::astype(out, x.dtype(), stream);
}

}  // namespace

mx::array product(const mx::array& x, const mx::array& blocks, int type, bool transpose, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const int columns = columns_of(blocks, type), rows = blocks.shape(0);
  check_input(x, transpose ? columns : rows);
  std::vector<mx::array> inputs{floats(x, stream), whole_rows(blocks, stream)};
  const mx::Shape shape = with_last(x.shape(), transpose ? rows : columns);
  if (x.shape(-1) == 0) return mx::zeros(shape, x.dtype(), stream);
  std::shared_ptr<mx::Primitive> primitive;
  if (transpose) {
    primitive = std::make_shared<Product>(stream, type);
  } else {
    primitive = std::make_shared<RowProduct>(stream, type);
  }
  return in_dtype_of(x, mx::array(shape, mx::float32, std::move(primitive), std::move(inputs)), stream);
}

mx::array gated_product(const mx::array& x, const mx::array& gate, const mx::array& up, int gate_type, int up_type,
                        int activation, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const int columns = columns_of(gate, gate_type);
  check_input(x, columns);
  if (up.shape(0) != gate.shape(0) || columns_of(up, up_type) != columns) {
    throw std::invalid_argument("[innkeeper] gate and up weights are not alike");
  }
  const mx::array wide = floats(x, stream), gate_rows = whole_rows(gate, stream), up_rows = whole_rows(up, stream);
  const mx::Shape shape = with_last(x.shape(), gate.shape(0));
  const FormatKernels &first = *kernels().format(gate_type), &second = *kernels().format(up_type);
  if (first.group != second.group || first.zero != second.zero) {  // activations cannot be made ready for both at once
    const mx::array left(shape, mx::float32, std::make_shared<Product>(stream, gate_type), {wide, gate_rows});
    const mx::array right(shape, mx::float32, std::make_shared<Product>(stream, up_type), {wide, up_rows});
    return in_dtype_of(x, gated(left, right, activation, s), stream);
  }
  const auto primitive = std::make_shared<GatedProduct>(stream, gate_type, up_type, static_cast<Gate>(activation));
  return in_dtype_of(x, mx::array(shape, mx::float32, primitive, {wide, gate_rows, up_rows}), stream);
}

mx::array embedding_rows(const mx::array& blocks, const mx::array& ids, int type, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const int columns = columns_of(blocks, type);
  mx::Shape shape = ids.shape();
  shape.push_back(columns);
  const mx::array whole = mx::contiguous(mx::astype(ids, mx::int32, stream), false, stream);
  return mx::array(std::move(shape), mx::float32, std::make_shared<Rows>(stream, type), {whole_rows(blocks, stream), whole});
}

}  // namespace innkeeper
