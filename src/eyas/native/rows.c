/* What a layer does to each row between its products: add and normalise, rotate and store, gate. Numbers
   are float32, or the upper halves of such (bfloat16), and are rounded where torch's operations round.

   A row is read and written by one thread, in an order that depends on its width alone. */

#include <math.h>
#include <string.h>

#include "vectors.h"

#define SERIAL 32768 /* numbers that one thread takes */

INLINE vec rounded(vec x, const int is_half)
{
    if (!is_half)
        return x;
    return (vec)(__builtin_convertvector(as_halves(x), ints) << 16);
}

/* 1 / sqrt(mean of squares + epsilon) of the numbers whose squares `sums` holds. */
INLINE vec root_of(vec sums, ptrdiff_t size, float epsilon)
{
    float lanes[LANES], sum = 0.0f;
    store(lanes, sums);
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return repeat(1.0f / sqrtf(sum / (float)size + epsilon));
}

INLINE void add_norm_row(const char *stream, const char *parts, const char *weight, ptrdiff_t size,
                         float epsilon, char *sum, char *out, const int is_half)
{
    vec squares = repeat(0.0f);
    for (ptrdiff_t i = 0; i < size; i += LANES) {
        vec x = load_some(stream, i, size - i, is_half);
        if (parts) {
            x = rounded(x + load_some(parts, i, size - i, is_half), is_half);
            store_some(sum, i, x, size - i, is_half);
        }
        squares = multiply_add(x, x, squares);
    }
    const vec scale = root_of(squares, size, epsilon);
    for (ptrdiff_t i = 0; i < size; i += LANES) {
        vec x = load_some(parts ? sum : stream, i, size - i, is_half) * scale;
        if (weight)
            x = x * load_some(weight, i, size - i, is_half);
        store_some(out, i, x, size - i, is_half);
    }
}

/* sum = stream + parts (without parts nothing is written there), out = its norm times the weight, or the
   norm alone; [num_rows][size] each. */
void eyas_add_norm(const char *stream, const char *parts, const char *weight, ptrdiff_t num_rows,
                   ptrdiff_t size, float epsilon, char *sum, char *out, int is_half, int num_threads)
{
    const ptrdiff_t row_bytes = size * (is_half ? sizeof(uint16_t) : sizeof(float));
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && num_rows * size > SERIAL)
    for (ptrdiff_t row = 0; row < num_rows; row++) {
        const ptrdiff_t at = row * row_bytes;
        const char *const own_parts = parts ? parts + at : NULL;
        if (is_half)
            add_norm_row(stream + at, own_parts, weight, size, epsilon, sum + at, out + at, 1);
        else
            add_norm_row(stream + at, own_parts, weight, size, epsilon, sum + at, out + at, 0);
    }
}

/* Rows [T][D + F]: embedding and feature of each side by side, normalised by its weight or, without one, as they
   are. tokens: rows of embeddings [V][D]; others have zeros. zero_first: so have positions up to 1. */
void eyas_join(const int64_t *tokens, const int64_t *positions, const char *embeddings, ptrdiff_t num_embeddings,
               const char *features, ptrdiff_t num_rows, ptrdiff_t size, ptrdiff_t feature_size, const char *embedding_weight,
               const char *feature_weight, float epsilon, int zero_first, int embedding_first, char *out, int is_half)
{
    const ptrdiff_t bytes = is_half ? sizeof(uint16_t) : sizeof(float);
    for (ptrdiff_t row = 0; row < num_rows; row++) {
        char *const own = out + row * (size + feature_size) * bytes;
        char *const embedded = own + (embedding_first ? 0 : feature_size * bytes);
        char *const featured = own + (embedding_first ? size * bytes : 0);
        const char *const embedding = embeddings + tokens[row] * size * bytes;
        const char *const feature = features + row * feature_size * bytes;
        const int is_known = tokens[row] >= 0 && tokens[row] < num_embeddings;
        if (!is_known || (zero_first && positions[row] <= 1))
            memset(embedded, 0, size * bytes);
        else if (!embedding_weight)
            memcpy(embedded, embedding, size * bytes);
        else if (is_half)
            add_norm_row(embedding, NULL, embedding_weight, size, epsilon, NULL, embedded, 1);
        else
            add_norm_row(embedding, NULL, embedding_weight, size, epsilon, NULL, embedded, 0);
        if (!feature_weight)
            memcpy(featured, feature, feature_size * bytes);
        else if (is_half)
            add_norm_row(feature, NULL, feature_weight, feature_size, epsilon, NULL, featured, 1);
        else
            add_norm_row(feature, NULL, feature_weight, feature_size, epsilon, NULL, featured, 0);
    }
}

/* Strides are counts of numbers. */
struct heads {
    const char *heads; /* [T][(N + 2 G) * H]: queries, keys and values */
    ptrdiff_t row_stride;
    const char *table;        /* [P][2][H]: cosines, and sines of which the first half is negated */
    const int64_t *positions; /* [T], of rows of the table */
    const int64_t *slots;     /* [T] */
    const char *weights;      /* [N + G][H], or NULL: heads are not normalised */
    char *queries;            /* [T][N][H] */
    char *kv;
    ptrdiff_t slot_stride, side_stride, head_stride;
    ptrdiff_t num_rows, num_query_heads, num_kv_heads, head_dim;
    float epsilon;
    int is_half;
};

