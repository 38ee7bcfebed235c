/* ra_exchange_parts: what ranks that exchange heads send each other. See ra_exchange_parts.h.
 *
 * Chapter 12. New here: rows become heads and heads rows, by one table that is read in two
 * directions.
 */
#include "ra_exchange_parts.h"
#include "ra_config_check.h"
#include "ra_math.h"

struct ra_head_share ra_exchange_share(int64_t H, int64_t G, int U, int member)
{
    int64_t group = H / G;
    if (U <= G) {
        int64_t first = member * G / U;
        return (struct ra_head_share){first, (member + 1) * G / U - first, 0, group};
    }

    /* Members first .. end - 1 have this key head. */
    int64_t key = member * G / U, first = ra_ceiling_division(key * U, G);
    int64_t end = ra_ceiling_division((key + 1) * U, G);
    int64_t heads = (member - first) * group / (end - first);
    return (struct ra_head_share){key, 1, heads,
                                  (member + 1 - first) * group / (end - first) - heads};
}

bool ra_exchange_gathers(const struct ra_plan *plan)
{
    return plan->config.method == RA_GATHERED_KEYS;
}

int ra_exchange_group(const struct ra_plan *plan)
{
    return ra_exchange_gathers(plan) ? plan->link.size : ra_config_group(&plan->config);
}

struct ra_head_share ra_exchange_share_of(const struct ra_plan *plan, int member)
{
    const struct ra_config *c = &plan->config;
    if (ra_exchange_gathers(plan))
        return (struct ra_head_share){0, c->key_heads, 0, c->heads / c->key_heads};
    return ra_exchange_share(c->heads, c->key_heads, ra_config_group(c), member);
}

int ra_exchange_first(const struct ra_plan *plan, int rank)
{
    int U = ra_exchange_group(plan);
    return rank / U * U;
}

struct ra_exchange_rows ra_exchange_rows_of(const struct ra_plan *plan, enum ra_side side,
                                            int member)
{
    int first = ra_exchange_first(plan, plan->link.rank);
    struct ra_exchange_rows rows = {plan->layouts[side], plan->inner->layouts[side], first + member,
                                    0};
    for (int r = first; r < rows.rank; r++)
        rows.before += ra_layout_rows(rows.layout, r);
    return rows;
}

int64_t ra_exchange_row(const struct ra_exchange_rows *rows, int64_t a, int64_t position)
{
    int64_t row;
    if (rows->group.kind == RA_STRIPED)
        return rows->before + a;
    ra_layout_find(rows->group, position, &row);
    return row;
}

const struct ra_exchange_part ra_exchange_parts[RA_EXCHANGE_PARTS] = {
#define AT(name) offsetof(struct ra_arrays, name)
    {AT(lse), RA_QUERY_SIDE, RA_PART_NUMBER, false, RA_FORWARD_OUT | RA_BACKWARD_IN},
    {AT(d_lse), RA_QUERY_SIDE, RA_PART_NUMBER, false, RA_BACKWARD_IN},
    {AT(dq), RA_QUERY_SIDE, RA_PART_GRADIENT, false, RA_BACKWARD_OUT},
    {AT(dk), RA_KEY_SIDE, RA_PART_GRADIENT, false, RA_BACKWARD_OUT},
    {AT(dv), RA_KEY_SIDE, RA_PART_GRADIENT, true, RA_BACKWARD_OUT},
    {AT(q), RA_QUERY_SIDE, RA_PART_ROWS, false, RA_FORWARD_IN | RA_BACKWARD_IN},
    {AT(k), RA_KEY_SIDE, RA_PART_ROWS, false, RA_FORWARD_IN | RA_BACKWARD_IN},
    {AT(v), RA_KEY_SIDE, RA_PART_ROWS, true, RA_FORWARD_IN | RA_BACKWARD_IN},
    {AT(o), RA_QUERY_SIDE, RA_PART_ROWS, true, RA_FORWARD_OUT | RA_BACKWARD_IN},
    {AT(d_out), RA_QUERY_SIDE, RA_PART_ROWS, true, RA_BACKWARD_IN},
    {AT(mask), RA_KEY_SIDE, RA_PART_MASK, false, RA_FORWARD_IN | RA_BACKWARD_IN},
#undef AT
};

struct ra_tensor *ra_exchange_tensor(struct ra_arrays *arrays, const struct ra_exchange_part *part)
{
    return (struct ra_tensor *)(void *)((char *)arrays + part->offset);
}

enum ra_type ra_exchange_type(const struct ra_config *c, const struct ra_exchange_part *part)
{
    if (part->form == RA_PART_MASK)
        return RA_BOOL;
    return part->form == RA_PART_ROWS ? c->type : RA_FLOAT32;
}

int64_t ra_exchange_width(const struct ra_config *c, const struct ra_exchange_part *part)
{
    bool is_wide = part->form == RA_PART_GRADIENT || part->form == RA_PART_ROWS;
    return !is_wide ? 1 : part->is_value ? c->dim_value : c->dim;
}

