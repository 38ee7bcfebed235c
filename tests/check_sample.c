/* check_sample: the next token, drawn from logits.
 *
 * Draws with fixed seeds give the same tokens in every run, so tests of distributions cannot fail
 * by bad luck.
 */
#include <math.h>
#include <stdbool.h>
#include "numbers.h"
#include "ra_sample.h"
#include "suite.h"

enum { MOST = 64, DRAWS = 100000 };

static const float inf = INFINITY;

/* libcheck notes each of its assertions, and this is called a million times. */
static int64_t draw(struct ra_sample how, uint64_t number, int64_t count, const float *logits)
{
    struct ra_sample_choice choices[MOST];
    int64_t token = -2;
    char error[RA_ERROR_SIZE] = "";
    if (ra_sample_draw(&how, number, count, logits, choices, &token, error) != RA_OK || token < 0 ||
        token >= count)
        ck_abort_msg("token %d: %s", (int)token, error);
    return token;
}

/* Chi-squared of what was counted, against these shares of the whole. Nothing may be counted whose
 * share is 0. */
static double chi_squared(int64_t cells, const int64_t *counted, const double *share)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < cells; i++)
        all += (double)counted[i];
    for (int64_t i = 0; i < cells; i++) {
        double expected = share[i] * all, off = (double)counted[i] - expected;
        ck_assert_msg(share[i] > 0 || counted[i] == 0, "token %d was drawn", (int)i);
        sum += share[i] > 0 ? off * off / expected : 0;
    }
    return sum;
}

/* A chi-squared of f degrees of freedom has the mean f and the variance 2 f. Six standard
 * deviations more are, for the f of these tests, less likely than 1 in 10,000. Much less than the
 * mean would be no better: draws that are more even than chance. */
static void judge(int64_t cells, const int64_t *counted, const double *share)
{
    double freedom = -1, x = chi_squared(cells, counted, share);
    for (int64_t i = 0; i < cells; i++)
        freedom += share[i] > 0;
    ck_assert_msg(x < freedom + 6 * sqrt(2 * freedom), "chi-squared %g of %g degrees", x, freedom);
    ck_assert_msg(x > freedom - 3 * sqrt(2 * freedom), "chi-squared %g of %g degrees", x, freedom);
}

/* Many draws: of one run, or the first of as many runs, by their seeds. */
static void judge_draws(struct ra_sample how, bool by_seed, int64_t count, const float *logits,
                        const double *share)
{
    int64_t counted[MOST] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        if (by_seed)
            how.seed = i;
        counted[draw(how, by_seed ? 0 : i, count, logits)]++;
    }
    judge(count, counted, share);
}

/* Ten tokens whose probabilities are 1, 2, ..., 10 of 55, in another order. */
static const int parts[10] = {3, 10, 1, 7, 5, 2, 9, 4, 8, 6};

static void make_logits(float logits[10])
{
    for (int i = 0; i < 10; i++)
        logits[i] = logf((float)parts[i]) + 40;
}

static const struct {
    struct ra_sample how;
    int least;    /* the least part of a token that may be drawn */
    double power; /* probabilities are parts to this power */
} cases[] = {
    {{sizeof(struct ra_sample), 1, 0, 1, 1}, 1, 1},
    {{sizeof(struct ra_sample), 1, 10, 1, 2}, 1, 1},
    {{sizeof(struct ra_sample), 1, 11, 1, 3}, 1, 1},
    {{sizeof(struct ra_sample), 0.5, 0, 1, 4}, 1, 2},
    {{sizeof(struct ra_sample), 2, 0, 1, 5}, 1, 0.5},
    {{sizeof(struct ra_sample), 1, 3, 1, 6}, 8, 1},
    {{sizeof(struct ra_sample), 1, 2, 1, 7}, 9, 1},
    {{sizeof(struct ra_sample), 0.5, 4, 1, 8}, 7, 2},
    {{sizeof(struct ra_sample), 1, 0, 0.4, 9}, 8, 1}, /* 10 + 9 = 19 of 55 are not enough, 27 are */
    {{sizeof(struct ra_sample), 1, 0, 0.5, 10}, 7, 1},   /* 27 are less than 27.5 */
    {{sizeof(struct ra_sample), 1, 0, 0.99, 11}, 1, 1},  /* 54 are less than 54.45 */
    {{sizeof(struct ra_sample), 1, 0, 0.98, 12}, 2, 1},  /* 54 are enough of 53.9 */
    {{sizeof(struct ra_sample), 1, 4, 0.75, 13}, 8, 1},  /* of 34, which are left: 27 are enough */
    {{sizeof(struct ra_sample), 0.5, 0, 0.4, 14}, 9, 2}, /* 100 + 81 of 385 */
    {{sizeof(struct ra_sample), 1, 5, 1, 15}, 6, 1},
};

