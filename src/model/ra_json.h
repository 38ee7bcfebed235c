/* ra_json: JSON texts (RFC 8259), read strictly: config.json, and the headers and indexes of
 * weights.
 *
 * Chapter 10. What other programs write is believed only where it says one thing: an object that
 * names a member twice, text behind the value, NaN, comments and commas too many are refused, with
 * line and column.
 */
#ifndef RA_JSON_H
#define RA_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ra_status.h"

enum ra_json_kind {
    RA_JSON_NULL,
    RA_JSON_FALSE,
    RA_JSON_TRUE,
    RA_JSON_NUMBER,
    RA_JSON_TEXT,
    RA_JSON_LIST,
    RA_JSON_OBJECT
};

/* A value. Its texts are UTF-8 without escapes, and hold no character 0. */
struct ra_json {
    enum ra_json_kind kind;
    const char *name;            /* of a member of an object; else NULL */
    const char *text;            /* of a text, or the characters of a number */
    const struct ra_json *first; /* what a list or an object holds */
    const struct ra_json *next;  /* in the list or object that holds this */
    int64_t count;               /* how many that are */
    size_t at;                   /* where it begins in the text that was read */
};

/* A text that has been read. ra_json_free frees it. */
struct ra_json_text {
    const char *name, *text; /* the caller's, of errors and as it was read: both must stay */
    struct ra_json *root;
    char *characters;
};

/* Reads `length` bytes. At most 64 lists and objects are inside each other. RA_INVALID, with a text
 * that names `name`, line and column, if it is not one JSON value; then nothing must be freed. */
RA_CHECKED enum ra_status ra_json_read(struct ra_json_text *json, const char *name,
                                       const char *text, size_t length, char error[RA_ERROR_SIZE]);
void ra_json_free(struct ra_json_text *json);

/* Writes "NAME: line L, column C: " and this text, and returns RA_INVALID. */
__attribute__((format(printf, 4, 5))) enum ra_status ra_json_refuse(const struct ra_json_text *json,
                                                                    const struct ra_json *value,
                                                                    char error[RA_ERROR_SIZE],
                                                                    const char *format, ...);

/* Finds a member of an object. NULL: it has none of this name, or is no object. */
const struct ra_json *ra_json_member(const struct ra_json *object, const char *name);

/* Reads a number. False: it is none, or not one that fits; a whole number has digits alone. */
bool ra_json_whole(const struct ra_json *value, int64_t *number);
bool ra_json_real(const struct ra_json *value, double *number);

/* Returns the word of a truth value, to write it. */
static inline const char *ra_json_bool(bool flag)
{
    return flag ? "true" : "false";
}

/* Says whether it is this text. */
bool ra_json_is(const struct ra_json *value, const char *text);

#endif
