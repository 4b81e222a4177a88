/* Vectors of float32 of the processor for which this is compiled, and what is done with them. */

#ifndef EYAS_VECTORS
#define EYAS_VECTORS

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
#define LANES 16
#define VECS 2
#define load _mm512_loadu_ps
#define load_half(p) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define store _mm512_storeu_ps
#define repeat _mm512_set1_ps
#define multiply_add _mm512_fmadd_ps
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
typedef __m256 vec;
#define LANES 8
#define VECS 2
#define load _mm256_loadu_ps
#define load_half(p) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define store _mm256_storeu_ps
#define repeat _mm256_set1_ps
#define multiply_add _mm256_fmadd_ps
#elif defined(__aarch64__)
#include <arm_neon.h>
typedef float32x4_t vec;
#define LANES 4
#define VECS 4
#define load vld1q_f32
#define load_half(p) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))
#define store vst1q_f32
#define repeat vdupq_n_f32
#define multiply_add(a, b, c) vfmaq_f32(c, a, b)
#else
#error "this processor has no fused multiply-add of vectors"
#endif

#define INLINE static inline __attribute__((always_inline))

typedef int32_t ints __attribute__((vector_size(LANES * sizeof(int32_t))));

/* Where `condition` has all bits set a, else b. */
INLINE ints choose_ints(ints condition, ints a, ints b)
{
    return (condition & a) | (~condition & b);
}

INLINE vec choose(ints condition, vec a, vec b)
{
    return (vec)choose_ints(condition, (ints)a, (ints)b);
}

/* e ** x for x <= 0, and 0 below -87 (Cephes' expf: a polynomial times a power of two). */
INLINE vec exponential(vec x)
{
    const ints is_low = (ints)(x < repeat(-87.0f));
    const vec y = choose(is_low, repeat(-87.0f), x), shift = repeat(12582912.0f); /* rounds to integers */
    const vec n = multiply_add(y, repeat(1.44269504f), shift) - shift;
    const vec r = multiply_add(n, repeat(2.12194440e-4f), multiply_add(n, repeat(-0.693359375f), y));
    vec e = repeat(1.9875691500e-4f);
    e = multiply_add(e, r, repeat(1.3981999507e-3f));
    e = multiply_add(e, r, repeat(8.3334519073e-3f));
    e = multiply_add(e, r, repeat(4.1665795894e-2f));
    e = multiply_add(e, r, repeat(1.6666665459e-1f));
    e = multiply_add(e, r, repeat(5.0000001201e-1f));
    e = multiply_add(e, r * r, r + repeat(1.0f));
    const ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    return choose(is_low, repeat(0.0f), e * (vec)power);
}

/* Numbers of an array of float32, or of the upper halves of such (bfloat16). */
INLINE vec load_numbers(const char *from, ptrdiff_t index, const int is_half)
{
    if (is_half)
        return load_half((const uint16_t *)from + index);
    return load((const float *)from + index);
}

typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t))));

/* Round to bfloat16, ties to even. */
INLINE halves as_halves(vec x)
{
    const ints bits = (ints)x, odd = (bits >> 16) & 1;
    const ints rounded = choose_ints((ints)(x != x), bits | 0x400000, bits + 0x7fff + odd);
    return __builtin_convertvector((rounded >> 16) & 0xffff, halves);
}

INLINE void store_numbers(char *to, ptrdiff_t index, vec x, const int is_half)
{
    if (is_half) {
        const halves some = as_halves(x);
        memcpy((uint16_t *)to + index, &some, sizeof some);
    } else {
        store((float *)to + index, x);
    }
}

/* `count` numbers of the next vector, and zeros after them. */
INLINE vec load_some(const char *from, ptrdiff_t index, ptrdiff_t count, const int is_half)
{
    if (count >= LANES)
        return load_numbers(from, index, is_half);
    char some[LANES * sizeof(float)] = {0};
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float);
    memcpy(some, from + index * size, count * size);
    return load_numbers(some, 0, is_half);
}

INLINE void store_some(char *to, ptrdiff_t index, vec x, ptrdiff_t count, const int is_half)
{
    if (count >= LANES) {
        store_numbers(to, index, x, is_half);
        return;
    }
    char some[LANES * sizeof(float)];
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float);
    store_numbers(some, 0, x, is_half);
    memcpy(to + index * size, some, count * size);
}

/* totals[i] = the sum of the lanes of sums[i], in one order of additions. */
INLINE void add_lanes(const vec sums[LANES], float totals[LANES])
{
#if LANES == 8
    const vec a = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    const vec b = _mm256_hadd_ps(_mm256_hadd_ps(sums[4], sums[5]), _mm256_hadd_ps(sums[6], sums[7]));
    store(totals, _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
#else
    float lanes[LANES][LANES];
    for (int i = 0; i < LANES; i++)
        store(lanes[i], sums[i]);
    for (int i = 0; i < LANES; i++) {
        totals[i] = lanes[i][0];
        for (int lane = 1; lane < LANES; lane++)
            totals[i] += lanes[i][lane];
    }
#endif
}

#endif
