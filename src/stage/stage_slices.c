/* stage_slices: the mask of a problem as slices. See stage_slices.h. */
#include "stage_slices.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "ra_math.h"

/* Fails if rows `begin` to `end` of a slice are not within this many. */
static void check_rows(const struct stage *stage, int64_t at, const char *names, int64_t begin,
                       int64_t end, char letter, int64_t rows)
{
    if (begin < 0 || begin > end || end > rows)
        stage_fail(stage,
                   "%s: slice %" PRId64 ": %s = %" PRId64 ", %" PRId64 "; give 0 to %c = %" PRId64
                   ", the first not above the second",
                   stage->inputs[STAGE_SLICES].path, at, names, begin, end, letter, rows);
}

/* The slices of the problem's file. */
static const struct ra_slice *read_slices(struct stage *stage, int64_t *count)
{
    struct npy *file = &stage->inputs[STAGE_SLICES];
    *count = file->shape[0];
    struct ra_slice *slices = stage_allocate(stage, *count, sizeof *slices);
    if (!npy_read(file, (struct npy_slice){0, 0, 0, 1, *count}, NPY_INT64, slices))
        stage_fail(stage, "%s", file->error);
    for (int64_t s = 0; s < *count; s++) {
        check_rows(stage, s, "q0, q1", slices[s].q0, slices[s].q1, 'N', stage->N);
        check_rows(stage, s, "k0, k1", slices[s].k0, slices[s].k1, 'M', stage->M);
    }
    return slices;
}

/* ---- What the flags make. */

/* Documents one after the other: count + 1 bounds, from 0 to the number of rows. */
struct documents {
    int64_t count, *bounds;
};

/* Opens what a flag gives: the text itself, if it begins as a number does, or else the file of that
 * name. */
static FILE *open_ends(const struct stage *stage, const char *flag, const char *text)
{
    FILE *in = isdigit((unsigned char)text[0])
                   ? fmemopen((void *)(uintptr_t)text, strlen(text), "r")
                   : fopen(text, "r");
    if (!in)
        stage_end(stage, 2, "--%s %s: %s; give numbers such as 5,22,90, or a file of them", flag,
                  text, strerror(errno));
    return in;
}

/* Reads the next number, between commas and blanks. False at the end. */
static bool read_end(const struct stage *stage, const char *flag, FILE *in, int64_t *row)
{
    int at;
    while ((at = getc(in)) == ',' || isspace(at))
        continue;
    if (at == EOF && !ferror(in))
        return false;
    ungetc(at, in);
    if (fscanf(in, "%" SCNd64, row) != 1)
        stage_end(stage, 2, "--%s: '%c' is no number; give rows such as 5,22,90", flag, at);
    return true;
}

/* The documents that a flag gives by their ends; NULL: one. A 0 in front, as cu_seqlens has, is no
 * end. */
static struct documents documents_of(struct stage *stage, const char *flag, const char *text,
                                     int64_t rows, char letter)
{
    int64_t numbers = 0, row = rows;
    FILE *in = text ? open_ends(stage, flag, text) : NULL;
    while (in && read_end(stage, flag, in, &row))
        numbers++;
    struct documents documents = {0, stage_allocate(stage, numbers + 2, sizeof *documents.bounds)};
    documents.bounds[0] = 0;
    if (!in) {
        documents.bounds[++documents.count] = rows;
        return documents;
    }
    rewind(in);
    for (int64_t i = 0; i < numbers && read_end(stage, flag, in, &row); i++) {
        if (row < documents.bounds[documents.count] || row > rows)
            stage_end(stage, 2,
                      "--%s: end number %" PRId64 " is %" PRId64
                      "; give rows in ascending order, up "
                      "to %c = %" PRId64,
                      flag, i, row, letter, rows);
        if (i > 0 || row > 0)
            documents.bounds[++documents.count] = row;
    }
    if (documents.bounds[documents.count] != rows)
        stage_end(stage, 2,
                  "--%s: the last document ends at %" PRId64 ", but the sequence at %c = %" PRId64
                  "; give that end, too",
                  flag, documents.bounds[documents.count], letter, rows);
    fclose(in);
    return documents;
}

/* The two numbers of --window. */
static void read_window(const struct stage *stage, int64_t *back, int64_t *ahead)
{
    int length = 0;
    if (sscanf(stage->window, "%" SCNd64 ",%" SCNd64 "%n", back, ahead, &length) != 2 ||
        stage->window[length] || *back < 0 || *ahead < 0)
        stage_end(stage, 2,
                  "--window %s: give how many tokens back and ahead a query sees at most, "
                  "such as 7,3",
                  stage->window);
}

/* A mask on queries and keys of which there are as many, of these documents. */
static int64_t make_alike(struct stage *stage, struct documents documents, struct ra_slice *slices)
{
    const struct ra_config *c = &stage->config;
    if (stage->prefix > 0) {
        int64_t *prefixes = stage_allocate(stage, documents.count, sizeof *prefixes);
        for (int64_t i = 0; i < documents.count; i++)
            prefixes[i] = stage->prefix;
        return ra_slices_prefix(documents.bounds, documents.count, prefixes, slices);
    }
    if (stage->first > 0)
        return ra_slices_first(documents.bounds, documents.count, stage->first, c->lookback,
                               slices);
    if (stage->answers)
        return ra_slices_answers(documents.bounds, documents.count, slices);
    int64_t back = c->lookback, ahead = c->causal ? 0 : RA_NO_LOOKBACK;
    if (stage->window)
        read_window(stage, &back, &ahead);
    return ra_slices_documents(documents.bounds, documents.count, back, ahead, slices);
}

static const struct ra_slice *make_slices(struct stage *stage, int64_t *count)
{
    int64_t N = stage->N, M = stage->M, back, ahead;
    struct documents documents = documents_of(stage, "documents", stage->documents, N, 'N');
    int64_t chunks = stage->chunk > 0 ? ra_ceiling_division(N, stage->chunk) : 0;
    struct ra_slice *slices = stage_allocate(stage, 2 * documents.count + chunks, sizeof *slices);
    if (stage->key_documents) {
        struct documents keys = documents_of(stage, "key-documents", stage->key_documents, M, 'M');
        if (keys.count != documents.count)
            stage_end(stage, 2,
                      "--key-documents: %" PRId64 " of them; give as many as --documents, "
                      "%" PRId64,
                      keys.count, documents.count);
        *count = ra_slices_pairs(documents.bounds, keys.bounds, documents.count, slices);
    } else if (stage->window && !stage->documents) {
        read_window(stage, &back, &ahead);
        *count = ra_slices_window(N, M, back, ahead, slices);
    } else if (N != M) {
        stage_end(stage, 2,
                  "documents, prefixes and chunks need as many keys as queries, not M = "
                  "%" PRId64 " for N = %" PRId64 "; see --key-documents",
                  M, N);
    } else if (stage->chunk > 0) {
        *count = ra_slices_chunks(N, stage->chunk, slices);
    } else {
        *count = make_alike(stage, documents, slices);
    }
    return slices;
}

const struct ra_slice *stage_slices(struct stage *stage, int64_t *count)
{
    *count = 0;
    if (stage_has(stage, STAGE_SLICES))
        return read_slices(stage, count);
    bool made = stage->documents || stage->window || stage->prefix > 0 || stage->first > 0 ||
                stage->chunk > 0;
    return made ? make_slices(stage, count) : NULL;
}
