/* The two passes with SSE4.1 and AVX2. The functions alone are built for their instruction set, chosen when they are called: the
   library runs on any x86-64. Sums are the scalar code's, modulo 2^32, in another order: the same bits. */
#include "headrace_native.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define SSE41 __attribute__((target("sse4.1")))
#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

/* Pixels 0 and 1, channel by channel, as 16-bit pairs: R0 R1 G0 G1 B0 B1 0 0. */
#define PAIR_OF_PIXELS 0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1
/* Four pixels of 4 bytes to 3 bytes. */
#define PACK_PIXELS 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1

/* ---- SSE4.1 ---- */

/* 2^11 * upper + lower, rounded, shifted to levels. */
SSE41 static inline __m128i settle_sse41(__m128i upper, __m128i lower) {
  __m128i sum = _mm_add_epi32(_mm_slli_epi32(upper, HN_LOWER_BITS), lower);
  return _mm_srli_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << (HN_PRECISION - 1))), HN_PRECISION);
}

/* One output pixel of a row as four 32-bit levels. */
SSE41 static inline __m128i pixel_sse41(const uint8_t *in, const hn_weights *weights, int64_t pairs) {
  const __m128i spread = _mm_setr_epi8(PAIR_OF_PIXELS);
  __m128i upper = _mm_setzero_si128(), lower = _mm_setzero_si128();
  for (int64_t p = 0; p < pairs; p++, in += 6) {
    __m128i pixels = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)in), spread);
    upper = _mm_add_epi32(upper, _mm_madd_epi16(pixels, _mm_set1_epi32(weights[p].upper)));
    lower = _mm_add_epi32(lower, _mm_madd_epi16(pixels, _mm_set1_epi32(weights[p].lower)));
  }
  return settle_sse41(upper, lower);
}

SSE41 void hn_across_sse41(const uint8_t *const in[2], const hn_axis *axis, uint8_t *const out[2]) {
  const __m128i pack = _mm_setr_epi8(PACK_PIXELS);
  for (int row = 0; row < 2; row++) {
    for (int64_t i = 0; i < axis->count; i++) {
      __m128i levels = pixel_sse41(in[row] + 3 * (size_t)axis->start[i], axis->weights + i * axis->pairs, axis->pairs);
      __m128i words = _mm_packs_epi32(levels, levels);
      __m128i bytes = _mm_shuffle_epi8(_mm_packus_epi16(words, words), pack);
      int32_t pixel = _mm_cvtsi128_si32(bytes);
      memcpy(out[row] + 3 * i, &pixel, sizeof pixel); /* the fourth byte is overwritten by the next pixel, or slack */
    }
  }
}

SSE41 void hn_down_sse41(const uint8_t *const *rows_of, const hn_weights *weights, int64_t pairs, uint8_t *out, size_t bytes) {
  const __m128i zero = _mm_setzero_si128();
  if (bytes < 16) {
    hn_down_scalar(rows_of, weights, pairs, out, bytes);
    return;
  }
  for (size_t begin = 0; begin < bytes; begin += 16) {
    /* The last block begins earlier, so that nothing beyond the row is touched. */
    size_t at = begin + 16 <= bytes ? begin : bytes - 16;
    __m128i upper[4] = {zero, zero, zero, zero}, lower[4] = {zero, zero, zero, zero};
    for (int64_t p = 0; p < pairs; p++) {
      __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(rows_of[2 * p] + at));
      __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(rows_of[2 * p + 1] + at));
      __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
      __m128i parts[4] = {_mm_unpacklo_epi8(low, zero), _mm_unpackhi_epi8(low, zero), _mm_unpacklo_epi8(high, zero),
                          _mm_unpackhi_epi8(high, zero)};
      __m128i u = _mm_set1_epi32(weights[p].upper), l = _mm_set1_epi32(weights[p].lower);
      for (int i = 0; i < 4; i++) {
        upper[i] = _mm_add_epi32(upper[i], _mm_madd_epi16(parts[i], u));
        lower[i] = _mm_add_epi32(lower[i], _mm_madd_epi16(parts[i], l));
      }
    }
    __m128i low = _mm_packs_epi32(settle_sse41(upper[0], lower[0]), settle_sse41(upper[1], lower[1]));
    __m128i high = _mm_packs_epi32(settle_sse41(upper[2], lower[2]), settle_sse41(upper[3], lower[3]));
    __m128i levels = _mm_packus_epi16(low, high);
    _mm_storeu_si128((__m128i *)(void *)(out + at), levels);
  }
}

/* ---- AVX2: the same, on two rows at once in the first pass, on 32 bytes at once in the second ---- */

AVX2 static inline __m256i settle_avx2(__m256i upper, __m256i lower) {
  __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(upper, HN_LOWER_BITS), lower);
  return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (HN_PRECISION - 1))), HN_PRECISION);
}

