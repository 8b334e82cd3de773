// The dot products of simd.h, adding to a sum in place: for loops with many sums. Where no register holds sixteen lanes
// every copy of such a sum goes through memory; in place its parts are worked on one by one. With AVX2 attention takes
// half the time for it.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd.h"

namespace hr {

#if defined(__AVX512F__)
typedef u32x16 Words;  // sixteen times four bytes: in a register where one holds them, otherwise where they lie
HR_INLINE Words words(const void* p) { return load_as<u32x16>(p); }
#else
typedef const char* Words;
HR_INLINE Words words(const void* p) { return (const char*)p; }
typedef float f32_part __attribute__((vector_size(PART)));
typedef int32_t i32_part __attribute__((vector_size(PART)));
typedef uint32_t u32_part __attribute__((vector_size(PART)));

// sum += gain(w), part by part; gain(part of the sum, part of w) gives the new part of the sum.
template <class Sum, class Gain>
HR_INLINE void add_parts(Sum& sum, Words w, Gain&& gain) {
  typedef std::conditional_t<std::is_same_v<Sum, f32x16>, f32_part, i32_part> Part;
  for (int at = 0; at < 64; at += PART) {
    const Part part = gain(load_as<Part>((const char*)&sum + at), load_as<u32_part>(w + at));
    std::memcpy((char*)&sum + at, &part, PART);
  }
}
HR_INLINE f32_part fma(f32_part a, f32_part b, f32_part c) {
#if defined(__FMA__)
  return (f32_part)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
#endif

// `w`: 16 lanes of two bfloat16; `a`: two bfloat16.
HR_INLINE void add_dot2(f32x16& sum, Words w, const void* a) {
#if defined(__AVX512F__)
  sum = dot2(sum, w, a);
#else
  const uint32_t two = load_as<uint32_t>(a);
  const f32_part first = (f32_part)(u32_part{} + (two << 16)), second = (f32_part)(u32_part{} + (two & 0xffff0000u));
  add_parts(sum, w, [&](f32_part s, u32_part both) {
    return fma((f32_part)(both & 0xffff0000u), second, fma((f32_part)(both << 16), first, s));
  });
#endif
}

// `w`: 16 lanes of four unsigned bytes; `a`: four signed bytes. Exact.
HR_INLINE void add_dot4(i32x16& sum, Words w, const void* a) {
#if defined(__AVX512F__)
  sum = dot4(sum, w, a);
#elif defined(__AVX2__)
  const __m256i four = _mm256_set1_epi32(load_as<int32_t>(a));
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), odd = _mm256_srai_epi16(four, 8);
  add_parts(sum, w, [&](i32_part s, u32_part bytes) {
    const __m256i low = _mm256_madd_epi16(_mm256_and_si256((__m256i)bytes, _mm256_set1_epi16(255)), even);
    const __m256i high = _mm256_madd_epi16(_mm256_srli_epi16((__m256i)bytes, 8), odd);
    return s + ((i32_part)low + (i32_part)high);
  });
#else
  const int8_t* four = (const int8_t*)a;
  add_parts(sum, w, [&](i32_part s, u32_part bytes) {
    for (int i = 0; i < 4; i++) s += (i32_part)((bytes >> (8 * i)) & 255u) * int32_t(four[i]);
    return s;
  });
#endif
}

// `w`: 16 lanes of four signed bytes; `a`: four unsigned bytes. Exact.
HR_INLINE void add_dot4_signed(i32x16& sum, Words w, const void* a) {
#if defined(__AVX512VNNI__)
  sum = (i32x16)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(load_as<int32_t>(a)), (__m512i)w);
#elif defined(__AVX2__)
  const __m256i four = _mm256_set1_epi32(load_as<int32_t>(a));
  const __m256i even = _mm256_and_si256(four, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(four, 8);
  add_parts(sum, w, [&](i32_part s, u32_part bytes) {
    const __m256i low = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16((__m256i)bytes, 8), 8), even);
    const __m256i high = _mm256_madd_epi16(_mm256_srai_epi16((__m256i)bytes, 8), odd);
    return s + ((i32_part)low + (i32_part)high);
  });
#else
  const uint8_t* four = (const uint8_t*)a;
  add_parts(sum, w, [&](i32_part s, u32_part bytes) {
    for (int i = 0; i < 4; i++) s += ((i32_part)(bytes << (24 - 8 * i)) >> 24) * int32_t(four[i]);
    return s;
  });
#endif
}

}  // namespace hr
