/* transformer_generate: goes on with a text. See transformer_generate.h. */
#include "transformer_generate.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_checksum.h"
#include "ra_clock.h"
#include "ra_collective.h"
#include "ra_decoder.h"
#include "ra_folder.h"
#include "ra_sample.h"
#include "ra_tokens.h"
#include "transformer_device.h"
#include "transformer_files.h"

/* Tokens: at first those to go on with. The first `printed` of them are printed. */
struct prompt {
    int32_t *tokens;
    int64_t count, room, printed;
};

static void add_token(struct transformer *t, struct prompt *prompt, int64_t token)
{
    if (prompt->count == prompt->room) {
        prompt->room = 2 * prompt->room + 1024;
        prompt->tokens = realloc(prompt->tokens, (size_t)prompt->room * sizeof *prompt->tokens);
        if (!prompt->tokens)
            stage_fail(&t->stage, "no memory for a text of %" PRId64 " tokens", prompt->room);
    }
    prompt->tokens[prompt->count++] = (int32_t)token;
}

/* Adds a text: of a model of bytes its bytes, of any other whole numbers between blanks. After its
 * `length` characters it ends with a 0. */
static void add_text(struct transformer *t, struct prompt *prompt, const char *flag,
                     const char *text, size_t length)
{
    static const char blanks[] = " \t\r\n";
    bool bytes = t->model.vocabulary == 256;
    for (size_t i = 0; i < length && bytes; i++)
        add_token(t, prompt, (unsigned char)text[i]);
    for (const char *at = text; !bytes;) {
        at += strspn(at, blanks);
        if (at == text + length)
            return;
        char *end;
        long long token = strtoll(at, &end, 10);
        if (end == at || token < 0 || token >= t->model.vocabulary ||
            (*end && !strchr(blanks, *end)))
            stage_fail(&t->stage,
                       "%s: %.*s, number %" PRId64
                       " of the text, is no token of this model; give 0 to %" PRId64,
                       flag, (int)strcspn(at, blanks), at, prompt->count + 1,
                       t->model.vocabulary - 1);
        add_token(t, prompt, token);
        at = end;
    }
}

/* Adds a file, or the standard input if it is called "-", which may have any bytes. */
static void add_file(struct transformer *t, struct prompt *prompt, const char *path)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = NULL;
    size_t length = 0, room = 0;
    while (file && !feof(file) && !ferror(file)) {
        if (length + 1 >= room && !(text = realloc(text, room = 2 * room + 65536)))
            stage_fail(&t->stage, "--prompt-file: no memory for %zu bytes", room);
        length += fread(text + length, 1, room - 1 - length, file);
    }
    if (!file || ferror(file))
        stage_fail(&t->stage, "--prompt-file: %.200s: %s", path, strerror(errno));
    text[length] = 0;
    add_text(t, prompt, "--prompt-file", text, length);
    free(text);
    if (file != stdin)
        fclose(file);
}

/* Adds a .npy of integers, or a file of a type that is named. */
static void add_array(struct transformer *t, struct prompt *prompt, const char *path)
{
    struct ra_tokens file;
    char error[RA_ERROR_SIZE];
    int32_t token;
    stage_check(&t->stage, ra_tokens_open(&file, path, t->token_type, error), error);
    if (file.vocabulary > t->model.vocabulary)
        file.vocabulary = t->model.vocabulary;
    for (int64_t i = 0; i < file.count; i++) {
        stage_check(&t->stage, ra_tokens_get(&file, i, &token, error), error);
        if (token >= 0)
            add_token(t, prompt, token);
    }
    ra_tokens_close(&file);
}

/* Sends what rank 0 has to all, in pieces that MPI can count. */
static void send_to_all(struct transformer *t, void *data, int64_t bytes)
{
    enum { PIECE = 1 << 30 };
    char error[RA_ERROR_SIZE];
    MPI_Request request;
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int count = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        int code = MPI_Ibcast((char *)data + at, count, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
        if (!ra_collective_wait(MPI_COMM_WORLD, code, &request, t->run.timeout, "the prompt",
                                error))
            stage_fail(&t->stage, "%s", error);
    }
}

static void need_tokens(struct transformer *t, const struct prompt *prompt, const char *flag)
{
    if (prompt->count == 0)
        stage_fail(&t->stage, "%s: give a text to go on with%s", flag,
                   t->model.vocabulary == 256 ? "" : ", as numbers of tokens");
}

