/* weave: writes the book with links: the pages, and a listing of every source. See weave.h.
 *
 * All of it is Markdown, below one folder, with the paths that the files have in the tree: links
 * from page to page hold there as well. A listing has its source whole, cut at its definitions,
 * each under a heading of its own, with links to the quotes of it or, if there are none, to the
 * first page that names it. On a page each quote, and each `name` in the text, gets a link to the
 * listing.
 */
#include "weave.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Opens FOLDER/PATH with this ending, in folders that it makes. NULL, and a problem, if that
 * fails. */
static FILE *open_book(const char *folder, const char *path, const char *ending)
{
    struct text name = {0};
    text_add(&name, folder, strlen(folder));
    text_add(&name, "/", 1);
    text_add(&name, path, strlen(path));
    text_add(&name, ending, strlen(ending));
    for (char *slash = name.bytes; (slash = strchr(slash + 1, '/')) != NULL; *slash = '/') {
        *slash = 0;
        mkdir(name.bytes, 0777); /* if it fails, so does fopen */
    }
    FILE *file = fopen(name.bytes, "w");
    if (file == NULL)
        problem("cannot write %s: %s", name.bytes, strerror(errno));
    free(name.bytes);
    return file;
}

static void close_book(FILE *file, const char *path)
{
    bool written = !ferror(file);
    if (fclose(file) != 0 || !written)
        problem("cannot write what belongs to %s", path);
}

/* Writes the way from a file of the book up to the book's own folder. */
static void write_up(FILE *file, const char *path)
{
    for (; (path = strchr(path, '/')) != NULL; path++)
        fputs("../", file);
}

static bool same(struct word a, struct word b)
{
    return a.size == b.size && memcmp(a.at, b.at, a.size) == 0;
}

/* The listed definition that a name means everywhere: a complete one rather than a prototype, then
 * one that other files can use rather than one that they cannot. NULL if there is none, or several
 * with the same right to the name. */
static struct definition *meant(struct word name, const struct source **where)
{
    struct definition *found = NULL;
    int best = -1;
    for (struct source *source = weave.sources; source != NULL; source = source->next)
        for (int64_t i = 0; source->list && i < source->count; i++) {
            struct definition *definition = &source->definitions[i];
            int right = 2 * definition->complete + definition->shared;
            if (!same(definition->name, name) || right < best)
                continue;
            found = right > best ? definition : NULL;
            *where = source;
            best = right;
        }
    return found;
}

/* ---- Pages. */

/* Writes a name that stands as `name` in the text of a page, with a link to its listing. The first
 * place of all that names a definition is an anchor, and is noted. */
static void write_name(FILE *file, const struct page *page, struct word section, struct word code,
                       struct word name)
{
    const struct source *source = NULL;
    struct definition *definition = meant(name, &source);
    if (definition != NULL && definition->named == NULL) {
        definition->named = page;
        definition->section = section;
        fprintf(file, "<a id=\"name-%.*s\"></a>", (int)name.size, name.at);
    }
    fprintf(file, definition != NULL ? "[%.*s](" : "%.*s", (int)code.size, code.at);
    if (definition != NULL) {
        write_up(file, page->path);
        fprintf(file, "%s.md#def-%.*s)", source->path, (int)name.size, name.at);
    }
}

/* The offset from the "](" of a link to behind its path, if that is a listed source; else 0. */
static size_t link_end(const char *at)
{
    size_t start = 2 + strspn(at + 2, "./"), end = start + strcspn(at + start, "#)");
    for (const struct source *source = weave.sources; source != NULL; source = source->next)
        if (source->list && word_is((struct word){at + start, end - start}, source->path))
            return end;
    return 0;
}

/* Writes the text of a page from `at`, where a line begins, to `end`, with links for names; not in
 * headings, and not in other links. There is no fence in it. */
