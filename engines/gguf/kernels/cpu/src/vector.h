// Vectors of floats, integers and bytes: the only file that knows instruction sets.
//
// Arithmetic is written with the compiler's own vector types, so the same source becomes AVX-512, AVX2, SSE2 or NEON by the
// flags of the translation unit. Only what those types cannot say is written with intrinsics, each with a fallback.
//
// Every translation unit defines INNKEEPER_VARIANT, the namespace of all that it compiles: two variants of one function
// must never be taken for each other by the linker. For the same reason nothing here uses inline functions of the standard
// library.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef INNKEEPER_VARIANT
#error "the translation unit names its variant"
#endif

#define INLINE static inline __attribute__((always_inline))

namespace innkeeper::INNKEEPER_VARIANT {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;  // two registers a vector where they have 16 bytes
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(4 * kLanes)));
// A group of 32 codes, and the narrower vectors that scales come in.
typedef uint8_t Bytes32 __attribute__((vector_size(32)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));

typedef Floats AnyFloats __attribute__((aligned(4), may_alias));
typedef Ints AnyInts __attribute__((aligned(4), may_alias));
typedef Bytes AnyBytes __attribute__((aligned(1), may_alias));
typedef Bytes32 AnyBytes32 __attribute__((aligned(1), may_alias));
typedef Bytes16 AnyBytes16 __attribute__((aligned(1), may_alias));

INLINE Floats load(const float* p) { return *reinterpret_cast<const AnyFloats*>(p); }
INLINE void store(float* p, Floats v) { *reinterpret_cast<AnyFloats*>(p) = v; }
INLINE Bytes load_bytes(const uint8_t* p) { return *reinterpret_cast<const AnyBytes*>(p); }
INLINE Bytes32 load_32(const uint8_t* p) { return *reinterpret_cast<const AnyBytes32*>(p); }
INLINE Bytes16 load_16(const uint8_t* p) { return *reinterpret_cast<const AnyBytes16*>(p); }
INLINE void store_bytes(uint8_t* p, Bytes v) { *reinterpret_cast<AnyBytes*>(p) = v; }
INLINE void store_32(uint8_t* p, Bytes32 v) { *reinterpret_cast<AnyBytes32*>(p) = v; }

INLINE Floats splat(float x) { return Floats{} + x; }
INLINE Ints splat_int(int32_t x) { return Ints{} + x; }
INLINE Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
// a * b + c. Sources are compiled with -ffp-contract=off: products are fused with sums here and nowhere else.
INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  float32x4_t x[2], y[2], z[2];
  std::memcpy(x, &a, 32);
  std::memcpy(y, &b, 32);
  std::memcpy(z, &c, 32);
  z[0] = vfmaq_f32(z[0], x[0], y[0]);
  z[1] = vfmaq_f32(z[1], x[1], y[1]);
  std::memcpy(&c, z, 32);
  return c;
#else
  return a * b + c;
#endif
}
INLINE Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
INLINE Floats min(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
INLINE Floats abs(Floats a) { return (Floats)((Ints)a & 0x7FFFFFFF); }

// The first n lanes, the others 0; n is 1 to kLanes - 1. Nothing beyond them is touched.
INLINE Floats load_some(const float* p, int n) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  Floats v{};
  std::memcpy(&v, p, 4 * n);
  return v;
#endif
}
INLINE void store_some(float* p, Floats v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#else
  std::memcpy(p, &v, 4 * n);
#endif
}

INLINE float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  const float a = (v[0] + v[4]) + (v[2] + v[6]);
  const float b = (v[1] + v[5]) + (v[3] + v[7]);
  return a + b;
#endif
}
INLINE float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float most = v[0];
  for (int i = 1; i < kLanes; i++) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

