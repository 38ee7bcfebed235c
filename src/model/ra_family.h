/* ra_family: families of models, each as others write it: what the fields of its config mean, and
 * how its arrays are called.
 *
 * Chapter 10c. A family is rows of two tables. Every field of its config is in the first: it is
 * used, or changes no result, or has one value alone with which the model is computed here. The
 * second has the names of arrays; one of ours may be several of theirs, as q, k and v are rows of
 * one matrix here.
 */
#ifndef RA_FAMILY_H
#define RA_FAMILY_H

#include <stddef.h>
#include "ra_json.h"
#include "ra_parameters.h"

/* Tells whether this is the config of a family other than ring-attention-pytorch: of transformers
 * ("model_type"), or the arguments of an MGQATransformer and its Decoder ("max_seq_len"). */
bool ra_family_knows(const struct ra_json *root);

/* Reads such a config. What it leaves out has the default of its class. `note` is a line about what
 * was assumed, or "". RA_INVALID: `error` names line, column and field, and what would be right. */
RA_CHECKED enum ra_status ra_family_read(const struct ra_json_text *json,
                                         struct ra_model_config *config, char note[RA_ERROR_SIZE],
                                         char error[RA_ERROR_SIZE]);

/* Writes the config.json of a model's family, with weights of this dtype ("float32", "bfloat16"),
 * and returns its length, as snprintf does. -1: the family has no such model; `error` names the
 * part. */
int ra_family_write(const struct ra_model_config *config, const char *dtype, char *text,
                    size_t size, char error[RA_ERROR_SIZE]);

/* An array as its family has it: a matrix (rows, columns), or a vector if columns is 0, whose
 * numbers begin at `first` in the array of all. */
struct ra_family_array {
    char name[80];
    int64_t rows, columns, first, count;
};

/* Lists the arrays of a model in the order of ra_parameter, and returns how many there are; list
 * NULL: the number alone. -1: the family has no name for one of them, which `error` names. */
int ra_family_arrays(const struct ra_model_config *config, struct ra_family_array *list,
                     char error[RA_ERROR_SIZE]);

/* The names of families, as config.json's "family" has them, ended by NULL. */
extern const char *const ra_family_names[];

#endif
