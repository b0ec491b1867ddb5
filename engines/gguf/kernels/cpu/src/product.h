// Products of activations with quantised weights.
//
// A panel holds kLanes rows of weights side by side, four columns of each in a lane, so that nothing is added across lanes and
// a panel once unpacked serves all rows of activations. A row's answer is the same to the last bit whatever other rows it is
// multiplied with: one token alone, eight sequences together and a prompt give the same numbers.
#pragma once

#include "formats.h"
#include "table.h"
#include "transpose.h"

namespace innkeeper::INNKEEPER_VARIANT {

// Rows of activations that a pass over a panel takes: what the registers hold.
#if defined(__AVX512F__)
constexpr int kRows = 8;
#else
constexpr int kRows = 4;
#endif

template <typename Format>
constexpr int kSegmentBytes = kSegment / Format::kBlock * Format::kBytes;
template <typename Format>
constexpr int kSegmentGroups = kSegment / Format::kGroup;

// The segments of a row: whole ones, then perhaps a shorter one. Only blocks of 32 or 64 end within a segment.
template <typename Format>
INLINE int groups_of_segment(int columns, int segment) {
  const int rest = columns - segment * kSegment;
  return rest >= kSegment ? kSegmentGroups<Format> : rest / Format::kGroup;
}

// The codes of one vector, of which the segment has the first `groups` groups of 32.
template <typename Format>
INLINE Bytes codes_of_step(const uint8_t* segment, int step, int groups) {
#if defined(__AVX512F__)
  if (2 * step + 1 < groups) return Format::two(segment, step);
  return join(Format::codes(segment, 2 * step), Bytes32{});
#else
  (void)groups;
  return Format::codes(segment, step);
#endif
}

// A segment of kLanes rows: codes[column / 4][lane][column % 4], scales and offsets [group][lane].
struct Panel {
  alignas(64) uint8_t codes[kSegment * kLanes];
  alignas(64) float scales[16 * kLanes];
  alignas(64) float offsets[16 * kLanes];
  // As they come out of the rows.
  alignas(64) float row_scales[kLanes][16];
  alignas(64) float row_offsets[kLanes][16];
};

constexpr int64_t kPanelBytes = (sizeof(Panel) + 63) / 64 * 64;

// Unpacks the codes of one step (4 * kLanes columns) of kLanes rows.
template <typename Format>
INLINE void unpack_step(const uint8_t* segment, int64_t row_bytes, int step, int groups, uint8_t* to) {
  Words rows[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; r++) rows[r] = (Words)codes_of_step<Format>(segment + r * row_bytes, step, groups);
  transpose(rows);
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; r++) store_bytes(to + r * 4 * kLanes, (Bytes)rows[r]);
}

INLINE void transpose_scales(const float (*rows)[16], int first, float* to) {
  Words square[kLanes];
  for (int r = 0; r < kLanes; r++) square[r] = (Words)load(rows[r] + first);
  transpose(square);
  for (int r = 0; r < kLanes; r++) store(to + (first + r) * kLanes, (Floats)square[r]);
}

// Unpacks the first `groups` groups of a segment of kLanes rows.
template <typename Format>
INLINE void unpack(const uint8_t* segment, int64_t row_bytes, int groups, Panel& panel) {
  constexpr int kSteps = kSegment / (4 * kLanes), kGroups = kSegmentGroups<Format>;
  if (groups == kGroups) {
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      unpack_step<Format>(segment, row_bytes, step, kSegment / 32, panel.codes + step * 4 * kLanes * kLanes);
    }
    for (int r = 0; r < kLanes; r++) {
      Format::scales(segment + r * row_bytes, kGroups, panel.row_scales[r], panel.row_offsets[r]);
    }
  } else {
    const int columns = groups * Format::kGroup;
    for (int step = 0; step * 4 * kLanes < columns; step++) {
      unpack_step<Format>(segment, row_bytes, step, columns / 32, panel.codes + step * 4 * kLanes * kLanes);
    }
    for (int r = 0; r < kLanes; r++) {
      Format::scales(segment + r * row_bytes, groups, panel.row_scales[r], panel.row_offsets[r]);
    }
  }
  for (int g = 0; g < groups; g += kLanes) {
    transpose_scales(panel.row_scales, g, panel.scales);
    if (Format::kOffsets) transpose_scales(panel.row_offsets, g, panel.offsets);
  }
}

// What of a format matters once its codes are unpacked. Most formats share one, so that the compiler has less to do.
template <int Group, bool Zero, bool Offsets, bool Signed>
struct Shape {
  static constexpr int kGroup = Group;
  static constexpr bool kZero = Zero;
  static constexpr bool kOffsets = Offsets;
  static constexpr bool kSigned = Signed;
};
template <typename Format>
using ShapeOf = Shape<Format::kGroup, Format::kZero != 0, Format::kOffsets, Format::kSigned>;

