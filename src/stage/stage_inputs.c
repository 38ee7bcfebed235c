/* stage_inputs: the problem: its files, their shapes, and this rank's rows of them. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_checksum.h"
#include "ra_span.h"
#include "stage.h"

const char *const stage_input_names[STAGE_INPUTS] = {"q",      "k",    "v",      "do",   "mask",
                                                     "slices", "sink", "slopes", "d_lse"};

/* Which types and how many axes the file of an input may have, and what to say of another; and what
 * it is, if not all stages know it. */
struct rule {
    enum npy_type least, most;
    int dims;
    const char *types, *axes, *what;
};

#define NUMBERS "a stage reads float32 or float16: save array.astype('float32')"

static struct rule rule_of(enum stage_input input)
{
    switch (input) {
    case STAGE_MASK:
        return (struct rule){NPY_BOOL,
                             NPY_BOOL,
                             2,
                             "a mask is bool: save array.astype('bool')",
                             "a mask has two axes, (B, M)",
                             NULL};
    case STAGE_SLICES:
        return (struct rule){NPY_INT64,
                             NPY_INT64,
                             2,
                             "slices are int64: save array.astype('int64')",
                             "slices have two axes, (slice, 6)",
                             "a mask of slices"};
    case STAGE_SINK:
        return (struct rule){
            NPY_FLOAT16,          NPY_FLOAT32, 1, NUMBERS, "a sink has one axis, (H)",
            "a sink of each head"};
    case STAGE_SLOPES:
        return (struct rule){
            NPY_FLOAT16,           NPY_FLOAT32, 1, NUMBERS, "slopes have one axis, (H)",
            "a slope of each head"};
    case STAGE_D_LSE:
        return (struct rule){
            NPY_FLOAT16,        NPY_FLOAT32, 3, NUMBERS, "d_lse has three axes, (B, H, N)",
            "a gradient of lse"};
    default:
        return (struct rule){NPY_FLOAT16,
                             NPY_FLOAT32,
                             4,
                             NUMBERS,
                             "four axes are needed, (batch, position, head, dim)",
                             NULL};
    }
}

/* The shape of an open file as "(1, 64, 4, 16)". */
static const char *shape_text(const struct npy *file, char text[200])
{
    int used = snprintf(text, 200, "(");
    for (int d = 0; d < file->dims; d++)
        used += snprintf(text + used, (size_t)(200 - used), d ? ", %" PRId64 : "%" PRId64,
                         file->shape[d]);
    snprintf(text + used, (size_t)(200 - used), ")");
    return text;
}

void stage_input_path(const struct stage *stage, const char *folder, const char *name,
                      char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/%s.npy", folder, name) >= PATH_MAX)
        stage_fail(stage, "%.60s...: the path of %s.npy is too long", folder, name);
}

/* Opens the file of an input and checks its type and its number of axes. */
static void open_file(struct stage *stage, const char *path, enum stage_input input)
{
    struct npy *file = &stage->inputs[input];
    char shape[200];
    bool missing = access(path, F_OK) != 0 && errno == ENOENT;
    if (!npy_open(file, path))
        stage_fail(stage, "%s%s", file->error,
                   missing && input == STAGE_D_OUT ? " (without do, run with --forward-only)"
                   : missing ? " (build/problem makes problems; --help says what one holds)"
                   : input == STAGE_MASK   ? " (and a mask as array.astype('bool'))"
                   : input == STAGE_SLICES ? " (and slices as array.astype('int64'))"
                                           : "");

    struct rule rule = rule_of(input);
    if (file->type < rule.least || file->type > rule.most)
        stage_fail(stage, "%s: %s; %s", path, npy_type_name(file->type), rule.types);

    /* Bytes of several such arrays are added up later: their sum must not overflow. */
    if (npy_elements(file) > INT64_C(1) << 56)
        stage_fail(stage, "%s: shape %s; more than 2^56 numbers are refused", path,
                   shape_text(file, shape));
    if (file->dims != rule.dims)
        stage_fail(stage, "%s: shape %s; %s", path, shape_text(file, shape), rule.axes);
}

/* Opens PROBLEM/NAME.npy. */
static void open_input(struct stage *stage, const char *folder, enum stage_input input)
{
    char path[PATH_MAX];
    stage_input_path(stage, folder, stage_input_names[input], path);
    open_file(stage, path, input);
}

