/* noted: the tests of a suite, which note themselves before main: no list names them again. */
#ifndef NOTED_H
#define NOTED_H

#include <stdlib.h>

/* In the order of their lines. */
static struct {
    struct noted {
        int line;
        const char *name;
        void (*run)(void);
    } list[200];
    int count;
} noted;

static inline void noted_at(int line, const char *name, void (*run)(void))
{
    int at = noted.count++;
    if (at == sizeof noted.list / sizeof *noted.list)
        abort();
    for (; at > 0 && noted.list[at - 1].line > line; at--)
        noted.list[at] = noted.list[at - 1];
    noted.list[at] = (struct noted){line, name, run};
}

/* Has `run` noted by this line. */
#define NOTE(name, run)                                       \
    __attribute__((constructor)) static void note_##run(void) \
    {                                                         \
        noted_at(__LINE__, name, run);                        \
    }

#endif
