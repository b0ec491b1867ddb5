// The whole of a variant: included once by each translation unit variant_*.cpp, compiled with that variant's flags.
#pragma once

#include "attention.h"
#include "dense.h"
#include "formats.h"
#include "looked_up.h"
#include "product.h"
#include "quantize.h"
#include "rows.h"
#include "table.h"

namespace innkeeper::INNKEEPER_VARIANT {

constexpr int64_t kDensePanelBytes = 2 * sizeof(float) * kDenseDepth * kLanes;

template <typename Format>
constexpr FormatKernels block_format() {
  return {Format::kBlock, Format::kBytes, Format::kGroup, Format::kZero, kPanelBytes, tile<Format>, nullptr, dequantize<Format>};
}
template <typename Format>
constexpr FormatKernels float_format() {
  constexpr auto pair = kLanes == 16 ? pair_floats<Format> : nullptr;
  return {1, Format::kBytes, 0, 0, kDensePanelBytes, tile_floats<Format>, pair, dequantize_floats<Format>};
}

static const FormatKernels* format(int ggml_type) {
  static constexpr FormatKernels kF32 = float_format<F32>(), kF16 = float_format<F16>(), kBF16 = float_format<BF16>();
  static constexpr FormatKernels kQ4_0 = block_format<Q4_0>(), kQ4_1 = block_format<Q4_1>(), kQ5_0 = block_format<Q5_0>();
  static constexpr FormatKernels kQ5_1 = block_format<Q5_1>(), kQ8_0 = block_format<Q8_0>(), kQ2_K = block_format<Q2_K>();
  static constexpr FormatKernels kQ3_K = block_format<Q3_K>(), kQ4_K = block_format<Q4_K>(), kQ5_K = block_format<Q5_K>();
  static constexpr FormatKernels kQ6_K = block_format<Q6_K>(), kIQ4_NL = block_format<IQ4_NL>(), kIQ4_XS = block_format<IQ4_XS>();
  static constexpr FormatKernels kIQ3_S = block_format<IQ3_S>(), kIQ3_XXS = block_format<IQ3_XXS>(), kIQ2_S = block_format<IQ2_S>();
  static constexpr FormatKernels kIQ2_XS = block_format<IQ2_XS>(), kIQ2_XXS = block_format<IQ2_XXS>();
  static constexpr FormatKernels kIQ1_S = block_format<IQ1_S>(), kIQ1_M = block_format<IQ1_M>(), kTQ1_0 = block_format<TQ1_0>();
  static constexpr FormatKernels kTQ2_0 = block_format<TQ2_0>(), kMXFP4 = block_format<MXFP4>(), kNVFP4 = block_format<NVFP4>();
  switch (ggml_type) {  // GGML's ids
    case 0: return &kF32;
    case 1: return &kF16;
    case 2: return &kQ4_0;
    case 3: return &kQ4_1;
    case 6: return &kQ5_0;
    case 7: return &kQ5_1;
    case 8: return &kQ8_0;
    case 10: return &kQ2_K;
    case 11: return &kQ3_K;
    case 12: return &kQ4_K;
    case 13: return &kQ5_K;
    case 14: return &kQ6_K;
    case 16: return &kIQ2_XXS;
    case 17: return &kIQ2_XS;
    case 18: return &kIQ3_XXS;
    case 19: return &kIQ1_S;
    case 20: return &kIQ4_NL;
    case 21: return &kIQ3_S;
    case 22: return &kIQ2_S;
    case 23: return &kIQ4_XS;
    case 29: return &kIQ1_M;
    case 30: return &kBF16;
    case 34: return &kTQ1_0;
    case 35: return &kTQ2_0;
    case 39: return &kMXFP4;
    case 40: return &kNVFP4;
    default: return nullptr;
  }
}

static void multiply_either(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int rows, int columns, int depth,
                            float* c, int64_t c_stride, bool add) {
  if (add) {
    multiply_dense<true>(a, a_stride, b, b_stride, rows, columns, depth, c, c_stride);
  } else {
    multiply_dense<false>(a, a_stride, b, b_stride, rows, columns, depth, c, c_stride);
  }
}

constexpr Kernels make_kernels(const char* name) {
  return {name,       kLanes, kSliceKeys, format, quantize,          multiply_either, rms_norm, rope,    gate, finish,
          layer_norm, attend, fold,       attention_scratch, log_sum_exp,     softmax,  row_max, weigh};
}

}  // namespace innkeeper::INNKEEPER_VARIANT