static void write_prose(FILE *file, const struct page *page, const char *at, const char *end,
                        struct word *section)
{
    int open = 0; /* brackets */
    bool begins = true;
    for (const char *next; at < end; at = next) {
        struct word name = {0};
        next = at + 1;
        if (*at == '`') {
            size_t ticks = strspn(at, "`"), size = strcspn(at + ticks, "`");
            const char *word = at + 1 + (strncmp(at, "`struct ", 8) == 0 ? 7 : 0);
            if (at + 2 * ticks + size <= end)
                next = at + 2 * ticks + size;
            name = (struct word){word, strspn(word, WORD)};
            word += name.size + (strncmp(word + name.size, "()", 2) == 0 ? 2 : 0);
            name.size = ticks == 1 && word + 1 == next ? name.size : 0;
        } else if (*at == '#' && begins) {
            const char *title = at + strspn(at, "# ");
            *section = (struct word){title, strcspn(title, "\n")};
            next = title + section->size;
        }
        open = strncmp(at, "\n\n", 2) == 0 ? 0 : open + (*at == '[') - (*at == ']');
        size_t link = strncmp(at, "](", 2) == 0 ? link_end(at) : 0;
        next += link > 0 ? link - 1 : 0;
        if (name.size > 0 && open == 0)
            write_name(file, page, *section, (struct word){at, (size_t)(next - at)}, name);
        else
            fprintf(file, link > 0 ? "%.*s.md" : "%.*s", (int)(next - at), at);
        begins = next[-1] == '\n';
    }
}

/* Writes a quote between an anchor and a link to its source. */
static void write_quote(FILE *file, const struct fence *fence)
{
    const struct source *source = fence->source;
    fprintf(file, "<a id=\"quote-%td\"></a>\n\n", fence - weave.fences + 1);
    fwrite(fence->page->new.bytes + fence->start, 1, fence->end - fence->start, file);
    if (!source->list)
        return;
    fprintf(file, "\n[%s](", source->path);
    write_up(file, fence->page->path);
    fprintf(file, "%s.md", source->path);
    for (int64_t i = 0; i < source->count; i++)
        if (source->definitions[i].lines.first <= fence->lines.first &&
            source->definitions[i].lines.last >= fence->lines.last) {
            struct word name = source->definitions[i].name;
            fprintf(file, "#def-%.*s", (int)name.size, name.at);
            break;
        }
    fputs(")\n", file);
}

static void write_page(const char *folder, const struct page *page)
{
    FILE *file = open_book(folder, page->path, "");
    if (file == NULL)
        return;
    const char *text = page->new.bytes;
    size_t at = 0;
    struct word section = {0};
    for (int64_t i = 0; i < weave.fence_count; i++) {
        struct fence *fence = &weave.fences[i];
        if (fence->page != page)
            continue;
        write_prose(file, page, text + at, text + fence->start, &section);
        fence->section = section;
        if (fence->source != NULL)
            write_quote(file, fence);
        else
            fwrite(text + fence->start, 1, fence->end - fence->start, file);
        at = fence->end;
    }
    write_prose(file, page, text + at, text + page->new.size, &section);
    close_book(file, page->path);
}

/* ---- Listings. */

/* Writes lines of a source, unless all of them are blank. */
static void write_lines(FILE *file, const struct source *source, struct range lines)
{
    while (lines.first <= lines.last && line_is(source, lines.first, BLANK))
        lines.first++;
    while (lines.first <= lines.last && line_is(source, lines.last, BLANK))
        lines.last--;
    if (lines.first > lines.last)
        return;
    size_t start = source->starts[lines.first], end = source->starts[lines.last + 1];
    const char *ending = strrchr(source->path, '.');
    fprintf(file, "\n~~~%s\n", ending != NULL && strncmp(ending, ".cu", 3) == 0 ? "cpp" : "c");
    fwrite(source->raw.bytes + start, 1, end - start, file);
    fputs("~~~\n", file);
}

/* Writes a link to a section of a page, where a quote or a name has an anchor of its own. */
static void write_place(FILE *file, const struct source *source, const struct page *page,
                        struct word section)
{
    const char *name = strrchr(page->path, '/') != NULL ? strrchr(page->path, '/') + 1 : page->path;
    fprintf(file, "\nExplained in [%.*s: %.*s](", (int)strcspn(name, "."), name, (int)section.size,
            section.at);
    write_up(file, source->path);
    fputs(page->path, file);
}

/* Writes where definitions are explained: wherever one is quoted, once for each section, or else
 * where it is first named; and where one that is declared here is defined. */
