/* fuzz: nine harnesses. Each makes a problem of any bytes, has it solved, and holds the answer
 * against a slow one that is plainly right. clang's libFuzzer invents bytes that reach branch after
 * branch, and sanitizers watch; tests/corpus has the bytes that did.
 *
 *     FUZZ=plan build/fuzz/fuzzer FOLDER      invents inputs, and keeps good ones in this folder
 *     FUZZ=plan build/fuzz/fuzzer FILES...    replays these
 *
 * FUZZ is npy, plan, slices, arrays, tile, layout, options, json or safetensors. What is wrong is
 * told in one line, and aborts.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "npy.h"
#include "ra_json.h"
#include "ra_layout.h"
#include "ra_options.h"
#include "ra_safetensors.h"
#include "ra_schedule.h"
#include "ra_vector.h"
#include "ra_version.h"
#include "runs.h"
#include "stage.h"
#include "stage_options.h"

#define EXPECT(condition, ...)                                                     \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "FAILED %s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                          \
            fputc('\n', stderr);                                                   \
            abort();                                                               \
        }                                                                          \
    } while (0)

/* What is left of an input. Behind its end all bytes are 0. */
struct bytes {
    const uint8_t *at, *end;
};

/* The next `count` bytes, 1 to 8, as one number. */
static uint64_t take(struct bytes *in, int count)
{
    uint64_t number = 0;
    for (int i = 0; i < count && in->at < in->end; i++)
        number |= (uint64_t)*in->at++ << 8 * i;
    return number;
}

/* A number from 0 to end - 1, of one byte. */
static int64_t below(struct bytes *in, int64_t end)
{
    return (int64_t)take(in, 1) % end;
}

/* Any number: a small one, one near a power of 2, or 8 bytes as they come. */
static int64_t any(struct bytes *in)
{
    switch (below(in, 3)) {
    case 0:
        return below(in, 256) - 32;
    case 1:
        return (int64_t)(((uint64_t)1 << below(in, 64)) - 1 + (uint64_t)below(in, 3));
    default:
        return (int64_t)take(in, 8);
    }
}

/* ---- npy: a file of these bytes. */

/* Bytes of an element, by enum npy_type. */
static const int widths[] = {1, 2, 4, 8, 1, 2, 4, 4, 8};

/* What the file's bytes say at this element, as a double. */
static double element_of(const struct npy *file, const uint8_t *data, int64_t element)
{
    uint64_t bits = 0;
    double real;
    memcpy(&bits, data + file->data_offset + element * widths[file->type],
           (size_t)widths[file->type]);
    memcpy(&real, &bits, sizeof real);
    return file->type == NPY_FLOAT64   ? real
           : file->type == NPY_FLOAT32 ? (double)number_of_bits((uint32_t)bits)
           : file->type == NPY_FLOAT16 ? number_widened(RA_FLOAT16, (uint16_t)bits)
           : file->type == NPY_INT32   ? (double)(int32_t)bits
                                       : (double)(int64_t)bits;
}

/* Rows of an axis, read and held against the bytes; or refused, if they are not in the file. */
static void judge_slice(struct npy *file, const uint8_t *data, struct npy_slice slice)
{
    int dims = file->dims ? file->dims : 1;
    bool is_bool = file->type == NPY_BOOL, is_integer = file->type >= NPY_UINT8;
    int64_t outer = 1, length = slice.axis < dims ? file->shape[slice.axis] : 0;
    for (int axis = 0; axis < slice.axis && axis < dims; axis++)
        outer *= file->shape[axis];
    bool good = slice.outer < outer && slice.count > 0 &&
                slice.first + (slice.count - 1) * slice.stride < length;
    int64_t row = npy_row_elements(file, slice.axis), count = good ? slice.count * row : 0;
    double *want = malloc((size_t)count * sizeof *want);
    uint8_t *got = malloc((size_t)count * (is_bool ? 1 : sizeof *want));
    for (int64_t e = 0; e < count; e++) {
        int64_t i = slice.first + e / row * slice.stride;
        want[e] = element_of(file, data, (slice.outer * length + i) * row + e % row);
        good = good && (!is_bool || want[e] <= 1);
    }
    enum npy_type as = is_bool ? NPY_BOOL : is_integer ? NPY_INT64 : NPY_FLOAT64;
    bool done = npy_read(file, slice, as, got);
    EXPECT(done == (good || slice.count == 0), "%s", file->error);
    for (int64_t e = 0; e < count && done; e++) {
        double number = 0;
        int64_t integer = 0;
        memcpy(&number, got + e * 8, is_bool ? 0 : sizeof number);
        memcpy(&integer, got + e * 8, is_integer ? sizeof integer : 0);
        number = is_bool ? got[e] : is_integer ? (double)integer : number;
        EXPECT(number == want[e] || (isnan(number) && isnan(want[e])), "%d: %g", (int)e, number);
    }
    free(want);
    free(got);
}

