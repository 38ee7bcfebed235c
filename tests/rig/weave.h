/* weave: what its four files share. weave_source.c reads sources and finds the definitions in them,
 * weave_quote.c finds what a fence asks for, weave_book.c writes listings; weave.c holds the pages
 * against the sources, and is the program.
 */
#ifndef WEAVE_H
#define WEAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORD "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define BLANK " \t\n\f\v"

/* What a masked source has for comments and strings. A painted line break joins its two lines. */
#define COMMENT '\1'
#define STRING '"'
#define SPACE BLANK "\1"

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
    struct range lines;       /* with the comment above */
    int64_t start, brace;     /* the line behind that comment; that of the first brace, or -1 */
    bool complete;            /* has a body or a value: is no prototype */
    bool shared;              /* an extern function, or a struct, union or enum with a tag */
    const struct page *named; /* the first page whose text names it, or NULL */
    struct word section;      /* and the heading there */
};

struct source {
    const char *path;
    struct text raw, bare; /* bare: masked, same length; empty before scan */
    size_t *starts;        /* lines + 1 of them */
    int64_t lines, count;
    struct definition *definitions;
    int64_t unclosed; /* the line of a bracket that is never closed, or -1 */
    bool cover;       /* some page must name what it shares */
    bool list;        /* it gets a listing */
    struct source *next;
};

struct page {
    const char *path;
    struct text old, new;
};

/* A fence of a page. Its place is in the new text of the page: from the opening line to behind the
 * closing one. */
struct fence {
    const struct page *page;
    size_t start, end;
    const struct source *source; /* what it quotes; NULL: it is the author's own */
    struct range lines;
    struct word section; /* the heading above it; known once its page is written to the book */
};

/* The one run of this program: where it reads, what it found, the files read so far. */
extern struct weave {
    bool check, commands;
    const char *path;
    int64_t line, problems, quotes;
    struct source *sources;
    struct page *pages;
    int page_count;
    struct fence *fences;
    int64_t fence_count;
} weave;

/* Reports a problem of the line that is being read. */
void problem(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* realloc, which ends the program if there is no memory. */
void *grow(void *old, size_t size);

void text_add(struct text *text, const char *bytes, size_t size);

/* Reads a file into text. A file that cannot be read, or is no plain text, is a problem. */
bool read_file(const char *path, struct text *text);

bool word_is(struct word word, const char *text);

/* The file at this path, read when it is first asked for and kept until the end; NULL, and a
 * problem, if it cannot be read. */
struct source *source_of(const char *path);

/* Whether all of a line, masked, consists of these characters. */
bool line_is(const struct source *source, int64_t line, const char *characters);

/* Finds the definitions of a C or CUDA file, once: the name is the word before the first
 * parenthesis of a function, the tag before the brace of a struct, union or enum, the word before
 * = [ , ; of a variable. A bracket that is never closed ends the scan. */
void scan(struct source *source);

/* The first line of a loop that is open where these lines begin or end, -1 if there is none. */
int64_t open_loop(const struct source *source, struct range lines);

/* The number of backticks of a fence at the start of a line, 0 if there is none. */
size_t fence_ticks(const char *line, size_t *indent);

/* The first line from `at` on that closes a fence of so many backticks; NULL if none does. */
const char *fence_end(const char *at, size_t ticks);

/* Fills `wanted` with what an info string, which it cuts up, asks for, and says in `fence` where
 * that is from. False if the fence is the author's own, or if something is wrong, which it
 * reports. */
bool quote(char *info, size_t indent, struct text *wanted, struct fence *fence);

/* Adds what `diff -u` says about two texts, with labels for their names and so without times. */
bool add_diff(const char *old_label, const struct text *old, const char *new_label,
              const struct text *new, struct text *out);

/* Writes all pages, with links, and the listings of all sources that get one, as Markdown, below
 * this folder. */
void write_book(const char *folder);

#endif
