// Norm, rotary embedding, gated activation, log-sum-exp and softmax.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "operands.h"
#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "rotations.h"
#include "scratch.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace {

constexpr int64_t kLeastFloats = 1 << 14;  // below, another thread is not worth waking

thread_local Scratch row_scratch;

int64_t grain_of(int width) { return std::max<int64_t>(1, kLeastFloats / std::max(1, width)); }

// Calls visit(row index, row's floats) for all rows, side by side.
template <typename Visit>
void for_each_row(const View& x, Visit visit) {
  ThreadPool::shared().run(x.rows(), grain_of(x.width()), [&](int64_t begin, int64_t end) {
    float* copy = x.scattered() ? reinterpret_cast<float*>(row_scratch.take(sizeof(float) * x.width())) : nullptr;
    for (int64_t i = begin; i < end; i++) visit(i, x.row(i, copy));
  });
}

class RmsNorm : public CpuPrimitive {
 public:
  RmsNorm(mx::Stream stream, float eps) : CpuPrimitive(stream), eps_(eps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    const float* weight = inputs.size() > 1 ? inputs[1].data<float>() : nullptr;
    enqueue(inputs, out, [x = View(inputs[0]), weight, eps = eps_, to = out.data<float>()] {
      const Kernels& use = kernels();
      for_each_row(x, [&](int64_t i, const float* row) { use.rms_norm(row, weight, eps, x.width(), to + i * x.width()); });
    });
  }
  const char* name() const override { return "InnkeeperRmsNorm"; }

 private:
  float eps_;
};

class LayerNorm : public CpuPrimitive {
 public:
  // Inputs: x, the weight, then what is added and the bias, as far as there are such.
  LayerNorm(mx::Stream stream, float eps, bool adds, bool biased)
      : CpuPrimitive(stream), eps_(eps), adds_(adds), biased_(biased) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    const mx::array& other = inputs[adds_ ? 2 : 0];
    const float* bias = biased_ ? inputs.back().data<float>() : nullptr;
    enqueue(inputs, out, [x = View(inputs[0]), added = View(other), adds = adds_, weight = inputs[1].data<float>(), bias,
                          eps = eps_, to = out.data<float>()] {
      const Kernels& use = kernels();
      const int width = x.width();
      ThreadPool::shared().run(x.rows(), grain_of(width), [&](int64_t begin, int64_t end) {
        float* copies = reinterpret_cast<float*>(row_scratch.take(2 * sizeof(float) * width));
        for (int64_t i = begin; i < end; i++) {
          const float* second = adds ? added.row(i, copies + width) : nullptr;
          use.layer_norm(x.row(i, copies), second, weight, bias, eps, width, to + i * width);
        }
      });
    });
  }
  const char* name() const override { return "InnkeeperLayerNorm"; }

 private:
  float eps_;
  bool adds_;
  bool biased_;
};

class Rope : public CpuPrimitive {
 public:
  // With `freqs`, the wavelengths are the second input; with `offset` none, the offsets are the last.
  Rope(mx::Stream stream, int dims, bool traditional, float base, float scale, std::optional<int> offset, bool freqs)
      : CpuPrimitive(stream),
        dims_(dims),
        traditional_(traditional),
        base_(base),
        scale_(scale),
        offset_(offset),
        freqs_(freqs) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    RotationKey key{dims_ / 2, base_, scale_, out.shape(-2), {}, {}};
    const int batch = out.shape(0);
    const bool shared = offset_ || inputs.back().size() == 1;
    const int32_t* offsets = offset_ ? nullptr : inputs.back().data<int32_t>();
    const int64_t offset_step = shared ? 0 : inputs.back().strides(-1);
    const float* freqs = freqs_ ? inputs[1].data<float>() : nullptr;
    const int64_t freqs_step = freqs_ ? inputs[1].strides(0) : 0;
    if (offset_) key.offsets.push_back(*offset_);
    enqueue(inputs, out, [x = View(inputs[0]), key, batch, offsets, shared, offset_step, freqs, freqs_step,
                          traditional = traditional_, to = out.data<float>()]() mutable {
      // Only now are values of inputs known.
      for (int i = 0; offsets != nullptr && i < (shared ? 1 : batch); i++) key.offsets.push_back(offsets[i * offset_step]);
      for (int i = 0; freqs != nullptr && i < key.pairs; i++) key.wavelengths.push_back(freqs[i * freqs_step]);
      const Rotations& turns = rotations(key);
      const Kernels& use = kernels();
      const int64_t rows_of_batch = x.rows() / std::max(1, batch);
      for_each_row(x, [&](int64_t i, const float* row) {
        const int64_t of = (shared ? 0 : i / rows_of_batch) * key.tokens + i % key.tokens;
        use.rope(row, turns.cosines.data() + of * key.pairs, turns.sines.data() + of * key.pairs, key.pairs, traditional,
                 x.width(), to + i * x.width());
      });
    });
  }
  const char* name() const override { return "InnkeeperRope"; }

 private:
  int dims_;
  bool traditional_;
  float base_;
  float scale_;
  std::optional<int> offset_;
  bool freqs_;
};

class Gated : public CpuPrimitive {
 public:
  Gated(mx::Stream stream, Gate gate) : CpuPrimitive(stream), gate_(gate) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [gate = View(inputs[0]), up = View(inputs[1]), kind = gate_, to = out.data<float>()] {
      const Kernels& use = kernels();
      const int width = gate.width();
      ThreadPool::shared().run(gate.rows(), grain_of(width), [&](int64_t begin, int64_t end) {
        float* copies = reinterpret_cast<float*>(row_scratch.take(2 * sizeof(float) * width));
        for (int64_t i = begin; i < end; i++) {
          use.gate(kind, gate.row(i, copies), up.row(i, copies + width), width, to + i * width);
        }
      });
    });
  }
  const char* name() const override { return "InnkeeperGated"; }

 private:
  Gate gate_;
};

