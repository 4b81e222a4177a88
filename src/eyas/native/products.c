/* Products of float32 rows with packed weights, in one order of additions for any number of rows.

   An element of the result is one chain of fused multiply-adds over ascending columns, whichever tile
   computes it, or the sum in a binary tree of such chains over pieces of the columns; so its bits depend
   on its row and its weights alone. Weights are packed in panels of PANEL outputs, [O / PANEL][I][PANEL],
   of which the last is filled up with zeros: float32 numbers, or the upper halves of numbers whose lower
   halves are zero (bfloat16). */

#include "vectors.h"

#define PANEL (LANES * VECS)
#define GROUP 4    /* panels that a thread takes at once */
#define ROWS 6     /* of the largest tile */
#define CHUNK 48   /* rows whose columns stay in the cache for all panels of a group */
#define DEPTH 1024 /* columns of a panel that stay in the cache for all rows of a chunk */
#define LEVELS 4   /* sums of a tree over MOST_PIECES pieces that there are at once */
#define MOST_PIECES 8

/* Add to `rows` x `panels` sums, all of which stay in registers. x: of the first row and column. w: of
   the first panel and column. is_first: the sums begin here, they are not in `out` yet. */
INLINE void run_tile(const int rows, const int panels, const int is_half, const float *x, ptrdiff_t x_stride,
                     const char *w, ptrdiff_t w_stride, ptrdiff_t depth, float *out, ptrdiff_t out_stride,
                     int is_first)
{
    vec sum[ROWS][GROUP * VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < panels * VECS; v++)
            sum[r][v] = is_first ? repeat(0.0f) : load(out + r * out_stride + v * LANES);
#pragma GCC unroll 4
    for (ptrdiff_t k = 0; k < depth; k++) {
        if (rows > panels * VECS) { /* the fewer of both are loaded first and stay in registers */
            vec weights[GROUP * VECS];
#pragma GCC unroll 16
            for (int v = 0; v < panels * VECS; v++)
                weights[v] = load_numbers(w, v / VECS * w_stride + k * PANEL + v % VECS * LANES, is_half);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vec of_row = repeat(x[r * x_stride + k]);
#pragma GCC unroll 16
                for (int v = 0; v < panels * VECS; v++)
                    sum[r][v] = multiply_add(of_row, weights[v], sum[r][v]);
            }
        } else {
            vec of_rows[ROWS];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                of_rows[r] = repeat(x[r * x_stride + k]);
#pragma GCC unroll 16
            for (int v = 0; v < panels * VECS; v++) {
                const vec weights = load_numbers(w, v / VECS * w_stride + k * PANEL + v % VECS * LANES, is_half);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    sum[r][v] = multiply_add(of_rows[r], weights, sum[r][v]);
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
INLINE void run_rows(int rows, int panels, const int is_half, const float *x, ptrdiff_t x_stride,
                     const char *w, ptrdiff_t w_stride, ptrdiff_t depth, float *out, ptrdiff_t out_stride,
                     int is_first)
{
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float);
    int p = 0;
#define TILES(R, P)                                                                            \
    for (; p + P <= panels; p += P)                                                            \
        run_tile(R, P, is_half, x, x_stride, w + p * w_stride * size, w_stride, depth, out + p * PANEL, \
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

INLINE void run_group(ptrdiff_t group, const int is_half, const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows,
                      const char *w, const float *bias, ptrdiff_t num_out, ptrdiff_t num_in, float *out)
{
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t first = group * GROUP * PANEL, w_stride = num_in * PANEL;
    const ptrdiff_t width = num_out - first < GROUP * PANEL ? num_out - first : GROUP * PANEL;
    const int panels = (int)((width + PANEL - 1) / PANEL);
    const int is_whole = width == panels * PANEL;
    float sums[CHUNK * GROUP * PANEL]; /* where the last panel would write behind the row */
    for (ptrdiff_t row = 0; row < num_rows; row += CHUNK) {
        const int rows = num_rows - row < CHUNK ? (int)(num_rows - row) : CHUNK;
        float *to = is_whole ? out + row * num_out + first : sums;
        const ptrdiff_t to_stride = is_whole ? num_out : GROUP * PANEL;
        for (ptrdiff_t k = 0; k == 0 || k < num_in; k += DEPTH) {
            const ptrdiff_t depth = num_in - k < DEPTH ? num_in - k : DEPTH;
            for (int r = 0; r < rows; r += ROWS)
                run_rows(rows - r < ROWS ? rows - r : ROWS, panels, is_half, x + (row + r) * x_stride + k,
                         x_stride, w + (first * num_in + k * PANEL) * size, w_stride, depth,
                         to + r * to_stride, to_stride, k == 0);
        }
        if (is_whole && !bias)
            continue;
        for (int r = 0; r < rows; r++)
            for (ptrdiff_t c = 0; c < width; c++) {
                const float sum = to[r * to_stride + c];
                out[(row + r) * num_out + first + c] = bias ? sum + bias[first + c] : sum;
            }
    }
}

/* As run_group, but an element is a sum in a binary tree: of chains over `pieces` equal ranges of columns,
   a power of 2 up to MOST_PIECES, of which neighbours are added until one is left. */
INLINE void run_tree(ptrdiff_t group, const int is_half, const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows,
                     const char *w, ptrdiff_t num_out, ptrdiff_t num_in, int pieces, float *out)
{
    const ptrdiff_t size = is_half ? sizeof(uint16_t) : sizeof(float);
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
                    run_rows(rows - r < ROWS ? rows - r : ROWS, panels, is_half,
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

/* out [T, O] = x [T, I] @ weight.T + bias, w being the packed weight. bias: [O] or NULL. is_half: the
   numbers of w are bfloat16. */
void eyas_product(const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows, const void *w, int is_half,
                  const float *bias, ptrdiff_t num_out, ptrdiff_t num_in, float *out, int num_threads)
{
    const ptrdiff_t num_groups = (num_out + GROUP * PANEL - 1) / (GROUP * PANEL);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (ptrdiff_t group = 0; group < num_groups; group++)
        if (is_half)
            run_group(group, 1, x, x_stride, num_rows, w, bias, num_out, num_in, out);
        else
            run_group(group, 0, x, x_stride, num_rows, w, bias, num_out, num_in, out);
}

/* out [T, O] = x [T, I] @ weight.T, each element a sum in a tree over `pieces` ranges of columns. The other
   arguments are those of eyas_product. */
void eyas_tree_product(const float *x, ptrdiff_t x_stride, ptrdiff_t num_rows, const void *w, int is_half,
                       ptrdiff_t num_out, ptrdiff_t num_in, int pieces, float *out, int num_threads)
{
    const ptrdiff_t num_groups = (num_out + GROUP * PANEL - 1) / (GROUP * PANEL);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (ptrdiff_t group = 0; group < num_groups; group++)
        if (is_half)
            run_tree(group, 1, x, x_stride, num_rows, w, num_out, num_in, pieces, out);
        else
            run_tree(group, 0, x, x_stride, num_rows, w, num_out, num_in, pieces, out);
}
