#include "layer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "multiply.h"
#include "operands.h"
#include "pool.h"
#include "primitive.h"
#include "rotations.h"
#include "scratch.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace {

constexpr int64_t kLeastFloats = 1 << 14;  // below, another thread is not worth waking

[[noreturn]] void refuse(const char* what) { throw std::invalid_argument(std::string("[innkeeper] a layer's ") + what); }

// A matrix [rows, columns] with its bias; the arrays are evaluated.
struct Matrix {
  mx::array blocks;
  int type, rows, columns;
  std::optional<mx::array> bias;

  explicit Matrix(const MatrixArguments& from)
      : blocks(std::get<0>(from)), type(std::get<1>(from)), rows(0), columns(columns_of(blocks, type, 2)), bias(std::get<2>(from)) {
    blocks = whole_rows(blocks, mx::to_stream({}));
    blocks.eval();
    rows = blocks.shape(0);
    if (!bias) return;
    if (bias->ndim() != 1 || bias->shape(0) != rows) refuse("bias does not fit its matrix");
    bias = mx::contiguous(floats(*bias, mx::to_stream({})));
    bias->eval();
  }
  Weights weights() const { return weights_of(blocks, type); }
};

struct Norm {
  mx::array weight;
  float eps;

  Norm(const NormArguments& from, int width) : weight(mx::contiguous(floats(std::get<0>(from), mx::to_stream({})))), eps(std::get<1>(from)) {
    if (weight.ndim() != 1 || weight.shape(0) != width) refuse("norm does not fit");
    weight.eval();
  }
  void operator()(const float* x, float* out) const {
    kernels().rms_norm(x, weight.data<float>(), eps, weight.shape(0), out);
  }
};

std::optional<Norm> maybe(const std::optional<NormArguments>& from, int width) {
  return from ? std::optional<Norm>(std::in_place, *from, width) : std::nullopt;
}

// Calls visit(row) for rows of so many floats, side by side.
template <typename Visit>
void for_rows(int64_t rows, int width, Visit visit) {
  ThreadPool::shared().run(rows, std::max<int64_t>(1, kLeastFloats / std::max(1, width)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) visit(row);
  });
}

void add_bias(const Matrix& matrix, int rows, float* out) {
  if (!matrix.bias) return;
  const float* bias = matrix.bias->data<float>();
  for_rows(rows, matrix.rows, [&](int64_t row) {
    for (int i = 0; i < matrix.rows; i++) out[row * matrix.rows + i] += bias[i];
  });
}

// out = x @ matrix.T + bias, of rows that lie one after another.
void multiply_with_bias(const float* x, int count, const Matrix& matrix, float* out) {
  const Target target{matrix.weights(), out};
  multiply(prepare(x, count, matrix.columns, *target.weights.format), {&target, 1});
  add_bias(matrix, count, out);
}

// Floats that the stream's thread keeps, one array a name.
enum class Room { kNormed, kInput, kMiddle, kGate, kUp, kRooms };
float* room(Room which, int64_t floats) {
  thread_local Scratch rooms[static_cast<int>(Room::kRooms)];
  return reinterpret_cast<float*>(rooms[static_cast<int>(which)].take(sizeof(float) * floats));
}

// Rows [begin, begin + count) of x as they lie, or copied.
const float* rows_of(const View& x, int64_t begin, int count) {
  if (x.contiguous()) return x.data() + begin * x.width();
  float* copy = room(Room::kInput, static_cast<int64_t>(count) * x.width());
  x.gather(begin, count, copy);
  return copy;
}

}  // namespace

struct Layer::Parts {
  Matrix q, k, v, o, gate, up, down;
  int width, heads, kv_heads, features, value_features;
  Norm input_norm, mlp_norm;
  std::optional<Norm> q_norm, k_norm, after_attention, after_mlp;
  RotationKey rotation;
  bool traditional;
  float magnitude;
  Gate activation;

  explicit Parts(const LayerArguments& a)
      : q(a.q), k(a.k), v(a.v), o(a.o), gate(a.gate), up(a.up), down(a.down), width(q.columns), heads(a.heads),
        kv_heads(a.kv_heads), features(heads > 0 ? q.rows / heads : 0), value_features(kv_heads > 0 ? v.rows / kv_heads : 0),
        input_norm(a.input_norm, width), mlp_norm(a.mlp_norm, width), q_norm(maybe(a.q_norm, features)),
        k_norm(maybe(a.k_norm, features)), after_attention(maybe(a.after_attention, width)), after_mlp(maybe(a.after_mlp, width)),
        rotation{a.rope_dims / 2, a.rope_base, a.rope_scale, 0, {}, {}}, traditional(a.rope_traditional),
        magnitude(a.rope_magnitude), activation(static_cast<Gate>(a.activation)) {
    const bool attends = heads > 0 && kv_heads > 0 && q.rows == heads * features && k.rows == kv_heads * features &&
                         v.rows == kv_heads * value_features && o.columns == heads * value_features;
    const bool wide = k.columns == width && v.columns == width && o.rows == width && gate.columns == width && down.rows == width;
    if (!attends || !wide || up.columns != width || up.rows != gate.rows || down.columns != gate.rows) refuse("matrices do not fit");
    if (a.rope_dims < 2 || a.rope_dims % 2 || a.rope_dims > features) refuse("rotary embedding takes an even part of the features");
    if (!a.rope_wavelengths) return;
    mx::array wavelengths = mx::contiguous(floats(*a.rope_wavelengths, mx::to_stream({})));
    if (wavelengths.ndim() != 1 || wavelengths.shape(0) != rotation.pairs) refuse("rotary embedding takes one wavelength a pair");
    wavelengths.eval();
    rotation.wavelengths.assign(wavelengths.data<float>(), wavelengths.data<float>() + rotation.pairs);
  }
};

