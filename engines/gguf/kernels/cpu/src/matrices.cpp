// Products with several matrices: experts that are chosen by index, heads that each have their own.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "operands.h"
#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace {

// Pairs of a row and an expert at a time, so that what is made ready for them stays small; every expert that they use passes by.
constexpr int64_t kBlockPairs = 4096;

// Rows of activations [first, first + count) that one matrix is multiplied with, and where in the answer each goes.
struct Part {
  int64_t matrix;
  int first, count;
  const int64_t* targets;
};

// Cuts a part so that the codes of its rows stay in the cache.
void add_parts(Part whole, std::vector<Part>& parts) {
  for (; whole.count > 0; whole.first += kBlockRows, whole.count -= kBlockRows, whole.targets += kBlockRows) {
    parts.push_back({whole.matrix, whole.first, std::min(whole.count, kBlockRows), whole.targets});
  }
}

// Tiles of all parts, side by side.
void multiply_parts(const Activations& from, const Weights& weights, const std::vector<Part>& parts, float* out) {
  const int lanes = kernels().lanes;
  const int64_t tiles = weights.tiles();
  const int64_t grain = grain_of(tiles * parts.size(), static_cast<int64_t>(from.columns) * lanes, 1);
  ThreadPool::shared().run(tiles * parts.size(), grain, [&](int64_t begin, int64_t end) {
    const size_t panel_bytes = weights.scratch_bytes();
    uint8_t* memory = tile_scratch().take(panel_bytes + sizeof(float) * lanes * kBlockRows);
    float* tile = reinterpret_cast<float*>(memory + panel_bytes);
    for (int64_t index = begin; index < end; index++) {
      const Part& part = parts[index / tiles];
      const int64_t row = index % tiles * lanes;
      const int count = std::min<int64_t>(lanes, weights.rows - row);
      weights.format->tile(weights.row(row, part.matrix), weights.row_bytes, count, from, part.first, part.count, tile, memory);
      for (int m = 0; m < part.count; m++) std::copy_n(tile + m * lanes, count, out + part.targets[m] * weights.rows + row);
    }
  });
}

class ExpertProduct : public CpuPrimitive {
 public:
  ExpertProduct(mx::Stream stream, int type, int share) : CpuPrimitive(stream), type_(type), share_(share) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), w = weights_of(inputs[1], type_), experts = inputs[2].data<int32_t>(),
                          pairs = static_cast<int64_t>(inputs[2].size()), share = share_, to = out.data<float>()] {
      const int64_t step = std::max<int64_t>(1, kBlockPairs / share) * share;
      for (int64_t begin = 0; begin < pairs; begin += step) {
        run(x, w, experts, begin, std::min(begin + step, pairs), share, to);
      }
    });
  }
  const char* name() const override { return "InnkeeperExpertProduct"; }

 private:
  // Pairs [begin, end), of whole rows of x.
  static void run(const View& x, const Weights& weights, const int32_t* experts, int64_t begin, int64_t end, int share,
                  float* out) {
    const auto expert_of = [&](int64_t pair) {
      const int64_t expert = experts[pair] < 0 ? int64_t{experts[pair]} + weights.matrices : experts[pair];
      return expert >= 0 && expert < weights.matrices ? expert : -1;
    };
    std::vector<int64_t> starts(weights.matrices + 1, 0);
    for (int64_t pair = begin; pair < end; pair++) {
      const int64_t expert = expert_of(pair);
      if (expert >= 0) {
        starts[expert + 1]++;
      } else {
        std::fill_n(out + pair * weights.rows, weights.rows, 0.0f);
      }
    }
    for (int expert = 0; expert < weights.matrices; expert++) starts[expert + 1] += starts[expert];
    const int64_t first_row = begin / share, count = starts.back();
    std::vector<int64_t> next(starts.begin(), starts.end() - 1), targets(count), rows(count);
    for (int64_t pair = begin; pair < end; pair++) {
      const int64_t expert = expert_of(pair);
      if (expert < 0) continue;
      const int64_t place = next[expert]++;
      targets[place] = pair;
      rows[place] = pair / share - first_row;
    }
    if (count == 0) return;
    Activations from = prepare(x, first_row, (end - begin) / share, *weights.format);
    // One step of one sequence, and pairs that are sorted already, have the rows of each expert side by side.
    bool in_place = true;
    for (int expert = 0; expert < weights.matrices && in_place; expert++) {
      for (int64_t i = starts[expert] + 1; i < starts[expert + 1]; i++) in_place &= rows[i] == rows[i - 1] + 1;
    }
    if (!in_place) from = gather(from, rows.data(), count, *weights.format);
    std::vector<Part> parts;
    for (int expert = 0; expert < weights.matrices; expert++) {
      const int64_t start = starts[expert], of_expert = starts[expert + 1] - start;
      if (of_expert == 0) continue;
      add_parts({expert, static_cast<int>(in_place ? rows[start] : start), static_cast<int>(of_expert), targets.data() + start},
                parts);
    }
    multiply_parts(from, weights, parts, out);
  }

  int type_;
  int share_;
};

