// A layer of a decoder around its attention: two primitives instead of some twenty.
//
//   q, k, v = rope(norm(split(norm(x) @ qkv.T + bias)))          Layer::project
//   h = x + after(attended @ o.T), out = h + after(down(gate(norm(h)) * up(norm(h))))    Layer::finish
//
// Every step is what the separate primitives do, in their order: the bits are the same. float32 only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "mlx/mlx.h"

namespace innkeeper {

namespace mx = mlx::core;

using MatrixArguments = std::tuple<mx::array, int, std::optional<mx::array>>;  // blocks, type, bias
using NormArguments = std::tuple<mx::array, float>;                            // weight, epsilon

// What a layer is made of. The rotary embedding takes its wavelengths from `wavelengths`, or else from `base`; its features are
// first multiplied by `magnitude`.
struct LayerArguments {
  NormArguments input_norm;
  MatrixArguments q, k, v, o;
  std::optional<NormArguments> q_norm, k_norm;  // of each head
  int heads, kv_heads;
  int rope_dims;
  bool rope_traditional;
  float rope_base, rope_scale, rope_magnitude;
  std::optional<mx::array> rope_wavelengths;
  std::optional<NormArguments> after_attention;  // of what attention adds
  NormArguments mlp_norm;
  MatrixArguments gate, up, down;
  int activation;
  std::optional<NormArguments> after_mlp;
};

class Layer {
 public:
  // std::invalid_argument when arrays do not fit each other.
  explicit Layer(const LayerArguments& arguments);

  // x [batch, tokens, width] and the offset of the first token, or of each row's, to queries [batch, heads, tokens, features],
  // keys and values [batch, KV heads, tokens, features].
  std::vector<mx::array> project(const mx::array& x, const std::variant<int, mx::array>& offset, mx::StreamOrDevice s) const;
  // What attention answered, [batch, heads, tokens, features], and the layer's input, to the layer's output.
  mx::array finish(const mx::array& attended, const mx::array& x, mx::StreamOrDevice s) const;

  struct Parts;  // what primitives share

 private:
  std::shared_ptr<const Parts> parts_;
};

}  // namespace innkeeper
