/* usage: what programs of the rig answer to -h, --help and --version. */
#ifndef USAGE_H
#define USAGE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_version.h"

/* Ends the program if one of its words asks for one of these, whatever else is there. */
static inline void answer_usage(int argc, char **argv, const char *program, const char *usage)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool help = strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0;
        if (!help && strcmp(argv[i], "--version") != 0)
            continue;
        if ((help ? fputs(usage, stdout) : printf("%s (ringattn) " RA_VERSION "\n", program)) >=
                0 &&
            fflush(stdout) == 0)
            exit(0);
        fprintf(stderr, "%s: cannot write to stdout: %s\n", program, strerror(errno));
        exit(1);
    }
}

#endif
