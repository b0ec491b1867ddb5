// Functions of one row of floats: norm, rotary embedding, gated activation, softmax and its relatives.
#pragma once

#include "table.h"
#include "vector.h"

namespace innkeeper::INNKEEPER_VARIANT {

// Calls visit(index, count) for vectors of a row: whole ones, then the rest.
template <typename Visit>
INLINE void for_each_vector(int64_t n, Visit visit) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) visit(i, kLanes);
  if (i < n) visit(i, static_cast<int>(n - i));
}
INLINE Floats load_up_to(const float* p, int n) { return n == kLanes ? load(p) : load_some(p, n); }
INLINE void store_up_to(float* p, Floats v, int n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_some(p, v, n);
  }
}

// x / sqrt(mean(x^2) + eps) * weight
static void rms_norm(const float* x, const float* weight, float eps, int width, float* out) {
  Floats squares{};
  for_each_vector(width, [&](int64_t i, int n) {
    const Floats v = load_up_to(x + i, n);
    squares = fma(v, v, squares);
  });
  const Floats scale = splat(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(width) + eps));
  for_each_vector(width, [&](int64_t i, int n) {
    const Floats v = load_up_to(x + i, n) * scale;
    store_up_to(out + i, weight ? v * load_up_to(weight + i, n) : v, n);
  });
}

static void rope(const float* x, const float* cosines, const float* sines, int pairs, bool traditional, int width, float* out) {
  if (traditional) {
    for (int i = 0; i < pairs; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      out[2 * i] = a * cosines[i] - b * sines[i];
      out[2 * i + 1] = b * cosines[i] + a * sines[i];
    }
  } else {
    for_each_vector(pairs, [&](int64_t i, int n) {
      const Floats a = load_up_to(x + i, n), b = load_up_to(x + pairs + i, n);
      const Floats c = load_up_to(cosines + i, n), s = load_up_to(sines + i, n);
      store_up_to(out + i, a * c - b * s, n);
      store_up_to(out + pairs + i, b * c + a * s, n);
    });
  }
  for (int i = 2 * pairs; i < width; i++) out[i] = x[i];
}

// 1 / (1 + e^-x), for any x.
INLINE Floats sigmoid(Floats x) {
  const Floats e = exp(splat(0.0f) - abs(x));
  const Floats positive = splat(1.0f) / (splat(1.0f) + e);
  return x < splat(0.0f) ? e * positive : positive;
}

// cap tanh(x / cap), absolute error below 2e-7 of the cap.
INLINE Floats soft_capped(Floats x, float cap) {
  const Floats logistic = sigmoid(x * splat(2.0f / cap));
  return splat(cap) * (logistic + logistic - splat(1.0f));
}

// The error function, absolute error below 3e-7 (Abramowitz and Stegun, 7.1.26, and float32's rounding).
INLINE Floats erf(Floats x) {
  const Floats a = abs(x);
  const Floats t = splat(1.0f) / fma(a, splat(0.3275911f), splat(1.0f));
  Floats p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const Floats y = splat(1.0f) - p * t * exp(splat(0.0f) - a * a);
  return x < splat(0.0f) ? splat(0.0f) - y : y;
}

INLINE Floats gated(Gate gate, Floats g) {
  switch (gate) {
    case Gate::kSilu:
      return g * sigmoid(g);
    case Gate::kGelu:
      return g * splat(0.5f) * (splat(1.0f) + erf(g * splat(0.707106781f)));
    default: {
      // 0.5 (1 + tanh(u)) is the logistic function of 2 u.
      const Floats u = splat(0.797884561f) * fma(g * g * g, splat(0.044715f), g);
      return g * sigmoid(u + u);
    }
  }
}

static void gate(Gate kind, const float* gate, const float* up, int n, float* out) {
  for_each_vector(n, [&](int64_t i, int here) {
    store_up_to(out + i, gated(kind, load_up_to(gate + i, here)) * load_up_to(up + i, here), here);
  });
}

static void finish(float* tile, int rows, const float* bias, int count, const Gate* activation) {
  const Floats add = bias == nullptr ? Floats{} : load_up_to(bias, count);
  for (int row = 0; row < rows; row++) {
    const Floats v = load(tile + row * kLanes) + add;
    store(tile + row * kLanes, activation == nullptr ? v : gated(*activation, v));
  }
}

// (v - mean) / sqrt(variance + eps) * weight + bias, with v = x + added. The variance is of what is left of the mean.
static void layer_norm(const float* x, const float* added, const float* weight, const float* bias, float eps, int width,
                       float* out) {
  Floats total{};
  for_each_vector(width, [&](int64_t i, int n) {
    Floats v = load_up_to(x + i, n);
    if (added != nullptr) v += load_up_to(added + i, n);
    store_up_to(out + i, v, n);
    total += v;
  });
  const Floats mean = splat(sum(total) / static_cast<float>(width));
  Floats squares{};
  for_each_vector(width, [&](int64_t i, int n) {
    Floats v = load_up_to(out + i, n) - mean;
    if (n < kLanes) {  // lanes beyond the row are no part of it
      Floats kept{};
      for (int lane = 0; lane < n; lane++) kept[lane] = v[lane];
      v = kept;
    }
    squares = fma(v, v, squares);
  });
  const Floats scale = splat(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(width) + eps));
  for_each_vector(width, [&](int64_t i, int n) {
    const Floats v = (load_up_to(out + i, n) - mean) * scale * load_up_to(weight + i, n);
    store_up_to(out + i, bias == nullptr ? v : v + load_up_to(bias + i, n), n);
  });
}

static float row_max(const float* x, int64_t n) {
  Floats most = splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = max(most, load(x + i));
  float top = largest(most);
  for (; i < n; i++) top = x[i] > top ? x[i] : top;
  return top;
}

// Sum of e^(x - top); Write: the terms go to out.
template <bool Write>
INLINE float exponentials(const float* x, int64_t n, float top, float scale, float* out) {
  double total = 0.0;
  // Float sums of 4096 at most, so that small terms are not lost in a large vocabulary.
  for (int64_t begin = 0; begin < n; begin += 4096) {
    Floats part{};
    const int64_t here = n - begin < 4096 ? n - begin : 4096;
    for_each_vector(here, [&](int64_t i, int count) {
      Floats e = exp((load_up_to(x + begin + i, count) - splat(top)) * scale);
      if (Write) store_up_to(out + begin + i, e, count);
      if (count < kLanes) {
        Floats kept{};
        for (int lane = 0; lane < count; lane++) kept[lane] = e[lane];
        e = kept;
      }
      part += e;
    });
    total += sum(part);
  }
  return static_cast<float>(total);
}

static float log_sum_exp(const float* x, int64_t n) {
  const float top = row_max(x, n);
  if (!(top > -__builtin_inff() && top < __builtin_inff())) return top;
  return top + __builtin_logf(exponentials<false>(x, n, top, 1.0f, nullptr));
}

static float weigh(const float* x, int64_t n, float top, float scale, float* out) {
  return exponentials<true>(x, n, top, scale, out);
}

// e^(x - max) / sum
static void softmax(const float* x, int64_t n, float* out) {
  const float total = exponentials<true>(x, n, row_max(x, n), 1.0f, out);
  for_each_vector(n, [&](int64_t i, int count) { store_up_to(out + i, load_up_to(out + i, count) * (1.0f / total), count); });
}

}  // namespace innkeeper::INNKEEPER_VARIANT
