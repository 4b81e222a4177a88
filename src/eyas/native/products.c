/* Products of rows with packed weights, in one order of additions for any number of rows.

   An element of the result is one chain of fused multiply-adds over ascending columns, whichever tile
   computes it, or the sum in a binary tree of such chains over pieces of the columns; so its bits depend
   on its row and its weights alone. Weights are packed in panels of PANEL outputs, [O / PANEL][I][PANEL],
   of which the last is filled up with zeros: float32 numbers, or the upper halves of numbers whose lower
   halves are zero (bfloat16).

   Rows of bfloat16, where the processor has an instruction for them: a link of the chain is the
   instruction's sum of two products, in float32, and the last sum is rounded. Two neighbouring columns of
   rows and of weights are then one "column" of 32 bits, of which there are I / 2. With AMX a link is the
   tile instruction's sum over 16 of these, which depends neither on the other rows of its tile nor on how
   many there are. */

#if defined(__AMX_BF16__) && defined(__linux__)
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

#include "vectors.h"

#define PANEL (LANES * VECS)
#define GROUP 4    /* panels that a thread takes at once */
#define ROWS 6     /* of the largest tile */
#define CHUNK 48   /* rows whose columns stay in the cache for all panels of a group */
#define DEPTH 1024 /* columns of a panel that stay in the cache for all rows of a chunk */
#define NEAR 98304 /* bytes between tiles up to which the next one is prefetched into the nearer caches */
#define AHEAD 3072 /* bytes of a longer tile's panels that are prefetched */
#define LINE 64    /* bytes of a line of a cache */
#define TILE 16    /* rows of a tile of AMX, and its numbers of 32 bits a row */
#define TILE_CHUNK 64  /* CHUNK and DEPTH of tiles */
#define TILE_DEPTH 256
#define LEVELS 4   /* sums of a tree over MOST_PIECES pieces that there are at once */
#define MOST_PIECES 8

enum kind { FLOATS, HALVES, PAIRS }; /* the numbers of weights: float32; bfloat16; bfloat16 of both */

#if defined(__AVX512BF16__) || HAS_TILES
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

