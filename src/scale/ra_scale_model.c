/* ra_scale_model: decoding over many ranks, and how long a sequence fits. See
 * ring_attention_scale.h.
 *
 * Chapter 12. New here: the longest sequence, by halving.
 */
#include <math.h>
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_math.h"
#include "ra_scale_cost.h"

/* ---- Decoding. */

/* How often `count` can be halved, rounding up, until it is 1: rounds of a tree. */
static int levels(int count)
{
    int rounds = 0;
    for (; count > 1; count = (count + 1) / 2)
        rounds++;
    return rounds;
}

enum ra_status ra_scale_decode(struct ra_scale_decoding *decoding, const struct ra_config *config,
                               const struct ra_scale_machine *machine, char error[RA_ERROR_SIZE])
{
    char unused[RA_ERROR_SIZE];
    struct ra_cost cost;
    error = error ? error : unused;
    if (!decoding || !config)
        return ra_error_set(error, "%s is NULL", decoding ? "config" : "decoding");
    struct ra_config forward = *config;
    if (config->size == sizeof forward) {
        forward.forward_only = true;
        forward.method = RA_RING; /* no method exchanges anything for a new token */
        forward.group = 0;
    }
    enum ra_status status = ra_cost_open(&cost, &forward, NULL, machine, error);
    if (status != RA_OK)
        return status;
    const struct ra_scale_machine *m = &cost.machine;
    const struct ra_config *c = &cost.plan->config;
    double rows = (double)ra_layout_most_rows(cost.plan->layouts[RA_KEY_SIDE]);
    double cache = rows * (double)cost.plan->ring.key_bytes;
    double records =
        (double)(c->batch * c->queries * c->heads * (c->dim_value + 2)) * sizeof(float);
    double products = ra_cost_multiply_adds(&cost, 0, (double)c->queries * rows, false);
    int hosts = (int)ra_ceiling_division(cost.ranks, m->ranks_per_host);
    int inside = levels((int)ra_min(cost.ranks, m->ranks_per_host));
    status = ra_cost_missing("memory_bandwidth", m->memory_bandwidth,
                             "the bytes a second of a rank's memory", error);
    if (status == RA_OK) {
        *decoding = (struct ra_scale_decoding){
            .work = fmax(cache / m->memory_bandwidth, products / m->forward_rate) + m->overhead,
            .rounds = inside + levels(hosts),
            .message_bytes = records,
            .cache_bytes = cache};
        if (inside > 0)
            decoding->messages += inside * (m->latency + records / m->bandwidth);
        if (hosts > 1)
            decoding->messages += levels(hosts) * (m->host_latency + records / m->host_bandwidth);
        decoding->seconds = decoding->work + decoding->messages;
    }
    ra_cost_close(&cost);
    return status;
}

/* ---- Training. */

/* Numbers above the range of int64_t are no memory that anybody has. */
static enum ra_status check_model(const struct ra_scale_model *model, char *error)
{
    if (!model)
        return ra_error_set(error, "model is NULL");
    if (model->size != sizeof *model)
        return ra_error_set(error, "model.size = %zu: begin with RA_SCALE_MODEL_INIT", model->size);
    const struct {
        const char *name;
        int64_t value, least;
    } fields[] = {{"dim", model->dim, 1},
                  {"depth", model->depth, 1},
                  {"hidden", model->hidden, 0},
                  {"vocabulary", model->vocabulary, 0}};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        if (fields[f].value == 0 && fields[f].least > 0)
            return ra_error_set(error, "model.%s is missing: give at least 1", fields[f].name);
        if (fields[f].value < 0 || fields[f].value > (int64_t)1 << 40)
            return ra_error_set(error, "model.%s = %lld: give %d to 2^40", fields[f].name,
                                (long long)fields[f].value, (int)fields[f].least);
    }
    if (!(model->weight_bytes >= 0 && model->weight_bytes <= 1e30))
        return ra_error_set(error, "model.weight_bytes = %g: give 0 to 1e+30", model->weight_bytes);
    return RA_OK;
}

