/* ra_agree: what the ranks of a link tell each other outside of the ring's loop. See ra_agree.h.
 *
 * Chapter 08. New here: ranks that compare what they were given, so that one that is wrong ends all
 * of them with the same text.
 */
#include "ra_agree.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_message.h"

/* What a rank says of itself. */
struct record {
    int64_t status, number;
    char error[RA_ERROR_SIZE], place[16];
    int64_t fields[RA_OPTIONS];
};

bool ra_agree_allgather(const struct ra_link *link, void *all, int64_t bytes)
{
    /* Each record goes round the ring, as keys do. */
    int P = link->size;
    for (int i = 0; i + 1 < P; i++) {
        int known = (link->rank - i + P) % P, next = (known - 1 + P) % P;
        link->receive(link->self, RA_ROWS, 0, -1, (char *)all + next * bytes, bytes);
        link->send(link->self, RA_ROWS, 0, 1, (char *)all + known * bytes, bytes);
        if (!link->wait(link->self, RA_ROWS))
            return false;
    }
    return true;
}

/* Compares the records of all ranks. Every rank gets the same status and text from the same
 * records. */
static enum ra_status compare(const struct record *records, int ranks, bool with_config,
                              char *error)
{
    /* The first rank in trouble speaks for all. */
    for (int r = 0; r < ranks; r++)
        if (records[r].status != RA_OK) {
            ra_message_place(error, r, -1, "%s", records[r].error);
            return (enum ra_status)records[r].status;
        }
    for (int r = 1; r < ranks && with_config; r++) {
        if (strcmp(records[0].place, records[r].place) != 0) {
            ra_error_set(error,
                         "ranks disagree about config.device: rank 0 computes on %s, rank %d on %s",
                         records[0].place, r, records[r].place);
            return RA_DISAGREEMENT;
        }
        if (ra_config_compare(records[0].fields, records[r].fields, r, error) != RA_OK)
            return RA_DISAGREEMENT;
    }
    return RA_OK;
}

enum ra_status ra_agree_config(const struct ra_link *link, const struct ra_config *config,
                               const char *place, enum ra_status status, int64_t *number,
                               char *error)
{
    if (link->size == 1)
        return status;
    struct record *records = calloc((size_t)link->size, sizeof *records);
    if (!records) {
        ra_message_place(error, link->rank, -1, "no memory to compare what %d ranks plan",
                         link->size);
        link->fail(link->self, error);
        return RA_OUT_OF_MEMORY;
    }
    struct record *mine = &records[link->rank];
    mine->status = status;
    mine->number = *number;
    if (status != RA_OK)
        snprintf(mine->error, sizeof mine->error, "%s", error);
    if (status == RA_OK && config) {
        snprintf(mine->place, sizeof mine->place, "%s", place);
        ra_config_values(config, mine->fields);
    }
    if (ra_agree_allgather(link, records, sizeof *records)) {
        status = compare(records, link->size, config != NULL, error);
        *number = records[0].number;
        free(records);
        return status;
    }

    /* The records stay: the link may still write them, if the missing rank comes after all. */
    snprintf(error, RA_ERROR_SIZE, "%s", ra_message_error(link));
    return RA_LOST;
}

enum ra_status ra_agree(const struct ra_link *link, enum ra_status status, char *error)
{
    int64_t none = 0;
    return ra_agree_config(link, NULL, "", status, &none, error);
}
