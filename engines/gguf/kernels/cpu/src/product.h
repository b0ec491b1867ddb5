// Products of activations with quantised weights.
//
// matvec: one row of activations. A vector holds neighbouring columns of one row of weights; a group's integer sum is scaled
// at once, and lanes are added up at the end of the row.
//
// tile: many rows of activations. A panel holds kLanes rows of weights side by side, four columns of each in a lane, so that
// nothing is added across lanes and a panel once unpacked serves all rows of activations.
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

// The segments of a row: whole ones, then perhaps a shorter one. Only blocks of 32 end within a segment.
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

// A segment of a row times as much of the activations.
template <typename Format, bool Whole>
INLINE void matvec_segment(const uint8_t* segment, int groups, const int8_t* codes, const float* scales, const float* sums,
                           Floats& even, Floats& odd, Eight& offsets) {
  constexpr int kGroups = kSegmentGroups<Format>;
  float s[kGroups], o[kGroups];
  if (!Whole) {
    std::memset(s, 0, sizeof s);
    std::memset(o, 0, sizeof o);
  }
  Format::scales(segment, Whole ? kGroups : groups, s, o);
#pragma GCC unroll 2
  for (int g = 0; g < kGroups; g += 8) {
    const Eight scale = load_eight(s + g);
    if (Format::kOffsets) {
      offsets = fma(load_eight(o + g), load_eight(sums + g), offsets);
    } else if (Format::kZero) {
      offsets = fma(scale, load_eight(sums + g), offsets);
    }
    store_eight(s + g, scale * load_eight(scales + g));
  }
  const int steps = Whole ? kSegment / (4 * kLanes) : (groups * Format::kGroup + 4 * kLanes - 1) / (4 * kLanes);
  const SegmentScales<Format::kGroup> spread(s);
  const auto take = [&](int step) {
    const Bytes c = codes_of_step<Format>(segment, step, Whole ? 8 : groups * Format::kGroup / 32);
    const Bytes x = load_bytes(reinterpret_cast<const uint8_t*>(codes) + step * 4 * kLanes);
    Floats& acc = step % 2 ? odd : even;
    acc = fma(to_floats(dot<Format::kSigned>(Ints{}, c, x)), spread.of_step(step), acc);
  };
  if (Whole) {
#pragma GCC unroll 8
    for (int step = 0; step < kSegment / (4 * kLanes); step++) take(step);
  } else {
    for (int step = 0; step < steps; step++) take(step);
  }
}

template <typename Format>
static void matvec(const uint8_t* weights, int64_t row_bytes, int rows, const Activations& from, int m, float* out) {
  constexpr int kGroups = kSegmentGroups<Format>;
  const int8_t* codes = from.codes + static_cast<int64_t>(m) * from.padded;
  const float* scales = from.scales + static_cast<int64_t>(m) * from.groups;
  const float* sums = from.sums + static_cast<int64_t>(m) * from.groups;
  const int whole = from.columns / kSegment, rest = groups_of_segment<Format>(from.columns, whole);
  for (int r = 0; r < rows; r++) {
    const uint8_t* row = weights + r * row_bytes;
    Floats even{}, odd{};
    Eight offsets{};
    for (int i = 0; i < whole; i++, row += kSegmentBytes<Format>) {
      matvec_segment<Format, true>(row, kGroups, codes + i * kSegment, scales + i * kGroups, sums + i * kGroups, even, odd,
                                   offsets);
    }
    if (Format::kBlock < kSegment && rest > 0) {
      matvec_segment<Format, false>(row, rest, codes + whole * kSegment, scales + whole * kGroups, sums + whole * kGroups,
                                    even, odd, offsets);
    }
    out[r] = sum(even + odd, offsets);
  }
}

