// What all primitives of this extension have in common: they run on a CPU stream and cannot be transformed.
#pragma once

#include <stdexcept>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace innkeeper {

namespace mx = mlx::core;

class CpuPrimitive : public mx::UnaryPrimitive {
 public:
  using UnaryPrimitive::UnaryPrimitive;

  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error("[innkeeper] this primitive is of the CPU");
  }

 protected:
  // Queues the work on the stream's thread; the arrays live until it is done.
  template <typename Work>
  void enqueue(const std::vector<mx::array>& inputs, mx::array& out, Work&& work) {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& input : inputs) encoder.set_input_array(input);
    encoder.set_output_array(out);
    encoder.dispatch(std::forward<Work>(work));
  }
};

inline void allocate(mx::array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

}  // namespace innkeeper