TESTS_OF(distribution, cases)
{
    float logits[10];
    double share[10], all = 0;
    make_logits(logits);
    for (int i = 0; i < 10; i++) {
        share[i] = parts[i] >= cases[_i].least ? pow(parts[i], cases[_i].power) : 0;
        all += share[i];
    }
    for (int i = 0; i < 10; i++)
        share[i] /= all;
    for (int by_seed = 0; by_seed < 2; by_seed++)
        judge_draws(cases[_i].how, by_seed, 10, logits, share);
}

/* Numbers: each of 64 cells as often as another, and neighbours in number or seed without a
 * relation. */
TEST(numbers_are_random)
{
    int64_t one[64] = {0}, in_run[64] = {0}, in_seed[64] = {0}, across[64] = {0};
    double even[64];
    int inside = 0;
    for (int i = 0; i < 64; i++)
        even[i] = 1.0 / 64;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = ra_sample_random(9, 2 * i);
        inside += x >= 0 && x < 1;
        one[(int)(64 * x)]++;
        in_run[(int)(8 * x) * 8 + (int)(8 * ra_sample_random(9, 2 * i + 1))]++;
        in_seed[(int)(8 * ra_sample_random(2 * i, 7)) * 8 +
                (int)(8 * ra_sample_random(2 * i + 1, 7))]++;

        /* Seeds a step of the counter apart. */
        across[(int)(8 * ra_sample_random(i, 1)) * 8 +
               (int)(8 * ra_sample_random(i + 0x9E3779B97F4A7C15, 0))]++;
    }
    ck_assert_int_eq(inside, DRAWS);
    judge(64, one, even);
    judge(64, in_run, even);
    judge(64, in_seed, even);
    judge(64, across, even);
}

/* Runs of neighbouring seeds have no number in common: each has 2^53 values. */
TEST(streams_do_not_overlap)
{
    int equal = 0;
    for (uint64_t seed = 0; seed < 30; seed++)
        for (uint64_t i = 0; i < 30; i++)
            for (uint64_t other = 0; other < seed; other++)
                for (uint64_t j = 0; j < 30; j++)
                    equal += ra_sample_random(seed, i) == ra_sample_random(other, j);
    ck_assert_int_eq(equal, 0);
}

/* A token depends on seed, number and logits alone: not on what was drawn before. */
TEST(draws_have_no_memory)
{
    float logits[10];
    int64_t first[100];
    int differ = 0;
    make_logits(logits);
    struct ra_sample how = RA_SAMPLE_INIT;
    how.seed = 3;
    for (int i = 0; i < 100; i++)
        first[i] = draw(how, (uint64_t)i, 10, logits);
    for (int i = 99; i >= 0; i--)
        ck_assert_int_eq((int)draw(how, (uint64_t)i, 10, logits), (int)first[i]);
    how.seed = 4;
    for (int i = 0; i < 100; i++)
        differ += draw(how, (uint64_t)i, 10, logits) != first[i];
    ck_assert_int_gt(differ, 50);

    /* Limits that limit nothing change no token. */
    how = (struct ra_sample){sizeof(struct ra_sample), 1, 10, 1, 3};
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq((int)draw(how, (uint64_t)i, 10, logits), (int)first[i]);
}

/* The most likely token, and of equals the first. */
TEST(greedy)
{
    const float logits[] = {-inf, -3, 2.5f, 1, 2.5f, 2.4999998f, -inf, 2.5f};
    static const struct ra_sample hows[] = {
        {sizeof(struct ra_sample), 0, 0, 1, 1}, {sizeof(struct ra_sample), 0, 3, 0.5, 2},
        {sizeof(struct ra_sample), 1, 1, 1, 3}, {sizeof(struct ra_sample), 1, 0, 0, 4},
        {sizeof(struct ra_sample), 5, 1, 0, 5}, {sizeof(struct ra_sample), 1, 0, 1e-300, 6},
        {sizeof(struct ra_sample), 0, 0, 0, 7}, {sizeof(struct ra_sample), 0.3, 1, 1, 8}};
    for (int i = 0; i < 8; i++)
        for (uint64_t number = 0; number < 200; number++)
            ck_assert_int_eq((int)draw(hows[i], number, 8, logits), 2);
    const float equal[] = {0, -0.0f, 0}, one[] = {-1e30f};
    ck_assert_int_eq((int)draw(hows[0], 0, 3, equal), 0);
    ck_assert_int_eq((int)draw(hows[0], 0, 1, one), 0);
    ck_assert_int_eq((int)draw((struct ra_sample)RA_SAMPLE_INIT, 0, 1, one), 0);
}