enum ra_status ra_scale_memory_of(struct ra_scale_memory *memory, const struct ra_config *config,
                                  const struct ra_scale_mask *mask,
                                  const struct ra_scale_model *model, char error[RA_ERROR_SIZE])
{
    /* Memory needs no rates. */
    static const struct ra_scale_machine any = {sizeof any, 1, 1, 0, 0,  1,  1, 0, 0,
                                                1,          0, 1, 0, -1, -1, 1, 1};
    char unused[RA_ERROR_SIZE];
    struct ra_cost cost;
    error = error ? error : unused;
    if (!memory)
        return ra_error_set(error, "memory is NULL");
    enum ra_status status = check_model(model, error);
    if (status == RA_OK)
        status = ra_cost_open(&cost, config, mask, &any, error);
    if (status != RA_OK)
        return status;
    const struct ra_config *c = &cost.plan->config;
    double dim = (double)model->dim, depth = (double)model->depth, hidden = (double)model->hidden;
    double attention = (double)((c->heads + c->key_heads) * (c->dim + c->dim_value));
    double rows = (double)(c->batch * ra_layout_most_rows(cost.plan->layouts[RA_QUERY_SIDE]));
    double number = (double)ra_type_bytes(c->type);

    /* As the weights of chapter 10: q, k, v, out, up and down; embedding and logits. */
    double weights = depth * dim * (attention + 2 * hidden) + 2 * dim * (double)model->vocabulary;
    memory->weights = weights * model->weight_bytes / (model->replicated ? 1 : cost.ranks);

    /* As the rows that its layers keep: x; q, k, v, o, lse, mid and up, which all layers share if
     * they are computed again. Once: the last x, a normal row, a gradient, and the widest, which
     * also holds d_out, dq, dk and dv. */
    double layer = (attention + dim + hidden) * number + (double)c->heads * sizeof(float);
    double widest = fmax(fmax(hidden, dim), attention);
    memory->activations = rows * (depth * dim * number + (model->recompute ? 1 : depth) * layer +
                                  (3 * dim + widest) * number);

    int64_t most = 0;
    for (int rank = 0; rank < cost.ranks; rank++) {
        int64_t bytes = ra_plan_bytes_of(cost.plan, rank);
        most = bytes > most ? bytes : most;
    }
    memory->attention = (double)most;
    ra_cost_close(&cost);
    return RA_OK;
}

enum ra_status ra_scale_fits(int64_t *tokens, const struct ra_config *config,
                             const struct ra_scale_model *model,
                             const struct ra_scale_machine *machine, char error[RA_ERROR_SIZE])
{
    char unused[RA_ERROR_SIZE];
    error = error ? error : unused;
    if (!tokens || !config || !machine)
        return ra_error_set(error, "%s is NULL",
                            !tokens   ? "tokens"
                            : !config ? "config"
                                      : "machine");
    enum ra_status status =
        ra_cost_missing("memory", machine->memory, "the bytes of memory of a rank", error);
    if (status != RA_OK)
        return status;

    /* Memory grows with the sequence: the longest is found by halving. Arrays of more than 2^50
     * numbers no plan takes, and no memory; with sizes that are wrong the first plan says so. */
    struct ra_config c = *config;
    int64_t unit = 2 * (int64_t)(config->ring_size > 1 ? config->ring_size : 1), fits = 0;
    int64_t most = ra_dims_most(ra_config_dims(config));
    double numbers = (double)config->batch * (double)config->heads * (double)most;
    int64_t fails = (int64_t)(0x1p50 / fmax(numbers, 1) / (double)unit) + 1;
    while (fails - fits > 1) {
        struct ra_scale_memory memory;
        int64_t middle = fits + (fails - fits) / 2;
        c.queries = c.keys = middle * unit;
        status = ra_scale_memory_of(&memory, &c, NULL, model, error);
        if (status != RA_OK)
            return status;
        if (memory.weights + memory.activations + memory.attention <= machine->memory)
            fits = middle;
        else
            fails = middle;
    }
    *tokens = fits * unit;
    return RA_OK;
}