// Adds a segment's product with Count rows of activations to tile[Count][kLanes].
template <typename Format, int Count>
INLINE void multiply_panel(const Panel& panel, const Activations& from, int m, int segment, int groups_here, float* tile) {
  constexpr int kGroup = Format::kGroup, kHalves = 32 / kGroup;
  const int8_t* codes = from.codes + static_cast<int64_t>(m) * from.padded + segment * kSegment;
  const int64_t groups = static_cast<int64_t>(m) * from.groups + segment * kSegmentGroups<Format>;
  const int all = from.padded / 32;
  const float* scales = from.scales + static_cast<int64_t>(m) * all + segment * (kSegment / 32);
  const float* sums = from.sums + groups;
  const int32_t* starts = from.starts + groups;
  Floats acc[Count];
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) acc[r] = load(tile + r * kLanes);
  for (int g = 0; g < groups_here; g += kHalves) {
    Floats parts[Count];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; h++) {
      Ints products[Count];
#pragma GCC unroll 8
      for (int r = 0; r < Count; r++) {
        products[r] = Format::kZero ? splat_int(starts[r * from.groups + g + h]) : Ints{};
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; k += 4) {
        const int column = (g + h) * kGroup + k;
        const Bytes w = load_bytes(panel.codes + column * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Count; r++) {
          products[r] = dot<Format::kSigned>(products[r], w, splat_four(codes + r * from.padded + column));
        }
      }
      const Floats scale = load(panel.scales + (g + h) * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Count; r++) {
        parts[r] = h == 0 ? to_floats(products[r]) * scale : fma(to_floats(products[r]), scale, parts[r]);
        if (Format::kOffsets) {
          acc[r] = fma(load(panel.offsets + (g + h) * kLanes), splat(sums[r * from.groups + g + h]), acc[r]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Count; r++) acc[r] = fma(parts[r], splat(scales[r * all + g / kHalves]), acc[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) store(tile + r * kLanes, acc[r]);
}

// The same for any number of rows of activations.
template <typename Format>
static __attribute__((noinline)) void multiply_segment(const Panel& panel, const Activations& from, int m, int count,
                                                       int segment, int groups, float* tile) {
  const auto multiply = [&]<int Count>(int r) {
    multiply_panel<Format, Count>(panel, from, m + r, segment, groups, tile + r * kLanes);
  };
  int r = 0;
  for (; r + kRows <= count; r += kRows) multiply.template operator()<kRows>(r);
  if (kRows > 4 && r + 4 <= count) {
    multiply.template operator()<4>(r);
    r += 4;
  }
  if (r + 2 <= count) {
    multiply.template operator()<2>(r);
    r += 2;
  }
  if (r < count) multiply.template operator()<1>(r);
}

template <typename Format>
static void tile(const uint8_t* weights, int64_t row_bytes, int rows, const Activations& from, int m, int count, float* tile,
                 uint8_t* scratch) {
  const uint8_t* following = weights + kLanes * row_bytes;
  if (rows < kLanes) {  // the end of a matrix: its rows are copied to where rows of zeros follow them
    uint8_t* padded = scratch + kPanelBytes;
    std::memcpy(padded, weights, rows * row_bytes);
    std::memset(padded + rows * row_bytes, 0, (kLanes - rows) * row_bytes);
    weights = padded;
  }
  Panel& panel = *reinterpret_cast<Panel*>(scratch);
  std::memset(tile, 0, sizeof(float) * kLanes * count);
  for (int segment = 0; segment * kSegment < from.columns; segment++) {
    // A panel's rows are too many streams for the processor to foresee. The next panel's rows follow these in memory: a share
    // of them is asked for with each segment, into the second cache: the first has too few fetches in flight for memory.
    const uint8_t* ahead = following + static_cast<int64_t>(segment) * kSegmentBytes<Format> * kLanes;
    for (int i = 0; i < kSegmentBytes<Format> * kLanes; i += 64) __builtin_prefetch(ahead + i, 0, 1);
    const int groups = groups_of_segment<Format>(from.columns, segment);
    unpack<Format>(weights + static_cast<int64_t>(segment) * kSegmentBytes<Format>, row_bytes, groups, panel);
    multiply_segment<ShapeOf<Format>>(panel, from, m, count, segment, groups, tile);
  }
}

template <typename Format>
static void dequantize(const uint8_t* row, int begin, int end, float* out) {
  const uint8_t* segment = row + static_cast<int64_t>(begin / Format::kBlock) * Format::kBytes;
  for (int at = 0; at < end - begin; at += kSegment, segment += kSegmentBytes<Format>) {
    const int groups = groups_of_segment<Format>(end - begin, at / kSegment);
    float s[kSegmentGroups<Format>], o[kSegmentGroups<Format>];
    Format::scales(segment, groups, s, o);
    for (int g = 0; g < groups * Format::kGroup / 32; g++) {
      const Bytes32 codes = Format::codes(segment, g);
      for (int k = 0; k < 32; k++) {
        const int code = Format::kSigned ? static_cast<int8_t>(codes[k]) : codes[k] - Format::kZero;
        const int group = (32 * g + k) / Format::kGroup;
        // The product is rounded before the offset is added, as in the reference.
        const float product = s[group] * static_cast<float>(code);
        out[at + 32 * g + k] = Format::kOffsets ? product + o[group] : product;
      }
    }
  }
}

}  // namespace innkeeper::INNKEEPER_VARIANT
