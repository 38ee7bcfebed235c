/* ra_text: a text that is written piece by piece. See ra_text.h. */
#include "ra_text.h"
#include <stdarg.h>
#include <stdio.h>

void ra_text_add(struct ra_text *text, const char *format, ...)
{
    size_t left = (int64_t)text->size > text->length ? text->size - (size_t)text->length : 0;
    va_list values;
    va_start(values, format);
    int more = vsnprintf(left > 0 ? text->to + text->length : NULL, left, format, values);
    va_end(values);
    text->length += more > 0 ? more : 0;
}