/* sum + x * w. */
INLINE vec add_product(vec x, vec w, vec sum, const enum kind kind)
{
#if HAS_PAIRS && !HAS_TILES
    if (kind == PAIRS)
        return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
#else
    (void)kind;
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

#if HAS_TILES
_Static_assert(LANES == TILE && VECS == 2, "a panel has the outputs of two tiles");

/* The tile registers, by what they hold: sums, rows of x, weights. Numbers of registers are part of the
   instructions' names. */
#define SUM_0 0
#define SUM_1 1
#define SUM_2 2
#define SUM_3 3
#define X_0 4
#define X_1 5
#define W_0 6
#define W_1 7

/* Give the registers their sizes, for up to two tiles of rows. */
INLINE void configure_tiles(int rows)
{
    const int first = rows < TILE ? rows : TILE, second = rows - first;
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    const uint8_t of_tile[8] = {first, first, second ? second : first, second ? second : first,
                                first, second ? second : first, TILE, TILE};
    for (int tile = 0; tile < 8; tile++) {
        sizes.rows[tile] = of_tile[tile];
        sizes.row_bytes[tile] = TILE * sizeof(float);
    }
    _tile_loadconfig(&sizes);
}

/* Sum R * 2 + V is of rows in tile R and of outputs in tile V, or of outputs in tile V alone. */
#define START(SUM, R, V)                                                                    \
    if (is_first)                                                                           \
        _tile_zero(SUM);                                                                    \
    else                                                                                    \
        _tile_loadd(SUM, out + R * TILE * out_stride + V * LANES, out_stride * sizeof(float));
#define END(SUM, R, V) \
    _tile_stored(SUM, out + R * TILE * out_stride + V * LANES, out_stride * sizeof(float));
#define LOAD_X(TO, R) _tile_loadd(TO, x + R * TILE * x_stride + k, x_stride * sizeof(float));
#define LOAD_W(TO, V)                                                                        \
    _tile_loadd(TO, w + (V / VECS * w_stride + k * PANEL + V % VECS * LANES) * sizeof(float), \
                PANEL * sizeof(float));

INLINE void release_tiles(void) { _tile_release(); }

/* As run_rows, with PAIRS and up to two tiles of rows. configured: rows for which the registers have their
   sizes. depth: a multiple of TILE. */
INLINE void run_tiles(int *configured, int rows, int panels, const float *x, ptrdiff_t x_stride, const char *w, ptrdiff_t w_stride,
                      ptrdiff_t depth, float *out, ptrdiff_t out_stride, int is_first)
{
    if (rows != *configured)
        configure_tiles(*configured = rows);
    for (int at_once; panels; panels -= at_once, w += at_once * w_stride * sizeof(float), out += at_once * PANEL) {
        at_once = rows <= TILE && panels > 1 ? 2 : 1; /* panels */
        if (rows > TILE) {
            START(SUM_0, 0, 0) START(SUM_1, 0, 1) START(SUM_2, 1, 0) START(SUM_3, 1, 1)
            for (ptrdiff_t k = 0; k < depth; k += TILE) {
                LOAD_X(X_0, 0) LOAD_W(W_0, 0) LOAD_X(X_1, 1) LOAD_W(W_1, 1)
                _tile_dpbf16ps(SUM_0, X_0, W_0);
                _tile_dpbf16ps(SUM_1, X_0, W_1);
                _tile_dpbf16ps(SUM_2, X_1, W_0);
                _tile_dpbf16ps(SUM_3, X_1, W_1);
            }
            END(SUM_0, 0, 0) END(SUM_1, 0, 1) END(SUM_2, 1, 0) END(SUM_3, 1, 1)
        } else if (at_once > 1) {
            START(SUM_0, 0, 0) START(SUM_1, 0, 1) START(SUM_2, 0, 2) START(SUM_3, 0, 3)
            for (ptrdiff_t k = 0; k < depth; k += TILE) {
                LOAD_X(X_0, 0)
                LOAD_W(W_0, 0) _tile_dpbf16ps(SUM_0, X_0, W_0);
                LOAD_W(W_1, 1) _tile_dpbf16ps(SUM_1, X_0, W_1);
                LOAD_W(W_0, 2) _tile_dpbf16ps(SUM_2, X_0, W_0);
                LOAD_W(W_1, 3) _tile_dpbf16ps(SUM_3, X_0, W_1);
            }
            END(SUM_0, 0, 0) END(SUM_1, 0, 1) END(SUM_2, 0, 2) END(SUM_3, 0, 3)
        } else {
            START(SUM_0, 0, 0) START(SUM_1, 0, 1)
            for (ptrdiff_t k = 0; k < depth; k += TILE) {
                LOAD_X(X_0, 0)
                LOAD_W(W_0, 0) _tile_dpbf16ps(SUM_0, X_0, W_0);
                LOAD_W(W_1, 1) _tile_dpbf16ps(SUM_1, X_0, W_1);
            }
            END(SUM_0, 0, 0) END(SUM_1, 0, 1)
        }
    }
}
#undef START
#undef END
#undef LOAD_X
#undef LOAD_W
#else
#define run_tiles(...) ((void)configured) /* never reached */
#define release_tiles() ((void)0)
#endif

INLINE void run_group(ptrdiff_t group, const enum kind kind, const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows,
                      const char *w, const float *bias, ptrdiff_t num_out, ptrdiff_t num_in, char *out)
{
    const ptrdiff_t size = kind == HALVES ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t out_size = kind == PAIRS ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t first = group * GROUP * PANEL, w_stride = num_in * PANEL;
    const ptrdiff_t width = num_out - first < GROUP * PANEL ? num_out - first : GROUP * PANEL;
    const int panels = (int)((width + PANEL - 1) / PANEL);
    const int is_in_place = width == panels * PANEL && kind != PAIRS;
    const int in_tiles = HAS_TILES && kind == PAIRS;
    const int chunk = in_tiles ? TILE_CHUNK : CHUNK, at_once = in_tiles ? 2 * TILE : ROWS;
    const ptrdiff_t most = in_tiles ? TILE_DEPTH : DEPTH;
    float sums[(HAS_TILES ? TILE_CHUNK : CHUNK) * GROUP * PANEL]; /* to be rounded, or beyond the row's end */
    int configured = 0; /* rows for which the tiles have their sizes */
    for (ptrdiff_t row = 0; row < num_rows; row += chunk) {
        const int rows = num_rows - row < chunk ? (int)(num_rows - row) : chunk;
        float *to = is_in_place ? (float *)out + row * num_out + first : sums;
        const ptrdiff_t to_stride = is_in_place ? num_out : GROUP * PANEL;
        for (ptrdiff_t k = 0; k == 0 || k < num_in; k += most) {
            const ptrdiff_t depth = num_in - k < most ? num_in - k : most;
            const char *panel = w + (first * num_in + k * PANEL) * size;
            for (int r = 0; r < rows; r += at_once) {
                const int some = rows - r < at_once ? rows - r : at_once;
                const float *from = x + (row + r) * x_stride + k;
                float *of_rows = to + r * to_stride;
                if (in_tiles)
                    run_tiles(&configured, some, panels, from, x_stride, panel, w_stride, depth, of_rows, to_stride, k == 0);
                else
                    run_rows(some, panels, kind, from, x_stride, panel, w_stride, depth, of_rows, to_stride, k == 0);
            }
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
    if (in_tiles)
        release_tiles();
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

/* Columns of 32 bits are a multiple of this with PAIRS. */
ptrdiff_t eyas_pairs_at_once(void) { return HAS_TILES ? TILE : 1; }

/* Whether rows may have bfloat16. Tiles may be used once the kernel has permitted it. */
int eyas_has_pairs(void)
{
#if HAS_TILES
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return HAS_PAIRS;
#endif
}

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
