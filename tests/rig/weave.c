/* weave: keeps the chapters true to the files that they quote.
 *
 * The code stands in the chapters, which are Markdown; sources carry no marks. The info string of a
 * fence says where its text comes from. A paragraph is a run of lines that are not blank, named by
 * words of the comment that opens it:
 *
 *   c FILE                  the whole file (likewise cuda, python, ninja, text)
 *   c FILE NAME             a top-level definition and the comment directly above it
 *   c FILE NAME / words     a paragraph inside that definition
 *   c FILE / words          a paragraph at file level; a definition in it is quoted whole
 *   diff OLD NEW            what `diff -u` says
 *
 * Other fences are the author's own. A chapter need not quote every line, but of a covered file it
 * must name all that other files can use. To find a definition, a file is masked (comments and strings
 * are painted over, so that brackets and words in them mean nothing) and then scanned.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define BLANK " \t\n\f\v"

/* What mask paints over comments and strings. A painted line break joins its two lines. */
#define COMMENT '\1'
#define STRING '"'
#define SPACE BLANK "\1"

static const char usage[] =
    "usage: weave [--cover FILE]... CHAPTER...          renew the quotes in the chapters\n"
    "       weave --check [--cover FILE]... CHAPTER...  change nothing; fail, with a diff, on a\n"
    "                  quote that drifted, and on an extern function of FILE, or a struct, union\n"
    "                  or enum with a tag, that no chapter names\n"
    "       weave --commands CHAPTER...                 print the contents of all sh fences\n"
    "If a quote cannot be renewed, no chapter is changed. Prints the names of changed chapters.\n"
    "Exit status: 0 all is well, 1 something drifted or is missing, 2 misuse.\n";

/* A string that grows; bytes[size] is 0 once something was added, if only nothing. */
struct text {
    char *bytes;
    size_t size;
};

struct word {
    const char *at; /* NULL: no word */
    size_t size;
};

/* Lines count from 0 here, from 1 in messages. Both ends are inside. */
struct range {
    int64_t first, last;
};

struct definition {
    struct word name;
    struct range lines;   /* with the comment above */
    int64_t start, brace; /* the line behind that comment; that of the first brace, or -1 */
    bool complete;        /* has a body or a value: is no prototype */
    bool shared;          /* an extern function, or a struct, union or enum with a tag */
};

struct source {
    const char *path;
    struct text raw, bare; /* bare: masked, same length */
    size_t *starts;        /* lines + 1 of them */
    int64_t lines, count;
    struct definition *definitions;
    int64_t unclosed; /* the line of a bracket that is never closed, or -1 */
    bool cover;       /* some chapter must name what it shares */
    struct source *next;
};

struct chapter {
    const char *path;
    struct text old, new;
};

/* The one run of this program: where it reads, what it found, the files read so far. */
static struct {
    bool check, commands;
    const char *path;
    int64_t line, problems, quotes;
    struct source *sources;
    struct chapter *chapters;
} weave;