// x [batch, heads or 1, m, columns] times the transposed matrices.
class HeadProduct : public CpuPrimitive {
 public:
  HeadProduct(mx::Stream stream, int type) : CpuPrimitive(stream), type_(type) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    enqueue(inputs, out, [x = View(inputs[0]), w = weights_of(inputs[1], type_), given = inputs[0].shape(-3),
                          m = inputs[0].shape(-2), to = out.data<float>()] {
      const int64_t per_batch = static_cast<int64_t>(given) * m, batches = per_batch == 0 ? 0 : x.rows() / per_batch;
      std::vector<int64_t> targets(static_cast<int64_t>(w.matrices) * m);
      for (int64_t batch = 0; batch < batches; batch++) {
        std::vector<Part> parts;
        for (int64_t head = 0; head < w.matrices; head++) {
          for (int64_t i = 0; i < m; i++) targets[head * m + i] = (batch * w.matrices + head) * m + i;
          add_parts({head, given == 1 ? 0 : static_cast<int>(head * m), m, targets.data() + head * m}, parts);
        }
        multiply_parts(prepare(x, batch * per_batch, per_batch, *w.format), w, parts, to);
      }
    });
  }
  const char* name() const override { return "InnkeeperHeadProduct"; }

 private:
  int type_;
};

// x [batch, heads or 1, m, rows] times the matrices as they are, or x [..., rows] times one. Weights become floats, some rows and
// columns at a time.
class RowProduct : public CpuPrimitive {
 public:
  RowProduct(mx::Stream stream, int type) : CpuPrimitive(stream), type_(type) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    const bool heads = inputs[1].ndim() == 3;
    Shape shape;
    shape.given = heads ? inputs[0].shape(-3) : 1;
    shape.m = heads ? inputs[0].shape(-2) : inputs[0].size() / inputs[0].shape(-1);
    shape.columns = out.shape(-1);
    enqueue(inputs, out, [x = View(inputs[0]), w = weights_of(inputs[1], type_), shape, to = out.data<float>()] {
      run(x, w, shape, to);
    });
  }
  const char* name() const override { return "InnkeeperRowProduct"; }

 private:
  struct Shape {
    int64_t given, m;  // heads of x, rows of each
    int columns;
  };
  static constexpr int kColumns = 256;  // whole blocks of any type
  static constexpr int kDepth = 64;

  static void run(const View& x, const Weights& weights, const Shape& shape, float* out) {
    if (x.rows() == 0) return;
    const Kernels& use = kernels();
    const float* activations = prepare(x, 0, x.rows(), *use.format(0)).x;
    const int64_t batches = x.rows() / (shape.given * shape.m), parts = (shape.columns + kColumns - 1) / kColumns;
    ThreadPool::shared().run(batches * weights.matrices * parts, 1, [&](int64_t begin, int64_t end) {
      float* panel = reinterpret_cast<float*>(tile_scratch().take(sizeof(float) * kDepth * kColumns));
      for (int64_t index = begin; index < end; index++) {
        const int64_t unit = index / parts, batch = unit / weights.matrices, head = unit % weights.matrices;
        const int at = index % parts * kColumns, here = std::min(kColumns, shape.columns - at);
        const float* a = activations + (batch * shape.given + (shape.given == 1 ? 0 : head)) * shape.m * weights.rows;
        float* c = out + unit * shape.m * shape.columns + at;
        for (int row = 0; row < weights.rows; row += kDepth) {
          const int depth = std::min(kDepth, weights.rows - row);
          for (int r = 0; r < depth; r++) {
            weights.format->dequantize(weights.row(row + r, head), at, at + here, panel + r * kColumns);
          }
          use.multiply_dense(a + row, weights.rows, panel, kColumns, shape.m, here, depth, c, shape.columns, row > 0);
        }
      }
    });
  }

  int type_;
};

}  // namespace

