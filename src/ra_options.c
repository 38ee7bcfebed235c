/* ra_options: the one table of all options. See ra_options.h.
 *
 * Chapter 08. New here: an option is a row of data.
 */
#include "ra_options.h"
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#define OPTIONS_OF struct ra_config
#include "ra_option_table.h"

#define CHOICE(constant, word) [constant] = {word, #constant}

const struct ra_choice ra_option_types[] = {
    CHOICE(RA_FLOAT32, "float32"),
    CHOICE(RA_FLOAT16, "float16"),
    CHOICE(RA_BFLOAT16, "bfloat16"),
    {0},
};

const struct ra_choice ra_option_layouts[] = {
    CHOICE(RA_CONTIGUOUS, "contiguous"),
    CHOICE(RA_STRIPED, "striped"),
    CHOICE(RA_ZIGZAG, "zigzag"),
    {0},
};

const struct ra_choice ra_option_head_maps[] = {
    CHOICE(RA_GROUPED, "grouped"),
    CHOICE(RA_INTERLEAVED, "interleaved"),
    {0},
};

const struct ra_choice ra_option_tiles[] = {
    CHOICE(RA_VECTOR_TILE, "vector"),
    CHOICE(RA_PLAIN_TILE, "plain"),
    {0},
};

const struct ra_choice ra_option_deals[] = {
    {"layout", "RA_DEAL_LAYOUT"},
    {"documents", "RA_DEAL_DOCUMENTS"},
    {0},
};

const struct ra_choice ra_option_methods[] = {
    CHOICE(RA_RING, "ring"),
    CHOICE(RA_GATHERED_KEYS, "gathered-keys"),
    CHOICE(RA_EXCHANGED_HEADS, "exchanged-heads"),
    CHOICE(RA_HYBRID, "hybrid"),
    CHOICE(RA_DOUBLE_RING, "double-ring"),
    CHOICE(RA_AUTO_METHOD, "auto"),
    {0},
};

const struct ra_choice ra_option_transports[] = {
    CHOICE(RA_ANY_TRANSPORT, "any"),
    CHOICE(RA_PEER_COPIES, "peer-copies"),
    CHOICE(RA_DEVICE_LINK, "device-link"),
    CHOICE(RA_HOST_LINK, "host-link"),
    {0},
};

/* The first stage that has a flag, and the other programs. */
#define FROM(number, who) .chapter = number, FOR(who)

#define ALL (RA_STAGES | RA_JUDGE | RA_KERNELS)

/* In the order of --help, and of comparisons between ranks: a field stands behind those that its
 * default depends on. */