/* Takes the letters: q gives B, N, H, D; k gives M and G. None may be 0. */
static void take_shape(struct stage *stage)
{
    const struct npy *q = &stage->inputs[STAGE_Q], *k = &stage->inputs[STAGE_K];
    char shape[200];
    stage->B = q->shape[0];
    stage->N = q->shape[1];
    stage->H = q->shape[2];
    stage->D = q->shape[3];
    stage->M = k->shape[1];
    stage->G = k->shape[2];
    stage->Dv = stage_knows_slices(stage) ? stage->inputs[STAGE_V].shape[3] : stage->D;
    for (int axis = 0; axis < 4; axis++) {
        const struct npy *empty = q->shape[axis] == 0 ? q : k->shape[axis] == 0 ? k : NULL;
        if (empty)
            stage_fail(
                stage, "%s: shape %s: %s = 0; every axis needs at least 1", empty->path,
                shape_text(empty, shape),
                (const char *[]){"B", empty == q ? "N" : "M", empty == q ? "H" : "G", "D"}[axis]);
    }
}

/* Fails unless the axis of the file has this length, which `where` explains. */
static void check_axis(const struct stage *stage, enum stage_input input, int axis, int64_t length,
                       const char *where)
{
    const struct npy *file = &stage->inputs[input];
    char shape[200];
    if (file->shape[axis] != length)
        stage_fail(stage, "%s: shape %s: axis %d must be %" PRId64 ", %s", file->path,
                   shape_text(file, shape), axis, length, where);
}

/* Fails unless the other files agree with q, and the heads with each other. */
static void check_shapes(const struct stage *stage)
{
    const struct npy *q = &stage->inputs[STAGE_Q], *k = &stage->inputs[STAGE_K];
    check_axis(stage, STAGE_K, 0, stage->B, "the B of q");
    check_axis(stage, STAGE_K, 3, stage->D, "the D of q");
    for (int axis = 0; axis < 3; axis++) {
        check_axis(stage, STAGE_V, axis, k->shape[axis], "as in k");
        if (!stage->config.forward_only)
            check_axis(stage, STAGE_D_OUT, axis, q->shape[axis], "as in q");
    }
    bool own = stage_knows_slices(stage);
    if (!own)
        check_axis(stage, STAGE_V, 3, stage->D,
                   "as in k: values of another width arrive in stage 13");
    if (stage->Dv == 0)
        stage_fail(stage, "%s: values of 0 numbers; at least 1 is needed",
                   stage->inputs[STAGE_V].path);
    if (!stage->config.forward_only)
        check_axis(stage, STAGE_D_OUT, 3, stage->Dv, own ? "as in v" : "as in q");
    if (stage->config.has_mask) {
        check_axis(stage, STAGE_MASK, 0, stage->B, "the B of q");
        check_axis(stage, STAGE_MASK, 1, stage->M, "the M of k");
    }
    for (int input = STAGE_SINK; input <= STAGE_SLOPES; input++)
        if (stage_has(stage, input))
            check_axis(stage, input, 0, stage->H, "the H of q");
    if (stage_has(stage, STAGE_D_LSE)) {
        check_axis(stage, STAGE_D_LSE, 0, stage->B, "the B of q");
        check_axis(stage, STAGE_D_LSE, 1, stage->H, "the H of q");
        check_axis(stage, STAGE_D_LSE, 2, stage->N, "the N of q");
    }
    if (stage->H % stage->G != 0)
        stage_fail(stage,
                   "%s: G = %" PRId64 " key/value heads do not divide the H = %" PRId64
                   " query heads of q",
                   k->path, stage->G, stage->H);
    if (stage->G != stage->H && stage->number > 1 && stage->number < 7)
        stage_end(stage, 2,
                  "G = %" PRId64 " key/value heads for H = %" PRId64
                  " query heads: grouped heads arrive in stage 07",
                  stage->G, stage->H);
}

/* Opens an input that a problem may have or not, and returns whether it is there. A link that leads
 * nowhere is, and will be refused. */