static void fuzz_npy(struct bytes in)
{
    static int fd = -1;
    static char path[40];
    if (fd < 0)
        fd = memfd_create("npy", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int64_t size = in.end - in.at, elements = 1;
    if (ftruncate(fd, 0) != 0 || pwrite(fd, in.at, (size_t)size, 0) != size)
        abort();
    struct npy file;
    if (!npy_open(&file, path)) {
        EXPECT(file.fd == -1 && strncmp(file.error, path, strlen(path)) == 0, "%s", file.error);
        EXPECT(!strchr(file.error, '\n'), "%s", file.error);
        return;
    }
    for (int axis = 0; axis < NPY_MAX_DIMS; axis++) {
        EXPECT(axis < file.dims || file.shape[axis] == 1, "axis %d", axis);
        elements *= file.shape[axis];
    }
    EXPECT(elements == npy_elements(&file), "%" PRId64, elements);
    EXPECT(file.data_offset + elements * widths[file.type] == size, "%" PRId64, size);
    if (elements > 0)
        npy_index_text(&file, elements - 1, path, sizeof path);

    /* The data's last bytes also say which slices are read. */
    struct bytes last = {in.end - (size < 16 ? size : 16), in.end};
    for (int s = 0; s < 3; s++)
        judge_slice(&file, in.at,
                    (struct npy_slice){(int)below(&last, 5), below(&last, 3), below(&last, 4),
                                       1 + below(&last, 3), below(&last, 5)});
    npy_close(&file);
}

/* ---- plan: a config of these bytes, and random numbers, alone and on the ranks of a ring. */

static struct ra_config draw_config(struct bytes *in)
{
    struct ra_config c = RA_CONFIG_INIT;
    c.batch = below(in, 3);
    c.queries = below(in, 14);
    c.keys = below(in, 2) ? below(in, 14) : RA_SAME;
    c.key_heads = 1 + below(in, 2);
    c.heads = c.key_heads * (1 + below(in, 2));
    c.dim = 1 + below(in, 6);
    c.dim_value = c.dim % 3 == 2 ? c.dim + 3 : 0;
    c.type = (enum ra_type)below(in, 3);
    c.head_map = (enum ra_head_map)below(in, 2);
    c.has_mask = below(in, 2);
    c.forward_only = below(in, 2);
    c.local_keys = below(in, 8) == 1;
    c.causal = below(in, 2);
    c.lookback = c.causal && below(in, 2) ? below(in, 16) : RA_NO_LOOKBACK;
    c.layout = (enum ra_layout_kind)below(in, 3);
    c.bucket = c.layout == RA_STRIPED ? below(in, 6) : 0;
    c.tile_queries = below(in, 7);
    c.tile_keys = below(in, 7);
    c.softcap = below(in, 4) == 1 ? 0.5 * (double)(1 + below(in, 100)) : 0;
    c.ring_size = (int)below(in, 6);

    /* Some fields hold anything; the size says that a newer header's were meant, or an older's. */
    for (int64_t changes = below(in, 4); changes > 0; changes--) {
        int64_t o = below(in, RA_OPTIONS + 1), value = any(in);
        const struct ra_option *option = &ra_options[o % RA_OPTIONS];
        if (o == RA_OPTIONS)
            c.size = (size_t)value;
        else if (option->field && option->kind == RA_OPTION_FLAG)
            memset((char *)&c + option->offset, (int)value, 1);
        else if (option->field && option->kind == RA_OPTION_REAL && below(in, 2))
            ra_option_store(
                option, &c,
                ra_option_bits(ldexp((double)(value % 256), (int)below(in, 256) * 9 - 1100)));
        else if (option->field)
            ra_option_store(option, &c, value);
    }

    /* How ranks meet; most often round the ring. */
    int64_t method = below(in, 10);
    if (method <= RA_AUTO_METHOD && c.method == RA_RING) {
        c.method = (enum ra_method)method;
        c.group = method == RA_HYBRID ? (int)below(in, 3) : 0;
        c.inner = method == RA_DOUBLE_RING ? (int)below(in, 3) : 0;
    }
    return c;
}

/* Holds an output against the definition: near it; and not finite where the definition is not. */
static void judge_output(const struct truth *t, enum truth_array a, const double *got)
{
    char text[TRUTH_TEXT];
    for (int64_t e = 0; e < truth_count(t, a); e++)
        EXPECT(isfinite(t->x[a][e]) || t->x[a][e] == got[e] || isnan(got[e]),
               "%s number %" PRId64 ": %g instead of %g", truth_names[a], e, got[e], t->x[a][e]);
    for (int64_t head = 0; head < t->B * truth_heads(t, a); head++)
        if (!isfinite(t->allowed[a][head])) /* the plainest program overflows, too */
            return;
    EXPECT(truth_judge(t, a, got, text) <= 1, "%s", text);
}

/* Which rank has each row: with local keys, who sees whom. */
static int *homes(struct ra_plan *plan, enum ra_side side)
{
    struct ra_layout layout = ra_plan_layout(plan, side);
    int *home = calloc((size_t)layout.length + 1, sizeof *home);
    for (int64_t i = 0, row; i < layout.length; i++)
        home[i] = ra_layout_find(layout, i, &row);
    return home;
}

/* A mask of slices, as it is given to a plan; without slices, none. */
struct mask {
    const struct ra_slice *slices;
    int64_t count;
    enum ra_deal deal;
};

/* Makes inputs, and runs the problem on all of its ranks. */
static void run(struct bytes *in, const struct ra_config *config, struct ra_plan *plan,
                struct mask mask)
{
    int ranks = ra_plan_ranks(plan);
    struct problem p = {.config = *config, .truth = truth_of(config)};
    struct run run = {.p = &p, .deal = mask.deal};
    struct truth *t = &p.truth;
    if (mask.slices) {
        t->causal = false;
        t->slices = mask.slices;
        t->slice_count = mask.count;
    }
    int *home[2] = {homes(plan, RA_QUERY_SIDE), homes(plan, RA_KEY_SIDE)};
    static const double sizes[] = {1, 0.1, 10, 0};
    uint64_t state = take(in, 2);
    truth_make_inputs(t, random_normal, sizes[below(in, 4)], &state);
    if (config->local_keys)
        t->home[0] = home[0], t->home[1] = home[1];
    t->x[MASK] = truth_numbers(t->B * t->M);
    for (int64_t j = 0, odds = below(in, 4); j < t->B * t->M; j++)
        t->x[MASK][j] = !config->has_mask || random_below(&state, 4) < odds;
    truth_forward(t);
    if (!config->forward_only)
        truth_backward(t, NULL);
    outputs_make(&p, run.got);
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (truth_is_output(a)) /* a row that no rank has stays NaN */
            memset(run.got[a], 0xFF, (size_t)truth_count(t, a) * sizeof *run.got[a]);
    if (ranks > 1) {
        run.ring = thread_ring_open(ranks, 300, (enum thread_delivery)(state & 1));
        thread_ring_run(ranks, run_rank, &run);
        thread_ring_close(run.ring);
    } else {
        run_rank(&run, 0);
    }
    for (int rank = 0; rank < ranks; rank++)
        EXPECT(!run.trouble[rank][0], "rank %d of %d: %s", rank, ranks, run.trouble[rank]);
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (problem_writes(&p, a))
            judge_output(t, a, run.got[a]);
    outputs_clear(run.got);
    free(home[0]);
    free(home[1]);
    truth_clear(t);
}

static void fuzz_plan(struct bytes in)
{
    struct ra_config c = draw_config(&in);

    /* Hundreds of ranks or of stripes are allowed, and take long to plan. And what a longer struct
     * would hold must not be read. */
    if (c.ring_size > 64 || (c.bucket > 0 && c.queries / c.bucket > 64) ||
        (c.size > sizeof c && c.size <= 16 * sizeof c))
        return;
    struct ra_plan *plan = (struct ra_plan *)(void *)&c;
    char error[RA_ERROR_SIZE] = "";
    enum ra_status status = ra_plan_create(&plan, &c, NULL, error);
    if (status != RA_OK) {
        EXPECT(status == RA_INVALID || status == RA_OUT_OF_MEMORY, "status %d", status);
        EXPECT(!plan && error[0] && !strchr(error, '\n'), "status %d: %s", status, error);
        return;
    }
    int ranks = ra_plan_ranks(plan);
    int64_t most = 0;
    for (int side = 0; side < 2; side++)
        most = most > ra_plan_layout(plan, side).length ? most : ra_plan_layout(plan, side).length;
    struct ra_hop hop;
    bool small = most <= 16 && c.batch <= 4 && c.heads <= 8 && c.dim <= 16 && c.dim_value <= 16;
    if (small &&
        (ra_plan_hop(plan, (int)below(&in, ranks), ra_plan_hops(plan) - 1, true, &hop) != RA_OK ||
         ra_plan_describe(plan, ranks - 1, NULL, 0) < 100))
        EXPECT(false, "%s", ra_plan_error(plan));
    if (small && ranks <= 4 && c.size == sizeof c &&
        (c.scale == RA_DEFAULT_SCALE || fabs(c.scale) < 100))
        run(&in, &c, plan, (struct mask){0});
    ra_plan_destroy(plan);
}

/* ---- slices: any six numbers each; refused, or the mask of a plan. */

enum { MOST_SLICES = 5, LONGEST = 13 };

/* A place in a sequence, most often. */
static int64_t place(struct bytes *in)
{
    int64_t at = below(in, LONGEST + 5) - 1;
    return at < LONGEST + 3 ? at : any(in);
}

/* Where a band ends: nowhere, at a diagonal, or at any number. */
static int64_t bound(struct bytes *in, int64_t none)
{
    int64_t kind = below(in, 16);
    return kind < 7 ? none : kind < 15 ? below(in, 2 * LONGEST) - LONGEST : any(in);
}

/* Whether each of these lies within the sequences, and no pair is in two. */
static bool are_good(const struct ra_slice *slices, int64_t count, int64_t queries, int64_t keys)
{
    bool taken[LONGEST][LONGEST] = {{false}};
    for (const struct ra_slice *s = slices; s < slices + count; s++) {
        if (s->q0 < 0 || s->q0 > s->q1 || s->q1 > queries || s->k0 < 0 || s->k0 > s->k1 ||
            s->k1 > keys)
            return false;
        for (int64_t i = s->q0; i < s->q1; i++)
            for (int64_t j = s->k0; j < s->k1; j++) {
                if (j - i < s->lo || j - i > s->hi)
                    continue;
                if (taken[i][j])
                    return false;
                taken[i][j] = true;
            }
    }
    return true;
}

static void fuzz_slices(struct bytes in)
{
    struct ra_slice slices[MOST_SLICES];
    struct mask mask = {slices, below(&in, MOST_SLICES + 1), (enum ra_deal)below(&in, 2)};
    for (int64_t i = 0; i < mask.count; i++) {
        struct ra_slice *s = &slices[i];
        s->q0 = place(&in), s->q1 = place(&in), s->k0 = place(&in), s->k1 = place(&in);
        s->lo = bound(&in, -RA_BAND_FAR), s->hi = bound(&in, RA_BAND_FAR);
    }

    /* The longest sequences have room for what places there are. */
    struct ra_config c = RA_CONFIG_INIT;
    c.queries = LONGEST - below(&in, 3), c.keys = LONGEST - below(&in, 3);
    c.key_heads = 1 + below(&in, 2), c.heads = c.key_heads * (1 + below(&in, 2));
    c.dim = 1 + below(&in, 3);
    c.head_map = (enum ra_head_map)below(&in, 2);
    c.has_mask = below(&in, 2);
    c.local_keys = below(&in, 8) == 1;
    c.causal = below(&in, 2);
    c.layout = (enum ra_layout_kind)below(&in, 3);
    c.bucket = c.layout == RA_STRIPED ? below(&in, 6) : 0;
    c.tile_queries = below(&in, 7), c.tile_keys = below(&in, 7);
    c.tile = (enum ra_tile_kind)below(&in, 2);
    c.ring_size = 1 + (int)below(&in, 4);
    c.max_slices = 1 + below(&in, MOST_SLICES), c.max_rows = LONGEST;

    struct ra_plan *plan;
    char error[RA_ERROR_SIZE] = "";
    EXPECT(ra_plan_create(&plan, &c, NULL, error) == RA_OK, "%s", error);
    bool good = mask.count <= c.max_slices && are_good(slices, mask.count, c.queries, c.keys);
    enum ra_status status = ra_plan_set_slices(plan, slices, mask.count, mask.deal);
    EXPECT(status == (good ? RA_OK : RA_INVALID), "status %d: %s", status, ra_plan_error(plan));
    if (good)
        run(&in, &c, plan, mask);
    ra_plan_destroy(plan);
}

/* ---- arrays: of any strides, types and sizes. */

enum { B = 2, N = 3, M = 4, H = 2, G = 1, D = 3, ROOM = 4096, MIDDLE = ROOM / 2, REACH = 500 };

/* The memory of each array, and what it was like. Arrays begin in the middle. */
static _Alignas(8) uint8_t room[ARRAYS * ROOM], before[ARRAYS * ROOM];

/* Does all of an array lie in its room? If not, *far is how many numbers it reaches at least. */
static bool is_in_room(const struct truth *t, enum truth_array a, struct ra_tensor x, double *far)
{
    double strides[] = {(double)x.batch, (double)x.row, (double)x.head}, reach = 0;
    double counts[] = {B, (double)truth_rows(t, a), (double)truth_heads(t, a)};
    for (int i = 0; i < 3; i++)
        reach += fabs(strides[i]) * (counts[i] - 1);
    *far = fmax(*far, reach);
    return reach < REACH;
}

/* Takes what lies in the places of an output for what was there before. False if two numbers lie in
 * one place. */
static bool excuse(const struct truth *t, enum truth_array a, struct ra_tensor x)
{
    static uint8_t taken[sizeof room];
    int64_t width = truth_width(t, a), heads = truth_heads(t, a), rows = truth_rows(t, a);
    bool apart = true;
    memset(taken, 0, sizeof taken);
    for (int64_t n = 0; n < truth_count(t, a); n++) {
        int64_t e = n / width / heads / rows * x.batch + n / width / heads % rows * x.row +
                    n / width % heads * x.head + n % width;
        int64_t at = (uint8_t *)x.data - room + e * ra_type_bytes(x.type);
        apart = apart && !taken[at];
        taken[at] = 1;
        memcpy(before + at, room + at, (size_t)ra_type_bytes(x.type));
    }
    return apart;
}

/* Up to seven things become odd. */
static void spoil(struct bytes *in, struct ra_arrays *arrays)
{
    for (int64_t changes = below(in, 8); changes > 0; changes--) {
        struct ra_tensor *tensor = tensor_in(arrays, (int)below(in, ARRAYS));
        int64_t *strides[] = {&tensor->batch, &tensor->row, &tensor->head}, what = below(in, 16);
        if (what == 0)
            tensor->type = (enum ra_type)(below(in, 6) - 1);
        else if (what == 1 && tensor->data)
            tensor->data = (uint8_t *)tensor->data + below(in, 9);
        else if (what == 2)
            tensor->data = below(in, 4) ? tensor_in(arrays, (int)below(in, ARRAYS))->data : NULL;
        else if (what == 3)
            arrays->size = (size_t)any(in);
        else
            *strides[what % 3] = any(in);
    }
}

/* One call: done, or refused with a reason. Nothing but outputs has changed. */
static bool call(struct ra_plan *plan, const struct truth *t, struct ra_arrays *arrays,
                 bool backward)
{
    double far = 0;
    bool fits = true;
    for (int a = 0; a < (backward ? ARRAYS : D_OUT); a++)
        fits = is_in_room(t, a, *tensor_in(arrays, a), &far) && fits;

    /* What leads out of the room, but not out of all memory, may be allowed, but not done here. Nor
     * may a struct that would be longer than this one is. */
    if ((!fits && far < 0x1p58) ||
        (arrays->size > sizeof *arrays && arrays->size <= 16 * sizeof *arrays))
        return false;
    memcpy(before, room, sizeof room);
    enum ra_status status = (backward ? ra_backward : ra_forward)(plan, arrays);
    EXPECT(status == RA_OK || (status == RA_INVALID && ra_plan_error(plan)[0]), "%d", status);
    EXPECT(status != RA_OK || fits, "reaches %g", far);
    for (int a = 0; a < ARRAYS && status == RA_OK; a++)
        if (backward ? a >= DQ : a == O || a == LSE)
            EXPECT(excuse(t, a, *tensor_in(arrays, a)), "%s lies upon itself", truth_names[a]);
    EXPECT(memcmp(before, room, sizeof room) == 0, "more than the outputs has changed");
    return status == RA_OK;
}

/* Reads an array as its strides have it. False if it lies in the room of another one, or if its
 * numbers are wild, as those of another type are. */
static bool read_array(struct truth *t, enum truth_array a, struct ra_tensor x, double *numbers)
{
    uint8_t *data = x.data;
    bool tame = data >= room + a * ROOM && data < room + (a + 1) * ROOM;
    t->type[a] = x.type;
    arrays_get(t, a, x, truth_rows(t, a), NULL, numbers);
    for (int64_t e = 0; e < truth_count(t, a) && !truth_is_output(a); e++)
        tame = tame && fabs(numbers[e]) < 300;
    return tame;
}

/* Rooms full of random numbers of the types that arrays should have, made once. */
static const uint8_t *numbers_of(const struct truth *t, enum ra_type type)
{
    static _Alignas(8) uint8_t rooms[3][ARRAYS * ROOM];
    static bool made[3];
    uint64_t state = type;
    for (int a = 0; a < ARRAYS && !made[type]; a++)
        for (int64_t e = 0; e < ROOM / ra_type_bytes(t->type[a]); e++)
            number_put(t->type[a], rooms[type] + a * ROOM, e,
                       a == MASK ? (double)random_below(&state, 2)
                                 : number_rounded(t->type[a], random_number(&state)));
    made[type] = true;
    return rooms[type];
}

static void fuzz_arrays(struct bytes in)
{
    static struct ra_plan *plans[3];
    enum ra_type type = (enum ra_type)below(&in, 3);
    struct ra_config c = RA_CONFIG_INIT;
    c.batch = B, c.queries = N, c.keys = M, c.heads = H, c.key_heads = G, c.dim = D;
    c.has_mask = true, c.type = type;
    if (!plans[type] && ra_plan_create(&plans[type], &c, NULL, NULL) != RA_OK)
        abort();
    struct truth t = truth_of(&c);
    struct ra_arrays x = RA_ARRAYS_INIT;
    double *got[ARRAYS];
    memcpy(room, numbers_of(&t, type), sizeof room);
    for (int a = 0; a < ARRAYS; a++) {
        int64_t rows = truth_rows(&t, a), heads = truth_heads(&t, a);
        *tensor_in(&x, a) =
            ra_tensor_bnhd(room + a * ROOM + MIDDLE, t.type[a], rows, heads, truth_width(&t, a));
        got[a] = truth_numbers(truth_count(&t, a));
        t.x[a] = truth_is_output(a) ? NULL : truth_numbers(truth_count(&t, a));
    }
    spoil(&in, &x);
    bool judged = true;
    for (int backward = 0; backward < 2; backward++) {
        if (!call(plans[type], &t, &x, backward) || x.size != sizeof x)
            judged = false;
        for (int a = backward ? D_OUT : Q; a < (backward ? ARRAYS : D_OUT) && judged; a++)
            judged = read_array(&t, a, *tensor_in(&x, a), truth_is_output(a) ? got[a] : t.x[a]);
        if (judged && backward)
            truth_backward(&t, got[O]);
        else if (judged)
            truth_forward(&t);
        for (int a = 0; a < ARRAYS && judged; a++)
            if (backward ? a >= DQ : a == O || a == LSE)
                judge_output(&t, a, got[a]);
    }
    for (int a = 0; a < ARRAYS; a++)
        free(got[a]);
    truth_clear(&t);
}

/* ---- tile: struct ra_queries and ra_keys of one head, with rows of any strides. */

enum { MOST_ROWS = 12 };

/* Memory for rows of this stride, all NaN; and, for an input, the truth's numbers in it. */
static float *new_rows(const struct truth *t, enum truth_array a, int64_t stride)
{
    int64_t rows = truth_rows(t, a), width = truth_width(t, a);
    float *memory = malloc((size_t)(rows * stride * 4) + 4);
    memset(memory, 0xFF, (size_t)(rows * stride * 4));
    for (int64_t e = 0; e < rows * width && !truth_is_output(a); e++)
        memory[e / width * stride + e % width] = (float)t->x[a][e];
    return memory;
}

/* Judges an output, and what lies between its rows. */
static void judge_rows(const struct truth *t, enum truth_array a, const float *memory,
                       int64_t stride)
{
    int64_t rows = truth_rows(t, a), width = truth_width(t, a);
    double *got = truth_numbers(rows * width);
    for (int64_t e = 0; e < rows * stride; e++)
        if (e % stride < width)
            got[e / stride * width + e % stride] = (double)memory[e];
        else
            EXPECT(number_bits(memory[e]) == UINT32_MAX, "%s between rows", truth_names[a]);
    judge_output(t, a, got);
    free(got);
}

/* A problem of one head, in which a band and a mask hide keys, and what is right. */
static struct truth draw_tile(struct bytes *in)
{
    struct truth t = {.B = 1, .N = below(in, MOST_ROWS), .M = below(in, MOST_ROWS), .H = 1, .G = 1};
    t.D = 1 + below(in, 7);
    t.band = (struct ra_band){below(in, 30) - 15, below(in, 30) - 15};
    t.band = below(in, 3) ? t.band : RA_ALL_KEYS;
    t.softcap = below(in, 2) ? 0 : 0.25 * (double)(1 + below(in, 20));
    t.scale = 0.25 * (double)(below(in, 20) - 8);
    uint64_t state = take(in, 2);
    truth_make_inputs(&t, random_normal, 1, &state);
    t.x[MASK] = below(in, 2) ? truth_numbers(t.M) : NULL;
    for (int64_t j = 0; j < t.M && t.x[MASK]; j++)
        t.x[MASK][j] = (double)random_below(&state, 2);
    truth_forward(&t);
    truth_backward(&t, NULL);
    return t;
}

static void fuzz_tile(struct bytes in)
{
    struct truth t = draw_tile(&in);
    float *x[ARRAYS], max[MOST_ROWS], delta[MOST_ROWS], comp[3][MOST_ROWS * 10] = {{0}};
    int64_t stride[ARRAYS];
    double sum[MOST_ROWS];
    bool mask[MOST_ROWS];
    for (int a = 0; a < ARRAYS; a++) {
        stride[a] = a == LSE ? 1 : t.D + below(&in, 4);
        x[a] = a == MASK ? NULL : new_rows(&t, a, stride[a]);
    }
    for (int64_t j = 0; j < t.M; j++) {
        mask[j] = !t.x[MASK] || t.x[MASK][j] != 0;
        memset(x[DK] + j * stride[DK], 0, (size_t)t.D * sizeof(float));
        memset(x[DV] + j * stride[DV], 0, (size_t)t.D * sizeof(float));
    }
    struct ra_queries queries = {.rows = t.N, .q = x[Q], .o = x[O], .max = max, .sum = sum};
    queries.stride.q = stride[Q], queries.stride.o = stride[O], queries.stride.comp = t.D;
    queries.stride.d_out = stride[D_OUT], queries.stride.dq = stride[DQ];
    queries.comp = comp[0], queries.lse = x[LSE];
    queries.d_out = x[D_OUT], queries.delta = delta, queries.dq = x[DQ];
    struct ra_keys keys = {.rows = t.M, .k = x[K], .v = x[V], .dk = x[DK], .dv = x[DV]};
    keys.stride.k = stride[K], keys.stride.v = stride[V];
    keys.stride.dk = stride[DK], keys.stride.dv = stride[DV];
    keys.stride.dk_comp = keys.stride.dv_comp = t.D;
    keys.mask = t.x[MASK] ? mask : NULL;
    keys.dk_comp = comp[1], keys.dv_comp = comp[2];
    struct ra_fold fold = {.dims = RA_DIMS(t.D),
                           .tile = ra_tile_forward,
                           .score = {.scale = (float)t.scale, .softcap = (float)t.softcap},
                           .tile_queries = 1 + below(&in, 6),
                           .tile_keys = 1 + below(&in, 6)};

    /* Plain tiles, or vectors on larger ones. */
    const struct ra_vector *vector = below(&in, 2) ? ra_vector_find(NULL) : NULL;
    fold.tile_queries *= vector ? 1 + below(&in, 20) : 1;
    fold.tile_keys *= vector ? 1 + below(&in, 20) : 1;
    if (vector)
        fold.tile = vector->forward;
    fold.workspace = malloc((size_t)(vector ? ra_vector_workspace : ra_tile_workspace)(
                                fold.tile_queries, fold.tile_keys, RA_DIMS(t.D)) *
                            sizeof(float));
    ra_tile_begin(RA_DIMS(t.D), &queries);
    ra_band_fold(&fold, &queries, &keys, t.band);
    ra_tile_finish(RA_DIMS(t.D), &queries);
    ra_tile_begin_backward(RA_DIMS(t.D), &queries);
    fold.tile = vector ? vector->backward : ra_tile_backward;
    ra_band_fold(&fold, &queries, &keys, t.band);
    for (int a = 0; a < ARRAYS; a++) {
        if (truth_is_output(a))
            judge_rows(&t, a, x[a], stride[a]);
        free(x[a]);
    }
    free(fold.workspace);
    truth_clear(&t);
}

/* ---- layout: places, bands and schedules, from pairs of positions. */

/* The rank of a position, and which of its spans. */
static int owner(struct ra_layout layout, int64_t position, int64_t *part)
{
    int64_t P = layout.ranks, runs = layout.kind == RA_ZIGZAG ? 2 * P : P, f = layout.stripes;
    int64_t run = (layout.length + runs - 1) / runs;
    *part = 0;
    if (layout.kind == RA_STRIPED) {
        *part = position % (P * f) % f;
        return (int)(position % (P * f) / f);
    }
    int64_t at = position / run;
    *part = at >= P;
    return (int)(at < P ? at : 2 * P - 1 - at);
}

/* Does ra_layout know where this position is, and its span? */
static void judge_place(struct ra_layout layout, int64_t position)
{
    int64_t part, row, before_it = 0;
    int rank = owner(layout, position, &part);
    EXPECT(ra_layout_find(layout, position, &row) == rank, "position %" PRId64, position);
    EXPECT(row >= 0 && row < ra_layout_rows(layout, rank), "row %" PRId64, row);
    EXPECT(ra_layout_position(layout, rank, row) == position, "position %" PRId64, position);
    for (int64_t s = 0; s < part; s++)
        before_it += ra_layout_span(layout, rank, s).count;
    struct ra_span span = ra_layout_span(layout, rank, part);
    EXPECT(span.first + (row - before_it) * span.stride == position, "span %" PRId64, part);
}

static void judge_layout(struct ra_layout layout, struct bytes *in)
{
    int64_t rows = 0, most = 0, row;
    for (int rank = 0; rank < layout.ranks; rank++) {
        int64_t mine = ra_layout_rows(layout, rank), sum = 0;
        for (int64_t s = 0; s < ra_layout_spans(layout); s++)
            sum += ra_layout_span(layout, rank, s).count;
        EXPECT(mine == sum, "rank %d: %" PRId64, rank, mine);
        rows += mine;
        most = most > mine ? most : mine;
    }
    EXPECT(rows == layout.length && most == ra_layout_most_rows(layout), "%" PRId64, rows);
    EXPECT(ra_layout_find(layout, -1, &row) == -1, "%" PRId64, row);
    EXPECT(ra_layout_find(layout, layout.length, &row) == -1, "%" PRId64, row);
    for (int64_t i = 0; i < 40 && i < layout.length; i++)
        judge_place(layout, layout.length <= 40 ? i : (int64_t)(take(in, 8) >> 1) % layout.length);
}

/* Every pair of positions, and the band between their spans; and the hops that pairs need. */
static void judge_pairs(struct ra_layout queries, struct ra_layout keys, int64_t lookback)
{
    enum { MOST = 8 };
    int P = keys.ranks, last[MOST] = {0}, storage[2 * MOST], count = 0;
    bool needed[MOST] = {true};
    for (int64_t i = 0; i < queries.length; i++)
        for (int64_t j = 0; j < keys.length; j++) {
            int64_t back = i + keys.length - queries.length - j, s, t, a, b;
            bool sees = back >= 0 && (back <= lookback || lookback >= RA_BAND_FAR);
            int rank = owner(queries, i, &s), origin = owner(keys, j, &t);
            struct ra_shard_pair shards = {queries, keys, rank, origin, true, lookback};
            struct ra_span_pair pair = ra_layout_pair(&shards, s, t);
            struct ra_band band = pair.band;
            struct ra_span rows = ra_layout_span(queries, rank, s);
            struct ra_span seen = ra_layout_span(keys, origin, t);
            a = (i - rows.first) / rows.stride;
            b = (j - seen.first) / seen.stride;
            EXPECT(pair.rows == rows.count && pair.visitors == seen.count, "%d, %d", (int)s,
                   (int)t);
            EXPECT(ra_layout_position(queries, rank, pair.a + a) == i, "row of %d", (int)i);
            EXPECT(ra_layout_position(keys, origin, pair.b + b) == j, "row of %d", (int)j);
            EXPECT(sees == (band.lo <= b - a && b - a <= band.hi), "%d sees %d", (int)i, (int)j);
            EXPECT(!sees || !ra_band_is_empty(band, rows.count, seen.count), "%d", (int)i);
            struct ra_band tile = ra_band_from(band, a, b);
            EXPECT(sees != ra_band_is_empty(tile, 1, 1), "tile of %d and %d", (int)i, (int)j);
            int hop = (rank - origin + P) % P;
            needed[hop] = needed[hop] || sees;
            last[origin] = sees && hop > last[origin] ? hop : last[origin];
        }
    struct ra_schedule schedule = ra_schedule_causal(queries, keys, lookback, storage);
    for (int hop = 0; hop < P; hop++) {
        EXPECT(schedule.last[hop] == last[hop], "last of rank %d", hop);
        if (needed[hop])
            EXPECT(count < schedule.count && schedule.hop[count++] == hop, "hop %d", hop);
    }
    EXPECT(count == schedule.count, "%d hops, not %d", schedule.count, count);
}

/* Bands far out, where products of positions would not fit 64 bits. */
static void judge_band(struct bytes *in)
{
    int64_t stride = 1 + (int64_t)(take(in, 8) >> (2 + below(in, 62)));
    int64_t size = INT64_C(1) << below(in, 60), lookback = any(in) & INT64_MAX;
    struct ra_span queries = {(int64_t)take(in, 8) % size, stride, 1};
    struct ra_span keys = {(int64_t)take(in, 8) % size, stride, 1};
    struct ra_band band = ra_band_causal(queries, keys, lookback);
    for (int n = 0; n < 8; n++) {
        int64_t distance = n < 4 ? (queries.first - keys.first) / stride + n - 2
                                 : (int64_t)take(in, 8) >> (2 + below(in, 60));
        __int128 back = (__int128)queries.first - keys.first - (__int128)distance * stride;
        bool sees = back >= 0 && (lookback >= RA_BAND_FAR || back <= lookback);
        bool far = distance >= RA_BAND_FAR / 2 || distance <= -RA_BAND_FAR / 2;
        EXPECT(far || sees == (band.lo <= distance && distance <= band.hi),
               "lo %" PRId64 " hi %" PRId64 " at %" PRId64, band.lo, band.hi, distance);
    }
}

static void fuzz_layout(struct bytes in)
{
    enum ra_layout_kind kind = (enum ra_layout_kind)below(&in, 3);
    bool small = below(&in, 4);
    int P = 1 + (int)below(&in, small ? 8 : 64);
    int64_t lengths[2] = {below(&in, 34), below(&in, 34)}, bucket = below(&in, 9);
    if (!small)
        lengths[0] = (int64_t)take(&in, 8) & ((INT64_C(1) << 50) - 1);
    int64_t longer = lengths[0] > lengths[1] ? lengths[0] : lengths[1];
    int64_t stripes = small ? ra_layout_stripes(P, longer, bucket) : 1 + bucket;
    struct ra_layout queries = {kind, P, lengths[0], stripes, NULL};
    struct ra_layout keys = {kind, P, lengths[1], stripes, NULL};
    if (small && bucket > 0)
        EXPECT(longer <= stripes * P * bucket &&
                   (stripes == 1 || longer > (stripes - 1) * P * bucket),
               "%d stripes", (int)stripes);
    judge_layout(queries, &in);
    judge_band(&in);
    if (small)
        judge_pairs(queries, keys, below(&in, 2) ? below(&in, 40) : any(&in) & INT64_MAX);
}

/* ---- options: a command line. */

static jmp_buf way_out;

/* The program would end here. */
static void stop(int exit_code)
{
    (void)exit_code;
    longjmp(way_out, 1);
}

static void leave(double timeout)
{
    (void)timeout;
    longjmp(way_out, 1);
}

static int ranks; /* that this program believes there are: all that it hears is itself */

static int gather_alone(int64_t mine, int64_t *all, double timeout)
{
    (void)timeout;
    for (int rank = 0; rank < ranks; rank++)
        all[rank] = mine;
    return ranks;
}

/* Reads a command line; false if the program ended, with a line on `said` or the help. */
static bool parse(struct stage *stage, int argc, char **argv, char said[4096])
{
    FILE *const own[] = {stdout, stderr}, *nowhere = fmemopen(said, 4096, "w");
    volatile bool read = false;
    stdout = stderr = nowhere;
    optind = 0; /* getopt begins anew */
    if (setjmp(way_out) == 0) {
        const char *problem = stage_read_options(stage, argc, argv);
        read = problem && stage->result_folder;
    }
    stdout = own[0];
    stderr = own[1];
    fclose(nowhere);
    return read;
}

/* Writes the flags that say what the config says, each as its own argument. */
static int spell(const struct ra_config *config, char flags[RA_OPTIONS][80], char **argv)
{
    const struct ra_config plain = RA_CONFIG_INIT;
    int argc = 1;
    for (int o = 0; o < RA_OPTIONS; o++) {
        const struct ra_option *option = &ra_options[o];
        int64_t value = option->field ? ra_option_load(option, config) : 0;
        if (!option->field || !option->flag || value == ra_option_load(option, &plain))
            continue;
        char *flag = argv[argc++] = flags[o];
        if (option->kind == RA_OPTION_FLAG)
            snprintf(flag, 80, "--%s", option->flag);
        else if (option->kind == RA_OPTION_CHOICE)
            snprintf(flag, 80, "--%s=%s", option->flag, option->choices[value].word);
        else if (option->kind == RA_OPTION_REAL)
            snprintf(flag, 80, "--%s=%.17g", option->flag, ra_option_real(value));
        else
            snprintf(flag, 80, "--%s=%" PRId64, option->flag, value);
    }
    return argc;
}

/* A command line is read or refused in one line; what was read is in range, and means the same when
 * it is written again. */
static void fuzz_options(struct bytes in)
{
    static char text[4096], said[4096], flags[RA_OPTIONS][80], name[] = "fuzz";
    char *argv[RA_OPTIONS + 16] = {name}, *at = text;
    int argc = 1;
    int64_t gathered[4];
    struct stage stage = {.program = "fuzz", .about = "", .gathered = gathered};
    stage.number = (int)below(&in, 12);
    ranks = 1 + (int)below(&in, 4);
    stage.world = stage_alone;
    stage.world.ranks = ranks;
    stage.world.gather = gather_alone;
    stage.world.stop = stop;
    stage.world.leave = leave;
    stage.config = (struct ra_config)RA_CONFIG_INIT;
    struct stage again = stage;
    size_t size =
        (size_t)(in.end - in.at) < sizeof text - 1 ? (size_t)(in.end - in.at) : sizeof text - 1;
    memcpy(text, in.at, size);
    text[size] = '\0';
    for (; argc < 15 && at < text + size; at += strlen(at) + 1) {
        at[strcspn(at, "\n")] = '\0';
        argv[argc++] = at;
    }
    if (!parse(&stage, argc, argv, said)) {
        bool help = strncmp(said, "Usage: ", 7) == 0;
        bool version = strcmp(said, "fuzz (ringattn) " RA_VERSION "\n") == 0;
        EXPECT(help || version || strncmp(said, "fuzz: ", 6) == 0, "%s", said);
        EXPECT(help || strchr(said, '\n') == said + strlen(said) - 1, "%s", said);
        return;
    }
    for (int o = 0; o < RA_OPTIONS; o++) {
        const struct ra_option *option = &ra_options[o];
        const struct ra_config plain = RA_CONFIG_INIT;
        int64_t value = option->field ? ra_option_load(option, &stage.config) : 0;
        EXPECT(!option->field || value == ra_option_load(option, &plain) || stage.number == 1 ||
                   ra_option_in_range(option, value),
               "%s", option->field);
    }
    argc = spell(&stage.config, flags, argv);
    argv[argc++] = name;
    argv[argc++] = name;
    argv[argc] = NULL;
    EXPECT(parse(&again, argc, argv, said), "%s", said);
    EXPECT(memcmp(&again.config, &stage.config, sizeof again.config) == 0, "%s", argv[1]);
}

/* ---- json: a text is refused, or is the same when what was read is written again. */

static void write_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == '"' || *text == '\\')
            fprintf(file, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, file);
    fputc('"', file);
}

