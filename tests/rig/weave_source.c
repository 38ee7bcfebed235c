/* weave: reads sources and finds the definitions in them. See weave.h.
 *
 * To find a definition, a file is masked (comments and strings are painted over, so that brackets
 * and words in them mean nothing) and then scanned.
 */
#include "weave.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void problem(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%" PRId64 ": ", weave.path, weave.line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    weave.problems++;
}

void *grow(void *old, size_t size)
{
    void *memory = realloc(old, size);
    if (memory == NULL) {
        fputs("weave: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

void text_add(struct text *text, const char *bytes, size_t size)
{
    text->bytes = grow(text->bytes, text->size + size + 1);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
}

bool read_file(const char *path, struct text *text)
{
    char block[4096];
    text_add(text, "", 0);
    errno = 0;
    FILE *file = fopen(path, "r");
    for (size_t got; file != NULL && (got = fread(block, 1, sizeof block, file)) > 0;)
        text_add(text, block, got);
    /* A folder opens and fails to read, so the error is looked at after both. */
    int error = file == NULL || ferror(file) ? errno : 0;
    if (file != NULL)
        fclose(file);

    if (error == ENOENT && strncmp(path, "build/", 6) == 0)
        problem("%s is missing: run ninja first", path);
    else if (error != 0)
        problem("%s: %s", path, strerror(error));
    else if (strlen(text->bytes) != text->size)
        problem("%s is no text: it has a zero byte", path);
    else if (strchr(text->bytes, '\r') != NULL)
        problem("%s has carriage returns: save it with plain line ends", path);
    else
        return true;
    return false;
}

struct source *source_of(const char *path)
{
    struct source **place = &weave.sources;
    for (; *place != NULL; place = &(*place)->next)
        if (strcmp((*place)->path, path) == 0)
            return *place;
    struct text raw = {0};
    if (!read_file(path, &raw)) {
        free(raw.bytes);
        return NULL;
    }
    /* A quote ends with a line break even where the file does not. */
    if (raw.size > 0 && raw.bytes[raw.size - 1] != '\n')
        text_add(&raw, "\n", 1);

    struct source *source = grow(NULL, sizeof *source);
    *source = (struct source){.raw = raw, .unclosed = -1};
    *place = source;
    source->path = strcpy(grow(NULL, strlen(path) + 1), path);
    source->starts = grow(NULL, (raw.size + 1) * sizeof *source->starts);
    source->starts[0] = 0;
    for (size_t i = 0; i < raw.size; i++)
        if (raw.bytes[i] == '\n')
            source->starts[++source->lines] = i + 1;
    return source;
}

static int64_t line_of(const struct source *source, size_t offset)
{
    int64_t line = 0;
    while (line + 1 < source->lines && source->starts[line + 1] <= offset)
        line++;
    return line;
}

bool line_is(const struct source *source, int64_t line, const char *characters)
{
    size_t start = source->starts[line];
    return start + strspn(source->bare.bytes + start, characters) >= source->starts[line + 1];
}

/* Makes the bare text: paints over comments and strings. */
static void mask(struct source *source)
{
    const char *raw = source->raw.bytes;
    text_add(&source->bare, raw, source->raw.size);
    for (size_t i = 0, end; raw[i] != 0; i = end) {
        char paint = COMMENT;
        end = i + 1;
        if (strncmp(raw + i, "//", 2) == 0) {
            end = i + strcspn(raw + i, "\n");
        } else if (strncmp(raw + i, "/*", 2) == 0) {
            const char *close = strstr(raw + i + 2, "*/");
            end = close != NULL ? (size_t)(close + 2 - raw) : source->raw.size;
        } else if (raw[i] == '"' || raw[i] == '\'') {
            paint = STRING;
            /* A lone apostrophe, as in "#error don't", ends with its line. */
            for (; raw[end] != 0 && raw[end] != raw[i] && raw[end] != '\n'; end++)
                end += raw[end] == '\\' && raw[end + 1] != 0;
            end += raw[end] == raw[i];
        } else {
            continue;
        }
        memset(source->bare.bytes + i, paint, end - i);
    }
}

/* Records a definition, with the comment lines directly above it. Returns the record. */
static struct definition *define(struct source *source, struct word name, struct range lines,
                                 int64_t brace, bool complete)
{
    struct definition definition = {
        .name = name, .lines = lines, .start = lines.first, .brace = brace, .complete = complete};
    for (int64_t *above = &definition.lines.first; *above > 0; --*above)
        if (line_is(source, *above - 1, BLANK) || !line_is(source, *above - 1, SPACE))
            break;
    source->definitions =
        grow(source->definitions, (source->count + 1) * sizeof *source->definitions);
    source->definitions[source->count] = definition;
    return &source->definitions[source->count++];
}

bool word_is(struct word word, const char *text)
{
    return word.at != NULL && word.size == strlen(text) && memcmp(word.at, text, word.size) == 0;
}

/* The last of the words that stand from `at` on with only space and stars between them. */
static struct word last_word(const char *at)
{
    struct word word = {0};
    for (at += strspn(at, SPACE "*"); strspn(at, WORD) > 0; at += strspn(at, SPACE "*")) {
        word = (struct word){at, strspn(at, WORD)};
        at += word.size;
    }
    return word;
}

/* The offset behind the bracket that closes the one at `open`, 0 if none does. */
static size_t group_end(const char *bare, size_t open)
{
    const char *pair = strchr("()[]{}<>", bare[open]);
    int64_t depth = 0;
    for (size_t i = open; bare[i] != 0; i++) {
        depth += (bare[i] == pair[0]) - (bare[i] == pair[1]);
        if (depth == 0)
            return i + 1;
    }
    return 0;
}

/* Records a #define. Returns the offset behind the directive at `start`, whichever it is. */
static size_t scan_directive(struct source *source, size_t start)
{
    const char *bare = source->bare.bytes;
    size_t end = start + strcspn(bare + start, "\n");
    while (bare[end] != 0 && bare[end - 1] == '\\')
        end += 1 + strcspn(bare + end + 1, "\n");
    const char *word = bare + start + 1 + strspn(bare + start + 1, " \t");
    const char *name = word + 6 + (strncmp(word, "define", 6) == 0 ? strspn(word + 6, " \t") : 0);
    size_t size = strspn(name, WORD);
    /* A word without a value, as in the guard of a header, is nothing to show. */
    if (strncmp(word, "define", 6) == 0 && name[size] != '\n')
        define(source, (struct word){name, size},
               (struct range){line_of(source, start), line_of(source, end)}, -1, true);
    return end;
}

/* What is known of the top-level declaration that is being read. */
struct declaration {
    bool begun, alias, call, value; /* alias: a typedef; call: has parentheses; value: has a = */
    bool local, function, tagged;   /* local: static; what the name is of */
    bool attribute;                 /* the last word was one whose parentheses hold no parameters */
    size_t start;
    int64_t brace;
    struct word first, last, name;
};

/* The last word before some punctuation may turn out to be the name; one like __attribute__ or
 * __launch_bounds__ never does. */
static void read_word(struct declaration *now, struct word word)
{
    now->attribute = strncmp(word.at, "__", 2) == 0 || word_is(word, "alignas") ||
                     word_is(word, "_Alignas") || word_is(word, "_Atomic");
    now->alias = now->alias || word_is(word, "typedef");
    now->local = now->local || word_is(word, "static");
    now->first = now->first.at == NULL ? word : now->first;
    now->last = now->attribute ? now->last : word;
}

/* The first punctuation that can follow a name decides. The names in `(*table[4])(int)` and
 * TEST(name) stand inside the parentheses, that of a typedef behind the brace, and an enum
 * without a tag goes by its first constant. */
static void read_mark(struct declaration *now, const char *at)
{
    bool tag =
        *at == '{' && !now->alias && !word_is(now->last, "struct") && !word_is(now->last, "union");
    bool inside = *at == '(' && (at[1 + strspn(at + 1, SPACE)] == '*' ||
                                 word_is(now->last, "TEST") || word_is(now->last, "TESTS"));
    if (now->name.at == NULL && (tag || strchr("([=,;", *at) != NULL)) {
        bool constant = tag && word_is(now->last, "enum");
        now->name = inside || constant ? last_word(at + 1) : now->last;
        now->function = *at == '(' && !inside && !now->alias;
        now->tagged = tag && !constant;
    }
    now->call = now->call || *at == '(';
    now->value = now->value || *at == '=';
}

void scan(struct source *source)
{
    if (source->bare.bytes != NULL)
        return;
    mask(source);
    const char *bare = source->bare.bytes;
    const struct declaration fresh = {.brace = -1};
    struct declaration now = fresh;
    for (size_t i = 0, end; bare[i] != 0; i = end) {
        char mark = bare[i];
        struct word word = {bare + i, strspn(bare + i, WORD)};
        end = i + (word.size > 0 ? word.size : 1);
        if (mark == '#')
            end = scan_directive(source, i);
        if (mark == '#' || strchr(SPACE, mark) != NULL)
            continue;
        now.start = now.begun ? now.start : i;
        now.begun = true;

        if (word.size > 0)
            read_word(&now, word);
        /* Braces around other definitions count for nothing. */
        bool around = mark == '}' || (mark == '{' && !now.call && word_is(now.last, "extern")) ||
                      (mark == '{' && word_is(now.first, "namespace"));
        if (around)
            now = fresh;
        if (around || word.size > 0)
            continue;

        /* What stands in brackets is skipped. After a =, < is no bracket. */
        if (strchr("([{", mark) != NULL || (mark == '<' && !now.value))
            end = group_end(bare, i);
        if (end == 0) {
            source->unclosed = line_of(source, i);
            return;
        }
        if (mark == '(' && now.attribute)
            continue;
        now.brace = now.brace < 0 && mark == '{' ? line_of(source, i) : now.brace;
        read_mark(&now, bare + i);

        /* A declaration ends with a semicolon, or with the body of a function. */
        if (mark == ';' || (mark == '{' && now.call && !now.value)) {
            struct range lines = {line_of(source, now.start), line_of(source, end - 1)};
            struct definition *made =
                define(source, now.name, lines, now.brace, now.brace >= 0 || now.value);
            bool assertion = word_is(now.name, "_Static_assert");
            made->shared = (now.function && !now.local && !assertion) || now.tagged;
            now = fresh;
        }
    }
}

/* The line on which a loop ends, with its braces or a semicolon. Its keyword stands before `at`. */
static int64_t loop_end(const struct source *source, size_t at)
{
    const char *bare = source->bare.bytes;
    while (bare[at] != 0 && bare[at] != ';') {
        size_t end = strchr("([{", bare[at]) != NULL ? group_end(bare, at) : at + 1;
        const char *next = bare + end + strspn(bare + end, SPACE);
        bool more = bare[at] != '{' || word_is((struct word){next, strspn(next, WORD)}, "else");
        at = end;
        if (!more)
            break;
    }
    return line_of(source, bare[at - 1] == '}' ? at - 1 : at);
}

int64_t open_loop(const struct source *source, struct range lines)
{
    const char *bare = source->bare.bytes;
    size_t end = bare != NULL ? source->starts[lines.last + 1] : 0;
    for (size_t i = 0; i < end; i++) {
        struct word word = {bare + i, strspn(bare + i, WORD)};
        /* That of `} while (x)` closes a loop. */
        bool closes = i > 1 && strncmp(bare + i - 2, "} ", 2) == 0;
        i += word.size;
        if (!word_is(word, "for") && !word_is(word, "do") && (!word_is(word, "while") || closes))
            continue;
        int64_t first = line_of(source, i), last = loop_end(source, i);
        if ((first < lines.first && last >= lines.first) ||
            (first <= lines.last && last > lines.last))
            return first;
    }
    return -1;
}
