/* ra_option_table: the columns of a table of options, for those who write one: the library, and
 * each program with flags of its own. OPTIONS_OF is the struct that the fields are of.
 *
 * Chapter 08. Not installed.
 */
#ifndef RA_OPTION_TABLE_H
#define RA_OPTION_TABLE_H

#include "ra_options.h"

/* More numbers than any array has, so that no product of sizes overflows. */
#define MOST 0x1p50

/* A field; a flag, or a flag with a value of some kind; the programs that have it; the range of
 * good values; another field that it needs, of this value or of any other. */
#define FIELD(name) .field = #name, .offset = offsetof(OPTIONS_OF, name)
#define FLAG(name) .flag = name, .kind = RA_OPTION_FLAG
#define TAKES(name, what) .flag = name, .kind = RA_OPTION_##what
#define FOR(who) .programs = who
#define RANGE(low, high) .least = low, .most = high
#define NEEDS(name, value, why) .needs = #name, .needed = value, .because = why
#define NEEDS_OTHER(name, value, why) NEEDS(name, value, why), .other = true

#endif
