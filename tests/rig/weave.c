/* weave: keeps the chapters true to the files that they quote, and links them to listings.
 *
 * The code stands in the chapters, which are Markdown; sources carry no marks. The info string of a
 * fence says where its text comes from. A paragraph is a run of lines that are not blank, named by
 * words of the comment that opens it:
 *
 *   c FILE                  the whole file (likewise cuda, text)
 *   c FILE NAME             a top-level definition and the comment directly above it
 *   c FILE NAME / words     a paragraph inside that definition
 *   c FILE / words          a paragraph at file level; a definition in it is quoted whole
 *   python FILE [NAME]      the whole file, or a function or class at file level
 *   diff OLD NEW            what `diff -u` says
 *
 * Other fences are the author's own. A chapter quotes what teaches: short pieces, each with a
 * sentence before it. It need not quote every line, but of a covered file the chapters must name
 * all that other files can use. The listings have the rest.
 */
#include "weave.h"
#include "usage.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 40, LONGEST_DIFF = 60 }; /* lines of a quote */

struct weave weave;

static const char usage[] =
    "usage: weave CHAPTER...                             renew the quotes in the chapters\n"
    "       weave --check [FLAG VALUE]... CHAPTER...     change nothing; fail, with a diff, on a\n"
    "                  quote that drifted, and on one that is long, cuts a loop, or has no "
    "sentence\n"
    "                  between it and the quote before\n"
    "           --cover FILE     fail on an extern function of it, or a struct, union or enum "
    "with\n"
    "                            a tag, that no chapter names\n"
    "           --list FILE      write a listing of it, too\n"
    "           --book FOLDER    write the listings here, and the chapters with links to them\n"
    "       weave --commands CHAPTER...                  print the contents of all sh fences\n"
    "If a quote cannot be renewed, no chapter is changed. Prints the names of changed chapters.\n"
    "Exit status: 0 all is well, 1 something drifted or is missing, 2 misuse.\n";

/* Holds a quote against the rules. `side`: no sentence stands before it since the last one. */
static void check_rules(const struct fence *fence, const char *text, bool side)
{
    int64_t lines = 0, most = fence->lines.last < 0 ? LONGEST_DIFF : LONGEST;
    for (const char *at = text; *at != 0; at++)
        lines += *at == '\n';
    if (lines > most)
        problem("a quote of %" PRId64 " lines: the most are %" PRId64, lines, most);
    int64_t loop = open_loop(fence->source, fence->lines);
    if (loop >= 0)
        problem("the loop of %s:%" PRId64 " is open where this quote begins or ends",
                fence->source->path, loop + 1);
    if (side)
        problem("no sentence stands between this quote and the one before");
}

/* Prints the lines of a fence as Markdown shows them: without up to as many spaces as the fence
 * itself is indented by. */
static void print_commands(const char *body, size_t indent)
{
    for (const char *at = body, *next; *at != 0; at = next) {
        size_t spaces = strspn(at, " "), rest = strcspn(at, "\n");
        next = at + rest + (at[rest] == '\n');
        at += spaces < indent ? spaces : indent;
        printf("%.*s", (int)(next - at), at);
    }
}

/* Adds the right contents of a fence to the new page, or what stands there if they are unknown; or
 * prints the commands in it. */
static void weave_fence(struct page *page, struct fence *fence, const char *line, const char *body,
                        size_t size, bool side)
{
    size_t indent, ticks = fence_ticks(line, &indent);
    struct text old = {0}, info = {0}, wanted = {0};
    text_add(&old, body, size);
    text_add(&info, line + indent + ticks, strcspn(line + indent + ticks, "\n"));
    text_add(&wanted, "", 0);
    const char *language = info.bytes + strspn(info.bytes, " \t");
    bool known = false;
    if (!weave.commands)
        known = quote(info.bytes, indent, &wanted, fence);
    else if (word_is((struct word){language, strcspn(language, " \t")}, "sh")) {
        printf("# %s:%" PRId64 "\n", weave.path, weave.line);
        print_commands(old.bytes, indent);
    }

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
    if (weave.check && known)
        check_rules(fence, wanted.bytes, side);
    text_add(&page->new, right->bytes, right->size);
    free(old.bytes);
    free(info.bytes);
    free(wanted.bytes);
}

/* Whether a line outside of fences is a sentence, or part of one: it ends one, and is no heading,
 * picture, table or comment. */
static bool says(const char *line)
{
    size_t size = strcspn(line, "\n");
    return strchr("#!|<", *line) == NULL && strcspn(line, ".:?!") < size &&
           strcspn(line, WORD) < size;
}

