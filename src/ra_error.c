/* ra_error: the text of an error. See ra_error.h. */
#include "ra_error.h"
#include <stdarg.h>
#include <stdio.h>

enum ra_status ra_error_set(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (error)
        vsnprintf(error, RA_ERROR_SIZE, format, arguments);
    va_end(arguments);
    return RA_INVALID;
}