/* One output pixel of each of two rows. */
AVX2 INLINE __m256i pixel_avx2(const uint8_t *in0, const uint8_t *in1, const hn_axis *axis, int64_t i, int64_t pairs) {
  const __m256i spread = _mm256_setr_epi8(PAIR_OF_PIXELS, PAIR_OF_PIXELS);
  size_t at = 3 * (size_t)axis->start[i];
  const uint8_t *a = in0 + at, *b = in1 + at;
  const hn_weights *weights = axis->weights + i * pairs;
  __m256i upper = _mm256_setzero_si256(), lower = _mm256_setzero_si256();
  for (int64_t p = 0; p < pairs; p++, a += 6, b += 6) {
    __m256i pixels = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)a));
    pixels = _mm256_inserti128_si256(pixels, _mm_loadu_si128((const __m128i *)(const void *)b), 1);
    pixels = _mm256_shuffle_epi8(pixels, spread);
    upper = _mm256_add_epi32(upper, _mm256_madd_epi16(pixels, _mm256_set1_epi32(weights[p].upper)));
    lower = _mm256_add_epi32(lower, _mm256_madd_epi16(pixels, _mm256_set1_epi32(weights[p].lower)));
  }
  return settle_avx2(upper, lower);
}

/* All output pixels of two rows; `pairs` is a constant where it is inlined, so that its loop is unrolled. */
AVX2 INLINE void across_avx2(const uint8_t *const in[2], const hn_axis *axis, uint8_t *const out[2], int64_t pairs) {
  const __m256i pack = _mm256_setr_epi8(PACK_PIXELS, PACK_PIXELS);
  const uint8_t *a = in[0], *b = in[1];
  uint8_t *to_a = out[0], *to_b = out[1];
  int64_t i = 0;
  /* Four pixels: 12 bytes are written as 16, the rest is overwritten by the next ones, or slack. */
  for (; i + 4 <= axis->count; i += 4) {
    __m256i low = _mm256_packs_epi32(pixel_avx2(a, b, axis, i, pairs), pixel_avx2(a, b, axis, i + 1, pairs));
    __m256i high = _mm256_packs_epi32(pixel_avx2(a, b, axis, i + 2, pairs), pixel_avx2(a, b, axis, i + 3, pairs));
    __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(low, high), pack);
    _mm_storeu_si128((__m128i *)(void *)(to_a + 3 * i), _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)(void *)(to_b + 3 * i), _mm256_extracti128_si256(bytes, 1));
  }
  for (; i < axis->count; i++) {
    __m256i words = _mm256_packs_epi32(pixel_avx2(a, b, axis, i, pairs), _mm256_setzero_si256());
    __m256i bytes = _mm256_packus_epi16(words, words);
    int32_t first = _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes));
    int32_t second = _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));
    memcpy(to_a + 3 * i, &first, sizeof first);
    memcpy(to_b + 3 * i, &second, sizeof second);
  }
}

AVX2 void hn_across_avx2(const uint8_t *const in[2], const hn_axis *axis, uint8_t *const out[2]) {
  switch (axis->pairs) {
    case 1: across_avx2(in, axis, out, 1); break;
    case 2: across_avx2(in, axis, out, 2); break;
    case 3: across_avx2(in, axis, out, 3); break;
    default: across_avx2(in, axis, out, axis->pairs);
  }
}

/* One output row. rows_of: the 2 * pairs rows that it sums; `pairs` as above. */
AVX2 INLINE void down_avx2(const uint8_t *const *rows_of, const hn_weights *weights, int64_t pairs, uint8_t *out, size_t bytes) {
  const __m256i zero = _mm256_setzero_si256();
  for (size_t begin = 0; begin < bytes; begin += 32) {
    /* The last block begins earlier, so that nothing beyond the row is touched. */
    size_t at = begin + 32 <= bytes ? begin : bytes - 32;
    __m256i upper[4] = {zero, zero, zero, zero}, lower[4] = {zero, zero, zero, zero};
    for (int64_t p = 0; p < pairs; p++) {
      __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(rows_of[2 * p] + at));
      __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(rows_of[2 * p + 1] + at));
      __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
      __m256i parts[4] = {_mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero), _mm256_unpacklo_epi8(high, zero),
                          _mm256_unpackhi_epi8(high, zero)};
      __m256i u = _mm256_set1_epi32(weights[p].upper), l = _mm256_set1_epi32(weights[p].lower);
      for (int i = 0; i < 4; i++) {
        upper[i] = _mm256_add_epi32(upper[i], _mm256_madd_epi16(parts[i], u));
        lower[i] = _mm256_add_epi32(lower[i], _mm256_madd_epi16(parts[i], l));
      }
    }
    __m256i low = _mm256_packs_epi32(settle_avx2(upper[0], lower[0]), settle_avx2(upper[1], lower[1]));
    __m256i high = _mm256_packs_epi32(settle_avx2(upper[2], lower[2]), settle_avx2(upper[3], lower[3]));
    _mm256_storeu_si256((__m256i *)(void *)(out + at), _mm256_packus_epi16(low, high));
  }
}

AVX2 void hn_down_avx2(const uint8_t *const *rows_of, const hn_weights *weights, int64_t pairs, uint8_t *out, size_t bytes) {
  if (bytes < 32) {
    hn_down_scalar(rows_of, weights, pairs, out, bytes);
    return;
  }
  switch (pairs) {
    case 1: down_avx2(rows_of, weights, 1, out, bytes); break;
    case 2: down_avx2(rows_of, weights, 2, out, bytes); break;
    case 3: down_avx2(rows_of, weights, 3, out, bytes); break;
    default: down_avx2(rows_of, weights, pairs, out, bytes);
  }
}
#endif