/* Zeros for what is no finite number. */
INLINE vec finite(vec x)
{
    const vec difference = x - x; /* 0, or no number */
    return choose((ints)(difference == difference), x, repeat(0.0f));
}

INLINE void rotate_head(const char *from, const char *angles, const char *weight, ptrdiff_t dim, float epsilon,
                        char *to, char *scratch, const int is_key, const int is_half)
{
    const ptrdiff_t half = dim / 2, size = is_half ? sizeof(uint16_t) : sizeof(float);
    if (weight) {
        vec squares = repeat(0.0f);
        for (ptrdiff_t i = 0; i < dim; i += LANES) {
            const vec x = load_some(from, i, dim - i, is_half);
            squares = multiply_add(x, x, squares);
        }
        const vec scale = root_of(squares, dim, epsilon);
        for (ptrdiff_t i = 0; i < dim; i += LANES) {
            const vec x = rounded(load_some(from, i, dim - i, is_half) * scale, is_half);
            store_some(scratch, i, x * load_some(weight, i, dim - i, is_half), dim - i, is_half);
        }
        from = scratch;
    }
    for (ptrdiff_t side = 0; side < 2; side++) /* the two halves are a pair of vectors each */
        for (ptrdiff_t i = 0; i < half; i += LANES) {
            const ptrdiff_t at = side * half + i, other = half - side * half + i, count = half - i;
            const vec cosine = load_some(angles, at, count, is_half);
            const vec sine = load_some(angles + dim * size, at, count, is_half);
            const vec straight = rounded(load_some(from, at, count, is_half) * cosine, is_half);
            const vec crossed = rounded(load_some(from, other, count, is_half) * sine, is_half);
            const vec turned = rounded(straight + crossed, is_half);
            store_some(to, at, is_key ? finite(turned) : turned, count, is_half);
        }
}

INLINE void rotate_row(const struct heads *w, ptrdiff_t row, const int is_half)
{
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float), dim = w->head_dim;
    const ptrdiff_t num_queries = w->num_query_heads, num_kv = w->num_kv_heads;
    const char *const from = w->heads + row * w->row_stride * size;
    const char *const angles = w->table + w->positions[row] * 2 * dim * size;
    char *const slot = w->kv + w->slots[row] * w->slot_stride * size;
    char scratch[dim * sizeof(float)];
    for (ptrdiff_t n = 0; n < num_queries + num_kv; n++) {
        const int is_key = n >= num_queries;
        char *const to = is_key ? slot + (n - num_queries) * w->head_stride * size
                                : w->queries + (row * num_queries + n) * dim * size;
        const char *const weight = w->weights ? w->weights + n * dim * size : NULL;
        if (is_key)
            rotate_head(from + n * dim * size, angles, weight, dim, w->epsilon, to, scratch, 1, is_half);
        else
            rotate_head(from + n * dim * size, angles, weight, dim, w->epsilon, to, scratch, 0, is_half);
    }
    for (ptrdiff_t g = 0; g < num_kv; g++) {
        const char *const value = from + (num_queries + num_kv + g) * dim * size;
        char *const to = slot + (w->side_stride + g * w->head_stride) * size;
        for (ptrdiff_t i = 0; i < dim; i += LANES)
            store_some(to, i, finite(load_some(value, i, dim - i, is_half)), dim - i, is_half);
    }
}

/* Rows that share a slot leave it with finite numbers of theirs. */
void eyas_rotate_and_store(const struct heads *w, int num_threads)
{
    const ptrdiff_t numbers = w->num_rows * (w->num_query_heads + 2 * w->num_kv_heads) * w->head_dim;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && numbers > SERIAL)
    for (ptrdiff_t row = 0; row < w->num_rows; row++)
        if (w->is_half)
            rotate_row(w, row, 1);
        else
            rotate_row(w, row, 0);
}

INLINE void gate_row(const char *gate, const char *up, char *out, ptrdiff_t size, const int is_half)
{
    for (ptrdiff_t i = 0; i < size; i += LANES) {
        const vec x = load_some(gate, i, size - i, is_half);
        const ints is_negative = (ints)(x < repeat(0.0f));
        const vec power = exponential(choose(is_negative, x, -x)); /* of -|x| */
        const vec silu = x * choose(is_negative, power, repeat(1.0f)) / (repeat(1.0f) + power);
        store_some(out, i, rounded(silu, is_half) * load_some(up, i, size - i, is_half), size - i, is_half);
    }
}

/* out [num_rows][size] = silu of the first half of the columns, times the second half. */
void eyas_gate(const char *gate_up, ptrdiff_t row_stride, ptrdiff_t num_rows, ptrdiff_t size, char *out,
               int is_half, int num_threads)
{
    const ptrdiff_t bytes = is_half ? sizeof(uint16_t) : sizeof(float);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && num_rows * size > SERIAL)
    for (ptrdiff_t row = 0; row < num_rows; row++) {
        const char *const gate = gate_up + row * row_stride * bytes;
        if (is_half)
            gate_row(gate, gate + size * bytes, out + row * size * bytes, size, 1);
        else
            gate_row(gate, gate + size * bytes, out + row * size * bytes, size, 0);
    }
}
