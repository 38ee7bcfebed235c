/* 13a_list: page 13a as a toy: a mask becomes a list of tiles, with an interval of keys for each
 * row, and the kernel knows nothing of the mask but the list.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#ifndef BEGINS /* of each row, the first token of its document */
#define BEGINS 0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 9, 9
#endif
#ifndef WINDOW
#define WINDOW 12
#endif
#ifndef MOST_PARTS
#define MOST_PARTS 2
#endif
enum { N = 12, ROWS = 4, KEYS = 4, TILES = N / ROWS, EMPTY = 0 };
static const int begins[N] = {BEGINS};

/* The mask: a token sees the first of its document, and the WINDOW last ones up to itself. */
static bool sees(int a, int b)
{
    return begins[a] <= b && b <= a && (a - b < WINDOW || b == begins[a]);
}

struct sight { /* keys first .. end - 1 */
    int first, end;
};

struct part { /* one interval of each row, and what they cover together */
    struct sight row[ROWS], some;
};

struct tile { /* rows from `row` on */
    int row, parts;
    struct part part[MOST_PARTS];
};

static double score[N][N], value[N], o[N];
static int steps, unmasked_steps;

/* The host: adds one interval of row i of the tile, as number p of that row. */
static void add_sight(struct tile *tile, int i, int p, struct sight sight)
{
    if (p == MOST_PARTS) { /* no room: the last interval grows until it has this one, too */
        tile->part[p - 1].row[i].end = sight.end;
        p--;
    } else
        tile->part[p].row[i] = sight;
    struct sight *some = &tile->part[p].some;
    if (some->end == EMPTY || sight.first < some->first)
        some->first = sight.first;
    some->end = sight.end > some->end ? sight.end : some->end;
    tile->parts = p + 1 > tile->parts ? p + 1 : tile->parts;
}

/* The host: lists what the rows of a tile see. */
static void list(struct tile *tile)
{
    for (int i = 0; i < ROWS; i++) {
        int a = tile->row + i, parts = 0;
        for (int first = 0, end; first < N; first = end + 1) {
            for (end = first; end < N && sees(a, end);)
                end++;
            if (end > first)
                add_sight(tile, i, parts++, (struct sight){first, end});
        }
    }
}

/* Does every row see all of keys at .. at + KEYS - 1? Then the step needs no mask. */
static bool all_see(const struct part *part, int at)
{
    for (int i = 0; i < ROWS; i++)
        if (part->row[i].first > at || part->row[i].end < at + KEYS)
            return false;
    return true;
}

/* The device: a block of threads folds the parts of its tile, KEYS keys a step, and writes at the
 * end. */
static void fold(const struct tile *tile)
{
    double sum[ROWS] = {0}, all[ROWS] = {0};
    for (int p = 0; p < tile->parts; p++) {
        const struct part *part = &tile->part[p];
        for (int at = part->some.first; at < part->some.end; at += KEYS) {
            bool unmasked = all_see(part, at);
            steps++;
            unmasked_steps += unmasked;
            for (int i = 0; i < ROWS; i++)
                for (int b = at; b < at + KEYS; b++)
                    if (unmasked || (part->row[i].first <= b && b < part->row[i].end)) {
                        double weight = exp(score[tile->row + i][b]);
                        sum[i] += weight;
                        all[i] += weight * value[b];
                    }
        }
    }
    for (int i = 0; i < ROWS; i++)
        o[tile->row + i] = all[i] / sum[i];
}

/* Row a by the definition. */
static double defined(int a)
{
    double sum = 0, all = 0;
    for (int b = 0; b < N; b++) {
        double weight = sees(a, b) ? exp(score[a][b]) : 0;
        sum += weight;
        all += weight * value[b];
    }
    return all / sum;
}

static void print_part(const struct part *part)
{
    printf("keys %d to %d:", part->some.first, part->some.end - 1);
    for (int i = 0; i < ROWS; i++)
        if (part->row[i].end == EMPTY)
            printf("  -");
        else
            printf("  %d-%d", part->row[i].first, part->row[i].end - 1);
    printf("\n");
}

int main(void)
{
    int wrong = 0;
    for (int a = 0; a < N; a++) {
        value[a] = cos(a);
        for (int b = 0; b < N; b++)
            score[a][b] = sin(N * a + b);
    }
    for (int t = 0; t < TILES; t++) {
        struct tile tile = {.row = t * ROWS};
        list(&tile);
        for (int p = 0; p < tile.parts; p++) {
            printf("tile %d, part %d, ", t, p);
            print_part(&tile.part[p]);
        }
        fold(&tile);
    }
    for (int a = 0; a < N; a++)
        wrong += !(fabs(o[a] - defined(a)) <= 1e-12);
    printf("1 launch: %d tiles, %d steps, %d of them without a mask; %d rows are wrong\n", TILES,
           steps, unmasked_steps, wrong);
    return wrong > 0;
}
