/* scale_number: numbers as people write them. See scale_machine.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "scale_machine.h"

/* What units are worth, and what they count. Two operations are a multiply-add, eight bits a byte.
 */
static const struct {
    char unit;
    const char *word;
    double worth;
} units[] = {{'B', "B", 1}, {'W', "B/s", 1},      {'W', "b/s", 0.125}, {'W', "bit/s", 0.125},
             {'s', "s", 1}, {'F', "FLOP/s", 0.5}, {'F', "FLOPS", 0.5}};

/* The power of ten or of two that a text begins with, which is passed. */
static double prefix(const char **at, char unit)
{
    static const char large[] = "kMGTPE", small[] = "mun";
    const char *found = **at ? strchr(unit == 's' ? small : large, **at) : NULL;
    if (!found && **at == 'K' && unit != 's')
        found = large;
    if (!found)
        return 1;
    ++*at;
    if (unit == 's')
        return pow(10, -3. * (double)(found - small + 1));
    bool binary = **at == 'i';
    *at += binary;
    return pow(binary ? 1024 : 1000, (double)(found - large + 1));
}

bool scale_number(const char *text, char unit, double *number)
{
    char *end;
    double value = strtod(text, &end);
    const char *at = end;
    if (at == text || !isfinite(value))
        return false;
    if (*at == '^') {
        double power = strtod(at + 1, &end);
        if (end == at + 1 || !isfinite(power))
            return false;
        value = pow(value, power);
        at = end;
    }
    value *= prefix(&at, unit);
    for (size_t u = 0; *at && u < sizeof units / sizeof *units; u++)
        if (units[u].unit == unit && strcmp(at, units[u].word) == 0) {
            value *= units[u].worth;
            at += strlen(at);
        }
    *number = value;
    return *at == 0 && isfinite(value);
}