static bool open_if_there(struct stage *stage, const char *folder, enum stage_input input)
{
    char path[PATH_MAX];
    stage_input_path(stage, folder, stage_input_names[input], path);
    bool is_there = stage_all_find(stage, path);
    if (is_there)
        open_input(stage, folder, input);
    return is_there;
}

bool stage_knows_slices(const struct stage *stage)
{
    return stage->number == 1 || stage->number >= 13;
}

bool stage_has(const struct stage *stage, enum stage_input input)
{
    return stage->inputs[input].fd >= 0;
}

/* A program must not compute without what it knows nothing of. */
static void check_known(const struct stage *stage)
{
    for (int input = STAGE_SLICES; input < STAGE_INPUTS; input++)
        if (stage_has(stage, input) && !stage_knows_slices(stage))
            stage_end(stage, 2, "%s: %s arrives in stage 13", stage->inputs[input].path,
                      rule_of(input).what);
}

static void check_slice_axis(const struct stage *stage)
{
    check_axis(stage, STAGE_SLICES, 1, 6, "q0, q1, k0, k1, lo, hi");
}

void stage_open_slices(struct stage *stage, const char *path)
{
    open_file(stage, path, STAGE_SLICES);
    check_slice_axis(stage);
}

/* Slices are the whole mask: no flag says a part of it. */
static void check_slices(const struct stage *stage)
{
    const char *path = stage->inputs[STAGE_SLICES].path;
    check_slice_axis(stage);
    if (stage->config.causal)
        stage_end(stage, 2,
                  "--causal: %s is the whole mask; leave the flag out, and give its slices hi = "
                  "%" PRId64 ", which is M - N, or less",
                  path, stage->M - stage->N);
    if (stage->documents || stage->window)
        stage_end(stage, 2, "--%s: %s is the whole mask; leave the flag out",
                  stage->documents ? "documents" : "window", path);
}

void stage_open_inputs(struct stage *stage, const char *folder)
{
    struct stat status;
    stage->problem_folder = folder;
    if (stat(folder, &status) != 0)
        stage_fail(stage, "%s: %s (build/problem makes problems)", folder, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        stage_fail(stage, "%s: not a folder; PROBLEM is the folder that holds q.npy, k.npy, v.npy",
                   folder);
    for (int input = STAGE_Q; input <= STAGE_V; input++)
        open_input(stage, folder, input);
    if (!stage->config.forward_only)
        open_input(stage, folder, STAGE_D_OUT);

    stage->config.has_mask = open_if_there(stage, folder, STAGE_MASK);
    for (int input = STAGE_SLICES; input < STAGE_INPUTS; input++)
        if (input != STAGE_D_LSE || !stage->config.forward_only)
            open_if_there(stage, folder, input);
    take_shape(stage);
    check_known(stage);
    check_shapes(stage);
    if (stage_has(stage, STAGE_SLICES))
        check_slices(stage);
}

/* A checksum of PIECES pieces of a file, spread from its beginning to its end, and of its size. */
static uint64_t sample(const struct stage *stage, const struct npy *file)
{
    enum { PIECES = 16, BYTES = 4096 };
    char bytes[BYTES];
    struct stat status;
    ssize_t count = fstat(file->fd, &status);
    uint64_t sum = (uint64_t)status.st_size;
    for (int i = 0; i < PIECES && count >= 0; i++) {
        off_t last = status.st_size > BYTES ? status.st_size - BYTES : 0;
        count = pread(file->fd, bytes, BYTES, last * i / (PIECES - 1));
        sum = ra_checksum(sum, bytes, count > 0 ? (size_t)count : 0);
    }
    if (count < 0)
        stage_fail(stage, "%s: %s", file->path, strerror(errno));
    return sum;
}

void stage_agree_inputs(const struct stage *stage)
{
    for (int i = 0; i < STAGE_INPUTS && stage->world.ranks > 1; i++) {
        const struct npy *file = &stage->inputs[i];
        if (file->fd < 0)
            continue;
        int other = stage_other(stage, (int64_t)sample(stage, file));
        if (other > 0)
            stage_end(
                stage, 2,
                "ranks disagree about %s.npy: that of rank %d has other bytes than that of rank 0",
                stage_input_names[i], other);
    }
}

/* One NaN or Inf would spread to every result without a word. (A sink of -inf is none.) */
static void check_finite(struct stage *stage, enum stage_input input, struct npy_slice rows,
                         const float *numbers)
{
    struct npy *file = &stage->inputs[input];
    int64_t width = npy_row_elements(file, rows.axis);
    for (int64_t e = 0; e < rows.count * width; e++)
        if (!isfinite(numbers[e]) && !(input == STAGE_SINK && numbers[e] == -INFINITY)) {
            int64_t row =
                rows.outer * file->shape[rows.axis] + rows.first + e / width * rows.stride;
            char index[200];
            npy_index_text(file, row * width + e % width, index, sizeof index);
            stage_fail(stage, "%s: %g at %s; every number must be finite", file->path, numbers[e],
                       index);
        }
}

void stage_read(struct stage *stage, enum stage_input input, void *rows)
{
    struct npy *file = &stage->inputs[input];
    bool of_queries = input == STAGE_Q || input == STAGE_D_OUT, is_mask = input == STAGE_MASK;
    const struct ra_span *spans = of_queries ? stage->query_spans : stage->key_spans;
    int64_t count = of_queries ? stage->query_span_count : stage->key_span_count;
    int64_t row_bytes =
        npy_row_elements(file, 1) * (int64_t)(is_mask ? sizeof(bool) : sizeof(float));

    /* The rows of a batch lie side by side: span after span. */
    char *at = rows;
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t s = 0; s < count; s++) {
            struct npy_slice slice = {1, stage_whole_batch(stage, b), spans[s].first,
                                      spans[s].stride, spans[s].count};
            if (!npy_read(file, slice, is_mask ? NPY_BOOL : NPY_FLOAT32, at))
                stage_fail(stage, "%s", file->error);
            if (!is_mask)
                check_finite(stage, input, slice, (const float *)(void *)at);
            at += spans[s].count * row_bytes;
        }
}