namespace {

using Parts = Layer::Parts;

class Project : public mx::Primitive {
 public:
  // Without `offset`, the offsets are the second input.
  Project(mx::Stream stream, std::shared_ptr<const Parts> parts, std::optional<int> offset)
      : Primitive(stream), parts_(std::move(parts)), offset_(offset) {}

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[innkeeper] this primitive is of the CPU");
  }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& input : inputs) encoder.set_input_array(input);
    for (auto& out : outputs) {
      allocate_by_token(out);
      encoder.set_output_array(out);
    }
    const int tokens = outputs[0].shape(2), batch = outputs[0].shape(0);
    const bool shared = offset_ || inputs[1].size() == 1;
    const int32_t* offsets = offset_ ? nullptr : inputs[1].data<int32_t>();
    const int64_t step = shared ? 0 : inputs[1].strides(-1);
    encoder.dispatch([parts = parts_, x = View(inputs[0]), tokens, batch, shared, offsets, step, same = offset_.value_or(0),
                      q = outputs[0].data<float>(), k = outputs[1].data<float>(), v = outputs[2].data<float>()] {
      RotationKey key = parts->rotation;
      key.tokens = tokens;
      if (offsets == nullptr) key.offsets.push_back(same);
      for (int i = 0; offsets != nullptr && i < (shared ? 1 : batch); i++) key.offsets.push_back(offsets[i * step]);
      const Rotations& turns = rotations(key);
      for (int64_t begin = 0; begin < x.rows(); begin += kBlockRows) {
        const int count = std::min<int64_t>(kBlockRows, x.rows() - begin);
        float* to[3] = {q + begin * parts->q.rows, k + begin * parts->k.rows, v + begin * parts->v.rows};
        multiply_all(*parts, rows_of(x, begin, count), count, to);
        for_rows(count, parts->q.rows + parts->k.rows, [&](int64_t row) {
          const int64_t token = begin + row;
          const int64_t turn = ((shared ? 0 : token / tokens) * tokens + token % tokens) * key.pairs;
          turn_heads(*parts, parts->q_norm, parts->heads, &turns.cosines[turn], &turns.sines[turn], to[0] + row * parts->q.rows);
          turn_heads(*parts, parts->k_norm, parts->kv_heads, &turns.cosines[turn], &turns.sines[turn], to[1] + row * parts->k.rows);
        });
      }
    });
  }
  const char* name() const override { return "InnkeeperProject"; }

 private:
  // Tokens before heads in memory, as the products leave them.
  static void allocate_by_token(mx::array& out) {
    const int64_t heads = out.shape(1), tokens = out.shape(2), features = out.shape(3);
    mx::array::Flags flags = out.flags();
    flags.contiguous = true;
    flags.row_contiguous = heads == 1 || tokens == 1;
    flags.col_contiguous = false;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), {tokens * heads * features, features, heads * features, 1}, flags);
  }

  // The three products of normed rows: those whose formats are alike side by side.
  static void multiply_all(const Parts& parts, const float* x, int count, float* const to[3]) {
    const int64_t width = parts.width;
    float* normed = room(Room::kNormed, count * width);
    for_rows(count, parts.width, [&](int64_t row) { parts.input_norm(x + row * width, normed + row * width); });
    const Matrix* matrices[3] = {&parts.q, &parts.k, &parts.v};
    bool done[3] = {};
    for (int i = 0; i < 3; i++) {
      if (done[i]) continue;
      std::vector<Target> targets;
      const FormatKernels& format = *matrices[i]->weights().format;
      for (int j = i; j < 3; j++) {
        if (done[j] || !alike(format, *matrices[j]->weights().format)) continue;
        targets.push_back({matrices[j]->weights(), to[j]});
        done[j] = true;
      }
      multiply(prepare(normed, count, parts.width, format), targets);
    }
    for (int i = 0; i < 3; i++) add_bias(*matrices[i], count, to[i]);
  }

  static void turn_heads(const Parts& parts, const std::optional<Norm>& norm, int heads, const float* cosines, const float* sines,
                         float* row) {
    const int pairs = parts.rotation.pairs;
    for (float* x = row; x < row + heads * parts.features; x += parts.features) {
      if (norm) (*norm)(x, x);
      for (int i = 0; parts.magnitude != 1.0f && i < 2 * pairs; i++) x[i] *= parts.magnitude;
      kernels().rope(x, cosines, sines, pairs, parts.traditional, parts.features, x);
    }
  }

  std::shared_ptr<const Parts> parts_;
  std::optional<int> offset_;
};

