#include "rotations.h"

#include <array>
#include <cmath>
#include <utility>

namespace innkeeper {

namespace {

Rotations make(const RotationKey& key) {
  std::vector<float> inverse(key.pairs);
  for (int i = 0; i < key.pairs; i++) {
    inverse[i] = key.wavelengths.empty()
                     ? static_cast<float>(std::pow(static_cast<double>(key.base), -static_cast<double>(i) / key.pairs))
                     : 1.0f / key.wavelengths[i];
  }
  Rotations turns;
  turns.cosines.reserve(key.offsets.size() * key.tokens * key.pairs);
  turns.sines.reserve(turns.cosines.capacity());
  for (const int32_t offset : key.offsets) {
    for (int token = 0; token < key.tokens; token++) {
      const float position = static_cast<float>(offset + token) * key.scale;
      for (const float frequency : inverse) {
        // The angle in float32, as MLX has it; its cosine exactly.
        const double angle = position * frequency;
        turns.cosines.push_back(static_cast<float>(std::cos(angle)));
        turns.sines.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  return turns;
}

}  // namespace

const Rotations& rotations(const RotationKey& key) {
  // A model has one or two rotary embeddings.
  constexpr int kRemembered = 4;
  static thread_local std::array<std::pair<RotationKey, Rotations>, kRemembered> remembered;
  static thread_local int oldest = 0;
  for (const auto& [known, turns] : remembered) {
    if (known == key) return turns;
  }
  auto& place = remembered[oldest];
  oldest = (oldest + 1) % kRemembered;
  place = {key, make(key)};
  return place.second;
}

}  // namespace innkeeper
