/* bench_slices: masks of slices on one GPU, by a list of work. See bench_cuda.h. */

/* First: what it calls state would hide the state of the bench. */
#include "numbers.h"

#include "bench_cuda.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_math.h"
#include "work_rig.h"

enum { ROWS = 32768, MOST_SLICES = 2 * ROWS };

/* A mask; `plain`: without a list, as a band. */
struct mask {
    const char *name;
    bool plain;
    int64_t count;
    struct ra_slice slices[MOST_SLICES];
};

int64_t bench_bounds(int64_t length, int64_t unit, int64_t rows, int64_t *bounds)
{
    uint64_t seed = 1;
    int64_t count = 0;
    for (bounds[0] = 0; bounds[count] < rows; count++) {
        int64_t drawn = length ? length : llround(exp(6.5 + 1.2 * random_normal(&seed)));
        int64_t units = (ra_max(drawn, 1) + unit - 1) / unit;
        bounds[count + 1] = ra_min(rows, bounds[count] + units * unit);
    }
    return count;
}

void bench_print_lengths(const char *word, int64_t count, const int64_t *bounds)
{
    printf("%s", word);
    for (int64_t i = 0; i < count; i++)
        printf(" %" PRId64, bounds[i + 1] - bounds[i]);
    printf("\n");
}

enum { MASKS = 9 };

static void make_mask(int number, struct mask *mask)
{
    static int64_t bounds[ROWS + 1], prefixes[ROWS];
    static const int64_t lengths[] = {512, 2048, 8192, 0};
    static const char *const names[] = {"documents 512", "documents 2k", "documents 8k",
                                        "documents log-normal"};
    *mask = (struct mask){.name = number < 4 ? names[number] : "causal"};
    int64_t whole[] = {0, ROWS}, prefix = ROWS / 4, count = bench_bounds(0, 1, ROWS, bounds);
    switch (number) {
    case 4: /* no list */
        mask->plain = true;
        /* fall through */
    case 5:
        mask->name = number == 4 ? "causal, no list" : "causal";
        mask->count = ra_slices_documents(whole, 1, RA_NO_LOOKBACK, 0, mask->slices);
        break;
    case 6:
        mask->name = "prefix of a quarter";
        mask->count = ra_slices_prefix(whole, 1, &prefix, mask->slices);
        break;
    case 7:
        mask->name = "window 1k in documents";
        mask->count = ra_slices_documents(bounds, count, 1024, 0, mask->slices);
        break;
    case 8:
        mask->name = "prefixes in documents";
        for (int64_t i = 0; i < count; i++)
            prefixes[i] = (bounds[i + 1] - bounds[i]) / 4;
        mask->count = ra_slices_prefix(bounds, count, prefixes, mask->slices);
        break;
    default:
        count = bench_bounds(lengths[number], 1, ROWS, bounds);
        mask->count = ra_slices_documents(bounds, count, RA_NO_LOOKBACK, 0, mask->slices);
    }
}

static struct ra_work lists[2];

static void forward_list(struct set *set)
{
    set->kernel.work = lists[0];
    forward(set);
}

static void backward_list(struct set *set)
{
    set->kernel.work = lists[1];
    backward(set);
}

/* What may be beside the keys, on the device: numbers of heads, then the places of all rows. */
static struct ra_tensor extras, rows_places;

static void make_extras(void)
{
    enum { HEADS = 64 };
    static float heads[HEADS];
    static int32_t places[ROWS];
    for (int i = 0; i < ROWS; i++)
        places[i] = i;
    for (int h = 0; h < HEADS; h++)
        heads[h] = exp2f((float)(-8 - h % 8));
    char *memory;
    must(cudaMalloc((void **)&memory, sizeof heads + sizeof places), "memory for extras");
    must(cudaMemcpy(memory, heads, sizeof heads, cudaMemcpyDefault), "extras");
    must(cudaMemcpy(memory + sizeof heads, places, sizeof places, cudaMemcpyDefault), "places");
    extras = ra_tensor_h(memory);
    rows_places = (struct ra_tensor){.data = memory + sizeof heads, .row = 1};
}

