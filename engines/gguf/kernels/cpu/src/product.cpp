// Products with quantised weights, plain and gated, and the rows of an embedding.
#include <algorithm>
#include <memory>

#include "operands.h"
#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "table.h"

namespace innkeeper {

namespace {

// out[rows of activations][rows of weights]
void multiply_block(const Activations& from, const Weights& weights, const Weights* up, Gate gate, float* out) {
  const Kernels& use = kernels();
  const int lanes = use.lanes;
  const int64_t tiles = weights.tiles();
  const int64_t grain = grain_of(tiles, static_cast<int64_t>(from.columns) * lanes, from.rows);
  const size_t panel_bytes = std::max(weights.scratch_bytes(), up ? up->scratch_bytes() : 0);
  ThreadPool::shared().run(tiles, grain, [&](int64_t begin, int64_t end) {
    const size_t tile_bytes = aligned(sizeof(float) * lanes * from.rows);
    uint8_t* memory = tile_scratch().take(panel_bytes + 2 * tile_bytes);
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

}  // namespace

mx::array product(const mx::array& x, const mx::array& blocks, int type, bool transpose, mx::StreamOrDevice s) {
  if (!transpose) return row_product(x, blocks, type, s);
  const mx::Stream stream = mx::to_stream(s);
  check_input(x, columns_of(blocks, type, 2));
  const mx::Shape shape = with_last(x.shape(), blocks.shape(0));
  if (x.shape(-1) == 0) return mx::zeros(shape, x.dtype(), stream);
  const mx::array out(shape, mx::float32, std::make_shared<Product>(stream, type),
                      {floats(x, stream), whole_rows(blocks, stream)});
  return in_dtype_of(x, out, stream);
}

mx::array gated_product(const mx::array& x, const mx::array& gate, const mx::array& up, int gate_type, int up_type,
                        int activation, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const int columns = columns_of(gate, gate_type, 2);
  check_input(x, columns);
  if (up.shape(0) != gate.shape(0) || columns_of(up, up_type, 2) != columns) {
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
  const int columns = columns_of(blocks, type, 2);
  mx::Shape shape = ids.shape();
  shape.push_back(columns);
  const mx::array whole = mx::contiguous(mx::astype(ids, mx::int32, stream), false, stream);
  return mx::array(std::move(shape), mx::float32, std::make_shared<Rows>(stream, type), {whole_rows(blocks, stream), whole});
}

}  // namespace innkeeper