INLINE float half_to_float(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#elif defined(__aarch64__)
  __fp16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
#else
  // Exponent and mantissa shifted into place; the power of two repairs the bias, and subnormals with it.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t word = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  float value;
  std::memcpy(&value, &word, 4);
  value *= 0x1p112f;
  std::memcpy(&word, &value, 4);
  if ((bits & 0x7C00) == 0x7C00) word |= 0x7F800000;
  word |= sign;
  std::memcpy(&value, &word, 4);
  return value;
#endif
}
INLINE float load_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_to_float(bits);
}
INLINE uint32_t load_word(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// kLanes halves, or the same count of bfloat16, as floats.
INLINE Floats load_halves(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Floats v;
  for (int i = 0; i < kLanes; i++) v[i] = load_half(p + 2 * i);
  return v;
#endif
}
INLINE Floats load_brain_floats(const uint8_t* p) {
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
  typedef uint16_t Narrow __attribute__((vector_size(2 * kLanes)));
  const Narrow narrow = *reinterpret_cast<const Halves*>(p);
  return (Floats)(__builtin_convertvector(narrow, Words) << 16);
}

// e to the power of each lane, relative error below 2e-7; arguments below -87 give 0, and there is no check for large ones.
INLINE Floats exp(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  const Floats shifted = fma(x, splat(1.44269504f), magic);
  const Floats n = shifted - magic;
  Floats r = fma(n, splat(-0.693145752f), x);
  r = fma(n, splat(-1.42860677e-6f), r);
  Floats p = splat(1.98412698e-4f);
  p = fma(p, r, splat(1.38888889e-3f));
  p = fma(p, r, splat(8.33333333e-3f));
  p = fma(p, r, splat(4.16666667e-2f));
  p = fma(p, r, splat(1.66666667e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  const Floats scaled = (Floats)((Ints)p + ((Ints)shifted << 23));
  return (Floats)((Ints)scaled & (Ints)(x > splat(-87.0f)));
}

// --- codes ---

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kWholeBytes = true;  // dot() takes codes from 0 to 255
#else
constexpr bool kWholeBytes = false;  // dot() takes codes from 0 to 63, or signed bytes if told so
#endif

// Adds to each lane of acc the product of its four codes with its four signed activations. Signed: the codes are too.
template <bool Signed>
INLINE Ints dot(Ints acc, Bytes codes, Bytes x) {
  static_assert(!(kWholeBytes && Signed), "codes are unsigned here");
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)codes, (__m512i)x);
#elif defined(__AVXVNNI__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)codes, (__m256i)x);
#elif defined(__AVX512BW__)
  __m512i c = (__m512i)codes, y = (__m512i)x;
  if constexpr (Signed) {
    y = _mm512_mask_sub_epi8(y, _mm512_movepi8_mask(c), _mm512_setzero_si512(), y);
    c = _mm512_abs_epi8(c);
  }
  return acc + (Ints)_mm512_madd_epi16(_mm512_maddubs_epi16(c, y), _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  __m256i c = (__m256i)codes, y = (__m256i)x;
  if constexpr (Signed) {
    y = _mm256_sign_epi8(y, c);
    c = _mm256_abs_epi8(c);
  }
  return acc + (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(c, y), _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
  int32x4_t low, high;
  int8x16_t a, b, c, d;
  std::memcpy(&low, &acc, 16);
  std::memcpy(&high, reinterpret_cast<const char*>(&acc) + 16, 16);
  std::memcpy(&a, &codes, 16);
  std::memcpy(&b, reinterpret_cast<const char*>(&codes) + 16, 16);
  std::memcpy(&c, &x, 16);
  std::memcpy(&d, reinterpret_cast<const char*>(&x) + 16, 16);
  low = vdotq_s32(low, a, c);
  high = vdotq_s32(high, b, d);
  std::memcpy(&acc, &low, 16);
  std::memcpy(reinterpret_cast<char*>(&acc) + 16, &high, 16);
  return acc;
#else
  // Products of two signed bytes fit 16 bits: even and odd bytes apart, then the pairs widened.
  typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));
  const Shorts c = (Shorts)codes, y = (Shorts)x;
  const Shorts even = ((c << 8) >> 8) * ((y << 8) >> 8), odd = (c >> 8) * (y >> 8);
  const Ints e = (Ints)even, o = (Ints)odd;
  return acc + (((e << 16) >> 16) + (e >> 16)) + (((o << 16) >> 16) + (o >> 16));
#endif
}

// Four neighbouring activations in every lane.
INLINE Bytes splat_four(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return (Bytes)splat_int(word);
}

#if defined(__AVX512F__)
INLINE Bytes join(Bytes32 a, Bytes32 b) {
  return (Bytes)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)a), (__m256i)b, 1);
}
// The same 32 bytes in both halves.
INLINE Bytes twice(const uint8_t* p) {
  return (Bytes)_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Bits `low` and up of the bytes of the lower half and `high` and up of those of the upper one, as many as the mask has.
INLINE Bytes fields(Bytes v, int low, int high, uint8_t mask) {
  const __m256i a = _mm256_set1_epi16(static_cast<int16_t>(low)), b = _mm256_set1_epi16(static_cast<int16_t>(high));
  const __m512i shifts = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  return (Bytes)_mm512_and_si512(_mm512_srlv_epi16((__m512i)v, shifts), _mm512_set1_epi8(static_cast<char>(mask)));
}
// The nibbles of two blocks: for each, the 16 low ones, then the 16 high ones.
INLINE Bytes nibbles_of_two(const uint8_t* a, const uint8_t* b) {
  const __m256i both = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
  const __m512i spread = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(both));
  const __m512i shifts = _mm512_setr_epi64(0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                           0x0004000400040004);
  return (Bytes)_mm512_and_si512(_mm512_srlv_epi16(spread, shifts), _mm512_set1_epi8(15));
}
// Byte i of each half is 16 where bit i of the half's word is set.
INLINE Bytes fifth_bits_of_two(uint32_t a, uint32_t b) {
  return (Bytes)_mm512_maskz_set1_epi8(static_cast<uint64_t>(b) << 32 | a, 16);
}
#endif