static void write_places(FILE *file, const struct source *source, struct range lines)
{
    const struct fence *last = NULL;
    for (int64_t i = 0; i < weave.fence_count; i++) {
        const struct fence *fence = &weave.fences[i];
        if (fence->source != source || fence->lines.first > lines.last ||
            fence->lines.last < lines.first ||
            (last != NULL && last->page == fence->page && last->section.at == fence->section.at))
            continue;
        write_place(file, source, fence->page, fence->section);
        fprintf(file, "#quote-%td)\n", fence - weave.fences + 1);
        last = fence;
    }
    for (int64_t i = 0; i < source->count; i++) {
        const struct definition *definition = &source->definitions[i];
        struct word name = definition->name;
        const struct source *where = NULL;
        if (definition->lines.first < lines.first || definition->lines.last > lines.last)
            continue;
        if (last == NULL && definition->named != NULL) {
            write_place(file, source, definition->named, definition->section);
            fprintf(file, "#name-%.*s)\n", (int)name.size, name.at);
        }
        if (!definition->complete && meant(name, &where) != NULL && where != source) {
            fprintf(file, "\nSee [%s](", where->path);
            write_up(file, source->path);
            fprintf(file, "%s.md#def-%.*s)\n", where->path, (int)name.size, name.at);
        }
    }
}

/* Whether the name of definition k of a source means that one in this file: a complete one rather
 * than a prototype, the first of several. */
static bool is_meant(const struct source *source, int64_t k)
{
    const struct definition *definitions = source->definitions;
    for (int64_t i = 0; i < source->count; i++)
        if (same(definitions[i].name, definitions[k].name) &&
            (i < k ? definitions[i].complete >= definitions[k].complete
                   : definitions[i].complete > definitions[k].complete))
            return false;
    return true;
}

/* Writes the listing of a source. Definitions without a blank line between them stand under one
 * heading. */
static void write_listing(const char *folder, const struct source *source)
{
    FILE *file = open_book(folder, source->path, ".md");
    if (file == NULL)
        return;
    fprintf(file, "# %s\n\n[All listings](", source->path);
    write_up(file, source->path);
    fputs("listings.md)\n", file);
    int64_t next = 0;
    for (int64_t i = 0; i < source->count;) {
        struct range lines = source->definitions[i].lines;
        int64_t end = i + 1;
        for (; end < source->count && source->definitions[end].lines.first <= lines.last + 1; end++)
            lines.last = source->definitions[end].lines.last;
        write_lines(file, source, (struct range){next, lines.first - 1});
        fputc('\n', file);
        for (int64_t k = i; k < end; k++) {
            struct word name = source->definitions[k].name;
            if (is_meant(source, k))
                fprintf(file, "<a id=\"def-%.*s\"></a>\n", (int)name.size, name.at);
        }
        for (int64_t k = i; k < end; k++) {
            struct word name = source->definitions[k].name;
            fprintf(file, "%s%.*s", k > i ? ", " : "\n## ", (int)name.size, name.at);
        }
        fputc('\n', file);
        write_places(file, source, lines);
        write_lines(file, source, lines);
        next = lines.last + 1;
        i = end;
    }
    write_lines(file, source, (struct range){next, source->lines - 1});
    close_book(file, source->path);
}

/* Writes the first sentence of the comment that opens a source. */
static void write_summary(FILE *file, const char *at)
{
    for (at += strspn(at, "/* \n"); *at != 0 && strncmp(at, "*/", 2) != 0; at++) {
        bool ends = *at == '\n';
        at += ends ? strspn(at, "\n *") - 1 : 0;
        fputc(ends ? ' ' : *at, file);
        if (*at == '.' && strchr(" \n", at[1]) != NULL)
            return;
    }
}

void write_book(const char *folder)
{
    for (struct source *source = weave.sources; source != NULL; source = source->next)
        if (source->list)
            scan(source);
    for (int i = 0; i < weave.page_count; i++)
        write_page(folder, &weave.pages[i]);
    FILE *file = open_book(folder, "listings", ".md");
    if (file == NULL)
        return;
    fputs("# Listings\n\nEvery module and program, whole.\n\n| file | what it is |\n|---|---|\n",
          file);
    for (const struct source *source = weave.sources; source != NULL; source = source->next)
        if (source->list) {
            fprintf(file, "| [%s](%s.md) | ", source->path, source->path);
            write_summary(file, source->raw.bytes);
            fputs(" |\n", file);
            write_listing(folder, source);
        }
    close_book(file, "listings");
}
