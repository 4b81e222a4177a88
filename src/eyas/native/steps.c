/* What a step does beside its models: rows of trees, levels and tails of drafts, noise, choices, walks, the table
   of sequences. Each function does what the torch body of its namesake in eyas/ops does, entry by entry; it
   works on a few numbers a sequence, so one thread runs it.

   Strides are counts of numbers. Legend: B sequences, W nodes of a tree, R rows, A seats, C columns
   (positions), P rows of a tail or draft tokens of a path, Q nodes of a level, J children of a node, E
   candidates of a level, X entries of a pool or of a report, L key columns, V vocabulary, K ids of a row. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Sequences of the table (eyas/ops/table.py). */
struct sequences {
    int64_t *tokens, *slots; /* [A][C] */
    ptrdiff_t tokens_stride, slots_stride;
    const int64_t *seats, *roots; /* [B] */
    const int64_t *node_slots;    /* [B][W] */
    ptrdiff_t node_slots_stride, num;
    int64_t last_position;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* rows: [7][B * W], of which the first R of each are written: token, position, position of the rotary table,
   slot, sequence, node, number. grid, slots: [B][W]. Returns R. parents: NULL for chains. depths: [W]. */
ptrdiff_t eyas_node_rows(const struct sequences *of, const int64_t *tokens, ptrdiff_t tokens_stride,
                         const int64_t *parents, ptrdiff_t parents_stride, const int64_t *sizes, ptrdiff_t width,
                         int64_t *depths, int64_t *rows, int64_t *grid, int64_t *slots)
{
    const ptrdiff_t most = of->num * width;
    ptrdiff_t row = 0;
    for (ptrdiff_t b = 0; b < of->num; b++) {
        const int64_t root = of->roots[b];
        for (ptrdiff_t w = 0; w < width; w++) {
            const int64_t slot = of->node_slots[b * of->node_slots_stride + w];
            depths[w] = w;
            if (parents && w) {
                const int64_t parent = parents[b * parents_stride + w];
                depths[w] = depths[parent < 0 ? 0 : parent >= w ? 0 : parent] + 1;
            }
            if (!parents)
                of->slots[of->seats[b] * of->slots_stride + root + w] = slot;
            slots[b * width + w] = slot;
            grid[b * width + w] = -1;
            if (w && w >= sizes[b])
                continue;
            const int64_t fields[] = {
                tokens[b * tokens_stride + w],
                root + depths[w],
                least(root + depths[w], of->last_position),
                slot,
                b,
                w,
                row,
            };
            for (int i = 0; i < 7; i++)
                rows[i * most + row] = fields[i];
            grid[b * width + w] = row++;
        }
    }
    return row;
}

/* made: [A]. drafts: [B], or NULL. rows: [4][B * P], of which the first R of each are written: token, position,
   written slot, slot before. grid, slots: [B][P]. of_sequences: [4][B]: first position, row and token of the
   root, number. Returns R. */
ptrdiff_t eyas_tail_rows(const struct sequences *of, int64_t *made, const uint8_t *drafts, ptrdiff_t longest,
                         int64_t null_slot, int64_t *rows, int64_t *grid, int64_t *slots, int64_t *of_sequences)
{
    const ptrdiff_t num = of->num, most = num * longest;
    int64_t *const starts = of_sequences;
    for (ptrdiff_t b = 0; b < num; b++) {
        const int64_t seat = of->seats[b], root = of->roots[b];
        starts[b] = drafts && !drafts[b] ? root : least(made[seat], root);
        of->slots[seat * of->slots_stride + root] = of->node_slots[b * of->node_slots_stride];
    }
    ptrdiff_t row = 0;
    for (ptrdiff_t b = 0; b < num; b++) {
        const int64_t seat = of->seats[b], root = of->roots[b], start = starts[b];
        const int64_t *const own_tokens = of->tokens + seat * of->tokens_stride;
        const int64_t *const own_slots = of->slots + seat * of->slots_stride;
        const int leaves_trace = !drafts || drafts[b];
        for (ptrdiff_t p = 0; p < longest; p++) {
            const int is_real = start + p <= root;
            const int64_t position = is_real ? start + p : 0;
            slots[b * longest + p] = own_slots[position];
            grid[b * longest + p] = -1;
            if (!is_real)
                continue;
            const int64_t fields[] = {
                own_tokens[position],
                least(position, of->last_position),
                leaves_trace ? own_slots[position] : null_slot,
                own_slots[position ? position - 1 : 0],
            };
            for (int i = 0; i < 4; i++)
                rows[i * most + row] = fields[i];
            grid[b * longest + p] = row++;
        }
        of_sequences[num + b] = grid[b * longest + least(root - start, longest - 1)];
        of_sequences[2 * num + b] = own_tokens[root];
        of_sequences[3 * num + b] = b;
    }
    for (ptrdiff_t b = 0; b < num; b++)
        if (!drafts || drafts[b])
            made[of->seats[b]] = of->roots[b] + 1;
    return row;
}

/* paths: [B][Q][P]. above: [B][Q]. rows: [6][B * Q]: token, position, position of the rotary table, slot,
   sequence, number. For trees parents_above: [B][1 + (P - 1) * Q], NULL below the roots; grids: [3][B][1 + P *
   Q]: row, slot and parent of each inner node. */
void eyas_level_rows(const struct sequences *of, const int64_t *paths, const int64_t *above,
                     const int64_t *parents_above, ptrdiff_t topk, ptrdiff_t depth, int64_t first_scratch,
                     int64_t per_seat, int64_t *rows, int64_t *grids)
{
    const ptrdiff_t num = of->num, most = num * topk, width = 1 + depth * topk, before = width - topk;
    for (ptrdiff_t b = 0; b < num; b++) {
        const int64_t seat = of->seats[b], position = of->roots[b] + depth;
        const int64_t first_own = first_scratch + seat * per_seat;
        for (ptrdiff_t k = 0; k < topk; k++) {
            const ptrdiff_t row = b * topk + k;
            const int64_t fields[] = {
                paths[row * depth + depth - 1],
                position,
                least(position, of->last_position),
                first_own + before - 1 + k,
                b,
                row,
            };
            for (int i = 0; i < 6; i++)
                rows[i * most + row] = fields[i];
        }
        if (topk == 1) {
            of->slots[seat * of->slots_stride + position] = first_own + before - 1;
            continue;
        }
        int64_t *const own_rows = grids + b * width, *const own_slots = own_rows + num * width;
        int64_t *const own_parents = own_slots + num * width;
        for (ptrdiff_t w = 0; w < width; w++) {
            const int is_own = w >= before;
            own_rows[w] = is_own ? b * topk + w - before : -1;
            own_slots[w] = w ? first_own + w - 1 : of->node_slots[b * of->node_slots_stride];
            if (is_own) /* below the roots the parent is node 0 */
                own_parents[w] = depth == 1 ? 0 : before - topk + above[b * topk + w - before];
            else
                own_parents[w] = depth == 1 ? -1 : parents_above[b * before + w];
        }
    }
}

/* A score as it is ordered: what is no number comes first, as torch sorts. */
static float ordered(float score)
{
    return isnan(score) ? INFINITY : score;
}

/* tokens, scores: [B][Q][J]. frontier: places and scores [B][Q] and paths [B][Q][P]; of roots (P is 0) they are
   not read. pool: tokens, scores and parents [B][X], written from entry `start` on. Of the E candidates the
   `keep` best are the next frontier, of equal ones the first: next_places, next_scores, parents [B][keep] and
   next_paths [B][keep][P + 1]. scratch: [E]. */
void eyas_add_level(const int64_t *tokens, const float *scores, ptrdiff_t num, ptrdiff_t width, ptrdiff_t children,
                    const int64_t *places, const float *above, const int64_t *paths, ptrdiff_t depth,
                    int64_t *pool_tokens, float *pool_scores, int64_t *pool_parents, ptrdiff_t capacity,
                    ptrdiff_t start, ptrdiff_t keep, int64_t *next_places, float *next_scores,
                    int64_t *next_paths, int64_t *parents, float *scratch)
{
    const ptrdiff_t level = width * children;
    for (ptrdiff_t b = 0; b < num; b++) {
        float *const own_scores = pool_scores + b * capacity + start;
        int64_t *const own_tokens = pool_tokens + b * capacity + start;
        for (ptrdiff_t e = 0; e < level; e++) {
            const ptrdiff_t q = b * width + e / children;
            own_tokens[e] = tokens[b * level + e];
            own_scores[e] = depth ? above[q] + scores[b * level + e] : scores[b * level + e];
            pool_parents[b * capacity + start + e] = depth ? places[q] : -1;
            scratch[e] = ordered(own_scores[e]);
        }
        const int is_in_order = width == 1 && keep == children;
        for (ptrdiff_t k = 0; k < keep; k++) {
            ptrdiff_t best = is_in_order ? k : -1;
            for (ptrdiff_t e = 0; !is_in_order && e < level; e++) /* a taken one is marked as no number */
                if (!isnan(scratch[e]) && (best < 0 || scratch[e] > scratch[best]))
                    best = e;
            scratch[best] = NAN;
            const ptrdiff_t at = b * keep + k, parent = width == 1 ? 0 : best / children;
            next_places[at] = start + best;
            next_scores[at] = own_scores[best];
            parents[at] = parent;
            int64_t *const path = next_paths + at * (depth + 1);
            if (depth)
                memcpy(path, paths + (b * width + parent) * depth, depth * sizeof(int64_t));
            path[depth] = own_tokens[best];
        }
    }
}

/* pool: as in eyas_add_level, of which the first `size` entries count. tokens, parents, out_scores: [B][W], with
   W = 1 + the entries that are kept; sizes: [B]. parents: not written for chains. kept: [size]. */
void eyas_keep_best(const int64_t *roots, ptrdiff_t num, const int64_t *pool_tokens, const float *pool_scores,
                    const int64_t *pool_parents, ptrdiff_t capacity, ptrdiff_t size, ptrdiff_t width, int is_chain,
                    int64_t *tokens, int64_t *parents, int64_t *sizes, float *out_scores, int64_t *kept)
{
    const ptrdiff_t keep = width - 1;
    for (ptrdiff_t b = 0; b < num; b++) {
        const int64_t *const own_tokens = pool_tokens + b * capacity, *const above = pool_parents + b * capacity;
        const float *const scores = pool_scores + b * capacity;
        ptrdiff_t count = 0;
        if (is_chain) {
            for (; count < keep; count++)
                kept[count] = count;
        } else {
            memset(kept, 0, size * sizeof(int64_t)); /* whether each is taken */
            for (ptrdiff_t k = 0; k < keep; k++) {
                ptrdiff_t best = -1;
                for (ptrdiff_t x = 0; x < size; x++)
                    if (!kept[x] && (best < 0 || ordered(scores[x]) > ordered(scores[best])))
                        best = x;
                kept[best] = 1;
            }
            for (ptrdiff_t x = 0; x < size; x++)
                if (kept[x] && scores[x] > -INFINITY)
                    kept[count++] = x;
        }
        int64_t *const own = tokens + b * width, *const own_parents = parents + b * width;
        own[0] = roots[b];
        out_scores[b * width] = 0.0f;
        if (!is_chain)
            own_parents[0] = -1;
        sizes[b] = 1;
        for (ptrdiff_t k = 0; k < keep; k++) {
            const ptrdiff_t entry = k < count ? kept[k] : size - 1;
            own[1 + k] = own_tokens[entry];
            out_scores[b * width + 1 + k] = scores[entry];
            if (is_chain) {
                sizes[b] += scores[entry] > -INFINITY;
                continue;
            }
            sizes[b] += k < count;
            int64_t parent = 0;
            if (k < count && above[entry] >= 0) {
                while (parent < count && kept[parent] < above[entry])
                    parent++;
                parent++;
            }
            own_parents[1 + k] = parent;
        }
    }
}

/* What noise is keyed with: [R] each. */
struct keys {
    const int64_t *seeds, *positions, *choices;
};

/* Four words of Philox4x32-10 (eyas/ops/noise.py). */
static void philox(uint64_t seed, uint32_t position, uint32_t counter, uint32_t choice, uint32_t word[4])
{
    uint32_t key[] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    word[0] = position, word[1] = counter, word[2] = choice, word[3] = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t first = (uint64_t)word[0] * 0xD2511F53u, second = (uint64_t)word[2] * 0xCD9E8D57u;
        word[0] = (uint32_t)(second >> 32) ^ word[1] ^ key[0];
        word[2] = (uint32_t)(first >> 32) ^ word[3] ^ key[1];
        word[1] = (uint32_t)second, word[3] = (uint32_t)first;
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
}

static float gumbel(uint32_t word)
{
    const float highest = 0x1.fffffep-1f, uniform = ((float)word + 0.5f) * 0x1p-32f;
    return -logf(-log1pf(-(uniform < highest ? uniform : highest)));
}

/* The noise of a row, whose last four words are kept. */
struct noise {
    const struct keys *of;
    ptrdiff_t row;
    int64_t counter; /* of the words; -1 before the first ones */
    uint32_t word[4];
};

static float noise_of(struct noise *own, int64_t id)
{
    const struct keys *const of = own->of;
    const ptrdiff_t row = own->row;
    if (id / 4 != own->counter) {
        own->counter = id / 4;
        philox((uint64_t)of->seeds[row], (uint32_t)of->positions[row], (uint32_t)own->counter,
               (uint32_t)of->choices[row], own->word);
    }
    return gumbel(own->word[id % 4]);
}

/* The noise of ids [R][K], or of the first K ids of each row: [R][K]. */
void eyas_gumbel(const struct keys *of, ptrdiff_t num, const int64_t *ids, ptrdiff_t size, float *noise)
{
    for (ptrdiff_t row = 0; row < num; row++) {
        struct noise own = {of, row, -1, {0}};
        for (ptrdiff_t k = 0; k < size; k++)
            noise[row * size + k] = noise_of(&own, ids ? ids[row * size + k] : k);
    }
}

/* The `children` best of x, of equal ones the first, best first. Returns whether all are numbers. */
static int pick_best(const float *x, ptrdiff_t size, ptrdiff_t children, int64_t *best, float *score)
{
    ptrdiff_t count = 0;
    int is_number = 1;
    for (ptrdiff_t i = 0; i < size; i++) {
        is_number &= x[i] == x[i];
        if (count == children && !(x[i] > score[count - 1]))
            continue;
        ptrdiff_t at = count < children ? count++ : count - 1;
        for (; at > 0 && x[i] > score[at - 1]; at--) {
            score[at] = score[at - 1];
            best[at] = best[at - 1];
        }
        score[at] = x[i];
        best[at] = i;
    }
    return is_number;
}

/* The logarithm of the sum of exponentials of x, of which `most` is the largest. */
static float log_sum(const float *x, ptrdiff_t size, float most)
{
    double sum = 0.0;
    for (ptrdiff_t i = 0; i < size; i++)
        sum += expf(x[i] - most);
    return most + (float)log(sum);
}

/* The J best of each row of logits [R][V], of equal ones the first, with the logarithms of their probabilities:
   ids, scores [R][J]. target_ids: [V], or NULL. */
void eyas_top_tokens(const float *logits, ptrdiff_t row_stride, ptrdiff_t num, ptrdiff_t size,
                     const int64_t *target_ids, ptrdiff_t children, int64_t *ids, float *scores)
{
    for (ptrdiff_t row = 0; row < num; row++) {
        const float *const x = logits + row * row_stride;
        int64_t *const best = ids + row * children;
        float *const score = scores + row * children;
        const int is_number = pick_best(x, size, children, best, score);
        const float shift = log_sum(x, size, score[0]);
        for (ptrdiff_t k = 0; k < children; k++) {
            score[k] = is_number ? score[k] - shift : NAN;
            if (target_ids)
                best[k] = target_ids[best[k]];
        }
    }
}

/* The same at temperatures [R]; those above 0 divide the logits, and then candidates are ranked by
   log_softmax(beta * (log-probability + noise)), betas [R]; NULL ranks none of them so. scratch: [V]. */
void eyas_top_tokens_with_noise(const float *logits, ptrdiff_t row_stride, ptrdiff_t num, ptrdiff_t size,
                                const int64_t *target_ids, const struct keys *of, const float *temperatures,
                                const float *betas, ptrdiff_t children, int64_t *ids, float *scores, float *scratch)
{
    for (ptrdiff_t row = 0; row < num; row++) {
        const float *const x = logits + row * row_stride;
        const float temperature = temperatures[row];
        float most = -INFINITY;
        for (ptrdiff_t i = 0; i < size; i++) {
            scratch[i] = temperature > 0.0f ? x[i] / temperature : x[i];
            most = scratch[i] > most ? scratch[i] : most;
        }
        const float shift = log_sum(scratch, size, most);
        struct noise own = {of, row, -1, {0}};
        for (ptrdiff_t i = 0; i < size; i++) {
            scratch[i] -= shift;
            if (betas && temperature > 0.0f)
                scratch[i] = betas[row] * (scratch[i] + noise_of(&own, target_ids ? target_ids[i] : i));
        }
        int64_t *const best = ids + row * children;
        float *const score = scores + row * children;
        const int is_number = pick_best(scratch, size, children, best, score);
        const float rest = betas && temperature > 0.0f ? log_sum(scratch, size, score[0]) : 0.0f;
        for (ptrdiff_t k = 0; k < children; k++) {
            score[k] = is_number ? score[k] - rest : NAN;
            if (target_ids)
                best[k] = target_ids[best[k]];
        }
    }
}

/* The id of the largest logit of each row, plus noise in those whose temperature is above 0; of equal ones the
   first; -1 if the largest logit is infinite, or if one is no number. temperatures: [R]; NULL are zeros. span: what is
   further below the largest logit cannot win. */
void eyas_best(const float *logits, ptrdiff_t row_stride, ptrdiff_t num, ptrdiff_t size, const struct keys *of,
               const float *temperatures, float span, int64_t *best)
{
    for (ptrdiff_t row = 0; row < num; row++) {
        const float *const x = logits + row * row_stride;
        float most = -INFINITY;
        int is_number = 1;
        for (ptrdiff_t i = 0; i < size; i++) {
            most = x[i] > most ? x[i] : most;
            is_number &= x[i] == x[i];
        }
        best[row] = -1;
        if (!is_number || !isfinite(most))
            continue;
        if (!temperatures || !(temperatures[row] > 0.0f)) {
            for (best[row] = 0; x[best[row]] != most;)
                best[row]++;
            continue;
        }
        struct noise own = {of, row, -1, {0}};
        float highest = -INFINITY;
        for (ptrdiff_t i = 0; i < size; i++) {
            if (!(x[i] >= most - span))
                continue;
            const float value = x[i] + noise_of(&own, i);
            if (value > highest) {
                highest = value;
                best[row] = i;
            }
        }
    }
}

/* chosen, tokens: [B][W]. parents: NULL for chains. report: [B][2 * W + 1]; tokens and nodes behind the count
   mean nothing. */
void eyas_walk(const int64_t *chosen, ptrdiff_t num, ptrdiff_t width, const int64_t *tokens, ptrdiff_t tokens_stride,
               const int64_t *parents, ptrdiff_t parents_stride, const int64_t *sizes, int64_t *report)
{
    for (ptrdiff_t b = 0; b < num; b++) {
        const int64_t *const own = chosen + b * width, *const drafted = tokens + b * tokens_stride;
        int64_t *const walked = report + b * (2 * width + 1), *const nodes = walked + width;
        const ptrdiff_t size = least(sizes[b], width);
        ptrdiff_t count = 0, node = 0, is_walking = 1;
        for (ptrdiff_t step = 0; step < width; step++) {
            walked[step] = parents && !is_walking ? -1 : own[parents ? node : step];
            nodes[step] = parents ? node : step;
            if (!is_walking)
                continue;
            count++;
            ptrdiff_t next = parents ? 0 : node + 1;
            for (; parents && next < size; next++)
                if (parents[b * parents_stride + next] == node && drafted[next] == own[node])
                    break;
            is_walking = next < size && (parents || drafted[next] == own[node]);
            node = is_walking ? next : node;
        }
        count -= walked[count - 1] < 0;
        walked[2 * width] = count ? count : -1;
    }
}

/* report: [B][2 * W + 1]. lengths: [A]. */
void eyas_advance(const struct sequences *of, const int64_t *report, ptrdiff_t width, int64_t *lengths, int is_chain,
                  int64_t padding_seat)
{
    for (ptrdiff_t b = 0; b < of->num; b++) {
        const int64_t *const walked = report + b * (2 * width + 1), *const nodes = walked + width;
        const int64_t seat = of->seats[b], root = of->roots[b];
        const int64_t count = seat == padding_seat || walked[2 * width] < 0 ? 0 : walked[2 * width];
        for (int64_t i = 0; i < count; i++) {
            of->tokens[seat * of->tokens_stride + root + 1 + i] = walked[i];
            if (!is_chain)
                of->slots[seat * of->slots_stride + root + i] = of->node_slots[b * of->node_slots_stride + nodes[i]];
        }
        lengths[seat] = root + 1 + count;
    }
}

/* The lanes of chains (eyas/attention/lanes.py): slots of the keys [B][L], with the null slot behind the last
   query, and positions of the nodes [B][W]. rows: [B][W], -1 is none. columns: of the table that count. */
void eyas_chain_lanes(const int64_t *table, ptrdiff_t table_stride, const int64_t *seats, const int64_t *roots,
                      const int64_t *rows, ptrdiff_t num, ptrdiff_t width, ptrdiff_t columns, ptrdiff_t num_columns,
                      int64_t null_slot, int64_t *slots, int64_t *positions)
{
    for (ptrdiff_t b = 0; b < num; b++) {
        int64_t stop = 0;
        for (ptrdiff_t w = 0; w < width; w++) {
            positions[b * width + w] = roots[b] + w;
            if (rows[b * width + w] >= 0)
                stop = roots[b] + w + 1;
        }
        stop = least(stop, columns);
        int64_t *const own = slots + b * num_columns;
        memcpy(own, table + seats[b] * table_stride, stop * sizeof(int64_t));
        for (int64_t i = stop; i < num_columns; i++)
            own[i] = null_slot;
    }
}

/* How many of these nodes have a row. */
ptrdiff_t eyas_count_rows(const int64_t *rows, ptrdiff_t num)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < num; i++)
        count += rows[i] >= 0;
    return count;
}

