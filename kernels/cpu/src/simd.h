// Sixteen lanes of float or int32, the same source for every instruction set.
//
// The types are GCC vector extensions, which the compiler lowers to AVX-512, to pairs of AVX2 registers or to whatever
// the machine has. Where an instruction does what no expression can say (dot products of bytes and of bfloat16, half
// floats, fused multiply-add), there is one branch per level here and nowhere else. Build with -ffp-contract=off: what
// is fused is written `fma`, so that a row's result does not depend on which tile it was computed in.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#if defined(__GNUC__) && !defined(__clang__)  // gcc 12 takes its own "undefined" registers for a mistake
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#define HR_INLINE static inline __attribute__((always_inline))

namespace hr {

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

// ---- moves

template <class V>
HR_INLINE V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}
HR_INLINE f32x16 load(const float* p) { return load_as<f32x16>(p); }
HR_INLINE f32x16 load(const float* p, int n) {  // the first n of them, the other lanes zero
  if (n >= LANES) return load(p);
  f32x16 v = {};
  if (n > 0) std::memcpy(&v, p, size_t(n) * sizeof(float));
  return v;
}
HR_INLINE void store(float* p, f32x16 v) { std::memcpy(p, &v, sizeof v); }
HR_INLINE f32x16 splat(float x) { return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
HR_INLINE i32x16 splat(int32_t x) { return i32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
HR_INLINE f32x16 as_float(u32x16 v) { return (f32x16)v; }

// ---- comparisons and choices, by what the machine compares at once: the compiler takes wider vectors lane by lane

#if defined(__AVX512F__)
template <class V, class Choice>
HR_INLINE auto by_parts(V a, V b, Choice&& choice) {
  return choice(a, b);
}
#else
#if defined(__AVX2__)
constexpr int PART = 32;  // bytes
#else
constexpr int PART = 16;
#endif
template <class V, class Choice>
HR_INLINE auto by_parts(V a, V b, Choice&& choice) {
  typedef __typeof__(a[0] + a[0]) Lane;
  typedef Lane Part __attribute__((vector_size(PART)));
  typedef __typeof__(choice(Part{}, Part{})[0] + 0) OutLane;
  typedef OutLane Out __attribute__((vector_size(64)));
  Out out;
  for (int at = 0; at < 64; at += PART) {
    const auto part = choice(load_as<Part>((const char*)&a + at), load_as<Part>((const char*)&b + at));
    std::memcpy((char*)&out + at, &part, PART);
  }
  return out;
}
#endif
HR_INLINE i32x16 less(f32x16 a, f32x16 b) {  // true (all bits) or false; false where one of them is NaN
  return (i32x16)by_parts(a, b, [](auto x, auto y) { return x < y; });
}
HR_INLINE i32x16 less(i32x16 a, i32x16 b) {
  return (i32x16)by_parts(a, b, [](auto x, auto y) { return x < y; });
}
HR_INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
#if defined(__AVX512F__)
  return mask ? yes : no;
#else
  return (f32x16)((mask & (i32x16)yes) | (~mask & (i32x16)no));
#endif
}
HR_INLINE f32x16 maximum(f32x16 a, f32x16 b) {  // b where one of them is NaN
#if defined(__AVX512F__)
  return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return by_parts(a, b, [](auto x, auto y) { return x > y ? x : y; });
#endif
}
HR_INLINE f32x16 minimum(f32x16 a, f32x16 b) {  // b where one of them is NaN
#if defined(__AVX512F__)
  return (f32x16)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return by_parts(a, b, [](auto x, auto y) { return x < y ? x : y; });
#endif
}
HR_INLINE i32x16 maximum(i32x16 a, i32x16 b) {
  return by_parts(a, b, [](auto x, auto y) { return x > y ? x : y; });
}

// Lanes 0..n-1 true, the rest false; n may be below 0 or above 16.
HR_INLINE i32x16 first_lanes(int n) {
  return less(i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, splat(int32_t(n)));
}

// ---- arithmetic

HR_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {  // a * b + c, rounded once where the machine can
#if defined(__AVX512F__)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  f32x16 r;
  for (int h = 0; h < 2; h++)
    ((__m256*)&r)[h] = _mm256_fmadd_ps(((const __m256*)&a)[h], ((const __m256*)&b)[h], ((const __m256*)&c)[h]);
  return r;
#else
  return a * b + c;
#endif
}
HR_INLINE f32x16 magnitude(f32x16 a) { return (f32x16)((u32x16)a & 0x7fffffffu); }

// Sum and maximum of the lanes, always by the same tree.
HR_INLINE float reduce_add(f32x16 v) {
  float t[16];
  store(t, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) t[i] += t[i + width];
  return t[0];
}
HR_INLINE float reduce_max(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float t[16];
  store(t, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
  return t[0];
#endif
}

// Of integers, in any order. The steps are spelled out: the compiler would go through memory.
HR_INLINE int32_t reduce_add(i32x16 v) {
  const i32x8 eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const i32x4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                     __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
HR_INLINE int32_t reduce_max(i32x16 v) {
  const i32x8 low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  const i32x8 high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const i32x8 eight = low > high ? low : high;
  const i32x4 left = __builtin_shufflevector(eight, eight, 0, 1, 2, 3);
  const i32x4 right = __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  const i32x4 four = left > right ? left : right;
  const int32_t even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
  return even > odd ? even : odd;
}

// Whether some lane is above x, or is no number.
HR_INLINE bool any_above(f32x16 v, float x) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0;
#else
  return reduce_max(v) > x;
#endif
}
HR_INLINE bool any_nan(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q) != 0;
#else
  const float sum = reduce_add(v);
  return sum != sum;
#endif
}

// ---- conversions

HR_INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// To the nearest integer, ties to even; |v| below 2^22.
HR_INLINE i32x16 to_int(f32x16 v) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtps_epi32((__m512)v);
#else
  const f32x16 magic = splat(12582912.f);  // 1.5 * 2^23: the sum's low bits are the rounded integer
  return (i32x16)(v + magic) - (i32x16)magic;
#endif
}