// The 16 low nibbles, then the 16 high ones.
INLINE Bytes32 nibbles(const uint8_t* p) {
#if defined(__AVX2__)
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
  return (Bytes32)_mm256_and_si256(both, _mm256_set1_epi8(15));
#else
  const Bytes16 packed = load_16(p);
  const Bytes16 low = packed & 15, high = packed >> 4;
  Bytes32 both;
  std::memcpy(&both, &low, 16);
  std::memcpy(reinterpret_cast<char*>(&both) + 16, &high, 16);
  return both;
#endif
}

// What a table of 16 has for each byte, all of which are below 16.
INLINE Bytes32 looked_up(Bytes32 bytes, const uint8_t* table) {
#if defined(__AVX2__)
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return (Bytes32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), (__m256i)bytes);
#elif defined(__aarch64__)
  const uint8x16_t whole = vld1q_u8(table);
  uint8x16_t halves[2];
  std::memcpy(halves, &bytes, 32);
  for (int i = 0; i < 2; i++) halves[i] = vqtbl1q_u8(whole, halves[i]);
  std::memcpy(&bytes, halves, 32);
  return bytes;
#else
  for (int i = 0; i < 32; i++) bytes[i] = table[bytes[i]];
  return bytes;
#endif
}
#if defined(__AVX512F__)
INLINE Bytes looked_up(Bytes bytes, const uint8_t* table) {
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return (Bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(once), (__m512i)bytes);
}
#endif

// Byte i is `value` where bit i of the word is set, else 0.
INLINE Bytes32 spread_bits(uint32_t word, uint8_t value) {
#if defined(__AVX2__)
  const __m256i order = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(word)), order);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return (Bytes32)_mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(value)));
#else
  uint64_t eights[4];
  for (int i = 0; i < 4; i++) {
    // Eight copies of a byte, one bit kept in each, moved to the byte's top, then to its bottom.
    const uint64_t kept = ((word >> (8 * i) & 0xFF) * 0x0101010101010101ull) & 0x8040201008040201ull;
    const uint64_t top = (kept + 0x00406070787C7E7Full) & 0x8080808080808080ull;
    eights[i] = (top >> 7) * value;
  }
  Bytes32 bytes;
  std::memcpy(&bytes, eights, 32);
  return bytes;
#endif
}

}  // namespace innkeeper::INNKEEPER_VARIANT