class LogSumExp : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), to = out.data<float>()] {
      // Parts of rows, so that one row of a large vocabulary keeps all threads busy.
      constexpr int kPart = 1 << 14;
      const int64_t parts = (x.width() + kPart - 1) / kPart;
      std::vector<float> sums(x.rows() * parts);
      std::vector<float> copies(x.scattered() ? x.rows() * x.width() : 0);
      if (x.scattered()) x.gather(0, x.rows(), copies.data());
      const Kernels& use = kernels();
      ThreadPool::shared().run(x.rows() * parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          const int64_t row = i / parts, at = i % parts * kPart;
          const float* from = x.scattered() ? copies.data() + row * x.width() : x.row(row, nullptr);
          sums[i] = use.log_sum_exp(from + at, std::min<int64_t>(kPart, x.width() - at));
        }
      });
      for (int64_t row = 0; row < x.rows(); row++) {
        to[row] = parts == 1 ? sums[row] : use.log_sum_exp(sums.data() + row * parts, parts);
      }
    });
  }
  const char* name() const override { return "InnkeeperLogSumExp"; }
};

class Softmax : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), to = out.data<float>()] {
      const Kernels& use = kernels();
      for_each_row(x, [&](int64_t i, const float* row) { use.softmax(row, x.width(), to + i * x.width()); });
    });
  }
  const char* name() const override { return "InnkeeperSoftmax"; }
};

}  // namespace

mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (x.ndim() == 0) throw std::invalid_argument("[innkeeper] a norm needs an axis");
  std::vector<mx::array> inputs{floats(x, stream)};
  if (weight) {
    if (weight->ndim() != 1 || weight->shape(0) != x.shape(-1)) {
      throw std::invalid_argument("[innkeeper] the norm's weight does not fit");
    }
    inputs.push_back(weight->flags().row_contiguous && weight->dtype() == mx::float32
                         ? *weight
                         : mx::contiguous(floats(*weight, stream), false, stream));
  }
  const mx::array out(x.shape(), mx::float32, std::make_shared<RmsNorm>(stream, eps), std::move(inputs));
  return in_dtype_of(x, out, stream);
}

mx::array layer_norm(const mx::array& x, const std::optional<mx::array>& added, const mx::array& weight,
                     const std::optional<mx::array>& bias, float eps, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const auto fits = [&](const mx::array& a) { return a.ndim() == 1 && a.shape(0) == x.shape(-1); };
  if (x.ndim() == 0 || !fits(weight) || (bias && !fits(*bias)) || (added && added->shape() != x.shape())) {
    throw std::invalid_argument("[innkeeper] the norm's inputs do not fit");
  }
  std::vector<mx::array> inputs{floats(x, stream), mx::contiguous(floats(weight, stream), false, stream)};
  if (added) inputs.push_back(floats(*added, stream));
  if (bias) inputs.push_back(mx::contiguous(floats(*bias, stream), false, stream));
  const auto primitive = std::make_shared<LayerNorm>(stream, eps, added.has_value(), bias.has_value());
  return in_dtype_of(x, mx::array(x.shape(), mx::float32, primitive, std::move(inputs)), stream);
}

mx::array rope(const mx::array& x, int dims, bool traditional, float base, float scale,
               const std::variant<int, mx::array>& offset, const std::optional<mx::array>& freqs, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (x.ndim() < 3 || dims < 2 || dims % 2 || dims > x.shape(-1)) {
    throw std::invalid_argument("[innkeeper] rotary embedding takes [batch, ..., tokens, features] and an even part of them");
  }
  std::vector<mx::array> inputs{floats(x, stream)};
  if (freqs) {
    if (freqs->ndim() != 1 || freqs->shape(0) != dims / 2) throw std::invalid_argument("[innkeeper] one wavelength a pair");
    inputs.push_back(floats(*freqs, stream));
  }
  std::optional<int> same;
  if (const auto* each = std::get_if<mx::array>(&offset)) {
    if (each->size() != 1 && (each->ndim() != 1 || each->shape(0) != x.shape(0))) {
      throw std::invalid_argument("[innkeeper] one offset, or one a row of the batch");
    }
    inputs.push_back(mx::astype(*each, mx::int32, stream));
  } else {
    same = std::get<int>(offset);
  }
  const auto primitive = std::make_shared<Rope>(stream, dims, traditional, base, scale, same, freqs.has_value());
  return in_dtype_of(x, mx::array(x.shape(), mx::float32, primitive, std::move(inputs)), stream);
}

mx::array gated(const mx::array& gate, const mx::array& up, int activation, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (gate.shape() != up.shape() || gate.ndim() == 0) throw std::invalid_argument("[innkeeper] gate and up are not alike");
  const mx::array out(gate.shape(), mx::float32, std::make_shared<Gated>(stream, static_cast<Gate>(activation)),
                      {floats(gate, stream), floats(up, stream)});
  return in_dtype_of(gate, out, stream);
}

mx::array log_sum_exp(const mx::array& x, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (x.ndim() == 0 || x.shape(-1) == 0) throw std::invalid_argument("[innkeeper] an axis with something in it is needed");
  mx::Shape shape = x.shape();
  shape.back() = 1;
  return mx::array(std::move(shape), mx::float32, std::make_shared<LogSumExp>(stream), {floats(x, stream)});
}

mx::array softmax(const mx::array& x, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (x.ndim() == 0) throw std::invalid_argument("[innkeeper] a softmax needs an axis");
  return mx::array(x.shape(), mx::float32, std::make_shared<Softmax>(stream), {floats(x, stream)});
}

}  // namespace innkeeper
