// What a variant (one instruction set) offers, and the values that go in and out of it. Knows no instruction set and no MLX.
#pragma once

#include <cstdint>

namespace innkeeper {

// Rows of activations made ready for one quant type: 8-bit codes, each 32 of them under one scale.
//
// Rows are padded with zeros to whole segments of 256 columns. With q the codes and d the scale of a group (of the type's size;
// a group of 16 shares the scale of its 32):
//   sums[m][group]   = d * sum(q)
//   starts[m][group] = -zero * sum(q), zero the code that stands for 0
// Float types use x alone.
struct Activations {
  int rows = 0;
  int columns = 0;
  int padded = 0;  // columns
  int groups = 0;  // of a padded row
  const float* x = nullptr;  // [rows, columns]
  int8_t* codes = nullptr;   // [rows, padded]
  float* scales = nullptr;   // [rows, padded / 32]
  float* sums = nullptr;     // [rows, groups]
  int32_t* starts = nullptr;
};

// The products of one quant type.
struct FormatKernels {
  int block;  // weights
  int bytes;  // of a block
  int group;  // weights under one scale; 0: floats, which need no codes
  int zero;   // the code that stands for 0
  int64_t panel_bytes;
  // Rows m .. m + count of the activations times up to `lanes` rows of weights: tile[count][lanes], lanes beyond `rows` are 0.
  // `scratch` is panel_bytes and `lanes` rows of weights long, 64-byte aligned.
  void (*tile)(const uint8_t* weights, int64_t row_bytes, int rows, const Activations&, int m, int count, float* tile,
               uint8_t* scratch);
  // Of floats: the same for 2 * `lanes` rows of weights that all exist, rows 0 .. count of the activations, as two tiles. Null
  // where the registers do not suffice for it.
  void (*pair)(const uint8_t* weights, int64_t row_bytes, const Activations&, int count, float* const* tiles, uint8_t* scratch);
  // Columns [begin, end) of a row as floats; both are multiples of the block.
  void (*dequantize)(const uint8_t* row, int begin, int end, float* out);
};

enum class Gate : int { kSilu, kGelu, kGeluTanh };

// Queries that share one head of keys, attended to a slice of its keys: at most kSliceKeys. Strides are in elements.
struct AttentionSlice {
  const float* const* q;  // [rows]: `width` floats each
  int rows;
  int width;        // of queries and keys
  int value_width;
  const float* keys;
  int64_t key_stride;
  const float* values;
  int64_t value_stride;
  int first, last;  // keys [first, last)
  float scale;
  float cap;                      // of scores before they are masked: cap tanh(score / cap); 0: none
  const int* limits;              // [rows]: keys at or past it are masked
  const uint8_t* const* allowed;  // [rows] or null: bools by key
  const float* const* added;      // [rows] or null: floats by key
  int64_t mask_stride;            // of either
  float* scratch;                 // attention_scratch(...) floats, 64-byte aligned
};

// What queries have taken in so far: unnormalised sums of values, the largest score and the sum of weights.
struct Attended {
  float* sums;     // [rows, value_width]
  float* largest;  // [rows]; -inf where every key was masked
  float* weight;   // [rows]
};

// The kernels of one instruction set.
struct Kernels {
  const char* name;
  int lanes;
  int slice_keys;  // of attention: results depend on it, so it is the same whatever the number of threads
  const FormatKernels* (*format)(int ggml_type);  // null: not supported
  void (*quantize)(const FormatKernels&, Activations&, int begin, int end);  // rows [begin, end)
  // c[rows][columns] = (add: +) a[rows][depth] * b[depth][columns]; strides are in floats.
  void (*multiply_dense)(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int rows, int columns, int depth,
                         float* c, int64_t c_stride, bool add);
  void (*rms_norm)(const float* x, const float* weight, float eps, int width, float* out);  // weight may be null
  // `pairs` pairs of the row's first features, then the rest up to `width` as they are.
  void (*rope)(const float* x, const float* cosines, const float* sines, int pairs, bool traditional, int width, float* out);
  void (*gate)(Gate, const float* gate, const float* up, int n, float* out);
  // tile[rows][lanes], of which `count` lanes exist: adds the lanes' bias, then applies the activation; either may be null.
  void (*finish)(float* tile, int rows, const float* bias, int count, const Gate* activation);
  // The layer norm of x + added; added and bias may be null, and out may be x or added.
  void (*layer_norm)(const float* x, const float* added, const float* weight, const float* bias, float eps, int width, float* out);
  void (*attend)(const AttentionSlice&, const Attended& out);
  // Takes in, after what `into` has taken in already, what `slice` has.
  void (*fold)(const Attended& slice, int rows, int value_width, const Attended& into);
  int64_t (*attention_scratch)(int rows, int width);  // floats
  float (*log_sum_exp)(const float* x, int64_t n);
  void (*softmax)(const float* x, int64_t n, float* out);
  float (*largest)(const float* x, int64_t n);
  // out = e^(scale (x - top)), and its sum.
  float (*weigh)(const float* x, int64_t n, float top, float scale, float* out);
};

// Variants that this build has and this machine can run, best first; the last is the fallback for any CPU.
const Kernels* const* usable_variants(int* count);

// The variant in use, and how a test chooses one by name; false where it cannot run.
const Kernels& kernels();
bool choose_variant(const char* name);

}  // namespace innkeeper