const struct ra_option ra_options[RA_OPTIONS] = {
    /* The shape, which programs read from the problem. */
    {FIELD(batch), .kind = RA_OPTION_WHOLE, RANGE(0, MOST)},
    {FIELD(queries), .kind = RA_OPTION_WHOLE, RANGE(0, MOST)},
    {FIELD(keys), .kind = RA_OPTION_WHOLE, RANGE(0, MOST), .unset = "RA_SAME"},
    {FIELD(heads), .kind = RA_OPTION_WHOLE, RANGE(1, MOST)},
    {FIELD(key_heads), .kind = RA_OPTION_WHOLE, RANGE(1, MOST), .unset = "RA_SAME"},
    {FIELD(dim), .kind = RA_OPTION_WHOLE, RANGE(1, MOST)},
    {FIELD(dim_value), .kind = RA_OPTION_WHOLE, RANGE(1, MOST), .unset = "0"},
    {FIELD(has_mask), .kind = RA_OPTION_FLAG},
    {FIELD(caller_workspace), .kind = RA_OPTION_FLAG},
    {FIELD(max_slices), .kind = RA_OPTION_WHOLE, RANGE(0, MOST)},
    {FIELD(max_rows), .kind = RA_OPTION_WHOLE, RANGE(0, MOST)},

    {FLAG("help"), FROM(1, ALL), .help = "show this text; -h does, too"},
    {FLAG("version"), FROM(1, ALL), .help = "show the version"},
    {FIELD(forward_only), FLAG("forward-only"), FROM(1, ALL),
     .help = "o and lse only; do.npy is not needed"},
    {FIELD(scale), TAKES("scale", REAL), FROM(1, ALL), RANGE(-FLT_MAX, FLT_MAX),
     .good = "a finite number of float32", .unset = "RA_DEFAULT_SCALE", .value = "S",
     .help = "factor of every score (default 1/sqrt(D))"},
    {FLAG("time"), FROM(1, ALL), .help = "print seconds on stderr"},

    {FIELD(tile_queries), TAKES("tile-queries", WHOLE), FROM(2, RA_STAGES), RANGE(1, MOST),
     .unset = "0", .value = "ROWS", .help = "query rows of a tile (default 64; vectors: 1,152)"},
    {FIELD(tile_keys), TAKES("tile-keys", WHOLE), FROM(2, RA_STAGES), RANGE(1, MOST), .unset = "0",
     .value = "ROWS", .help = "key rows of a tile (default 64; vectors: up to 1024)"},

    {FIELD(ring_size), TAKES("ring-size", INT), FROM(3, RA_STAGES), RANGE(1, INT_MAX), .unset = "0",
     .value = "P", .help = "ranks of one ring (default: all)"},
    {FIELD(local_keys), FLAG("local-keys"), FROM(3, RA_STAGES),
     .help = "no ring: each rank sees its own keys only"},
    {FIELD(timeout), TAKES("timeout", REAL), FROM(3, RA_STAGES), RANGE(0, INFINITY),
     .good = "seconds, or 0 for no limit", .value = "S",
     .help = "seconds until a silent rank is an error (default 60; 0: never)"},
    {TAKES("trace", PATH), FROM(3, RA_STAGES), .value = "FILE",
     .help = "write a timeline as Chrome trace JSON"},
    {FLAG("per-hop"), FROM(3, RA_STAGES), .help = "print the counts of every rank and hop, too"},

    {FIELD(causal), FLAG("causal"), FROM(4, ALL), .help = "no query sees keys after its position"},

    {FIELD(layout), TAKES("layout", CHOICE), FROM(5, RA_STAGES), .choices = ra_option_layouts,
     .value = "NAME", .help = "rows of each rank (default contiguous)"},
    {FIELD(bucket), TAKES("bucket", WHOLE), FROM(5, RA_STAGES), RANGE(1, MOST), .unset = "0",
     .value = "ROWS", NEEDS(layout, RA_STRIPED, "it is the length of a stripe"),
     .help = "with --layout striped: rows of a stripe at most (default: one stripe a rank)"},

    {FIELD(lookback), TAKES("lookback", WHOLE), FROM(6, ALL), RANGE(0, (double)RA_NO_LOOKBACK),
     .unset = "RA_NO_LOOKBACK", .value = "L",
     NEEDS(causal, true, "it counts tokens back from each query"),
     .help = "with --causal: at most L tokens back"},

    {FIELD(head_map), TAKES("head-map", CHOICE), FROM(7, ALL), .choices = ra_option_head_maps,
     .value = "MAP", .help = "query heads that share keys (default grouped)"},

    {FIELD(softcap), TAKES("softcap", REAL), FROM(8, ALL), RANGE(FLT_MIN, FLT_MAX),
     .good = "a normal number of float32 above 0", .unset = "0", .value = "C",
     .help = "scores become C * tanh(score / C)"},
    {FIELD(method), TAKES("method", CHOICE), FROM(8, RA_STAGES), .choices = ra_option_methods,
     .value = "NAME", .help = "how queries meet the keys of other ranks (default ring)"},
    {FIELD(group), TAKES("group", INT), FROM(8, RA_STAGES), RANGE(1, INT_MAX), .unset = "0",
     .value = "U", NEEDS(method, RA_HYBRID, "it counts the ranks that exchange heads"),
     .help = "with --method hybrid: ranks that exchange heads (default: by key heads)"},
    {FIELD(inner), TAKES("inner", INT), FROM(8, RA_STAGES), RANGE(1, INT_MAX), .unset = "0",
     .value = "I", NEEDS(method, RA_DOUBLE_RING, "it counts the ranks of a host"),
     .help = "with --method double-ring: ranks of a host (default: those on this one)"},

    {FIELD(tile), TAKES("tile", CHOICE), FROM(9, RA_STAGES), .choices = ra_option_tiles,
     .value = "KIND", .help = "how a tile is computed (default vector)"},
    {FIELD(threads), TAKES("threads", INT), FROM(9, RA_STAGES), RANGE(1, 4096), .unset = "0",
     .value = "T", .help = "threads of a rank (default: its share of the processors)"},

    {FIELD(transport), TAKES("transport", CHOICE), FROM(11, RA_STAGES),
     .choices = ra_option_transports, .value = "NAME",
     .help = "messages between GPUs (default any)"},
    {FIELD(type), TAKES("type", CHOICE), FROM(11, RA_STAGES | RA_KERNELS),
     .choices = ra_option_types, .value = "TYPE", .help = "numbers on the GPU"},
    {FIELD(deterministic), FLAG("deterministic"), FROM(11, RA_STAGES | RA_KERNELS),
     .help = "the same bits, run after run"},
    {TAKES("pieces", WHOLE), FROM(11, RA_KERNELS), RANGE(1, MOST), .value = "P",
     .help = "fold the keys in P pieces, one launch each, or in more if sums want it (default 1)"},

    {TAKES("documents", PATH), FROM(13, RA_STAGES | RA_JUDGE), .value = "ENDS",
     .help = "documents do not see each other: their ends, 5,22,90, or a file of these"},
    {TAKES("key-documents", PATH), FROM(13, RA_STAGES | RA_JUDGE), .value = "ENDS",
     .help = "with --documents: which keys the queries of each see"},
    {TAKES("window", PATH), FROM(13, RA_STAGES | RA_JUDGE), .value = "L,R",
     .help = "at most L tokens back and R ahead"},
    {TAKES("prefix", WHOLE), FROM(13, RA_STAGES | RA_JUDGE), RANGE(1, MOST), .value = "ROWS",
     .help = "with --causal: all of a document sees its first ROWS"},
    {TAKES("first", WHOLE), FROM(13, RA_STAGES | RA_JUDGE), RANGE(1, MOST), .value = "ROWS",
     .help = "with --lookback: the first ROWS of a document however far back, too"},
    {TAKES("chunk", WHOLE), FROM(13, RA_STAGES | RA_JUDGE), RANGE(1, MOST), .value = "ROWS",
     .help = "with --causal: runs of ROWS do not see each other"},
    {FLAG("answers"), FROM(13, RA_STAGES | RA_JUDGE),
     .help = "with --causal, --documents: all see the first of them, a question"},
    {FLAG("largest"), FROM(13, RA_STAGES | RA_JUDGE),
     .help = "write largest.npy (H), too: the largest score of each head"},
    {TAKES("deal", CHOICE), FROM(13, RA_STAGES), .choices = ra_option_deals, .value = "HOW",
     .help = "rows of each rank by --layout, or by document (default layout)"},
};