mx::array expert_product(const mx::array& x, const mx::array& blocks, const mx::array& experts, int type, int share,
                         mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  check_input(x, columns_of(blocks, type, 3));
  if (x.ndim() != 2 || experts.ndim() != 1 || share < 1 || int64_t{x.shape(0)} * share != experts.shape(0)) {
    throw std::invalid_argument("[innkeeper] experts are [pairs], activations [pairs / share, columns]");
  }
  if (!mx::issubdtype(experts.dtype(), mx::integer)) throw std::invalid_argument("[innkeeper] experts are integers");
  const mx::Shape shape{experts.shape(0), blocks.shape(1)};
  if (x.shape(1) == 0) return mx::zeros(shape, x.dtype(), stream);
  const mx::array ids = mx::contiguous(mx::astype(experts, mx::int32, stream), false, stream);
  const mx::array out(shape, mx::float32, std::make_shared<ExpertProduct>(stream, type, share),
                      {floats(x, stream), whole_rows(blocks, stream), ids});
  return in_dtype_of(x, out, stream);
}

mx::array head_product(const mx::array& x, const mx::array& blocks, int type, bool transpose, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const int columns = columns_of(blocks, type, 3), heads = blocks.shape(0), rows = blocks.shape(1);
  check_input(x, transpose ? columns : rows);
  if (x.ndim() < 3 || (x.shape(-3) != 1 && x.shape(-3) != heads)) {
    throw std::invalid_argument("[innkeeper] activations are [..., heads, rows, columns], with one head or as many as weights");
  }
  mx::Shape shape = with_last(x.shape(), transpose ? rows : columns);
  shape[shape.size() - 3] = heads;
  if (x.shape(-1) == 0) return mx::zeros(shape, x.dtype(), stream);
  std::shared_ptr<mx::Primitive> primitive;
  if (transpose) {
    primitive = std::make_shared<HeadProduct>(stream, type);
  } else {
    primitive = std::make_shared<RowProduct>(stream, type);
  }
  const mx::array out(std::move(shape), mx::float32, std::move(primitive), {floats(x, stream), whole_rows(blocks, stream)});
  return in_dtype_of(x, out, stream);
}

mx::array row_product(const mx::array& x, const mx::array& blocks, int type, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const int columns = columns_of(blocks, type, 2);
  check_input(x, blocks.shape(0));
  const mx::Shape shape = with_last(x.shape(), columns);
  if (x.shape(-1) == 0) return mx::zeros(shape, x.dtype(), stream);
  const mx::array out(shape, mx::float32, std::make_shared<RowProduct>(stream, type),
                      {floats(x, stream), whole_rows(blocks, stream)});
  return in_dtype_of(x, out, stream);
}

}  // namespace innkeeper
