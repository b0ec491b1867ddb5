// Products of rows that have been made ready with whole matrices.
#pragma once

#include <span>

#include "operands.h"
#include "table.h"
#include "view.h"

namespace innkeeper {

// One matrix and where its product goes, [rows of activations, rows of weights]; with `up`, activation(x @ weights.T) * (x @ up.T).
// With `bias` (a number for each row of the weights) or `activates`, activation(x @ weights.T + bias).
struct Target {
  Weights weights;
  float* out;
  const Weights* up = nullptr;
  Gate gate = Gate::kSilu;
  const float* bias = nullptr;
  bool activates = false;
};

// All targets side by side. Their formats are alike, and the activations made ready for them.
void multiply(const Activations& from, std::span<const Target> targets);

// activation(x @ gate.T) * (x @ up.T) of `count` rows that lie one after another, whatever the formats.
void multiply_gated(const float* x, int count, int columns, const Weights& gate, const Weights& up, Gate activation, float* out);

}  // namespace innkeeper