static void write_value(FILE *file, const struct ra_json *value)
{
    static const char *const words[] = {"null", "false", "true"};
    int64_t count = 0;
    bool object = value->kind == RA_JSON_OBJECT;
    if (value->kind <= RA_JSON_TRUE)
        fputs(words[value->kind], file);
    else if (value->kind == RA_JSON_NUMBER)
        fputs(value->text, file);
    else if (value->kind == RA_JSON_TEXT)
        write_text(file, value->text);
    else {
        fputc(object ? '{' : '[', file);
        for (const struct ra_json *member = value->first; member; member = member->next) {
            EXPECT(object == (member->name != NULL), "%d", (int)member->kind);
            fputs(count++ > 0 ? "," : "", file);
            if (object) {
                EXPECT(ra_json_member(value, member->name) == member, "%s", member->name);
                write_text(file, member->name);
                fputc(':', file);
            }
            write_value(file, member);
        }
        EXPECT(count == value->count, "%d members", (int)count);
        fputc(object ? '}' : ']', file);
    }
}

/* Reads a text; what was read, written again, without blanks. NULL: it was refused. */
static char *rewrite(const uint8_t *text, size_t size, size_t *length)
{
    struct ra_json_text json;
    char *written = NULL, error[RA_ERROR_SIZE];
    if (ra_json_read(&json, "fuzz", (const char *)text, size, error) != RA_OK) {
        EXPECT(strncmp(error, "fuzz: line ", 11) == 0, "%s", error);
        return NULL;
    }
    FILE *file = open_memstream(&written, length);
    if (!file)
        abort();
    write_value(file, json.root);
    fclose(file);
    ra_json_free(&json);
    return written;
}

