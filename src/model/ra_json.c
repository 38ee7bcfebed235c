/* ra_json: JSON texts, read strictly. See ra_json.h.
 *
 * Chapter 10.
 */
#include "ra_json.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_error.h"

enum { DEEPEST = 64 };

/* What is being read. */
struct reader {
    struct ra_json_text *json;
    const char *at, *end;
    char *character;       /* where the next decoded one goes */
    struct ra_json *value; /* where the next value goes */
    int depth;
    char *error;
};

/* ---- Errors. */

/* Line and column, from 1 on. A column is a character, not a byte. */
static void find_place(const char *text, size_t at, int64_t *line, int64_t *column)
{
    *line = *column = 1;
    for (const char *c = text; c < text + at; c++)
        if (*c == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)*c & 0xC0) != 0x80) {
            ++*column;
        }
}

static enum ra_status refuse_at(const struct ra_json_text *json, size_t at, char *error,
                                const char *reason)
{
    int64_t line, column;
    find_place(json->text, at, &line, &column);
    return ra_error_set(error, "%.120s: line %" PRId64 ", column %" PRId64 ": %s", json->name, line,
                        column, reason);
}

enum ra_status ra_json_refuse(const struct ra_json_text *json, const struct ra_json *value,
                              char error[RA_ERROR_SIZE], const char *format, ...)
{
    char reason[RA_ERROR_SIZE];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    return refuse_at(json, value->at, error, reason);
}

static bool fail(struct reader *r, const char *reason)
{
    refuse_at(r->json, (size_t)(r->at - r->json->text), r->error, reason);
    return false;
}

/* ---- Characters. */

