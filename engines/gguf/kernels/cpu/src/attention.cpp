// Attention over a KV cache: heads that share keys go together, and long key ranges are split over the threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "scratch.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace {

constexpr int kSliceRows = 64;          // queries that share a pass over keys
constexpr int kLeastSplit = 256;        // keys of a split
constexpr int64_t kLeastWork = 1 << 16;  // products below which another thread is not worth waking

thread_local Scratch slice_scratch;  // of each thread of the pool
thread_local Scratch split_scratch;  // of the stream's thread

struct Tensor {
  const float* data;
  int64_t batch, head, token;  // strides

  const float* at(int64_t b, int64_t h, int64_t t) const { return data + b * batch + h * head + t * token; }
};

Tensor tensor_of(const mx::array& a) { return {a.data<float>(), a.strides(0), a.strides(1), a.strides(2)}; }

struct Mask {
  const void* data = nullptr;
  bool is_bool = false;
  int64_t batch = 0, head = 0, query = 0, key = 0;  // strides, 0 where it broadcasts

  Mask() = default;
  explicit Mask(const mx::array& a) : data(a.data<uint8_t>()), is_bool(a.dtype() == mx::bool_) {
    int64_t* to[4] = {&batch, &head, &query, &key};
    for (int axis = 0; axis < static_cast<int>(a.ndim()); axis++) {
      *to[4 - a.ndim() + axis] = a.shape(axis) == 1 ? 0 : a.strides(axis);
    }
  }
  int64_t at(int64_t b, int64_t h, int64_t q) const { return b * batch + h * head + q * query; }
};

struct Attention {
  Tensor q, k, v;
  Mask mask;
  int batch, heads, kv_heads, queries, keys, width, value_width;
  float scale;
  bool causal;
  float* out;  // [batch, queries, heads, value_width]

  int group() const { return heads / kv_heads; }
  int slice_queries() const { return std::max(1, kSliceRows / group()); }
  int slices() const { return (queries + slice_queries() - 1) / slice_queries(); }
  int limit(int query) const { return causal ? std::max(0, std::min(keys, keys - queries + query + 1)) : keys; }

  // Attends the queries of one unit (a row, a KV head, a slice of queries) to keys [first, last).
  // out [rows, value_width], largest and weight [rows]; row = query * group + head.
  int attend(int64_t unit, int first, int last, float* sums, float* largest, float* weight) const {
    const Kernels& use = kernels();
    const int per_head = slices(), share = group();
    const int64_t b = unit / per_head / kv_heads, h = unit / per_head % kv_heads;
    const int begin = static_cast<int>(unit % per_head) * slice_queries();
    const int count = std::min(slice_queries(), queries - begin), rows = count * share;
    const float* pointers[kMostRows];
    int limits[kMostRows];
    const uint8_t* allowed[kMostRows];
    const float* added[kMostRows];
    for (int row = 0; row < rows; row++) {
      const int query = begin + row / share;
      const int64_t head = h * share + row % share;
      pointers[row] = q.at(b, head, query);
      limits[row] = std::min(last, limit(query));
      allowed[row] = static_cast<const uint8_t*>(mask.data) + (mask.data && mask.is_bool ? mask.at(b, head, query) : 0);
      added[row] = static_cast<const float*>(mask.data) + (mask.data && !mask.is_bool ? mask.at(b, head, query) : 0);
    }
    AttentionSlice slice{};
    slice.q = pointers;
    slice.rows = rows;
    slice.width = width;
    slice.value_width = value_width;
    slice.keys = k.at(b, h, 0);
    slice.key_stride = k.token;
    slice.values = v.at(b, h, 0);
    slice.value_stride = v.token;
    slice.first = first;
    slice.last = *std::max_element(limits, limits + rows);
    slice.scale = scale;
    slice.limits = limits;
    slice.allowed = mask.data && mask.is_bool ? allowed : nullptr;
    slice.added = mask.data && !mask.is_bool ? added : nullptr;
    slice.mask_stride = mask.key;
    slice.out = sums;
    slice.largest = largest;
    slice.weight = weight;
    slice.scratch = reinterpret_cast<float*>(
        slice_scratch.take(sizeof(float) * use.attention_scratch(rows, width, value_width)));
    use.attend(slice);
    return rows;
  }