/* The same for trees, one lane a node that has a row: slots [R][L], and position and row of the node [R].
   node_slots, parents: [B][W]. */
void eyas_tree_lanes(const int64_t *table, ptrdiff_t table_stride, const int64_t *seats, const int64_t *roots,
                     const int64_t *rows, const int64_t *node_slots, ptrdiff_t node_slots_stride,
                     const int64_t *parents, ptrdiff_t parents_stride, ptrdiff_t num, ptrdiff_t width,
                     ptrdiff_t columns, ptrdiff_t num_columns, int64_t null_slot, int64_t *slots,
                     int64_t *positions, int64_t *lane_rows)
{
    ptrdiff_t lane = 0;
    for (ptrdiff_t b = 0; b < num; b++)
        for (ptrdiff_t w = 0; w < width; w++) {
            if (rows[b * width + w] < 0)
                continue;
            int64_t *const own = slots + lane * num_columns, depth = 0;
            const int64_t *const above = parents + b * parents_stride;
            for (int64_t node = w; node > 0; node = above[node])
                depth++;
            const int64_t root = roots[b], stop = least(root + depth + 1, columns);
            memcpy(own, table + seats[b] * table_stride, least(root, columns) * sizeof(int64_t));
            for (int64_t node = w, at = root + depth; at >= root; node = above[node], at--)
                if (at < columns)
                    own[at] = node_slots[b * node_slots_stride + node];
            for (int64_t i = stop; i < num_columns; i++)
                own[i] = null_slot;
            positions[lane] = root + depth;
            lane_rows[lane++] = rows[b * width + w];
        }
}