/* A file is read by rank 0, which alone has the standard input. */
static void read_file(struct transformer *t, struct prompt *prompt)
{
    const char *end = strrchr(t->prompt_file, '.');
    int rank = t->stage.world.rank;
    if (rank == 0) {
        bool array = t->token_type != RA_TOKEN_UINT8 || (end && strcmp(end, ".npy") == 0);
        (array ? add_array : add_file)(t, prompt, t->prompt_file);
        need_tokens(t, prompt, "--prompt-file");
    }
    send_to_all(t, &prompt->count, sizeof prompt->count);
    if (rank > 0 && !(prompt->tokens = malloc((size_t)prompt->count * sizeof *prompt->tokens)))
        stage_fail(&t->stage, "no memory for a prompt of %" PRId64 " tokens", prompt->count);
    if (rank > 0)
        prompt->room = prompt->count;
    send_to_all(t, prompt->tokens, prompt->count * (int64_t)sizeof *prompt->tokens);
}

/* The prompt. What is wrong with an argument is wrong on all ranks alike, and one speaks for
 * all. */
static struct prompt read_prompt(struct transformer *t)
{
    struct prompt prompt = {0};
    if (!t->prompt_file) {
        const char *text = t->prompt ? t->prompt : "";
        add_text(t, &prompt, "--prompt", text, strlen(text));
        need_tokens(t, &prompt, "--prompt");
    }
    transformer_opened(t);
    if (t->prompt_file)
        read_file(t, &prompt);
    return prompt;
}

/* Prints what is not yet printed, as bytes or numbers. Ends the run if it cannot be written. */
static void print_tokens(const struct transformer *t, struct prompt *text)
{
    for (; text->printed < text->count && t->stage.world.rank == 0; text->printed++)
        if (t->model.vocabulary == 256)
            putchar(text->tokens[text->printed]);
        else
            printf("%" PRId32 " ", text->tokens[text->printed]);
    stage_flush(&t->stage);
}

/* The tokens that end a text: one of --document-end, those of FOLDER, or none. */
struct ends {
    int32_t tokens[64];
    int count;
};

static struct ends read_ends(const struct transformer *t)
{
    struct ends ends = {{(int32_t)t->document_end}, t->document_end >= 0};
    char error[RA_ERROR_SIZE];
    int most = sizeof ends.tokens / sizeof *ends.tokens;
    if (!t->eos)
        return ends;
    stage_check(
        &t->stage,
        ra_folder_ends(t->arguments[0], t->model.vocabulary, most, ends.tokens, &ends.count, error),
        error);
    transformer_agree(t, "eos_token_id", t->arguments[0],
                      ra_checksum(0, ends.tokens, (size_t)ends.count * sizeof *ends.tokens));
    return ends;
}

static bool is_end(const struct ends *ends, int32_t token)
{
    for (int i = 0; i < ends->count; i++)
        if (ends->tokens[i] == token)
            return true;
    return false;
}

void transformer_generate(struct transformer *t)
{
    struct stage *stage = &t->stage;
    char error[RA_ERROR_SIZE];
    const float *weights = transformer_read_model(t, t->arguments[0]);
    struct ends ends = read_ends(t);
    struct prompt text = read_prompt(t);
    weights = transformer_place(t, weights, ra_parameter_numbers(&t->model));
    int64_t V = t->model.vocabulary, next;
    float *logits = stage_allocate(stage, V, sizeof *logits);
    struct ra_sample_choice *choices = stage_allocate(stage, V, sizeof *choices);
    struct ra_sample how = {sizeof how, t->temperature, t->top_k, t->top_p, (uint64_t)t->seed};
    struct ra_decoder *decoder;
    int64_t given = text.count;
    t->run.length = given + t->count;
    stage_check(stage, ra_decoder_create(&decoder, &t->model, &t->run, 1, MPI_COMM_WORLD, error),
                error);
    double began = ra_seconds(), prompted;
    stage_check(stage, ra_decoder_prompt(decoder, weights, given, text.tokens, logits),
                ra_decoder_error(decoder));
    prompted = ra_seconds();
    for (int64_t i = 0; i < t->count; i++) {
        stage_check(stage, ra_sample_draw(&how, (uint64_t)i, V, logits, choices, &next, error),
                    error);
        int32_t token = (int32_t)next;
        add_token(t, &text, token);
        if (!stage->time)
            print_tokens(t, &text);
        if (is_end(&ends, token))
            break;
        if (i < t->count - 1)
            stage_check(stage, ra_decoder_add(decoder, weights, 1, &token, logits),
                        ra_decoder_error(decoder));
    }

    /* Times come before the text: mpirun of Open MPI 5.0 puts the beginning of a line that is not
     * whole yet in front of whatever this rank says next, on the other stream, too. */
    double made = (double)(text.count - given);
    if (stage->time && stage->world.rank == 0)
        fprintf(stderr, "prompt %.3f s, %.2f ms per token, %" PRId64 " bytes on a rank\n",
                prompted - began, 1e3 * (ra_seconds() - prompted) / fmax(made, 1),
                ra_decoder_bytes(decoder));
    print_tokens(t, &text);
    if (stage->world.rank == 0)
        putchar('\n');
    free(text.tokens);
    ra_decoder_destroy(decoder);
}