  // Joins the splits of a unit and writes its rows.
  void write(int64_t unit, int splits, const float* sums, const float* largest, const float* weight, int stride) const {
    const int per_head = slices(), share = group();
    const int64_t b = unit / per_head / kv_heads, h = unit / per_head % kv_heads;
    const int begin = static_cast<int>(unit % per_head) * slice_queries();
    const int rows = std::min(slice_queries(), queries - begin) * share;
    for (int row = 0; row < rows; row++) {
      float top = -std::numeric_limits<float>::infinity();
      for (int s = 0; s < splits; s++) top = std::max(top, largest[s * stride + row]);
      float total = 0.0f;
      float* to = out + ((b * queries + begin + row / share) * heads + h * share + row % share) * value_width;
      for (int s = 0; s < splits; s++) {
        const float* from = sums + (static_cast<int64_t>(s) * stride + row) * value_width;
        const float most = largest[s * stride + row];
        const float factor = most == top && std::isfinite(top) ? 1.0f : std::isfinite(most) ? std::exp(most - top) : 0.0f;
        total += factor * weight[s * stride + row];
        for (int i = 0; i < value_width; i++) to[i] = s == 0 ? factor * from[i] : to[i] + factor * from[i];
      }
      const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
      for (int i = 0; i < value_width; i++) to[i] *= inverse;
    }
  }

  void run() const {
    ThreadPool& pool = ThreadPool::shared();
    const int64_t units = static_cast<int64_t>(batch) * kv_heads * slices();
    const int stride = slice_queries() * group();
    const int64_t unit_floats = static_cast<int64_t>(stride) * (value_width + 2);
    const int64_t work = static_cast<int64_t>(batch) * heads * queries * keys * (width + value_width);
    const int wanted = pool.size() == 1 || work < kLeastWork ? 1 : static_cast<int>((2 * pool.size() + units - 1) / units);
    const int splits = std::max(1, std::min(wanted, keys / kLeastSplit));
    const int64_t grain = work < kLeastWork ? units * splits : 1;
    if (splits == 1) {
      pool.run(units, grain, [&](int64_t begin, int64_t end) {
        thread_local Scratch mine;
        float* sums = reinterpret_cast<float*>(mine.take(sizeof(float) * unit_floats));
        float* largest = sums + static_cast<int64_t>(stride) * value_width;
        for (int64_t unit = begin; unit < end; unit++) {
          attend(unit, 0, keys, sums, largest, largest + stride);
          write(unit, 1, sums, largest, largest + stride, stride);
        }
      });
      return;
    }
    float* memory = reinterpret_cast<float*>(split_scratch.take(sizeof(float) * unit_floats * units * splits));
    float* all_largest = memory + static_cast<int64_t>(stride) * value_width * units * splits;
    float* all_weight = all_largest + units * splits * stride;
    pool.run(units * splits, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int split = static_cast<int>(i % splits);
        const int first = static_cast<int>(static_cast<int64_t>(keys) * split / splits);
        const int last = static_cast<int>(static_cast<int64_t>(keys) * (split + 1) / splits);
        attend(i / splits, first, last, memory + i * stride * value_width, all_largest + i * stride, all_weight + i * stride);
      }
    });
    for (int64_t unit = 0; unit < units; unit++) {
      const int64_t i = unit * splits;
      write(unit, splits, memory + i * stride * value_width, all_largest + i * stride, all_weight + i * stride, stride);
    }
  }

  static constexpr int kMostRows = 256;  // group <= 256 is checked where the operation is made
};

