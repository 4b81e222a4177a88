/* Attention of float32 queries over keys and values that lie in slots, in one order for any call. Keys and
   values are float32, or the upper halves of such numbers (bfloat16).

   A query attends to the columns of its lane up to its own position, of which each names a slot. Columns
   are taken in blocks that begin at multiples of BLOCK, in ascending order, and the softmax is corrected
   after each (online softmax: Milakov and Gimelshein, arXiv 1805.02867). Nothing that a query's output is
   made of depends on the other queries, so its bits depend on its own columns alone. */

#include <math.h>
#include <string.h>

#include "vectors.h"

#define BLOCK 32 /* columns, whose keys and values stay in the cache for all queries of a tile */
#define TILE 24  /* query heads of a tile */

/* Strides are counts of numbers. */
struct work {
    const float *q; /* [T][N][H] */
    const char *kv;
    ptrdiff_t slot_stride, head_stride, value_offset; /* value_offset: from a key to its value */
    const int64_t *slots; /* of each column of each lane */
    ptrdiff_t lane_stride;
    const int64_t *rows, *positions; /* [Y][Q]; row -1: no query */
    ptrdiff_t num_lanes, num_queries, num_kv_heads, per_kv, head_dim, value_dim;
    ptrdiff_t window;         /* positions that a query sees; 0: all */
    ptrdiff_t first_position; /* that has keys; an earlier query sees its own position alone */
    const float *sinks;       /* [N] or NULL */
    float *out;               /* [T][N][value_dim] */
    float scale;
    int is_half; /* kv has bfloat16 */
};

/* A query head of a tile: its columns are first .. last - 1. */
struct query {
    const float *q;
    float *out;
    ptrdiff_t first, last;
    float highest;
    float sums[LANES]; /* of the exponentials so far, by column modulo LANES */
};

INLINE float exponential_of(float x)
{
    float e[LANES];
    store(e, exponential(repeat(x)));
    return e[0];
}

