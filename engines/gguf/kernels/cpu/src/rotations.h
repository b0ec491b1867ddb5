// The cosines and sines of rotary embedding, remembered: all layers of a model ask for the same ones.
#pragma once

#include <cstdint>
#include <vector>

namespace innkeeper {

struct RotationKey {
  int pairs;
  float base;
  float scale;
  int tokens;
  std::vector<int32_t> offsets;    // of the first token: one, or one a row
  std::vector<float> wavelengths;  // a pair; empty: base ** (i / pairs)

  bool operator==(const RotationKey&) const = default;
};

struct Rotations {
  std::vector<float> cosines;  // [offsets, tokens, pairs]
  std::vector<float> sines;
};

// Those of the calling thread's last few keys, or made now. Valid until the next call in this thread.
const Rotations& rotations(const RotationKey& key);

}  // namespace innkeeper