// Sixteen bfloat16 values.
HR_INLINE f32x16 load_bf16(const uint16_t* p) {
  return as_float(__builtin_convertvector(load_as<u16x16>(p), u32x16) << 16);
}
HR_INLINE uint16_t to_bf16(float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
HR_INLINE u16x16 to_bf16(f32x16 v) {  // as the scalar one, but that the instruction takes denormals for zeros
#if defined(__AVX512BF16__)
  return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  const u32x16 bits = (u32x16)v;
  const u32x16 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const i32x16 is_nan = less(splat(0x7f800000), (i32x16)magnitude(v));
  return __builtin_convertvector((u32x16)select(is_nan, as_float(bits | 0x400000u), as_float(rounded)) >> 16, u16x16);
#endif
}
HR_INLINE float from_bf16(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Sixteen finite half floats.
HR_INLINE f32x16 load_f16(const uint16_t* p) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
  f32x16 r;
  for (int h = 0; h < 2; h++) ((__m256*)&r)[h] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8 * h)));
  return r;
#else
  const u32x16 h = __builtin_convertvector(load_as<u16x16>(p), u32x16);
  const f32x16 size = as_float((h & 0x7fffu) << 13) * 5.192296858534828e33f;  // 2^112 moves the exponent's bias
  return as_float((u32x16)size | ((h & 0x8000u) << 16));
#endif
}

// ---- dot products: lane j gains the sum over i of w[j][i] * a[i]

// `w`: 16 lanes of four unsigned bytes; `a`: four signed bytes. Exact.
HR_INLINE i32x16 dot4(i32x16 acc, u32x16 w, const void* a) {
  int32_t four;
  std::memcpy(&four, a, 4);
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
  const __m256i both = _mm256_set1_epi32(four);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(both, 8), 8), odd = _mm256_srai_epi16(both, 8);
  for (int h = 0; h < 2; h++) {
    const __m256i bytes = ((const __m256i*)&w)[h];
    const __m256i low = _mm256_madd_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(255)), even);
    const __m256i high = _mm256_madd_epi16(_mm256_srli_epi16(bytes, 8), odd);
    __m256i& half = ((__m256i*)&acc)[h];
    half = _mm256_add_epi32(half, _mm256_add_epi32(low, high));
  }
  return acc;
#else
  int8_t bytes[4];
  std::memcpy(bytes, a, 4);
  for (int i = 0; i < 4; i++) acc += (i32x16)((w >> (8 * i)) & 255u) * splat(int32_t(bytes[i]));
  return acc;
#endif
}
HR_INLINE i32x16 dot4(i32x16 acc, const void* w, const int8_t* a) { return dot4(acc, load_as<u32x16>(w), a); }

// `w`: 16 lanes of two bfloat16; `a`: two bfloat16.
HR_INLINE f32x16 dot2(f32x16 acc, u32x16 w, const void* a) {
  uint32_t two;
  std::memcpy(&two, a, 4);
#if defined(__AVX512BF16__)
  return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(int32_t(two)));
#else
  const u32x16 both = (u32x16)splat(int32_t(two));
  acc = fma(as_float(w << 16), as_float(both << 16), acc);
  return fma(as_float(w & 0xffff0000u), as_float(both & 0xffff0000u), acc);
#endif
}
HR_INLINE f32x16 dot2(f32x16 acc, const uint16_t* w, const uint16_t* a) { return dot2(acc, load_as<u32x16>(w), a); }

// ---- functions

// e^x, relative error below 2e-7; exactly 1 at 0 and exactly 0 from -87.3 down. NaN stays NaN.
// Source: Moshier, Cephes `expf`: the argument is reduced by a two-part ln 2, the rest is a polynomial of degree 7.
HR_INLINE f32x16 exponential(f32x16 x) {
  const f32x16 least = splat(-87.3f);
  const f32x16 bounded = minimum(splat(88.f), maximum(least, x));
#if defined(__AVX512F__)
  const f32x16 whole = (f32x16)_mm512_roundscale_ps((__m512)(bounded * 1.44269504f), _MM_FROUND_TO_NEAREST_INT);
#else
  const i32x16 n = to_int(bounded * 1.44269504f);
  const f32x16 whole = to_float(n);
#endif
  f32x16 r = fma(whole, splat(-0.693359375f), bounded);
  r = fma(whole, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(r * r, p, r + splat(1.f));
#if defined(__AVX512F__)
  const __mmask16 above = _mm512_cmp_ps_mask((__m512)x, (__m512)least, _CMP_NLT_UQ);
  return (f32x16)_mm512_maskz_scalef_ps(above, (__m512)p, (__m512)whole);
#else
  const f32x16 power = as_float((u32x16)((n + 127) << 23));
  return select(less(x, least), splat(0.f), p * power);
#endif
}

}  // namespace hr
