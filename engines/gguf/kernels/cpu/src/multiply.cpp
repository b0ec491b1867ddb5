#include "multiply.h"

#include <algorithm>

#include "pool.h"
#include "scratch.h"

namespace innkeeper {

namespace {

constexpr int kPairRows = 6;  // of activations, from which two tiles at a time are faster

// Bias and activation, while the tile is in the cache, and the tile to where it belongs.
void write(const Target& target, float* tile, int rows, int64_t row, int count) {
  const Kernels& use = kernels();
  if (target.up == nullptr && (target.bias != nullptr || target.activates)) {
    const float* bias = target.bias ? target.bias + row : nullptr;
    use.finish(tile, rows, bias, count, target.activates ? &target.gate : nullptr);
  }
  for (int m = 0; m < rows; m++) {
    std::copy_n(tile + m * use.lanes, count, target.out + static_cast<int64_t>(m) * target.weights.rows + row);
  }
}

}  // namespace

void multiply(const Activations& from, std::span<const Target> targets) {
  const Kernels& use = kernels();
  const int lanes = use.lanes;
  int64_t tiles = 0;
  size_t panel_bytes = 0;
  for (const Target& target : targets) {
    tiles += target.weights.tiles();
    panel_bytes = std::max({panel_bytes, target.weights.scratch_bytes(), target.up ? target.up->scratch_bytes() : 0});
  }
  int64_t grain = grain_of(tiles, static_cast<int64_t>(from.columns) * lanes, from.rows);
  if (targets[0].weights.format->pair != nullptr) grain += grain % 2;  // whole pairs
  ThreadPool::shared().run(tiles, grain, [&](int64_t begin, int64_t end) {
    const size_t tile_bytes = aligned(sizeof(float) * lanes * from.rows);
    uint8_t* memory = tile_scratch().take(panel_bytes + 2 * tile_bytes);
    float* tile = reinterpret_cast<float*>(memory + panel_bytes);
    float* up_tile = reinterpret_cast<float*>(memory + panel_bytes + tile_bytes);
    const Target* target = targets.data();
    int64_t first = 0;  // of the target's tiles
    for (int64_t index = begin; index < end; index++) {
      while (index >= first + target->weights.tiles()) first += target++->weights.tiles();
      const Weights& weights = target->weights;
      const int64_t row = (index - first) * lanes;
      const int count = std::min<int64_t>(lanes, weights.rows - row);
      if (weights.format->pair != nullptr && target->up == nullptr && index + 1 < end && row + 2 * lanes <= weights.rows &&
          from.rows >= kPairRows) {
        float* const tiles[2] = {tile, up_tile};
        weights.format->pair(weights.row(row), weights.row_bytes, from, from.rows, tiles, memory);
        for (int p = 0; p < 2; p++) write(*target, tiles[p], from.rows, row + p * lanes, lanes);
        index++;
        continue;
      }
      weights.format->tile(weights.row(row), weights.row_bytes, count, from, 0, from.rows, tile, memory);
      if (target->up != nullptr) {
        const Weights& up = *target->up;
        up.format->tile(up.row(row), up.row_bytes, count, from, 0, from.rows, up_tile, memory);
        use.gate(target->gate, tile, up_tile, lanes * from.rows, tile);
      }
      write(*target, tile, from.rows, row, count);
    }
  });
}

void multiply_gated(const float* x, int count, int columns, const Weights& gate, const Weights& up, Gate activation, float* out) {
  if (alike(*gate.format, *up.format)) {
    const Target both{gate, out, &up, activation};
    multiply(prepare(x, count, columns, *gate.format), {&both, 1});
    return;
  }
  thread_local Scratch upper_scratch;
  const int64_t floats = static_cast<int64_t>(count) * up.rows;
  float* upper = reinterpret_cast<float*>(upper_scratch.take(sizeof(float) * floats));
  const Target first{gate, out}, second{up, upper};
  multiply(prepare(x, count, columns, *gate.format), {&first, 1});
  multiply(prepare(x, count, columns, *up.format), {&second, 1});
  ThreadPool::shared().run(count, 16, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * up.rows;
    kernels().gate(activation, out + at, upper + at, static_cast<int>((end - begin) * up.rows), out + at);
  });
}

}  // namespace innkeeper