static void skip_blanks(struct reader *r)
{
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

static bool is_next(const struct reader *r, char character)
{
    return r->at < r->end && *r->at == character;
}

/* Steps over this character, and blanks before it. */
static bool step(struct reader *r, char character)
{
    skip_blanks(r);
    if (!is_next(r, character))
        return false;
    r->at++;
    return true;
}

/* Appends a character, as UTF-8. */
static void put(struct reader *r, uint32_t code)
{
    if (code < 0x80) {
        *r->character++ = (char)code;
        return;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint32_t first[] = {0, 0xC0, 0xE0, 0xF0};
    *r->character++ = (char)(first[more] | code >> 6 * more);
    for (; more > 0; more--)
        *r->character++ = (char)(0x80 | (code >> 6 * (more - 1) & 0x3F));
}

/* Four hexadecimal digits. */
static bool read_hex(struct reader *r, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        static const char digits[] = "0123456789abcdef";
        char c = r->at < r->end ? *r->at : '\0';
        const char *digit = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
        if (!digit)
            return fail(r, "\\u needs four hexadecimal digits");
        *code = *code << 4 | (uint32_t)(digit - digits);
    }
    return true;
}

/* What follows \u: a character, or the first half of one whose other half follows. */
static bool read_escaped_code(struct reader *r)
{
    uint32_t code, low;
    if (!read_hex(r, &code))
        return false;
    if (code == 0)
        return fail(r, "a text with the character 0 is not read here");
    if (code >= 0xD800 && code < 0xE000) {
        bool pair = code < 0xDC00 && r->end - r->at >= 6 && memcmp(r->at, "\\u", 2) == 0;
        if (!pair)
            return fail(r, "half a character: \\uD800 to \\uDBFF and \\uDC00 to \\uDFFF come in "
                           "pairs");
        r->at += 2;
        if (!read_hex(r, &low))
            return false;
        if (low < 0xDC00 || low >= 0xE000)
            return fail(r, "half a character: \\uDC00 to \\uDFFF must follow");
        code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
    }
    put(r, code);
    return true;
}

/* What follows a backslash. */
static bool read_escape(struct reader *r)
{
    static const char letters[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at : '\0';
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        r->at++;
        *r->character++ = means[letter - letters];
        return true;
    }
    if (c != 'u')
        return fail(r, "a backslash must be followed by one of \"\\/bfnrtu");
    r->at++;
    return read_escaped_code(r);
}

/* One character that is more than a byte: the shortest form of one that Unicode has. */
static bool read_utf8(struct reader *r)
{
    unsigned char lead = (unsigned char)*r->at;
    int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    uint32_t code = lead & (0x3F >> more);
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    bool good = lead >= 0xC2 && lead <= 0xF4 && r->end - r->at > more;
    for (int i = 1; i <= more && good; i++) {
        unsigned char c = (unsigned char)r->at[i];
        good = (c & 0xC0) == 0x80;
        code = code << 6 | (c & 0x3F);
    }
    if (!good || code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return fail(r, "these bytes are no UTF-8");
    put(r, code);
    r->at += more + 1;
    return true;
}

/* A text in quotation marks; NULL: it is none. It never gets longer, and its end takes the place of
 * a quotation mark. */
static const char *read_text(struct reader *r)
{
    const char *text = r->character;
    r->at++;
    while (r->at < r->end && *r->at != '"') {
        unsigned char c = (unsigned char)*r->at;
        bool good = true;
        if (c < 0x20)
            good = fail(r, "in a text, a control character must be written as \\u00..");
        else if (c == '\\') {
            r->at++;
            good = read_escape(r);
        } else if (c >= 0x80)
            good = read_utf8(r);
        else
            *r->character++ = *r->at++;
        if (!good)
            return NULL;
    }
    if (!step(r, '"'))
        return fail(r, "the text ends before its quotation mark"), NULL;
    *r->character++ = '\0';
    return text;
}

/* ---- Values. */

static bool read_value(struct reader *r, const char *name);

static bool is_digit(const struct reader *r)
{
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

static bool skip_digits(struct reader *r)
{
    if (!is_digit(r))
        return fail(r, "a digit must stand here");
    while (is_digit(r))
        r->at++;
    return true;
}

/* -? (0 | 1-9 and digits) (. digits)? ((e | E) (+ | -)? digits)? */
static bool read_number(struct reader *r, struct ra_json *value)
{
    const char *begin = r->at;
    r->at += is_next(r, '-');
    if (is_next(r, '0'))
        r->at++; /* no digit may follow it */
    else if (!skip_digits(r))
        return false;
    if (is_next(r, '.')) {
        r->at++;
        if (!skip_digits(r))
            return false;
    }
    if (is_next(r, 'e') || is_next(r, 'E')) {
        r->at++;
        r->at += is_next(r, '+') || is_next(r, '-');
        if (!skip_digits(r))
            return false;
    }
    value->text = r->character;
    memcpy(r->character, begin, (size_t)(r->at - begin));
    r->character += r->at - begin;
    *r->character++ = '\0';
    return true;
}

static int by_name(const void *a, const void *b)
{
    const struct ra_json *one = *(const struct ra_json *const *)a;
    const struct ra_json *other = *(const struct ra_json *const *)b;
    int order = strcmp(one->name, other->name);
    return order != 0 ? order : one->at < other->at ? -1 : 1;
}

/* No name may stand twice in an object: of two values, readers take the first or the last. */
static bool check_names(struct reader *r, const struct ra_json *object)
{
    const struct ra_json **members, *twice = NULL;
    if (object->count < 2)
        return true;
    members = malloc((size_t)object->count * sizeof *members);
    if (!members)
        return fail(r, "no memory to read so many members");
    const struct ra_json *member = object->first;
    for (int64_t i = 0; i < object->count; i++, member = member->next)
        members[i] = member;
    qsort(members, (size_t)object->count, sizeof *members, by_name);
    for (int64_t i = 1; i < object->count && !twice; i++)
        if (strcmp(members[i - 1]->name, members[i]->name) == 0)
            twice = members[i];
    free(members);
    if (twice)
        ra_json_refuse(r->json, twice, r->error, "\"%.120s\" is given twice", twice->name);
    return !twice;
}

/* What is in a list or an object, up to its end. */
static bool read_members(struct reader *r, struct ra_json *value)
{
    bool object = value->kind == RA_JSON_OBJECT;
    char last = object ? '}' : ']';
    const struct ra_json **place = &value->first;
    r->at++;
    if (++r->depth > DEEPEST)
        return fail(r, "more than 64 lists and objects are inside each other");
    bool more = !step(r, last);
    while (more) {
        const char *name = NULL;
        skip_blanks(r);
        if (object && !is_next(r, '"'))
            return fail(r, "a name in quotation marks must stand here");
        if (object && !(name = read_text(r)))
            return false;
        if (object && !step(r, ':'))
            return fail(r, "a colon must stand behind a name");
        struct ra_json *member = r->value;
        if (!read_value(r, name))
            return false;
        *place = member;
        place = &member->next;
        value->count++;
        more = step(r, ',');
        if (!more && !step(r, last))
            return fail(r,
                        object ? "a comma or } must stand here" : "a comma or ] must stand here");
    }
    r->depth--;
    return !object || check_names(r, value);
}

static bool read_word(struct reader *r, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return false;
    r->at += length;
    return true;
}

static bool read_value(struct reader *r, const char *name)
{
    skip_blanks(r);
    struct ra_json *value = r->value++;
    *value = (struct ra_json){.name = name, .at = (size_t)(r->at - r->json->text)};
    if (is_next(r, '{') || is_next(r, '[')) {
        value->kind = is_next(r, '{') ? RA_JSON_OBJECT : RA_JSON_LIST;
        return read_members(r, value);
    }
    if (is_next(r, '"')) {
        value->kind = RA_JSON_TEXT;
        return (value->text = read_text(r)) != NULL;
    }
    if (is_next(r, '-') || is_digit(r)) {
        value->kind = RA_JSON_NUMBER;
        return read_number(r, value);
    }
    static const char *const words[] = {"null", "false", "true"};
    for (int i = 0; i < 3; i++)
        if (read_word(r, words[i])) {
            value->kind = (enum ra_json_kind)i;
            return true;
        }
    return fail(r, "a value must stand here: an object, a list, a text, a number, true, false or "
                   "null");
}

enum ra_status ra_json_read(struct ra_json_text *json, const char *name, const char *text,
                            size_t length, char error[RA_ERROR_SIZE])
{
    /* Every value but the first has a comma or a bracket of its own before it. */
    size_t values = 1;
    for (size_t i = 0; i < length; i++)
        values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    *json = (struct ra_json_text){.name = name, .text = text};
    json->root = malloc(values * sizeof *json->root);
    json->characters = malloc(length + 1); /* a number has room for its end in what follows it */
    struct reader r = {.json = json,
                       .at = text,
                       .end = text + length,
                       .character = json->characters,
                       .value = json->root,
                       .error = error};
    bool good = json->root && json->characters;
    if (!good)
        ra_error_set(error, "%.120s: no memory to read it", name);
    good = good && read_value(&r, NULL);
    skip_blanks(&r);
    if (good && r.at != r.end)
        good = fail(&r, "nothing may follow the value");
    if (!good)
        ra_json_free(json);
    return good ? RA_OK : RA_INVALID;
}

void ra_json_free(struct ra_json_text *json)
{
    free(json->root);
    free(json->characters);
    json->root = NULL;
    json->characters = NULL;
}

/* ---- What they mean. */

const struct ra_json *ra_json_member(const struct ra_json *object, const char *name)
{
    const struct ra_json *member = object->kind == RA_JSON_OBJECT ? object->first : NULL;
    while (member && strcmp(member->name, name) != 0)
        member = member->next;
    return member;
}

bool ra_json_whole(const struct ra_json *value, int64_t *number)
{
    char *end;
    if (value->kind != RA_JSON_NUMBER)
        return false;
    errno = 0;
    *number = strtoll(value->text, &end, 10);
    return !*end && errno == 0;
}

bool ra_json_real(const struct ra_json *value, double *number)
{
    if (value->kind != RA_JSON_NUMBER)
        return false;
    *number = strtod(value->text, NULL);
    return isfinite(*number);
}

bool ra_json_is(const struct ra_json *value, const char *text)
{
    return value->kind == RA_JSON_TEXT && strcmp(value->text, text) == 0;
}