int64_t ra_option_load(const struct ra_option *option, const void *fields)
{
    const char *at = (const char *)fields + option->offset;
    int64_t whole;
    int narrow;
    switch (option->kind) {
    case RA_OPTION_FLAG:
        return *(const unsigned char *)at;
    case RA_OPTION_INT:
    case RA_OPTION_CHOICE:
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    default:
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
}

void ra_option_store(const struct ra_option *option, void *fields, int64_t value)
{
    char *at = (char *)fields + option->offset;
    int narrow = (int)value;
    switch (option->kind) {
    case RA_OPTION_FLAG:
        *(bool *)at = value != 0;
        break;
    case RA_OPTION_INT:
    case RA_OPTION_CHOICE:
        memcpy(at, &narrow, sizeof narrow);
        break;
    default:
        memcpy(at, &value, sizeof value);
    }
}

int64_t ra_option_bits(double real)
{
    int64_t bits;
    memcpy(&bits, &real, sizeof bits);
    return bits;
}

double ra_option_real(int64_t bits)
{
    double real;
    memcpy(&real, &bits, sizeof real);
    return real;
}

static int count_choices(const struct ra_option *option)
{
    int count = 0;
    while (option->choices[count].word)
        count++;
    return count;
}

bool ra_option_in_range(const struct ra_option *option, int64_t value)
{
    if (option->kind == RA_OPTION_FLAG)
        return value == 0 || value == 1;
    if (option->kind == RA_OPTION_CHOICE)
        return value >= 0 && value < count_choices(option);
    double number = option->kind == RA_OPTION_REAL ? ra_option_real(value) : (double)value;
    return number >= option->least && number <= option->most; /* false of NaN */
}

const char *ra_option_advice(const struct ra_option *option, int64_t value, bool constants,
                             char text[RA_OPTION_TEXT])
{
    bool above = (double)value > option->most;
    int used = 0, count;
    switch (option->kind) {
    case RA_OPTION_FLAG:
        return "true or false";
    case RA_OPTION_CHOICE:
        count = count_choices(option);
        for (int c = 0; c < count; c++)
            used += snprintf(text + used, (size_t)(RA_OPTION_TEXT - used), "%s%s",
                             c == 0           ? ""
                             : c == count - 1 ? " or "
                                              : ", ",
                             constants ? option->choices[c].constant : option->choices[c].word);
        return text;
    case RA_OPTION_REAL:
        if (option->good)
            return option->good;
        if (option->least == DBL_TRUE_MIN)
            used = snprintf(text, RA_OPTION_TEXT, "a number above 0");
        else
            used = snprintf(text, RA_OPTION_TEXT, "%.10g", option->least);
        if (option->most < DBL_MAX)
            snprintf(text + used, (size_t)(RA_OPTION_TEXT - used), "%s%.10g",
                     option->least == DBL_TRUE_MIN ? ", at most " : " to ", option->most);
        else if (option->least != DBL_TRUE_MIN)
            snprintf(text + used, (size_t)(RA_OPTION_TEXT - used), " or above");
        return text;
    default:
        snprintf(text, RA_OPTION_TEXT, "at %s %.0f", above ? "most" : "least",
                 above ? option->most : option->least);
        return text;
    }
}

const struct ra_option *ra_option_unmet(const struct ra_option *table, int count,
                                        const void *fields, const void *defaults, bool constants,
                                        char text[RA_OPTION_TEXT])
{
    for (const struct ra_option *option = table; option < table + count; option++) {
        const struct ra_option *other = table;
        if (!option->needs || ra_option_load(option, fields) == ra_option_load(option, defaults))
            continue;
        while (!other->field || strcmp(other->field, option->needs) != 0)
            other++;
        if ((ra_option_load(other, fields) == option->needed) != option->other)
            continue;
        const struct ra_choice *choice = other->choices ? &other->choices[option->needed] : NULL;
        if (constants)
            snprintf(text, RA_OPTION_TEXT, "%s %s %s", other->field, option->other ? "!=" : "=",
                     choice ? choice->constant : "true");
        else
            snprintf(text, RA_OPTION_TEXT, "--%s%s%s%s", other->flag,
                     option->other ? " other than" : "", choice ? " " : "",
                     choice ? choice->word : "");
        return option;
    }
    return NULL;
}