class AttentionPrimitive : public CpuPrimitive {
 public:
  AttentionPrimitive(mx::Stream stream, float scale, bool causal) : CpuPrimitive(stream), scale_(scale), causal_(causal) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array &q = inputs[0], &k = inputs[1], &v = inputs[2];
    const int64_t heads = q.shape(1), queries = q.shape(2), width = v.shape(3);
    // Tokens before heads in memory: what models do next is to put them there, which then costs nothing.
    const mx::Strides strides{queries * heads * width, width, heads * width, 1};
    mx::array::Flags flags = out.flags();
    flags.contiguous = true;
    flags.row_contiguous = heads == 1 || queries == 1;
    flags.col_contiguous = false;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), strides, flags);
    Attention work;
    work.q = tensor_of(q);
    work.k = tensor_of(k);
    work.v = tensor_of(v);
    if (inputs.size() > 3) work.mask = Mask(inputs[3]);
    work.batch = q.shape(0);
    work.heads = q.shape(1);
    work.kv_heads = k.shape(1);
    work.queries = q.shape(2);
    work.keys = k.shape(2);
    work.width = q.shape(3);
    work.value_width = v.shape(3);
    work.scale = scale_;
    work.causal = causal_;
    work.out = out.data<float>();
    const bool split_features = scattered(q) || scattered(k) || scattered(v);
    if (!split_features) {
      enqueue(inputs, out, [work] { work.run(); });
      return;
    }
    enqueue(inputs, out, [work, views = std::vector{View(q), View(k), View(v)}]() mutable {
      Tensor* tensors[3] = {&work.q, &work.k, &work.v};
      std::vector<float> copies[3];
      for (int i = 0; i < 3; i++) {
        const int heads = i == 0 ? work.heads : work.kv_heads, tokens = i == 0 ? work.queries : work.keys;
        const int64_t width = views[i].width();
        copies[i].resize(views[i].rows() * width);
        views[i].gather(0, views[i].rows(), copies[i].data());
        *tensors[i] = {copies[i].data(), heads * tokens * width, tokens * width, width};
      }
      work.run();
    });
  }
  const char* name() const override { return "InnkeeperAttention"; }

 private:
  // Whether the features of a head are not neighbours: no cache of mlx-lm is so, and such an input is copied.
  static bool scattered(const mx::array& a) { return a.strides(3) != 1 && a.shape(3) != 1; }

  float scale_;
  bool causal_;
};

}  // namespace

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale, bool causal,
                    const std::optional<mx::array>& mask, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  const bool fits = q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4 && k.shape(0) == q.shape(0) && v.shape(0) == q.shape(0) &&
                    k.shape(1) > 0 && q.shape(1) % k.shape(1) == 0 && v.shape(1) == k.shape(1) && v.shape(2) == k.shape(2) &&
                    k.shape(3) == q.shape(3) && q.shape(1) / k.shape(1) <= 256 && k.shape(2) > 0;
  const bool floats = q.dtype() == mx::float32 && k.dtype() == mx::float32 && v.dtype() == mx::float32;
  if (!fits || !floats || q.size() == 0 || v.shape(3) == 0) {
    throw std::invalid_argument("[innkeeper] attention takes float32 queries, keys and values of shapes that fit");
  }
  std::vector<mx::array> inputs{q, k, v};
  if (mask) {
    const mx::Shape whole{q.shape(0), q.shape(1), q.shape(2), k.shape(2)};
    if (mask->ndim() > 4 || mx::broadcast_shapes(mask->shape(), whole) != whole) {
      throw std::invalid_argument("[innkeeper] the mask does not broadcast to the scores");
    }
    inputs.push_back(mask->dtype() == mx::bool_ || mask->dtype() == mx::float32 ? *mask
                                                                                 : mx::astype(*mask, mx::float32, stream));
  }
  return mx::array({q.shape(0), q.shape(1), q.shape(2), v.shape(3)}, mx::float32,
                   std::make_shared<AttentionPrimitive>(stream, scale, causal), std::move(inputs));
}

}  // namespace innkeeper
