// The operations that Python sees: each adds one primitive to MLX's graph, on a CPU stream. std::invalid_argument when shapes
// or dtypes do not fit.
#pragma once

#include <optional>
#include <variant>

#include "mlx/mlx.h"

namespace innkeeper {

namespace mx = mlx::core;

// x [..., columns] times weights [rows, columns] transposed, or x [..., rows] times the weights; the answer has x's dtype.
mx::array product(const mx::array& x, const mx::array& blocks, int type, bool transpose, mx::StreamOrDevice s);
// The same of several matrices, blocks [experts, rows, row bytes]: row p of the answer [pairs, rows] is row p / share of
// x [pairs / share, columns] times the transposed weights of the expert that is experts[p]; zeros where there is none such.
mx::array expert_product(const mx::array& x, const mx::array& blocks, const mx::array& experts, int type, int share,
                         mx::StreamOrDevice s);
// x [..., heads, m, columns] times the transposed matrix of each head, or x [..., heads, m, rows] times the matrices, blocks
// [heads, rows, row bytes]. The axis of heads may be 1 in x.
mx::array head_product(const mx::array& x, const mx::array& blocks, int type, bool transpose, mx::StreamOrDevice s);
// product(..., transpose = false)
mx::array row_product(const mx::array& x, const mx::array& blocks, int type, mx::StreamOrDevice s);
// activation(x @ gate.T) * (x @ up.T); activation is a Gate.
mx::array gated_product(const mx::array& x, const mx::array& gate, const mx::array& up, int gate_type, int up_type,
                        int activation, mx::StreamOrDevice s);
// activation(x @ weights.T + bias); bias is float32 [rows], the activation a Gate or -1 for none.
mx::array dense(const mx::array& x, const mx::array& blocks, int type, const std::optional<mx::array>& bias, int activation,
                mx::StreamOrDevice s);
// Rows by id, float32 [..., columns]; an id that does not exist gives zeros.
mx::array embedding_rows(const mx::array& blocks, const mx::array& ids, int type, mx::StreamOrDevice s);

mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::StreamOrDevice s);
// The layer norm of x + added over the last axis.
mx::array layer_norm(const mx::array& x, const std::optional<mx::array>& added, const mx::array& weight,
                     const std::optional<mx::array>& bias, float eps, mx::StreamOrDevice s);
// x [batch, ..., tokens, features]; the offset of the first token, or of each row's (int32 [batch]); wavelengths are `freqs` or
// made from `base`.
mx::array rope(const mx::array& x, int dims, bool traditional, float base, float scale, const std::variant<int, mx::array>& offset,
               const std::optional<mx::array>& freqs, mx::StreamOrDevice s);
// activation(gate) * up
mx::array gated(const mx::array& gate, const mx::array& up, int activation, mx::StreamOrDevice s);

// q [batch, heads, queries, width], k and v [batch, KV heads, keys, ...]; mask: bool, or float32 to be added, that broadcasts to
// [batch, heads, queries, keys]. Scores are cap tanh(score / cap) before they are masked; a cap of 0 is none. A query with every
// key masked gives zeros.
mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale, bool causal,
                    const std::optional<mx::array>& mask, float cap, mx::StreamOrDevice s);

// Over the last axis, which log_sum_exp keeps as 1.
mx::array log_sum_exp(const mx::array& x, mx::StreamOrDevice s);
mx::array softmax(const mx::array& x, mx::StreamOrDevice s);

// The next token of each row, uint32 [rows], from logits [rows, vocabulary]. The other arrays are [rows]: temperature (0: the
// first of the largest), top_k (int32, 0: off), top_p (1: off), min_p (0: off) and the number in [0, 1) at which the cumulative
// distribution of what is left is inverted. The filters are in that order, as engines/text/sampling.py has them.
mx::array draw(const mx::array& logits, const mx::array& temperature, const mx::array& top_k, const mx::array& top_p,
               const mx::array& min_p, const mx::array& numbers, mx::StreamOrDevice s);

}  // namespace innkeeper
