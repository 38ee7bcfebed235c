/* libc: of the C library, what the modules behind live pictures call, in a browser, where there is
 * none. Memory is taken from the end, and given back all at once.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "live.h"

/* ---- Memory. */

enum { PAGE = 65536 };
extern char __heap_base; /* the linker's */
static char *heap;

void *live_heap(void *to)
{
    char *now = heap ? heap : &__heap_base;
    if (to)
        heap = to;
    return now;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    size_t begin = ((size_t)live_heap(NULL) + alignment - 1) / alignment * alignment;
    size_t end = begin + bytes, pages = (end + PAGE - 1) / PAGE,
           now = __builtin_wasm_memory_size(0);
    if (end < begin || (pages > now && __builtin_wasm_memory_grow(0, pages - now) == (size_t)-1))
        return NULL;
    heap = (char *)end;
    return (void *)begin;
}

void *malloc(size_t bytes)
{
    return aligned_alloc(16, bytes);
}

void *calloc(size_t count, size_t bytes)
{
    void *block = malloc(count * bytes);
    return block ? memset(block, 0, count * bytes) : NULL;
}

void free(void *block)
{
    (void)block; /* live_heap does it */
}

/* ---- Bytes and text. -ffreestanding keeps the compiler from making a call of memset out of
 * memset's own loop. */

void *memcpy(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((char *)to)[i] = (char)value;
    return to;
}

size_t strlen(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

int strcmp(const char *a, const char *b)
{
    for (; *a && *a == *b; a++)
        b++;
    return (unsigned char)*a - (unsigned char)*b;
}

/* Errors and the simulator's complaints have %s, %d and %lld; of any other format the text shows
 * the letters. */
int vsnprintf(char *text, size_t size, const char *format, va_list values)
{
    size_t length = 0;
    for (; *format; format++) {
        char digits[24], *from = digits + sizeof digits - 1, copy[2] = {*format, 0};
        const char *part = copy;
        *from = 0;
        if (format[0] == '%' && format[1] == 's') {
            part = va_arg(values, const char *);
            format++;
        } else if (format[0] == '%' && (format[1] == 'd' || format[1] == 'l')) {
            long long number = format[1] == 'd' ? va_arg(values, int) : va_arg(values, long long);
            unsigned long long rest =
                number < 0 ? 0ull - (unsigned long long)number : (unsigned long long)number;
            do
                *--from = (char)('0' + rest % 10);
            while (rest /= 10);
            if (number < 0)
                *--from = '-';
            part = from;
            format += format[1] == 'd' ? 1 : 3;
        }
        for (; *part; part++, length++)
            if (length + 1 < size)
                text[length] = *part;
    }
    if (size > 0)
        text[length < size ? length : size - 1] = 0;
    return (int)length;
}

int snprintf(char *text, size_t size, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, size, format, values);
    va_end(values);
    return length;
}

int printf(const char *format, ...)
{
    (void)format; /* there is nowhere to print to */
    return 0;
}

/* ---- Time, which stands still: a ring reads it for its events, and nobody sees those here. */

int clock_gettime(int clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){0, 0};
    return 0;
}

/* ---- Numbers. */

double fmax(double a, double b)
{
    return a > b || isnan(b) ? a : b;
}

double fmin(double a, double b)
{
    return a < b || isnan(b) ? a : b;
}

/* JavaScript's. */
__attribute__((import_module("js"), import_name("exp"))) double js_exp(double x);
__attribute__((import_module("js"), import_name("log"))) double js_log(double x);
__attribute__((import_module("js"), import_name("tanh"))) double js_tanh(double x);

float expf(float x)
{
    return (float)js_exp(x);
}

float tanhf(float x)
{
    return (float)js_tanh(x);
}

double log(double x)
{
    return js_log(x);
}

/* ---- What the compiler calls for numbers of 128 bits: product, quotient, and as a double. None
 * may be written with what it stands for. */

union wide {
    __int128 all;
    struct {
        unsigned long long low, high;
    };
};

__int128 __multi3(__int128 x, __int128 y)
{
    union wide a = {x}, b = {y}, product;
    unsigned long long half = 0xffffffff, a0 = a.low & half, a1 = a.low >> 32, b0 = b.low & half,
                       b1 = b.low >> 32, middle = a1 * b0 + (a0 * b0 >> 32),
                       other = (middle & half) + a0 * b1;
    product.low = a.low * b.low;
    product.high = a1 * b1 + (middle >> 32) + (other >> 32) + a.high * b.low + a.low * b.high;
    return product.all;
}

static union wide magnitude(__int128 x)
{
    return (union wide){x < 0 ? -x : x};
}

/* Bit by bit. */
__int128 __divti3(__int128 x, __int128 y)
{
    union wide n = magnitude(x), d = magnitude(y), rest = {0}, quotient = {0};
    for (int i = 0; i < 128; i++) {
        rest.all = rest.all << 1 | (__int128)(n.high >> 63);
        n.all <<= 1;
        quotient.all <<= 1;
        if ((unsigned __int128)rest.all >= (unsigned __int128)d.all) {
            rest.all -= d.all;
            quotient.low |= 1;
        }
    }
    return (x < 0) != (y < 0) ? -quotient.all : quotient.all;
}

double __floattidf(__int128 x)
{
    union wide n = magnitude(x);
    double value = (double)n.high * 0x1p64 + (double)n.low;
    return x < 0 ? -value : value;
}