INLINE float number_at(const char *from, ptrdiff_t index, const int is_half)
{
    if (!is_half)
        return ((const float *)from)[index];
    const uint32_t bits = (uint32_t)((const uint16_t *)from)[index] << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* scores[r][c] = queries[r].q . keys[c] for the columns first .. last - 1 of a block, and anything for the
   others. Two queries use a loaded key twice; the order of additions is the same. */
INLINE void score(const int num_queries, const int is_half, const struct query *queries,
                  const char *const *keys, ptrdiff_t dim, int first, int last, float scores[][BLOCK])
{
    const int width = LANES / num_queries;
    const ptrdiff_t whole = dim / LANES * LANES;
    for (int c = first / width * width; c < last; c += width) {
        vec sums[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            sums[i] = repeat(0.0f);
        for (ptrdiff_t h = 0; h < whole; h += LANES)
#pragma GCC unroll 16
            for (int i = 0; i < width; i++) {
                const vec key = load_numbers(keys[c + i], h, is_half);
#pragma GCC unroll 2
                for (int r = 0; r < num_queries; r++)
                    sums[r * width + i] = multiply_add(load(queries[r].q + h), key, sums[r * width + i]);
            }
        float totals[LANES];
        add_lanes(sums, totals);
        for (ptrdiff_t h = whole; h < dim; h++)
            for (int i = 0; i < LANES; i++)
                totals[i] += queries[i / width].q[h] * number_at(keys[c + i % width], h, is_half);
        for (int r = 0; r < num_queries; r++)
            memcpy(scores[r] + c, totals + r * width, width * sizeof(float));
    }
}

/* Scale a block's scores and replace them by their exponentials, less the highest score of the query so
   far; by 0 for the columns before `first` and from `last` on. Returns the factor of what was added up
   before. */
INLINE float take_scores(struct query *query, float scale, int first, int last, float *scores)
{
    static const int32_t NUMBERS[BLOCK] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                           16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    vec tops = repeat(query->highest);
    for (int c = 0; c < BLOCK; c += LANES) {
        ints column;
        memcpy(&column, NUMBERS + c, sizeof column);
        const ints is_seen = (column >= first) & (column < last);
        const vec part = choose(is_seen, load(scores + c) * repeat(scale), repeat(-INFINITY));
        store(scores + c, part);
        tops = choose((ints)(part > tops), part, tops);
    }
    float highest = query->highest, of_lanes[LANES];
    store(of_lanes, tops);
    for (int i = 0; i < LANES; i++)
        highest = of_lanes[i] > highest ? of_lanes[i] : highest;
    const float factor = exponential_of(query->highest - highest);
    vec sums = load(query->sums) * repeat(factor);
    for (int c = 0; c < BLOCK; c += LANES) {
        const vec part = exponential(load(scores + c) - repeat(highest));
        store(scores + c, part);
        sums += part;
    }
    store(query->sums, sums);
    query->highest = highest;
    return factor;
}

/* out = out * factor + weights @ values, for `vecs` vectors at `offset` and the columns first ..
   last - 1. A factor of 0 begins the sum: out has not been written then. */
INLINE void add_values(const int num_queries, const int vecs, const int is_half, struct query *queries,
                       float weights[][BLOCK], const float *factors, const char *const *values,
                       ptrdiff_t offset, int first, int last)
{
    vec sums[2][8];
#pragma GCC unroll 2
    for (int r = 0; r < num_queries; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            sums[r][v] = repeat(0.0f);
            if (factors[r] != 0.0f)
                sums[r][v] = load(queries[r].out + offset + v * LANES) * repeat(factors[r]);
        }
    for (int c = first; c < last; c++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            const vec value = load_numbers(values[c], offset + v * LANES, is_half);
#pragma GCC unroll 2
            for (int r = 0; r < num_queries; r++)
                sums[r][v] = multiply_add(repeat(weights[r][c]), value, sums[r][v]);
        }
#pragma GCC unroll 2
    for (int r = 0; r < num_queries; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            store(queries[r].out + offset + v * LANES, sums[r][v]);
}

/* Take the columns first .. last - 1 of a block into the softmax of one or two queries. */
INLINE void take_block(const struct work *w, const int num_queries, const int is_half, struct query *queries,
                       const char *const *keys, const char *const *values, int first, int last)
{
    float weights[2][BLOCK], factors[2];
    score(num_queries, is_half, queries, keys, w->head_dim, first, last, weights);
    for (int r = 0; r < num_queries; r++)
        factors[r] = take_scores(&queries[r], w->scale, first, last, weights[r]);
    const ptrdiff_t dim = w->value_dim;
    ptrdiff_t d = 0;
#define PIECES(V)                                    for (; d + V * LANES <= dim; d += V * LANES)         add_values(num_queries, V, is_half, queries, weights, factors, values, d, first, last);
    if (num_queries == 1) {
        PIECES(8)
    }
    PIECES(4) PIECES(2) PIECES(1)
#undef PIECES
    for (; d < dim; d++)
        for (int r = 0; r < num_queries; r++) {
            float sum = factors[r] == 0.0f ? 0.0f : queries[r].out[d] * factors[r];
            for (int c = first; c < last; c++)
                sum += weights[r][c] * number_at(values[c], d, is_half);
            queries[r].out[d] = sum;
        }
}

/* The columns of a block that a query sees, counted from the block's first. */
INLINE int first_in(const struct query *query, ptrdiff_t block)
{
    return query->first > block ? (int)(query->first - block) : 0;
}

INLINE int last_in(const struct query *query, ptrdiff_t block)
{
    return query->last - block < BLOCK ? (int)(query->last - block) : BLOCK;
}

INLINE void finish(const struct work *w, struct query *query, const float *sink)
{
    float sum = 0.0f, factor = 1.0f;
    for (int i = 0; i < LANES; i++)
        sum += query->sums[i];
    if (sink) { /* it competes with the keys and has no value */
        const float highest = *sink > query->highest ? *sink : query->highest;
        const float kept = exponential_of(query->highest - highest);
        sum = sum * kept + exponential_of(*sink - highest);
        factor *= kept;
    }
    for (ptrdiff_t d = 0; d < w->value_dim; d++)
        query->out[d] = query->out[d] * factor / sum;
}

/* Run the query heads `from` .. `to` - 1 of a lane that share a key head, counted query by query. */
INLINE void run_tile(const struct work *w, const int is_half, ptrdiff_t lane, ptrdiff_t kv_head, ptrdiff_t from,
                     ptrdiff_t to)
{
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float);
    struct query tile[TILE];
    ptrdiff_t heads[TILE], start = -1, stop = 0;
    int count = 0;
    for (ptrdiff_t i = from; i < to; i++) {
        const ptrdiff_t at = lane * w->num_queries + i / w->per_kv, row = w->rows[at];
        if (row < 0)
            continue;
        const ptrdiff_t position = w->positions[at], head = kv_head * w->per_kv + i % w->per_kv;
        ptrdiff_t first = w->window && position >= w->window ? position - w->window + 1 : 0;
        if (first < w->first_position)
            first = position < w->first_position ? position : w->first_position;
        const ptrdiff_t place = row * w->num_kv_heads * w->per_kv + head;
        heads[count] = head;
        tile[count++] = (struct query){w->q + place * w->head_dim, w->out + place * w->value_dim, first,
                                       position + 1, -INFINITY, {0.0f}};
        start = start < 0 || first < start ? first : start;
        stop = position + 1 > stop ? position + 1 : stop;
    }
    const int64_t *slots = w->slots + lane * w->lane_stride;
    const char *const base = w->kv + kv_head * w->head_stride * size;
    for (ptrdiff_t block = start / BLOCK * BLOCK; block < stop; block += BLOCK) {
        const char *keys[BLOCK], *values[BLOCK];
        for (ptrdiff_t c = 0; c < BLOCK; c++) { /* behind the last column its slot repeats, unread */
            keys[c] = base + slots[block + c < stop ? block + c : stop - 1] * w->slot_stride * size;
            values[c] = keys[c] + w->value_offset * size;
        }
        for (int i = 0; i < count;) {
            const int first = first_in(&tile[i], block), last = last_in(&tile[i], block);
            const int is_pair = i + 1 < count && first == first_in(&tile[i + 1], block) &&
                                last == last_in(&tile[i + 1], block);
            if (first < last) {
                if (is_pair)
                    take_block(w, 2, is_half, &tile[i], keys, values, first, last);
                else
                    take_block(w, 1, is_half, &tile[i], keys, values, first, last);
            }
            i += 1 + is_pair;
        }
    }
    for (int i = 0; i < count; i++)
        finish(w, &tile[i], w->sinks ? w->sinks + heads[i] : NULL);
}

/* Write the outputs of all queries. */
void eyas_attend(const struct work *w, int num_threads)
{
    const ptrdiff_t length = w->num_queries * w->per_kv, num_tiles = (length + TILE - 1) / TILE;
    const ptrdiff_t num_items = w->num_lanes * w->num_kv_heads * num_tiles;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads) if (num_threads > 1)
    for (ptrdiff_t item = 0; item < num_items; item++) {
        const ptrdiff_t from = item % num_tiles * TILE, others = item / num_tiles;
        const ptrdiff_t to = from + TILE < length ? from + TILE : length;
        const ptrdiff_t lane = others / w->num_kv_heads, kv_head = others % w->num_kv_heads;
        if (w->is_half)
            run_tile(w, 1, lane, kv_head, from, to);
        else
            run_tile(w, 0, lane, kv_head, from, to);
    }
}
