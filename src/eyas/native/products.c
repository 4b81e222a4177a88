/* Products of rows with packed weights, in one order of additions for any number of rows.

   An element of the result is one chain of fused multiply-adds over ascending columns, whichever tile
   computes it, or the sum in a binary tree of such chains over pieces of the columns; so its bits depend
   on its row and its weights alone. Weights are packed in panels of PANEL outputs, [O / PANEL][I][PANEL],
   of which the last is filled up with zeros: float32 numbers, or the upper halves of numbers whose lower
   halves are zero (bfloat16).

   Rows of bfloat16, where the processor has an instruction for them: a link of the chain is the
   instruction's sum of two products, in float32, and the last sum is rounded. Two neighbouring columns of
   rows and of weights are then one "column" of 32 bits, of which there are I / 2. */

#include "vectors.h"

#define PANEL (LANES * VECS)
#define GROUP 4    /* panels that a thread takes at once */
#define ROWS 6     /* of the largest tile */
#define CHUNK 48   /* rows whose columns stay in the cache for all panels of a group */
#define DEPTH 1024 /* columns of a panel that stay in the cache for all rows of a chunk */
#define NEAR 98304 /* bytes between tiles up to which the next one is prefetched into the nearer caches */
#define AHEAD 3072 /* bytes of a longer tile's panels that are prefetched */
#define LINE 64    /* bytes of a line of a cache */
#define LEVELS 4   /* sums of a tree over MOST_PIECES pieces that there are at once */
#define MOST_PIECES 8

enum kind { FLOATS, HALVES, PAIRS }; /* the numbers of weights: float32; bfloat16; bfloat16 of both */

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__) /* AMX is faster for many rows */
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

/* sum + x * w. */
INLINE vec add_product(vec x, vec w, vec sum, const enum kind kind)
{
#if HAS_PAIRS
    if (kind == PAIRS)
        return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
#endif
    return multiply_add(x, w, sum);
}

/* Add to `rows` x `panels` sums, all of which stay in registers. x: of the first row and column. w: of
   the first panel and column. is_first: the sums begin here, they are not in `out` yet. */
