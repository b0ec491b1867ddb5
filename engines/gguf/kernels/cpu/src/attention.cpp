// Attention over a KV cache: heads that share keys go together, and long key ranges are split over the threads.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "operations.h"
#include "pool.h"
#include "primitive.h"
#include "scratch.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

namespace {

constexpr int kUnitRows = 64;            // queries that share a pass over keys
constexpr int64_t kLeastWork = 1 << 16;  // products below which another thread is not worth waking

thread_local Scratch unit_scratch;   // of each thread of the pool
thread_local Scratch slice_scratch;  // of the stream's thread

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

// Attended to results in one piece of memory.
int64_t attended_floats(int rows, int value_width) { return static_cast<int64_t>(rows) * (value_width + 2); }
Attended attended_at(float* memory, int rows, int value_width) {
  float* largest = memory + static_cast<int64_t>(rows) * value_width;
  return {memory, largest, largest + rows};
}

// The work is cut into units: a row of the batch, a head of keys, and some queries of all heads that share it. A unit's keys
// are taken in slices of fixed size, counted from the first key that any of its queries may see, and folded in order. So the
// answer depends neither on the number of threads, nor on other rows of the batch, nor on the padding before a row.
struct Attention {
  Tensor q, k, v;
  Mask mask;
  int batch, heads, kv_heads, queries, keys, width, value_width;
  float scale, cap;
  bool causal;
  float* out;  // [batch, queries, heads, value_width]

  int group() const { return heads / kv_heads; }
  int unit_queries() const { return std::max(1, kUnitRows / group()); }
  int units_of_head() const { return (queries + unit_queries() - 1) / unit_queries(); }
  int64_t units() const { return static_cast<int64_t>(batch) * kv_heads * units_of_head(); }
  int limit(int query) const { return causal ? std::max(0, std::min(keys, keys - queries + query + 1)) : keys; }

  // A unit's queries; row = query * group + head.
  struct Unit {
    int64_t b, h;
    int begin, rows;   // first query
    int first, last;   // keys that any of them may see: [first, last)
  };

  Unit unit(int64_t index) const {
    Unit u;
    u.b = index / units_of_head() / kv_heads;
    u.h = index / units_of_head() % kv_heads;
    u.begin = static_cast<int>(index % units_of_head()) * unit_queries();
    const int end = std::min(u.begin + unit_queries(), queries);
    u.rows = (end - u.begin) * group();
    u.first = 0;
    u.last = limit(end - 1);
    if (mask.data != nullptr && mask.is_bool) {
      u.first = u.last;
      for (int row = 0; row < u.rows; row++) {
        const int64_t start = mask.at(u.b, u.h * group() + row % group(), u.begin + row / group());
        const auto* allowed = static_cast<const uint8_t*>(mask.data) + start;
        int key = 0;
        while (key < u.first && !allowed[key * mask.key]) key++;
        u.first = key;
      }
    }
    return u;
  }

  // Attends a unit's queries to slice `index` of its keys.
  void attend(const Unit& u, int index, const Attended& to) const {
    const Kernels& use = kernels();
    const float* pointers[kMostRows];
    int limits[kMostRows];
    const uint8_t* allowed[kMostRows];
    const float* added[kMostRows];
    for (int row = 0; row < u.rows; row++) {
      const int query = u.begin + row / group();
      const int64_t head = u.h * group() + row % group();
      pointers[row] = q.at(u.b, head, query);
      limits[row] = limit(query);
      const int64_t start = mask.data ? mask.at(u.b, head, query) : 0;
      allowed[row] = static_cast<const uint8_t*>(mask.data) + (mask.is_bool ? start : 0);
      added[row] = static_cast<const float*>(mask.data) + (mask.is_bool ? 0 : start);
    }
    AttentionSlice slice{};
    slice.q = pointers;
    slice.rows = u.rows;
    slice.width = width;
    slice.value_width = value_width;
    slice.keys = k.at(u.b, u.h, 0);
    slice.key_stride = k.token;
    slice.values = v.at(u.b, u.h, 0);
    slice.value_stride = v.token;
    slice.first = u.first + index * use.slice_keys;
    slice.last = std::min(u.last, slice.first + use.slice_keys);
    slice.scale = scale;
    slice.cap = cap;
    slice.limits = limits;
    slice.allowed = mask.data && mask.is_bool ? allowed : nullptr;
    slice.added = mask.data && !mask.is_bool ? added : nullptr;
    slice.mask_stride = mask.key;
    slice.scratch = reinterpret_cast<float*>(unit_scratch.take(sizeof(float) * use.attention_scratch(u.rows, width)));
    use.attend(slice, to);
  }