int64_t ra_exchange_heads(const struct ra_exchange_part *part, struct ra_head_share share)
{
    if (part->form == RA_PART_MASK)
        return 1;
    return part->side == RA_KEY_SIDE ? share.keys : share.keys * share.per_key;
}

bool ra_exchange_has(const struct ra_config *c, const struct ra_exchange_part *part,
                     enum ra_exchange_phase phase)
{
    bool moves = c->method != RA_GATHERED_KEYS || part->side == RA_KEY_SIDE;
    return moves && (part->phases & (int)phase) != 0 && (part->form != RA_PART_MASK || c->has_mask);
}

int64_t ra_exchange_part_bytes(const struct ra_config *c, const struct ra_exchange_part *part,
                               int64_t rows, struct ra_head_share share)
{
    return c->batch * rows * ra_exchange_heads(part, share) * ra_exchange_width(c, part) *
           ra_type_bytes(ra_exchange_type(c, part));
}

bool ra_exchange_needs(const struct ra_config *c, const struct ra_exchange_part *part)
{
    for (int backward = 0; backward < (c->forward_only ? 1 : 2); backward++)
        for (int outwards = 0; outwards < 2; outwards++)
            if (ra_exchange_has(c, part, ra_exchange_phase_of(backward, outwards)))
                return true;
    return false;
}

static int64_t message_bytes(const struct ra_config *c, enum ra_exchange_phase phase,
                             const int64_t rows[2], struct ra_head_share share)
{
    int64_t bytes = 0;
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++)
        if (ra_exchange_has(c, part, phase))
            bytes += ra_exchange_part_bytes(c, part, rows[part->side], share);
    return bytes;
}

struct ra_tensor ra_exchange_packed(const struct ra_config *c, const struct ra_exchange_part *part,
                                    void *data, int64_t rows, struct ra_head_share share)
{
    return ra_tensor_bnhd(data, ra_exchange_type(c, part), rows, ra_exchange_heads(part, share),
                          ra_exchange_width(c, part));
}

struct ra_tensor ra_exchange_heads_at(const struct ra_config *c,
                                      const struct ra_exchange_part *part, struct ra_tensor all,
                                      struct ra_head_share share, int64_t i)
{
    int64_t key = share.key + i, head = key;
    if (part->form == RA_PART_MASK)
        return all;
    if (part->side == RA_QUERY_SIDE && c->head_map == RA_INTERLEAVED) {
        head = share.first * c->key_heads + key;
        all.data = (char *)all.data + head * all.head * ra_type_bytes(all.type);
        all.head *= c->key_heads;
        return all;
    }
    if (part->side == RA_QUERY_SIDE)
        head = key * (c->heads / c->key_heads) + share.first;
    all.data = (char *)all.data + head * all.head * ra_type_bytes(all.type);
    return all;
}

int64_t ra_exchange_bytes_between(const struct ra_plan *plan, enum ra_exchange_phase phase,
                                  int first, int from, int to)
{
    bool inwards = ra_exchange_is_inwards(phase);
    int rank = first + (inwards ? from : to);
    int64_t rows[2] = {ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank),
                       ra_layout_rows(plan->layouts[RA_KEY_SIDE], rank)};
    return message_bytes(&plan->config, phase, rows,
                         ra_exchange_share_of(plan, inwards ? to : from));
}

int64_t ra_exchange_most_bytes(const struct ra_plan *plan)
{
    int U = ra_exchange_group(plan);
    int64_t rows[2] = {ra_plan_most_bound(plan, RA_QUERY_SIDE),
                       ra_plan_most_bound(plan, RA_KEY_SIDE)};
    int64_t most = 0;
    for (int phase = RA_FORWARD_IN; phase <= RA_BACKWARD_OUT; phase *= 2)
        for (int member = 0; member < U; member++)
            if (phase <= RA_FORWARD_OUT || !plan->config.forward_only)
                most = ra_max(most, message_bytes(&plan->config, (enum ra_exchange_phase)phase,
                                                  rows, ra_exchange_share_of(plan, member)));
    return most;
}

int64_t ra_exchange_bytes(const struct ra_plan *plan, int from, int to, bool backward,
                          bool outwards)
{
    enum ra_exchange_phase phase = ra_exchange_phase_of(backward, outwards);
    int first = ra_exchange_first(plan, from);
    return ra_exchange_bytes_between(plan, phase, first, from - first, to - first);
}

void ra_exchange_count(const struct ra_plan *plan, int rank, bool backward, int64_t *messages,
                       int64_t *bytes)
{
    int U = ra_exchange_group(plan), first = ra_exchange_first(plan, rank);
    *messages = *bytes = 0;
    for (int outwards = 0; outwards < 2; outwards++)
        for (int to = first; to < first + U; to++) {
            int64_t more = to == rank ? 0 : ra_exchange_bytes(plan, rank, to, backward, outwards);
            *messages += more > 0;
            *bytes += more;
        }
}