// A segment of kLanes rows: codes[column / 4][lane][column % 4], scales and offsets [group][lane].
template <typename Format>
struct Panel {
  alignas(64) uint8_t codes[kSegment * kLanes];
  alignas(64) float scales[16 * kLanes];
  alignas(64) float offsets[16 * kLanes];
  // As they come out of the rows.
  alignas(64) uint8_t row_codes[kLanes][kSegment];
  alignas(64) float row_scales[kLanes][16];
  alignas(64) float row_offsets[kLanes][16];
};

constexpr int64_t kPanelBytes = sizeof(Panel<Q4_1>);

// Unpacks the first `groups` groups of a segment of each row.
template <typename Format>
INLINE void unpack(const uint8_t* segment, int64_t row_bytes, int rows, int groups, Panel<Format>& panel) {
  const int columns = groups * Format::kGroup;
  for (int r = 0; r < rows; r++) {
    const uint8_t* p = segment + r * row_bytes;
    if (groups == kSegmentGroups<Format>) {
#pragma GCC unroll 8
      for (int step = 0; step < kSegment / (4 * kLanes); step++) {
        store_bytes(panel.row_codes[r] + step * 4 * kLanes, codes_of_step<Format>(p, step, kSegment / 32));
      }
      Format::scales(p, kSegmentGroups<Format>, panel.row_scales[r], panel.row_offsets[r]);
    } else {
      for (int g = 0; g < columns / 32; g++) store_32(panel.row_codes[r] + 32 * g, Format::codes(p, g));
      Format::scales(p, groups, panel.row_scales[r], panel.row_offsets[r]);
    }
  }
  for (int r = rows; r < kLanes; r++) {
    std::memset(panel.row_codes[r], 0, kSegment);
    std::memset(panel.row_scales[r], 0, sizeof panel.row_scales[r]);
    std::memset(panel.row_offsets[r], 0, sizeof panel.row_offsets[r]);
  }
  for (int column = 0; column < columns; column += 4 * kLanes) {
    transpose(panel.row_codes[0] + column, kSegment, panel.codes + column * kLanes, 4 * kLanes);
  }
  for (int g = 0; g < groups; g += kLanes) {
    const int64_t stride = sizeof panel.row_scales[0], out = sizeof(float) * kLanes;
    transpose(reinterpret_cast<uint8_t*>(panel.row_scales[0] + g), stride, reinterpret_cast<uint8_t*>(panel.scales + g * kLanes),
              out);
    if (Format::kOffsets) {
      transpose(reinterpret_cast<uint8_t*>(panel.row_offsets[0] + g), stride,
                reinterpret_cast<uint8_t*>(panel.offsets + g * kLanes), out);
    }
  }
}

// Adds a segment's product with Count rows of activations to tile[Count][kLanes].
template <typename Format, int Count>
INLINE void multiply_panel(const Panel<Format>& panel, const Activations& from, int m, int segment, int groups_here,
                           float* tile) {
  constexpr int kGroup = Format::kGroup, kHalves = 32 / kGroup;
  const int8_t* codes = from.codes + static_cast<int64_t>(m) * from.padded + segment * kSegment;
  const int64_t groups = static_cast<int64_t>(m) * from.groups + segment * kSegmentGroups<Format>;
  const float* scales = from.scales + groups;
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
    for (int r = 0; r < Count; r++) acc[r] = fma(parts[r], splat(scales[r * from.groups + g]), acc[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Count; r++) store(tile + r * kLanes, acc[r]);
}

template <typename Format>
static void tile(const uint8_t* weights, int64_t row_bytes, int rows, const Activations& from, int m, int count, float* tile,
                 uint8_t* scratch) {
  Panel<Format>& panel = *reinterpret_cast<Panel<Format>*>(scratch);
  std::memset(tile, 0, sizeof(float) * kLanes * count);
  for (int segment = 0; segment * kSegment < from.columns; segment++) {
    const int groups = groups_of_segment<Format>(from.columns, segment);
    unpack<Format>(weights + static_cast<int64_t>(segment) * kSegmentBytes<Format>, row_bytes, rows, groups, panel);
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