/* Gives a set a sink, or slopes, or takes them away. */
enum extra { NOTHING, SINK, SLOPES, EXTRAS };
static const char *const extra_names[] = {"", ", sink", ", slopes"};

static void give_extra(struct set *set, enum extra extra)
{
    const struct ra_tensor none = RA_NO_TENSOR;
    set->kernel.sink = extra == SINK ? extras : none;
    set->kernel.slopes = extra == SLOPES ? extras : none;
    set->kernel.query_place = set->kernel.key_place = extra == SLOPES ? rows_places : none;
    set->kernel.places_ascend = true;
}

static void print_line(const struct mask *mask, struct shape shape, enum extra extra, bool back,
                       double ms)
{
    double pairs = 0;
    for (int64_t i = 0; i < mask->count; i++)
        pairs += (double)ra_slice_pairs(&mask->slices[i]);
    double operations = (back ? 10 : 4) * pairs * (double)shape.heads * (double)shape.dim;
    char name[128], said[64];
    shape_name(shape, name, sizeof name);
    snprintf(said, sizeof said, "%s%s", mask->name, extra_names[extra]);
    printf("k07    %-8s %-24s %-11s d%-4" PRId64 "bf16 %9.3f ms %7.1f TFLOP/s of visible pairs "
           "%5.2f GHz %4.0f W\n",
           back ? "backward" : "forward", said, name, shape.dim, ms, 1e-9 * operations / ms,
           state.clock, state.power);
    fflush(stdout);
}

/* So that other programs can have the same documents. */
static void print_lengths(void)
{
    static int64_t bounds[ROWS + 1];
    int64_t count = bench_bounds(0, 1, ROWS, bounds);
    bench_print_lengths("log-normal lengths:", count, bounds);
}

void bench_slices(void)
{
    static const struct shape shapes[] = {{1, ROWS, 16, 16, 128, 128}, {1, ROWS, 32, 32, 64, 64}};
    static struct mask mask;
    if (bench.only && strcmp(bench.only, "slices") != 0)
        return;
    printf("\nmasks of slices, one launch over a list of work\n");
    print_lengths();
    make_extras();
    for (int i = 0; i < 2; i++) {
        struct set sets[MOST_SETS];
        int count = sets_make(sets, &ra_ladder[RA_K07], shapes[i], RA_BFLOAT16);
        for (int number = 0; number < MASKS; number++) {
            make_mask(number, &mask);
            const struct ra_span keys = {0, 1, ROWS};
            void *memory[2] = {NULL, NULL};
            lists[0].count = lists[1].count = 0;
            for (int side = 0; side < 2 && !mask.plain; side++)
                memory[side] = work_make(
                    mask.slices, mask.count, ROWS, &keys, 1, (enum ra_work_use)side,
                    ra_work_rows(RA_BFLOAT16, shapes[i].dim, false, (enum ra_work_use)side),
                    &lists[side]);
            for (int set = 0; set < count; set++)
                sets[set].kernel.band =
                    mask.plain ? (struct ra_band){-RA_BAND_FAR, 0} : RA_ALL_KEYS;
            bool also = number == 4 || number == 5;
            for (int line = 0; line < (also ? 2 * EXTRAS : 2); line++) {
                int back = line % 2;
                for (int set = 0; set < count; set++)
                    give_extra(&sets[set], (enum extra)(line / 2));
                double ms =
                    measure(back ? backward_list : forward_list, sets, count, bench.repeats);
                int64_t numbers = ROWS * shapes[i].heads * shapes[i].dim;
                check(back ? sets[0].dq : sets[0].kernel.o, numbers, back ? "dq" : "o");
                print_line(&mask, shapes[i], (enum extra)(line / 2), back, ms);
            }
            for (int set = 0; set < count; set++)
                give_extra(&sets[set], NOTHING);
            for (int side = 0; side < 2; side++)
                must(cudaFree(memory[side]), "cudaFree");
        }
        sets_free(sets, count);
    }
    must(cudaFree(extras.data), "cudaFree");
}