static void fuzz_json(struct bytes in)
{
    size_t length, again;
    char *once = rewrite(in.at, (size_t)(in.end - in.at), &length);
    if (!once)
        return;
    char *twice = rewrite((const uint8_t *)once, length, &again);
    EXPECT(twice && again == length && memcmp(once, twice, length) == 0, "%s", once);
    free(once);
    free(twice);
}

/* ---- safetensors: a file is refused, or its arrays fill it. */

static void fuzz_safetensors(struct bytes in)
{
    static int fd = -1;
    char path[40], error[RA_ERROR_SIZE];
    struct ra_safetensors x;
    if (fd < 0)
        fd = memfd_create("safetensors", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int64_t size = in.end - in.at, header = 0, bytes = 0;
    if (ftruncate(fd, 0) != 0 || pwrite(fd, in.at, (size_t)size, 0) != size)
        abort();
    if (ra_safetensors_open_file(&x, path, error) != RA_OK) {
        EXPECT(strstr(error, path) && !strchr(error, '\n'), "%s", error);
        return;
    }
    memcpy(&header, in.at, 8);
    for (int64_t i = 0; i < x.count; i++) {
        const struct ra_stored *stored = &x.stored[i];
        float *numbers = malloc((size_t)stored->count * sizeof *numbers + 1);
        EXPECT(stored->offset >= 8 + header && ra_safetensors_find(&x, stored->name) == stored,
               "%s", stored->name);
        EXPECT(ra_safetensors_read(&x, stored, numbers, error) == RA_OK, "%s", error);
        bytes += stored->count * (int64_t[]){8, 4, 2, 2}[stored->type];
        free(numbers);
    }
    EXPECT(8 + header + bytes == size, "%" PRId64 " bytes", bytes);
    ra_safetensors_close(&x);
}

/* ---- Which harness. */

/* Memory that no small problem needs is refused, not given. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=64";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        const char *name;
        void (*run)(struct bytes in);
    } harnesses[] = {
        {"npy", fuzz_npy},         {"plan", fuzz_plan}, {"slices", fuzz_slices},
        {"arrays", fuzz_arrays},   {"tile", fuzz_tile}, {"layout", fuzz_layout},
        {"options", fuzz_options}, {"json", fuzz_json}, {"safetensors", fuzz_safetensors}};
    const char *name = getenv("FUZZ");
    for (size_t h = 0; h < sizeof harnesses / sizeof *harnesses && name; h++)
        if (strcmp(harnesses[h].name, name) == 0) {
            harnesses[h].run((struct bytes){data, data + size});
            return 0;
        }
    fprintf(stderr, "fuzz: FUZZ must be npy, plan, slices, arrays, tile, layout, options, json or "
                    "safetensors\n");
    exit(2);
}

/* libFuzzer has a main of its own; without it inputs are only replayed. */
__attribute__((weak)) int main(int argc, char **argv)
{
    static uint8_t data[1 << 16];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            perror(argv[i]);
            return 1;
        }
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%d passed, 0 failed\n", argc - 1);
    return 0;
}