  int slices(const Unit& u) const {
    return std::max(1, (u.last - u.first + kernels().slice_keys - 1) / kernels().slice_keys);
  }

  void write(const Unit& u, const Attended& from) const {
    for (int row = 0; row < u.rows; row++) {
      const int64_t query = u.b * queries + u.begin + row / group(), head = u.h * group() + row % group();
      const float* sums = from.sums + static_cast<int64_t>(row) * value_width;
      const float inverse = from.weight[row] > 0.0f ? 1.0f / from.weight[row] : 0.0f;
      float* to = out + (query * heads + head) * value_width;
      for (int i = 0; i < value_width; i++) to[i] = sums[i] * inverse;
    }
  }

  void run() const {
    const int64_t work = static_cast<int64_t>(batch) * heads * queries * keys * (width + value_width);
    const bool split = ThreadPool::shared().size() > 1 && work >= kLeastWork && units() < 2 * ThreadPool::shared().size();
    if (split) {
      run_by_slices();
    } else {
      run_by_units(work < kLeastWork ? units() : 1);
    }
  }

  void run_by_units(int64_t grain) const {
    const Kernels& use = kernels();
    const int64_t floats = attended_floats(unit_queries() * group(), value_width);
    ThreadPool::shared().run(units(), grain, [&](int64_t begin, int64_t end) {
      thread_local Scratch mine;
      float* memory = reinterpret_cast<float*>(mine.take(sizeof(float) * 2 * floats));
      for (int64_t index = begin; index < end; index++) {
        const Unit u = unit(index);
        const Attended all = attended_at(memory, u.rows, value_width), next = attended_at(memory + floats, u.rows, value_width);
        attend(u, 0, all);
        for (int slice = 1; slice < slices(u); slice++) {
          attend(u, slice, next);
          use.fold(next, u.rows, value_width, all);
        }
        write(u, all);
      }
    });
  }

  // For a few units of many keys, as in decoding: slices side by side.
  void run_by_slices() const {
    const Kernels& use = kernels();
    const int64_t floats = attended_floats(unit_queries() * group(), value_width);
    std::vector<Unit> all_units;
    std::vector<std::pair<int, int>> tasks;  // unit, slice
    for (int64_t index = 0; index < units(); index++) {
      all_units.push_back(unit(index));
      for (int slice = 0; slice < slices(all_units.back()); slice++) tasks.emplace_back(static_cast<int>(index), slice);
    }
    float* memory = reinterpret_cast<float*>(slice_scratch.take(sizeof(float) * floats * tasks.size()));
    ThreadPool::shared().run(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const Unit& u = all_units[tasks[i].first];
        attend(u, tasks[i].second, attended_at(memory + i * floats, u.rows, value_width));
      }
    });
    for (size_t i = 0; i < tasks.size();) {
      const Unit& u = all_units[tasks[i].first];
      const Attended all = attended_at(memory + i * floats, u.rows, value_width);
      for (i++; i < tasks.size() && tasks[i].second > 0; i++) {
        use.fold(attended_at(memory + i * floats, u.rows, value_width), u.rows, value_width, all);
      }
      write(u, all);
    }
  }

  static constexpr int kMostRows = 256;  // a group is not larger; checked where the operation is made
};

class AttentionPrimitive : public CpuPrimitive {
 public:
  AttentionPrimitive(mx::Stream stream, float scale, float cap, bool causal)
      : CpuPrimitive(stream), scale_(scale), cap_(cap), causal_(causal) {}

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
    work.cap = cap_;
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

  float scale_, cap_;
  bool causal_;
};

}  // namespace

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale, bool causal,
                    const std::optional<mx::array>& mask, float cap, mx::StreamOrDevice s) {
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
                   std::make_shared<AttentionPrimitive>(stream, scale, cap, causal), std::move(inputs));
}

}  // namespace innkeeper