class Finish : public CpuPrimitive {
 public:
  Finish(mx::Stream stream, std::shared_ptr<const Parts> parts) : CpuPrimitive(stream), parts_(std::move(parts)) {}

  // Inputs: what attention answered, tokens before heads, and the layer's input.
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [parts = parts_, attended = View(inputs[0]), x = View(inputs[1]), to = out.data<float>()] {
      for (int64_t begin = 0; begin < x.rows(); begin += kBlockRows) {
        const int count = std::min<int64_t>(kBlockRows, x.rows() - begin);
        run(*parts, attended, x, begin, count, to + begin * parts->width);
      }
    });
  }
  const char* name() const override { return "InnkeeperFinish"; }

 private:
  static void run(const Parts& parts, const View& attended, const View& x, int64_t begin, int count, float* out) {
    const int64_t width = parts.width;
    // A row of the product is the row's heads, which the view has as rows of their own.
    multiply_with_bias(rows_of(attended, begin * parts.heads, count * parts.heads), count, parts.o, out);
    float* middle = room(Room::kMiddle, count * width);
    float* normed = room(Room::kNormed, count * width);
    const float* input = rows_of(x, begin, count);
    for_rows(count, parts.width, [&](int64_t row) {
      const int64_t at = row * width;
      add(parts.after_attention, parts.width, input + at, out + at, middle + at);
      parts.mlp_norm(middle + at, normed + at);
    });
    float* hidden = room(Room::kGate, static_cast<int64_t>(count) * parts.gate.rows);
    if (parts.gate.bias || parts.up.bias) {
      float* upper = room(Room::kUp, static_cast<int64_t>(count) * parts.up.rows);
      multiply_with_bias(normed, count, parts.gate, hidden);
      multiply_with_bias(normed, count, parts.up, upper);
      for_rows(count, parts.up.rows, [&](int64_t row) {
        const int64_t at = row * parts.up.rows;
        kernels().gate(parts.activation, hidden + at, upper + at, parts.up.rows, hidden + at);
      });
    } else {
      multiply_gated(normed, count, parts.width, parts.gate.weights(), parts.up.weights(), parts.activation, hidden);
    }
    multiply_with_bias(hidden, count, parts.down, out);
    for_rows(count, parts.width, [&](int64_t row) {
      add(parts.after_mlp, parts.width, middle + row * width, out + row * width, out + row * width);
    });
  }

  // to = x + norm(added); `added` may be overwritten.
  static void add(const std::optional<Norm>& norm, int width, const float* x, float* added, float* to) {
    if (norm) (*norm)(added, added);
    for (int i = 0; i < width; i++) to[i] = x[i] + added[i];
  }

  std::shared_ptr<const Parts> parts_;
};

}  // namespace

Layer::Layer(const LayerArguments& arguments) : parts_(std::make_shared<const Parts>(arguments)) {}

std::vector<mx::array> Layer::project(const mx::array& x, const std::variant<int, mx::array>& offset, mx::StreamOrDevice s) const {
  const mx::Stream stream = mx::to_stream(s);
  if (x.ndim() != 3 || x.shape(2) != parts_->width || x.dtype() != mx::float32) refuse("input is float32 [batch, tokens, width]");
  std::vector<mx::array> inputs{x};
  std::optional<int> same;
  if (const auto* each = std::get_if<mx::array>(&offset)) {
    if (each->size() != 1 && (each->ndim() != 1 || each->shape(0) != x.shape(0))) refuse("offset is one, or one a row of the batch");
    inputs.push_back(mx::astype(*each, mx::int32, stream));
  } else {
    same = std::get<int>(offset);
  }
  const int batch = x.shape(0), tokens = x.shape(1);
  return mx::array::make_arrays({{batch, parts_->heads, tokens, parts_->features},
                                 {batch, parts_->kv_heads, tokens, parts_->features},
                                 {batch, parts_->kv_heads, tokens, parts_->value_features}},
                                {mx::float32, mx::float32, mx::float32}, std::make_shared<Project>(stream, parts_, same),
                                std::move(inputs));
}

mx::array Layer::finish(const mx::array& attended, const mx::array& x, mx::StreamOrDevice s) const {
  const mx::Stream stream = mx::to_stream(s);
  const bool fits = x.ndim() == 3 && x.shape(2) == parts_->width && attended.ndim() == 4 && attended.shape(0) == x.shape(0) &&
                    attended.shape(1) == parts_->heads && attended.shape(2) == x.shape(1) &&
                    attended.shape(3) == parts_->value_features;
  if (!fits || x.dtype() != mx::float32 || attended.dtype() != mx::float32) refuse("attention and input do not fit");
  return mx::array(x.shape(), mx::float32, std::make_shared<Finish>(stream, parts_),
                   {mx::transpose(attended, {0, 2, 1, 3}, stream), x});
}

}  // namespace innkeeper