INLINE void run_tile(const int rows, const int panels, const enum kind kind, const float *x, ptrdiff_t x_stride,
                     const char *w, ptrdiff_t w_stride, ptrdiff_t depth, float *out, ptrdiff_t out_stride,
                     int is_first)
{
    const ptrdiff_t size = kind == HALVES ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t tile = panels * w_stride * size;
    /* Processors fetch ahead within a page alone. One row of a long tile waits for the memory in any case. */
    const ptrdiff_t ahead = tile <= NEAR ? tile : rows > 1 ? AHEAD : 0;
    vec sum[ROWS][GROUP * VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < panels * VECS; v++)
            sum[r][v] = is_first ? repeat(0.0f) : load(out + r * out_stride + v * LANES);
#pragma GCC unroll 4
    for (ptrdiff_t k = 0; k < depth; k++) {
        if (ahead)
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
#pragma GCC unroll 4
                for (ptrdiff_t byte = 0; byte < PANEL * size; byte += LINE)
                    __builtin_prefetch(w + (p * w_stride + k * PANEL) * size + byte + ahead);
        if (rows > panels * VECS) { /* the fewer of both are loaded first and stay in registers */
            vec weights[GROUP * VECS];
#pragma GCC unroll 16
            for (int v = 0; v < panels * VECS; v++)
                weights[v] = load_numbers(w, v / VECS * w_stride + k * PANEL + v % VECS * LANES, kind == HALVES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vec of_row = repeat(x[r * x_stride + k]);
#pragma GCC unroll 16
                for (int v = 0; v < panels * VECS; v++)
                    sum[r][v] = add_product(of_row, weights[v], sum[r][v], kind);
            }
        } else {
            vec of_rows[ROWS];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                of_rows[r] = repeat(x[r * x_stride + k]);
#pragma GCC unroll 16
            for (int v = 0; v < panels * VECS; v++) {
                const vec weights = load_numbers(w, v / VECS * w_stride + k * PANEL + v % VECS * LANES, kind == HALVES);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    sum[r][v] = add_product(of_rows[r], weights, sum[r][v], kind);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < panels * VECS; v++)
            store(out + r * out_stride + v * LANES, sum[r][v]);
}

/* Run up to ROWS rows with all panels of a group. Few rows take several panels at once, so that enough
   independent chains hide the latency of an addition. */
INLINE void run_rows(int rows, int panels, const enum kind kind, const float *x, ptrdiff_t x_stride,
                     const char *w, ptrdiff_t w_stride, ptrdiff_t depth, float *out, ptrdiff_t out_stride,
                     int is_first)
{
    const ptrdiff_t size = kind == HALVES ? sizeof(uint16_t) : sizeof(float);
    int p = 0;
#define TILES(R, P)                                                                            \
    for (; p + P <= panels; p += P)                                                            \
        run_tile(R, P, kind, x, x_stride, w + p * w_stride * size, w_stride, depth, out + p * PANEL, \
                 out_stride, is_first);
    switch (rows) {
    case 1: TILES(1, 4) TILES(1, 1) break;
    case 2: TILES(2, 2) TILES(2, 1) break;
    case 3: TILES(3, 2) TILES(3, 1) break;
    case 4: TILES(4, 1) break;
    case 5: TILES(5, 1) break;
    case 6: TILES(6, 1) break;
    }
#undef TILES
}

INLINE void run_group(ptrdiff_t group, const enum kind kind, const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows,
                      const char *w, const float *bias, ptrdiff_t num_out, ptrdiff_t num_in, char *out)
{
    const ptrdiff_t size = kind == HALVES ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t out_size = kind == PAIRS ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t first = group * GROUP * PANEL, w_stride = num_in * PANEL;
    const ptrdiff_t width = num_out - first < GROUP * PANEL ? num_out - first : GROUP * PANEL;
    const int panels = (int)((width + PANEL - 1) / PANEL);
    const int is_in_place = width == panels * PANEL && kind != PAIRS;
    float sums[CHUNK * GROUP * PANEL]; /* that are to be rounded, or would be written behind the row */
    for (ptrdiff_t row = 0; row < num_rows; row += CHUNK) {
        const int rows = num_rows - row < CHUNK ? (int)(num_rows - row) : CHUNK;
        float *to = is_in_place ? (float *)out + row * num_out + first : sums;
        const ptrdiff_t to_stride = is_in_place ? num_out : GROUP * PANEL;
        for (ptrdiff_t k = 0; k == 0 || k < num_in; k += DEPTH) {
            const ptrdiff_t depth = num_in - k < DEPTH ? num_in - k : DEPTH;
            for (int r = 0; r < rows; r += ROWS)
                run_rows(rows - r < ROWS ? rows - r : ROWS, panels, kind, x + (row + r) * x_stride + k,
                         x_stride, w + (first * num_in + k * PANEL) * size, w_stride, depth,
                         to + r * to_stride, to_stride, k == 0);
        }
        if (is_in_place && !bias)
            continue;
        for (int r = 0; r < rows; r++) {
            char *of_row = out + ((row + r) * num_out + first) * out_size;
            for (ptrdiff_t c = 0; c < width; c += LANES) {
                vec sum = load(to + r * to_stride + c);
                if (bias)
                    sum = sum + load_some((const char *)(bias + first), c, width - c, 0);
                store_some(of_row, c, sum, width - c, kind == PAIRS);
            }
        }
    }
}

/* As run_group, but an element is a sum in a binary tree: of chains over `pieces` equal ranges of columns,
   a power of 2 up to MOST_PIECES, of which neighbours are added until one is left. */
INLINE void run_tree(ptrdiff_t group, const enum kind kind, const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows,
                     const char *w, ptrdiff_t num_out, ptrdiff_t num_in, int pieces, float *out)
{
    const ptrdiff_t size = kind == HALVES ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t first = group * GROUP * PANEL, w_stride = num_in * PANEL, piece = num_in / pieces;
    const ptrdiff_t width = num_out - first < GROUP * PANEL ? num_out - first : GROUP * PANEL;
    const int panels = (int)((width + PANEL - 1) / PANEL);
    float sums[LEVELS][CHUNK * GROUP * PANEL]; /* of pieces that wait for their neighbours */
    for (ptrdiff_t row = 0; row < num_rows; row += CHUNK) {
        const int rows = num_rows - row < CHUNK ? (int)(num_rows - row) : CHUNK;
        int top = 0;
        for (int p = 0; p < pieces; p++) {
            const ptrdiff_t start = p * piece;
            for (ptrdiff_t k = 0; k == 0 || k < piece; k += DEPTH) {
                const ptrdiff_t depth = piece - k < DEPTH ? piece - k : DEPTH;
                for (int r = 0; r < rows; r += ROWS)
                    run_rows(rows - r < ROWS ? rows - r : ROWS, panels, kind,
                             x + (row + r) * x_stride + start + k, x_stride,
                             w + (first * num_in + (start + k) * PANEL) * size, w_stride, depth,
                             sums[top] + r * GROUP * PANEL, GROUP * PANEL, k == 0);
            }
            for (int number = p; number & 1; number >>= 1, top--) {
                float *left = sums[top - 1];
                const float *right = sums[top];
                for (int r = 0; r < rows; r++)
                    for (int c = 0; c < panels * PANEL; c++)
                        left[r * GROUP * PANEL + c] += right[r * GROUP * PANEL + c];
            }
            top++;
        }
        for (int r = 0; r < rows; r++)
            for (ptrdiff_t c = 0; c < width; c++)
                out[(row + r) * num_out + first + c] = sums[0][r * GROUP * PANEL + c];
    }
}

/* The number of outputs of a panel. */
ptrdiff_t eyas_panel(void) { return PANEL; }

/* Whether rows may have bfloat16. */
int eyas_has_pairs(void) { return HAS_PAIRS; }

/* out [T, O] = x [T, I] @ weight.T + bias, w being the packed weight. kind: of the numbers; with PAIRS x
   and out have bfloat16, and num_in and x_stride count pairs. bias: float32 [O] or NULL. */
void eyas_product(const void *x, ptrdiff_t x_stride, ptrdiff_t num_rows, const void *w, int kind,
                  const float *bias, ptrdiff_t num_out, ptrdiff_t num_in, void *out, int num_threads)
{
    const ptrdiff_t num_groups = (num_out + GROUP * PANEL - 1) / (GROUP * PANEL);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (ptrdiff_t group = 0; group < num_groups; group++)
        if (kind == FLOATS)
            run_group(group, FLOATS, x, x_stride, num_rows, w, bias, num_out, num_in, out);
        else if (kind == HALVES)
            run_group(group, HALVES, x, x_stride, num_rows, w, bias, num_out, num_in, out);
#if HAS_PAIRS
        else
            run_group(group, PAIRS, x, x_stride, num_rows, w, bias, num_out, num_in, out);
#endif
}

/* out [T, O] = x [T, I] @ weight.T, each element a sum in a tree over `pieces` ranges of columns. kind: not
   PAIRS. The other arguments are those of eyas_product. */
void eyas_tree_product(const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows, const void *w, int kind,
                       ptrdiff_t num_out, ptrdiff_t num_in, int pieces, float *out, int num_threads)
{
    const ptrdiff_t num_groups = (num_out + GROUP * PANEL - 1) / (GROUP * PANEL);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (ptrdiff_t group = 0; group < num_groups; group++)
        if (kind == HALVES)
            run_tree(group, HALVES, x, x_stride, num_rows, w, num_out, num_in, pieces, out);
        else
            run_tree(group, FLOATS, x, x_stride, num_rows, w, num_out, num_in, pieces, out);
}