/* Equal logits at the border of top_k and top_p: the first are kept. */
TEST(ties)
{
    const float equal[] = {1, 1, 1, 1, 1, 1, 1, 1};
    const double three[8] = {1.0 / 3, 1.0 / 3, 1.0 / 3},
                 eight[8] = {1. / 8, 1. / 8, 1. / 8, 1. / 8, 1. / 8, 1. / 8, 1. / 8, 1. / 8};
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 3, 1, 1}, false, 8, equal, three);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 0, 0.375, 2}, false, 8, equal,
                three);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 0, 0.3, 3}, false, 8, equal, three);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 0, 0.9999, 4}, false, 8, equal,
                eight);
}

/* Far from each other, far from 0, at any temperature: no overflow, and -inf is never drawn. */
TEST(extremes)
{
    const float far[] = {-3e38f, 3e38f, -inf, 0, 3e38f}, low[] = {-3e38f, -inf, -3e38f, -inf, -inf};
    const double two[] = {0, 0.5, 0, 0, 0.5}, lows[] = {0.5, 0, 0.5, 0, 0};
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 0, 1, 1}, false, 5, far, two);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1e-300, 0, 1, 2}, false, 5, far, two);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 0, 1, 3}, false, 5, low, lows);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1e308, 0, 1, 4}, false, 5, low, lows);
    judge_draws((struct ra_sample){sizeof(struct ra_sample), 1, 4, 1, 5}, false, 5, low, lows);
}

/* What is wrong is an error, which names it, and no token. */
static void refused(struct ra_sample how, int64_t count, const float *logits, const char *word)
{
    struct ra_sample_choice choices[MOST];
    char error[RA_ERROR_SIZE] = "";
    int64_t token = 5;
    ck_assert_int_eq(ra_sample_draw(&how, 0, count, logits, choices, &token, error), RA_INVALID);
    ck_assert_msg(strstr(error, word) != NULL, "%s", error);
    ck_assert_int_eq((int)token, -1);
    token = 5;
    ck_assert_int_eq(ra_sample_draw(&how, 0, count, logits, choices, &token, NULL), RA_INVALID);
    ck_assert_int_eq((int)token, -1);
}

TEST(refusals)
{
    const float good[] = {1, 2, 3}, nan[] = {1, 2, NAN}, infinite[] = {inf, 2, 3},
                none[] = {-inf, -inf};
    for (int cold = 0; cold < 2; cold++) {
        struct ra_sample how = {sizeof how, cold ? 0 : 1, cold, 1, 0};
        refused(how, 3, nan, "logits[2]");
        refused(how, 3, infinite, "logits[0]");
        refused(how, 2, none, "logits");
        refused(how, 0, good, "logits");
    }
    refused((struct ra_sample){sizeof(struct ra_sample), -1, 0, 1, 0}, 3, good, "temperature");
    refused((struct ra_sample){sizeof(struct ra_sample), (double)NAN, 0, 1, 0}, 3, good,
            "temperature");
    refused((struct ra_sample){sizeof(struct ra_sample), (double)INFINITY, 0, 1, 0}, 3, good,
            "temperature");
    refused((struct ra_sample){sizeof(struct ra_sample), 1, -1, 1, 0}, 3, good, "top_k");
    refused((struct ra_sample){sizeof(struct ra_sample), 1, 0, -0.1, 0}, 3, good, "top_p");
    refused((struct ra_sample){sizeof(struct ra_sample), 1, 0, 1.1, 0}, 3, good, "top_p");
    refused((struct ra_sample){sizeof(struct ra_sample), 1, 0, (double)NAN, 0}, 3, good, "top_p");
}

int main(void)
{
    return suite_main("sample", 120);
}
