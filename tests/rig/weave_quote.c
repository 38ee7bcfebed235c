/* weave: finds what a fence asks for. See weave.h, and the head of weave.c. */
#include "weave.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct language {
    const char *word, *title, *form;
    int least, most; /* how many words may follow, up to the / */
    bool names;      /* it has definitions and paragraphs */
} languages[] = {{"c", "C", "FILE [NAME] [/ words]", 1, 2, true},
                 {"cuda", "CUDA", "FILE [NAME] [/ words]", 1, 2, true},
                 {"python", "Python", "FILE [NAME]", 1, 2, false},
                 {"text", "text", "FILE", 1, 1, false},
                 {"diff", "diff", "OLD NEW", 2, 2, false}};

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
    bool parts = line_is(source, line, BLANK);
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
               !(inside != NULL && next == inside->brace + 1 && line_is(source, next, SPACE)))
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

/* Finds a function or class of Python at file level: what is indented below it is its body, less
 * the blank lines at the end. */
static bool pick_python(const struct source *source, const char *name, struct range *lines)
{
    struct matches matches = {0};
    for (int64_t line = 0; line < source->lines; line++) {
        const char *at = source->raw.bytes + source->starts[line];
        size_t keyword = strncmp(at, "def ", 4) == 0 ? 4 : strncmp(at, "class ", 6) == 0 ? 6 : 0;
        if (keyword == 0 || !word_is((struct word){at + keyword, strspn(at + keyword, WORD)}, name))
            continue;
        struct range all = {line, line};
        for (int64_t next = line + 1; next < source->lines; next++) {
            char first = source->raw.bytes[source->starts[next]];
            if (first != ' ' && first != '\n')
                break;
            all.last = first == ' ' ? next : all.last;
        }
        match(&matches, all, line);
    }
    *lines = matches.lines;
    return match_one(source, &matches, "definition", name);
}

/* Finds the lines that a NAME and words choose: all lines if both are NULL. */
static bool pick_lines(struct source *source, const char *name, const char *words,
                       struct range *lines)
{
    const struct definition *definition = NULL;
    *lines = (struct range){0, source->lines - 1};
    if (name == NULL && words == NULL)
        return true;
    scan(source);
    if (source->unclosed >= 0) {
        problem("%s:%" PRId64 ": this bracket is never closed", source->path, source->unclosed + 1);
        return false;
    }
    if (name != NULL) {
        definition = pick_definition(source, name);
        if (definition == NULL)
            return false;
        *lines = definition->lines;
    }
    return words == NULL || pick_paragraph(source, definition, words, lines);
}

bool add_diff(const char *old_label, const struct text *old, const char *new_label,
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

size_t fence_ticks(const char *line, size_t *indent)
{
    *indent = strspn(line, " ");
    const char *ticks = line + *indent;
    size_t count = strspn(ticks, "`"), info = strcspn(ticks + count, "\n");
    /* ```x``` on one line is code in running text. */
    return count >= 3 && memchr(ticks + count, '`', info) == NULL ? count : 0;
}

const char *fence_end(const char *at, size_t ticks)
{
    for (size_t indent; *at != 0; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t count = fence_ticks(at, &indent);
        if (count >= ticks &&
            strspn(at + indent + count, " \t") == strcspn(at + indent + count, "\n"))
            return at;
    }
    return NULL;
}

bool quote(char *info, size_t indent, struct text *wanted, struct fence *fence)
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
    if (count < language->least || count > language->most || (words != NULL && !language->names)) {
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
    fence->source = source;
    fence->lines = (struct range){0, -1}; /* of a diff: none */
    if (language->least == 2)
        return add_diff(source->path, &source->raw, new->path, &new->raw, wanted);
    bool python = strcmp(language->word, "python") == 0 && operands[1] != NULL;
    if (!(python ? pick_python(source, operands[1], &fence->lines)
                 : pick_lines(source, operands[1], words, &fence->lines)))
        return false;
    size_t start = source->starts[fence->lines.first];
    text_add(wanted, source->raw.bytes + start, source->starts[fence->lines.last + 1] - start);
    return true;
}
