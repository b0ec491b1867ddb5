// Drawing tokens from large vocabularies without sorting them.
//
// Both filters look for one number: the k-th largest logit, and the smallest weight of the nucleus. Floats are compared as
// integers of the same order, whose upper bits sort them into buckets; the bucket that holds the number is found from its
// neighbours' counts or sums, and taken apart again by the next bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
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

thread_local Scratch draw_scratch;

// Integers in the order of their floats.
uint32_t ordered(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
float from_ordered(uint32_t key) {
  const uint32_t bits = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The largest value such that everything at or above it measures `needed` or more; the smallest value that measures anything
// where all together measure less. measure(x) is not negative, and not 0 for all.
template <typename Measure>
float cutoff(const float* x, int64_t n, double needed, Measure measure) {
  uint32_t prefix = 0, known = 0;  // the bits of the answer that are known
  double above = 0.0;              // the measure of what is larger than all with this prefix
  for (const int shift : {21, 10, 0}) {
    const uint32_t width = shift == 0 ? 10 : 11, mask = (1u << width) - 1;
    std::array<double, 1 << 11> buckets{};
    uint32_t least = mask, most = 0;
    for (int64_t i = 0; i < n; i++) {
      const uint32_t key = ordered(x[i]);
      if ((key & known) != prefix) continue;
      const uint32_t bucket = key >> shift & mask;
      const double size = measure(x[i]);
      if (size == 0.0) continue;
      buckets[bucket] += size;
      least = std::min(least, bucket);
      most = std::max(most, bucket);
    }
    uint32_t bucket = most;
    while (bucket > least && above + buckets[bucket] < needed) above += buckets[bucket--];
    prefix |= bucket << shift;
    known |= mask << shift;
  }
  return from_ordered(prefix);
}

struct Row {
  float temperature;
  int top_k;
  float top_p, min_p;
  const float* numbers;  // one a level
};

constexpr int64_t kRun = 64, kLevels = 3;  // as engines/text/sampling.py defines the draw

// Of these children, the first whose running sum passes `number` of the total; children without weight are none.
template <typename T>
int64_t child(const T* weights, int64_t n, float number) {
  double total = 0.0, passed = 0.0;
  for (int64_t i = 0; i < n; i++) total += weights[i];
  const double target = number * total;
  int64_t last = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!(weights[i] > 0)) continue;
    passed += weights[i];
    last = i;
    if (passed > target) break;
  }
  return last;
}

uint32_t first_of_largest(const float* x, int64_t n, float top) {
  const float* found = std::find(x, x + n, top);
  return found == x + n ? 0 : static_cast<uint32_t>(found - x);
}

uint32_t draw_row(const float* x, int64_t n, const Row& row) {
  const Kernels& use = kernels();
  const float top = use.largest(x, n);
  if (row.temperature == 0.0f || row.top_k == 1 || !std::isfinite(top)) return first_of_largest(x, n, top);
  float* weights = reinterpret_cast<float*>(draw_scratch.take(sizeof(float) * n));
  double total = use.weigh(x, n, top, 1.0f / row.temperature, weights);
  float least = std::numeric_limits<float>::min();  // what weighs nothing is never drawn
  if (row.top_k > 0 && row.top_k < n) {
    // By weight, which has the order of the logits.
    least = std::max(least, cutoff(weights, n, row.top_k, [](float) { return 1.0; }));
    total = 0.0;
    for (int64_t i = 0; i < n; i++) total += weights[i] >= least ? weights[i] : 0.0f;
  }
  if (row.top_p < 1.0f) {
    // A mass that misses top_p by the rounding of its terms reaches it.
    const double needed = row.top_p * total * (1.0 - 0x1p-20);
    const float kept = least;
    const auto measure = [kept](float weight) { return weight >= kept ? static_cast<double>(weight) : 0.0; };
    least = std::max(least, cutoff(weights, n, needed, measure));
  }
  least = std::max(least, row.min_p);  // the largest weight is 1
  // The tree's nodes: runs of 64 tokens, then of 64 runs. What is filtered out weighs nothing.
  const int64_t runs = (n + kRun - 1) / kRun, groups = (runs + kRun - 1) / kRun;
  std::vector<double> sums(runs + groups, 0.0);
  double* of_groups = sums.data() + runs;
  for (int64_t run = 0; run < runs; run++) {
    float* begin = weights + run * kRun;
    float* end = weights + std::min(n, (run + 1) * kRun);
    double sum = 0.0;
    for (float* weight = begin; weight < end; weight++) sum += *weight = *weight >= least ? *weight : 0.0f;
    sums[run] = sum;
    of_groups[run / kRun] += sum;
  }
  const int64_t group = child(of_groups, groups, row.numbers[0]);
  const int64_t first = group * kRun;
  const int64_t run = first + child(sums.data() + first, std::min(kRun, runs - first), row.numbers[1]);
  return static_cast<uint32_t>(run * kRun + child(weights + run * kRun, std::min(kRun, n - run * kRun), row.numbers[2]));
}

class Draw : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    const auto floats_of = [](const mx::array& a) { return std::pair(a.data<float>(), a.strides(0)); };
    enqueue(inputs, out, [x = View(inputs[0]), temperature = floats_of(inputs[1]), top_k = inputs[2].data<int32_t>(),
                          top_k_step = inputs[2].strides(0), top_p = floats_of(inputs[3]), min_p = floats_of(inputs[4]),
                          numbers = inputs[5].data<float>(), to = out.data<uint32_t>()] {
      std::vector<float> copies(x.scattered() ? x.rows() * x.width() : 0);
      ThreadPool::shared().run(x.rows(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          const auto at = [i](const std::pair<const float*, int64_t>& a) { return a.first[i * a.second]; };
          const Row row{at(temperature), top_k[i * top_k_step], at(top_p), at(min_p), numbers + i * kLevels};
          to[i] = draw_row(x.row(i, x.scattered() ? copies.data() + i * x.width() : nullptr), x.width(), row);
        }
      });
    });
  }
  const char* name() const override { return "InnkeeperDraw"; }
};

}  // namespace

mx::array draw(const mx::array& logits, const mx::array& temperature, const mx::array& top_k, const mx::array& top_p,
               const mx::array& min_p, const mx::array& numbers, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (logits.ndim() != 2 || logits.shape(1) == 0) throw std::invalid_argument("[innkeeper] logits are [rows, vocabulary]");
  const mx::Shape rows{logits.shape(0)};
  std::vector<mx::array> inputs{mx::astype(logits, mx::float32, stream)};
  for (const auto* each : {&temperature, &top_k, &top_p, &min_p}) {
    if (each->shape() != rows) throw std::invalid_argument("[innkeeper] one number a row");
    inputs.push_back(mx::astype(*each, each == &top_k ? mx::int32 : mx::float32, stream));
  }
  if (numbers.shape() != mx::Shape{rows[0], kLevels})
    throw std::invalid_argument("[innkeeper] numbers are [rows, " + std::to_string(kLevels) + "]");
  inputs.push_back(mx::contiguous(mx::astype(numbers, mx::float32, stream), false, stream));
  return mx::array(rows, mx::uint32, std::make_shared<Draw>(stream), std::move(inputs));
}

}  // namespace innkeeper
