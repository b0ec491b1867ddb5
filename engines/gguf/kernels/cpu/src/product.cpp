// Products with quantised weights, plain and gated, and the rows of an embedding.
#include <algorithm>
#include <memory>

#include "multiply.h"
#include "operands.h"
#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "table.h"

namespace innkeeper {

namespace {

void multiply_rows(const View& x, const Weights& weights, const Weights* up, Gate gate, float* out) {
  for (int64_t begin = 0; begin < x.rows(); begin += kBlockRows) {
    const int count = std::min<int64_t>(kBlockRows, x.rows() - begin);
    const Target target{weights, out + begin * weights.rows, up, gate};
    multiply(prepare(x, begin, count, *weights.format), {&target, 1});
  }
}

class Product : public CpuPrimitive {
 public:
  Product(mx::Stream stream, int type) : CpuPrimitive(stream), type_(type) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), w = weights_of(inputs[1], type_), to = out.data<float>()] {
      multiply_rows(x, w, nullptr, Gate::kSilu, to);
    });
  }
  const char* name() const override { return "InnkeeperProduct"; }

 private:
  int type_;
};

// The bias, where there is one, is the third input.
class Dense : public CpuPrimitive {
 public:
  Dense(mx::Stream stream, int type, int activation) : CpuPrimitive(stream), type_(type), activation_(activation) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    const float* bias = inputs.size() > 2 ? inputs[2].data<float>() : nullptr;
    enqueue(inputs, out, [x = View(inputs[0]), w = weights_of(inputs[1], type_), bias, activation = activation_,
                          to = out.data<float>()] {
      const Gate gate = activation < 0 ? Gate::kSilu : static_cast<Gate>(activation);
      for (int64_t begin = 0; begin < x.rows(); begin += kBlockRows) {
        const int count = std::min<int64_t>(kBlockRows, x.rows() - begin);
        const Target target{w, to + begin * w.rows, nullptr, gate, bias, activation >= 0};
        multiply(prepare(x, begin, count, *w.format), {&target, 1});
      }
    });
  }
  const char* name() const override { return "InnkeeperDense"; }

 private:
  int type_;
  int activation_;
};

class GatedProduct : public CpuPrimitive {
 public:
  GatedProduct(mx::Stream stream, int gate_type, int up_type, Gate gate)
      : CpuPrimitive(stream), gate_type_(gate_type), up_type_(up_type), gate_(gate) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), gate_weights = weights_of(inputs[1], gate_type_),
                          up = weights_of(inputs[2], up_type_), gate = gate_, to = out.data<float>()] {
      multiply_rows(x, gate_weights, &up, gate, to);
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

mx::array dense(const mx::array& x, const mx::array& blocks, int type, const std::optional<mx::array>& bias, int activation,
                mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  check_input(x, columns_of(blocks, type, 2));
  if (bias && (bias->ndim() != 1 || bias->shape(0) != blocks.shape(0))) {
    throw std::invalid_argument("[innkeeper] the bias does not fit the weights");
  }
  if (activation < -1 || activation > static_cast<int>(Gate::kGeluTanh)) {
    throw std::invalid_argument("[innkeeper] no such activation");
  }
  const mx::Shape shape = with_last(x.shape(), blocks.shape(0));
  if (x.size() == 0 || blocks.shape(0) == 0) return mx::zeros(shape, x.dtype(), stream);
  std::vector<mx::array> inputs{floats(x, stream), whole_rows(blocks, stream)};
  if (bias) inputs.push_back(mx::contiguous(floats(*bias, stream), false, stream));
  const mx::array out(shape, mx::float32, std::make_shared<Dense>(stream, type, activation), std::move(inputs));
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
  if (!alike(first, second)) {  // activations cannot be made ready for both at once
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