/* Reports a problem of the line that is being read. */
static void problem(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void problem(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%" PRId64 ": ", weave.path, weave.line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    weave.problems++;
}

static void *grow(void *old, size_t size)
{
    void *memory = realloc(old, size);
    if (memory == NULL) {
        fputs("weave: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

static void text_add(struct text *text, const char *bytes, size_t size)
{
    text->bytes = grow(text->bytes, text->size + size + 1);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
}

/* Reads a file into text. A file that cannot be read, or is no plain text, is a problem. */
static bool read_file(const char *path, struct text *text)
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

/* The file at this path, read when it is first asked for and kept until the end; or NULL. */
static struct source *source_of(const char *path)
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

/* Whether all of the line, in the raw or the bare text, consists of these characters. */
static bool line_is(const struct source *source, const struct text *text, int64_t line,
                    const char *characters)
{
    size_t start = source->starts[line];
    return start + strspn(text->bytes + start, characters) >= source->starts[line + 1];
}

/* Makes the bare text: paints over the comments and strings of C or, with `hash`, of Python. */
static void mask(struct source *source, bool hash)
{
    const char *raw = source->raw.bytes;
    text_add(&source->bare, raw, source->raw.size);
    for (size_t i = 0, end; raw[i] != 0; i = end) {
        char paint = COMMENT, quote = raw[i];
        const char *close = NULL;
        end = i + 1;
        if (strncmp(raw + i, hash ? "#" : "//", hash ? 1 : 2) == 0) {
            end = i + strcspn(raw + i, "\n");
        } else if (!hash && strncmp(raw + i, "/*", 2) == 0) {
            close = strstr(raw + i + 2, "*/");
            end = close != NULL ? (size_t)(close + 2 - raw) : source->raw.size;
        } else if (quote == '"' || quote == '\'') {
            paint = STRING;
            if (hash && raw[i + 1] == quote && raw[i + 2] == quote) {
                close = strstr(raw + i + 3, quote == '"' ? "\"\"\"" : "'''");
                end = close != NULL ? (size_t)(close + 3 - raw) : source->raw.size;
            } else {
                /* A lone apostrophe, as in "#error don't", ends with its line. */
                for (; raw[end] != 0 && raw[end] != quote && raw[end] != '\n'; end++)
                    end += raw[end] == '\\' && raw[end + 1] != 0;
                end += raw[end] == quote;
            }
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
    struct definition definition = {name, lines, lines.first, brace, complete, false};
    for (int64_t *above = &definition.lines.first; *above > 0; --*above)
        if (line_is(source, &source->bare, *above - 1, BLANK) ||
            !line_is(source, &source->bare, *above - 1, SPACE))
            break;
    source->definitions =
        grow(source->definitions, (source->count + 1) * sizeof *source->definitions);
    source->definitions[source->count] = definition;
    return &source->definitions[source->count++];
}

static bool word_is(struct word word, const char *text)
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
    if (strncmp(word, "define", 6) == 0)
        define(source, (struct word){name, strspn(name, WORD)},
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

/* Finds the definitions of a C or CUDA file: the name is the word before the first parenthesis of
 * a function, the tag before the brace of a struct, union or enum, the word before = [ , ; of a
 * variable. A bracket that is never closed ends the scan. */
static void scan_c(struct source *source)
{
    mask(source, false);
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

        /* The last word before some punctuation may turn out to be the name; one like
         * __attribute__ or __launch_bounds__ never does. */
        if (word.size > 0) {
            now.attribute = strncmp(word.at, "__", 2) == 0 || word_is(word, "alignas") ||
                            word_is(word, "_Alignas") || word_is(word, "_Atomic");
            now.alias = now.alias || word_is(word, "typedef");
            now.local = now.local || word_is(word, "static");
            now.first = now.first.at == NULL ? word : now.first;
            now.last = now.attribute ? now.last : word;
            if (word_is(word, "END_TEST") && source->count > 0) {
                /* libcheck closes a test by a word behind its body. */
                source->definitions[source->count - 1].lines.last = line_of(source, i);
                now = fresh;
            }
            continue;
        }

        /* Braces around other definitions count for nothing. */
        if (mark == '}' || (mark == '{' && !now.call && word_is(now.last, "extern")) ||
            (mark == '{' && word_is(now.first, "namespace"))) {
            now = fresh;
            continue;
        }

        /* What stands in brackets is skipped. After a =, < is no bracket. */
        if (strchr("([{", mark) != NULL || (mark == '<' && !now.value))
            end = group_end(bare, i);
        if (end == 0) {
            source->unclosed = line_of(source, i);
            return;
        }
        if (mark == '(' && now.attribute)
            continue;

        /* The first punctuation that can follow a name decides. The names in `(*table[4])(int)` and
         * START_TEST(name) stand inside the parentheses, that of a typedef behind the brace, and an
         * enum without a tag goes by its first constant. */
        bool tag = mark == '{' && !now.alias && !word_is(now.last, "struct") &&
                   !word_is(now.last, "union");
        bool inside = mark == '(' && (bare[i + 1 + strspn(bare + i + 1, SPACE)] == '*' ||
                                      word_is(now.last, "START_TEST"));
        if (now.name.at == NULL && (tag || strchr("([=,;", mark) != NULL)) {
            bool constant = tag && word_is(now.last, "enum");
            now.name = inside || constant ? last_word(bare + i + 1) : now.last;
            now.function = mark == '(' && !inside && !now.alias;
            now.tagged = tag && !constant;
        }
        now.brace = now.brace < 0 && mark == '{' ? line_of(source, i) : now.brace;
        now.call = now.call || mark == '(';
        now.value = now.value || mark == '=';

        /* A declaration ends with a semicolon, or with the body of a function. */
        if (mark == ';' || (mark == '{' && now.call && !now.value)) {
            struct range lines = {line_of(source, now.start), line_of(source, end - 1)};
            struct definition *made =
                define(source, now.name, lines, now.brace, now.brace >= 0 || now.value);
            made->shared = (now.function && !now.local) || now.tagged;
            now = fresh;
        }
    }
}

/* The offset of the next statement that starts in the first column, outside of strings. */
static size_t next_statement(const char *bare, size_t at)
{
    while (bare[at] != 0 &&
           ((at > 0 && bare[at - 1] != '\n') || strchr(SPACE ")]}", bare[at]) != NULL))
        at++;
    return at;
}

/* Finds the definitions of a Python file: each goes up to the next statement in the first column.
 * It serves for a ninja file as well, of which only the paragraphs are wanted. */
static void scan_python(struct source *source)
{
    mask(source, true);
    const char *bare = source->bare.bytes;
    for (size_t start = next_statement(bare, 0), end; bare[start] != 0; start = end) {
        size_t at = start;
        while (bare[at] == '@')
            at = next_statement(bare, at + 1);
        end = next_statement(bare, bare[at] != 0 ? at + 1 : at);

        /* The comment of the next statement, and blank lines, are not part of this one. */
        int64_t last = line_of(source, end - 1);
        while (line_is(source, &source->bare, last, BLANK) || bare[source->starts[last]] == COMMENT)
            last--;
        struct word name = {bare + at, strspn(bare + at, WORD)};
        if (word_is(name, "def") || word_is(name, "class"))
            name = last_word(name.at + name.size);
        define(source, name, (struct range){line_of(source, start), last}, line_of(source, at),
               true);
    }
}

static const struct language {
    const char *word, *title, *form;
    int least, most; /* how many words may follow, up to the / */
    void (*scan)(struct source *);
} languages[] = {{"c", "C", "FILE [NAME] [/ words]", 1, 2, scan_c},
                 {"cuda", "CUDA", "FILE [NAME] [/ words]", 1, 2, scan_c},
                 {"python", "Python", "FILE [NAME] [/ words]", 1, 2, scan_python},
                 {"ninja", "ninja", "FILE [/ words]", 1, 1, scan_python},
                 {"text", "text", "FILE", 1, 1, NULL},
                 {"diff", "diff", "OLD NEW", 2, 2, NULL}};

/* Candidates for one name: how many, the last of them, and the lines of all for the message. */
struct matches {
    int64_t count;
    const struct definition *definition;
    struct range lines;
    char list[200];
};

static void match(struct matches *matches, struct range lines, int64_t shown)
{
    size_t used = strlen(matches->list);
    snprintf(matches->list + used, sizeof matches->list - used, "%s%" PRId64, used > 0 ? ", " : "",
             shown + 1);
    matches->lines = lines;
    matches->count++;
}

/* Says whether exactly one thing matched, and reports it if not. */
static bool match_one(const struct source *source, const struct matches *matches, const char *what,
                      const char *name)
{
    if (matches->count == 0)
        problem("%s has no %s \"%s\"", source->path, what, name);
    else if (matches->count > 1)
        problem("the %s \"%s\" is ambiguous in %s: lines %s", what, name, source->path,
                matches->list);
    return matches->count == 1;
}

/* The definition of this name; a prototype counts only where nothing complete has the name. */
static const struct definition *pick_definition(const struct source *source, const char *name)
{
    struct matches matches = {0};
    for (int complete = 1; complete >= 0 && matches.count == 0; complete--)
        for (int64_t i = 0; i < source->count; i++) {
            const struct definition *definition = &source->definitions[i];
            if (definition->complete != complete || !word_is(definition->name, name))
                continue;
            match(&matches, definition->lines, definition->start);
            matches.definition = definition;
        }
    return match_one(source, &matches, "definition", name) ? matches.definition : NULL;
}

/* Makes text from words: lower case, one space for any run of white space and comment marks. */
static struct text folded(const char *bytes, size_t size)
{
    struct text text = {0};
    text_add(&text, "", 0);
    for (size_t i = 0; i < size; i++) {
        bool gap = strchr(BLANK "/*#", bytes[i]) != NULL;
        char letter = gap ? ' ' : (char)tolower((unsigned char)bytes[i]);
        if (!gap || (text.size > 0 && text.bytes[text.size - 1] != ' '))
            text_add(&text, &letter, 1);
    }
    if (text.size > 0 && text.bytes[text.size - 1] == ' ')
        text.bytes[--text.size] = 0;
    return text;
}

/* Whether a line parts paragraphs: any blank line inside a definition; at file level, one that does
 * not stand inside a definition. */
static bool line_parts(const struct source *source, bool file_level, int64_t line)
{
    bool parts = line_is(source, &source->bare, line, BLANK);
    for (int64_t i = 0; parts && file_level && i < source->count; i++)
        parts =
            line < source->definitions[i].lines.first || line > source->definitions[i].lines.last;
    return parts;
}

/* Finds the paragraph whose opening comment has these words, inside a definition or, if that is
 * NULL, at file level. */
static bool pick_paragraph(const struct source *source, const struct definition *inside,
                           const char *name, struct range *lines)
{
    struct range all = inside != NULL ? inside->lines : (struct range){0, source->lines - 1};
    struct matches matches = {0};
    struct text words = folded(name, strlen(name));
    for (int64_t line = all.first, next; line <= all.last; line = next) {
        next = line + 1;
        if (line_parts(source, inside == NULL, line))
            continue;
        /* A comment right behind the opening brace begins a paragraph too, or else the first
         * paragraph of a body could not be told from the head of its function. */
        while (next <= all.last && !line_parts(source, inside == NULL, next) &&
               !(inside != NULL && next == inside->brace + 1 &&
                 line_is(source, &source->bare, next, SPACE)))
            next++;

        /* The opening comment goes up to the first character that is neither paint nor space. */
        size_t start = source->starts[line], room = source->starts[next] - start;
        size_t opening = strspn(source->bare.bytes + start, SPACE);
        struct text comment = folded(source->raw.bytes + start, opening < room ? opening : room);
        if (words.size > 0 && strstr(comment.bytes, words.bytes) != NULL)
            match(&matches, (struct range){line, next - 1}, line);
        free(comment.bytes);
    }
    free(words.bytes);
    *lines = matches.lines;
    return match_one(source, &matches, "paragraph", name);
}

/* Adds the lines that a NAME and words choose: all lines if both are NULL. */
static bool quote_lines(struct source *source, const struct language *language, const char *name,
                        const char *words, struct text *wanted)
{
    struct range lines = {0, source->lines - 1};
    const struct definition *definition = NULL;
    if ((name != NULL || words != NULL) && source->bare.bytes == NULL)
        language->scan(source);
    if ((name != NULL || words != NULL) && source->unclosed >= 0) {
        problem("%s:%" PRId64 ": this bracket is never closed", source->path, source->unclosed + 1);
        return false;
    }
    if (name != NULL) {
        definition = pick_definition(source, name);
        if (definition == NULL)
            return false;
        lines = definition->lines;
    }
    if (words != NULL && !pick_paragraph(source, definition, words, &lines))
        return false;
    size_t start = source->starts[lines.first];
    text_add(wanted, source->raw.bytes + start, source->starts[lines.last + 1] - start);
    return true;
}

/* Adds what `diff -u` says about two texts, with labels for their names and so without times. */
static bool add_diff(const char *old_label, const struct text *old, const char *new_label,
                     const struct text *new, struct text *out)
{
    char block[4096];
    FILE *files[2] = {tmpfile(), tmpfile()}, *diff = NULL;
    const struct text *texts[2] = {old, new};
    /* The labels reach the shell as variables, so no character in them is special. */
    bool ready = setenv("WEAVE_OLD", old_label, 1) == 0 && setenv("WEAVE_NEW", new_label, 1) == 0;
    for (int i = 0; i < 2; i++)
        ready = ready && files[i] != NULL &&
                fwrite(texts[i]->bytes, 1, texts[i]->size, files[i]) == texts[i]->size &&
                fseek(files[i], 0, SEEK_SET) == 0;
    if (ready) {
        snprintf(block, sizeof block,
                 "diff -u --label \"$WEAVE_OLD\" --label \"$WEAVE_NEW\" /dev/fd/%d /dev/fd/%d",
                 fileno(files[0]), fileno(files[1]));
        diff = popen(block, "r");
    }
    for (size_t got; diff != NULL && (got = fread(block, 1, sizeof block, diff)) > 0;)
        text_add(out, block, got);
    for (int i = 0; i < 2; i++)
        if (files[i] != NULL)
            fclose(files[i]);
    /* diff exits with 0 or 1, which is in the second byte of the status; with more if it failed. */
    int status = diff != NULL ? pclose(diff) : -1;
    if (status != 0 && status != 1 << 8)
        problem("cannot run diff on %s and %s", old_label, new_label);
    return status == 0 || status == 1 << 8;
}

/* The number of backticks of a fence at the start of a line, 0 if there is none. */
static size_t fence_ticks(const char *line, size_t *indent)
{
    *indent = strspn(line, " ");
    const char *ticks = line + *indent;
    size_t count = strspn(ticks, "`"), info = strcspn(ticks + count, "\n");
    /* ```x``` on one line is code in running text. */
    return count >= 3 && memchr(ticks + count, '`', info) == NULL ? count : 0;
}

/* The first line from `at` on that closes a fence of so many backticks; NULL if none does. */
static const char *fence_end(const char *at, size_t ticks)
{
    for (size_t indent; *at != 0; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t count = fence_ticks(at, &indent);
        if (count >= ticks &&
            strspn(at + indent + count, " \t") == strcspn(at + indent + count, "\n"))
            return at;
    }
    return NULL;
}

/* Fills `wanted` with what an info string asks for, and cuts that up. False if the fence is the
 * author's own, or if something is wrong, which it reports. */
static bool quote(char *info, size_t indent, struct text *wanted)
{
    char *words = strstr(info, " / "), *rest, *operands[3] = {0};
    if (words != NULL) {
        *words = 0;
        words += 3;
    }
    const struct language *language = NULL;
    char *word = strtok_r(info, " \t", &rest);
    for (size_t i = 0; word != NULL && i < sizeof languages / sizeof *languages; i++)
        if (strcmp(word, languages[i].word) == 0)
            language = &languages[i];
    if (language == NULL)
        return false;

    /* One word more than any language allows is read, to see that it is there. */
    int count = 0;
    while (count < 3 && (word = strtok_r(NULL, " \t", &rest)) != NULL)
        operands[count++] = word;
    weave.quotes++;
    if (count == 0) {
        problem("a %s block without a source", language->title);
        return false;
    }
    if (count < language->least || count > language->most ||
        (words != NULL && language->scan == NULL)) {
        problem("a %s block takes %s", language->title, language->form);
        return false;
    }
    /* Sources are quoted byte for byte, and an indented fence would swallow spaces. */
    if (indent > 0) {
        problem("a %s block starts in the first column", language->title);
        return false;
    }
    struct source *source = source_of(operands[0]);
    struct source *new = language->least == 2 ? source_of(operands[1]) : source;
    if (source == NULL || new == NULL)
        return false;
    return language->least == 2 ? add_diff(source->path, &source->raw, new->path, &new->raw, wanted)
                                : quote_lines(source, language, operands[1], words, wanted);
}

/* Adds the right contents of a fence to the new chapter, or what stands there if they are unknown;
 * or prints the commands in it. */
static void weave_fence(struct chapter *chapter, const char *line, const char *body, size_t size)
{
    size_t indent, ticks = fence_ticks(line, &indent);
    struct text old = {0}, info = {0}, wanted = {0};
    text_add(&old, body, size);
    text_add(&info, line + indent + ticks, strcspn(line + indent + ticks, "\n"));
    text_add(&wanted, "", 0);
    const char *language = info.bytes + strspn(info.bytes, " \t");
    bool known = false;
    if (!weave.commands)
        known = quote(info.bytes, indent, &wanted);
    else if (word_is((struct word){language, strcspn(language, " \t")}, "sh"))
        printf("# %s:%" PRId64 "\n%s", weave.path, weave.line, old.bytes);

    if (known && fence_end(wanted.bytes, ticks) != NULL) {
        problem("the quoted text has a fence in it: this one needs more than %zu backticks", ticks);
        known = false;
    }
    struct text *right = known ? &wanted : &old;
    if (weave.check && strcmp(right->bytes, old.bytes) != 0) {
        struct text difference = {0};
        /* The info string itself is in pieces by now. */
        const char *start = line + indent + ticks;
        problem("this text has drifted from: %.*s", (int)strcspn(start, "\n"), start);
        if (add_diff(weave.path, &old, "source", right, &difference))
            fputs(difference.bytes, stderr);
        free(difference.bytes);
    }
    text_add(&chapter->new, right->bytes, right->size);
    free(old.bytes);
    free(info.bytes);
    free(wanted.bytes);
}

/* Reads a chapter and builds its new text. */
static void weave_chapter(struct chapter *chapter)
{
    weave.path = chapter->path;
    weave.line = 1;
    text_add(&chapter->new, "", 0);
    if (!read_file(chapter->path, &chapter->old))
        return;
    for (const char *at = chapter->old.bytes, *next; *at != 0; at = next) {
        size_t indent, ticks = fence_ticks(at, &indent);
        next = at + strcspn(at, "\n");
        next += *next == '\n';
        text_add(&chapter->new, at, (size_t)(next - at));
        if (ticks > 0) {
            const char *end = fence_end(next, ticks);
            if (end == NULL) {
                problem("this fence is never closed");
                return;
            }
            weave_fence(chapter, at, next, (size_t)(end - next));
            next = end + strcspn(end, "\n");
            next += *next == '\n';
            text_add(&chapter->new, end, (size_t)(next - end));
        }
        for (; at < next; at++)
            weave.line += *at == '\n';
    }
}

/* Writes the new text aside and puts it in place of the old, so that nobody sees half a chapter. */
static void chapter_write(const struct chapter *chapter)
{
    struct text aside = {0};
    text_add(&aside, chapter->path, strlen(chapter->path));
    text_add(&aside, ".new", 4);
    FILE *file = fopen(aside.bytes, "w");
    bool written = file != NULL && fputs(chapter->new.bytes, file) >= 0;
    /* A full disk may show only when the file is closed. */
    written = file != NULL && fclose(file) == 0 && written;
    if (written && rename(aside.bytes, chapter->path) == 0)
        printf("%s\n", chapter->path);
    else {
        weave.path = chapter->path;
        weave.line = 1;
        problem("cannot write: %s", strerror(errno));
        remove(aside.bytes);
    }
    free(aside.bytes);
}

/* Does this word stand in some chapter, in its text or in a quote? */
static bool chapters_name(struct word word, int count)
{
    for (int i = 0; i < count; i++) {
        const char *page = weave.chapters[i].new.bytes;
        for (const char *at = page + strcspn(page, WORD); *at != 0; at += strcspn(at, WORD)) {
            size_t size = strspn(at, WORD);
            if (size == word.size && memcmp(at, word.at, size) == 0)
                return true;
            at += size;
        }
    }
    return false;
}

/* Reports what a file shares and no chapter names. Returns how many names were looked for. */
static int64_t report_unnamed(struct source *source, int count)
{
    int64_t names = 0;
    if (source->bare.bytes == NULL)
        scan_c(source);
    weave.path = source->path;
    if (source->unclosed >= 0) {
        weave.line = source->unclosed + 1;
        problem("this bracket is never closed");
    }
    for (int64_t i = 0; i < source->count; i++) {
        const struct definition *definition = &source->definitions[i];
        if (!definition->shared)
            continue;
        names++;
        weave.line = definition->start + 1;
        if (!chapters_name(definition->name, count))
            problem("no chapter names %.*s", (int)definition->name.size, definition->name.at);
    }
    return names;
}

/* Runs over all chapters; nothing is written before all of them are known to be well. */
static void weave_all(char **paths, int count)
{
    weave.chapters = grow(NULL, (size_t)count * sizeof *weave.chapters);
    for (int i = 0; i < count; i++) {
        weave.chapters[i] = (struct chapter){.path = paths[i]};
        weave_chapter(&weave.chapters[i]);
    }
    for (int i = 0; i < count && !weave.check && !weave.commands && weave.problems == 0; i++)
        if (strcmp(weave.chapters[i].old.bytes, weave.chapters[i].new.bytes) != 0)
            chapter_write(&weave.chapters[i]);
    if (!weave.check)
        return;

    int64_t names = 0;
    for (struct source *source = weave.sources; source != NULL; source = source->next)
        if (source->cover)
            names += report_unnamed(source, count);
    if (weave.problems > 0) {
        fprintf(stderr,
                "weave: %" PRId64 " to mend; where the source is right, ninja weave quotes it\n",
                weave.problems);
        return;
    }
    printf("weave: %d chapters, %" PRId64 " quotes", count, weave.quotes);
    if (names > 0)
        printf(", %" PRId64 " names covered", names);
    printf("\n");
}

int main(int argc, char **argv)
{
    int chapters = 0;
    bool misuse = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--check") == 0) {
            weave.check = true;
        } else if (strcmp(argv[i], "--commands") == 0) {
            weave.commands = true;
        } else if (strcmp(argv[i], "--cover") == 0 && i + 1 < argc) {
            weave.path = argv[++i];
            weave.line = 1;
            struct source *source = source_of(weave.path);
            if (source != NULL)
                source->cover = true;
        } else {
            misuse = misuse || argv[i][0] == '-';
            argv[chapters++] = argv[i];
        }
    }
    if (misuse || chapters == 0 || (weave.check && weave.commands)) {
        fputs(usage, stderr);
        return 2;
    }
    weave_all(argv, chapters);
    if (fflush(stdout) != 0) {
        fputs("weave: cannot write its output\n", stderr);
        return 1;
    }
    return weave.problems > 0;
}