float *stage_input(struct stage *stage, enum stage_input input)
{
    int64_t rows = input == STAGE_Q || input == STAGE_D_OUT ? stage->n : stage->m;
    int64_t width = npy_row_elements(&stage->inputs[input], 1);
    float *memory = stage_allocate(stage, stage->B * rows * width, sizeof(float));
    stage_read(stage, input, memory);
    return memory;
}

bool *stage_mask(struct stage *stage)
{
    if (!stage->config.has_mask)
        return NULL;
    bool *mask = stage_allocate(stage, stage->B * stage->m, sizeof(bool));
    stage_read(stage, STAGE_MASK, mask);
    return mask;
}

/* Reads rows of an input as float32. */
static void read_numbers(struct stage *stage, enum stage_input input, struct npy_slice rows,
                         float *numbers)
{
    if (!npy_read(&stage->inputs[input], rows, NPY_FLOAT32, numbers))
        stage_fail(stage, "%s", stage->inputs[input].error);
    check_finite(stage, input, rows, numbers);
}

float *stage_heads(struct stage *stage, enum stage_input input)
{
    if (!stage_has(stage, input))
        return NULL;
    float *numbers = stage_allocate(stage, stage->H, sizeof *numbers);
    read_numbers(stage, input, (struct npy_slice){0, 0, 0, 1, stage->H}, numbers);
    return numbers;
}

float *stage_d_lse(struct stage *stage)
{
    if (!stage_has(stage, STAGE_D_LSE))
        return NULL;
    float *numbers = stage_allocate(stage, stage->B * stage->H * stage->n, sizeof *numbers);
    float *at = numbers;
    for (int64_t bh = 0; bh < stage->B * stage->H; bh++)
        for (int64_t s = 0; s < stage->query_span_count; s++) {
            struct ra_span span = stage->query_spans[s];
            int64_t whole = stage_whole_batch(stage, bh / stage->H) * stage->H + bh % stage->H;
            read_numbers(stage, STAGE_D_LSE,
                         (struct npy_slice){2, whole, span.first, span.stride, span.count}, at);
            at += span.count;
        }
    return numbers;
}

void stage_read_keys(struct stage *stage, float *message)
{
    int64_t numbers = stage->B * stage->m * stage->G * stage->D;
    stage_read(stage, STAGE_K, message);
    stage_read(stage, STAGE_V, message + numbers);
    if (stage->config.has_mask)
        stage_read(stage, STAGE_MASK, message + 2 * numbers);
}