/* Reads a page and builds its new text. */
static void weave_page(struct page *page)
{
    weave.path = page->path;
    weave.line = 1;
    text_add(&page->new, "", 0);
    if (!read_file(page->path, &page->old))
        return;
    bool side = false;
    for (const char *at = page->old.bytes, *next; *at != 0; at = next) {
        size_t indent, ticks = fence_ticks(at, &indent), start = page->new.size;
        next = at + strcspn(at, "\n");
        next += *next == '\n';
        text_add(&page->new, at, (size_t)(next - at));
        if (ticks > 0) {
            const char *end = fence_end(next, ticks);
            if (end == NULL) {
                problem("this fence is never closed");
                return;
            }
            struct fence fence = {.page = page, .start = start};
            weave_fence(page, &fence, at, next, (size_t)(end - next), side);
            next = end + strcspn(end, "\n");
            next += *next == '\n';
            text_add(&page->new, end, (size_t)(next - end));
            fence.end = page->new.size;
            side = side || fence.source != NULL;
            weave.fences = grow(weave.fences, (weave.fence_count + 1) * sizeof fence);
            weave.fences[weave.fence_count++] = fence;
        }
        side = side && !(ticks == 0 && says(at));
        for (; at < next; at++)
            weave.line += *at == '\n';
    }
}
/* Writes the new text aside and puts it in place of the old, so that nobody sees half a page. */
static void page_write(const struct page *page)
{
    struct text aside = {0};
    text_add(&aside, page->path, strlen(page->path));
    text_add(&aside, ".new", 4);
    FILE *file = fopen(aside.bytes, "w");
    bool written = file != NULL && fputs(page->new.bytes, file) >= 0;
    /* A full disk may show only when the file is closed. */
    written = file != NULL && fclose(file) == 0 && written;
    if (written && rename(aside.bytes, page->path) == 0)
        printf("%s\n", page->path);
    else {
        weave.path = page->path;
        weave.line = 1;
        problem("cannot write: %s", strerror(errno));
        remove(aside.bytes);
    }
    free(aside.bytes);
}

/* Whether this word stands on some page, in its text or in a quote. */
static bool pages_name(struct word word)
{
    for (int i = 0; i < weave.page_count; i++) {
        const char *page = weave.pages[i].new.bytes;
        for (const char *at = page + strcspn(page, WORD); *at != 0; at += strcspn(at, WORD)) {
            size_t size = strspn(at, WORD);
            if (size == word.size && memcmp(at, word.at, size) == 0)
                return true;
            at += size;
        }
    }
    return false;
}

/* Reports what a file shares and no page names. Returns how many names were looked for. */
static int64_t report_unnamed(struct source *source)
{
    int64_t names = 0;
    scan(source);
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
        if (!pages_name(definition->name))
            problem("no chapter names %.*s", (int)definition->name.size, definition->name.at);
    }
    return names;
}

/* Runs over all pages; nothing is written before all of them are known to be well. */
static void weave_all(const char *book)
{
    for (int i = 0; i < weave.page_count; i++)
        weave_page(&weave.pages[i]);
    for (int i = 0; i < weave.page_count && !weave.check && !weave.commands && weave.problems == 0;
         i++)
        if (strcmp(weave.pages[i].old.bytes, weave.pages[i].new.bytes) != 0)
            page_write(&weave.pages[i]);
    if (!weave.check)
        return;

    int64_t names = 0;
    for (struct source *source = weave.sources; source != NULL; source = source->next)
        if (source->cover)
            names += report_unnamed(source);
    if (weave.problems == 0 && book != NULL)
        write_book(book);
    if (weave.problems > 0) {
        fprintf(stderr,
                "weave: %" PRId64 " to mend; where the source is right, ninja weave quotes it\n",
                weave.problems);
        return;
    }
    printf("weave: %d chapters, %" PRId64 " quotes", weave.page_count, weave.quotes);
    if (names > 0)
        printf(", %" PRId64 " names covered", names);
    printf("\n");
}

static struct page *page_of(const char *path)
{
    for (int i = 0; i < weave.page_count; i++)
        if (strcmp(weave.pages[i].path, path) == 0)
            return &weave.pages[i];
    weave.pages[weave.page_count] = (struct page){.path = path};
    return &weave.pages[weave.page_count++];
}

/* Obeys a flag with a value. Returns false if there is no such flag. */
static bool obey(const char *flag, const char *value, const char **book)
{
    bool cover = strcmp(flag, "--cover") == 0, list = strcmp(flag, "--list") == 0;
    weave.path = value;
    weave.line = 1;
    struct source *source = cover || list ? source_of(value) : NULL;
    if (source != NULL) {
        source->cover = source->cover || cover;
        source->list = source->list || list;
    }
    if (strcmp(flag, "--book") != 0)
        return cover || list;
    *book = value;
    return true;
}

int main(int argc, char **argv)
{
    const char *book = NULL;
    bool misuse = false;
    answer_usage(argc, argv, "weave", usage);
    weave.pages = grow(NULL, (size_t)argc * sizeof *weave.pages);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0)
            weave.check = true;
        else if (strcmp(argv[i], "--commands") == 0)
            weave.commands = true;
        else if (argv[i][0] != '-')
            page_of(argv[i]);
        else if (i + 1 < argc && obey(argv[i], argv[i + 1], &book))
            i++;
        else
            misuse = true;
    }
    if (misuse || weave.page_count == 0 || (weave.check && weave.commands) ||
        (book != NULL && !weave.check)) {
        fputs(usage, stderr);
        return 2;
    }
    weave_all(book);
    if (fflush(stdout) != 0) {
        fputs("weave: cannot write its output\n", stderr);
        return 1;
    }
    return weave.problems > 0;
}
