/* means: judges exercise 3 of chapter 10, Decoding: a function combine_means, in a file that is
 * compiled with this one, that combines two means of attention by their log-sum-exps.
 *
 * Keys are dealt to three blocks. The mean and lse of each, and of all, are computed here by the
 * definition, in double; the three are combined in every order, and each pair both ways round.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void combine_means(int64_t D, float lse_from, const float *o_from, float *lse_to, float *o_to);

enum { D = 5, KEYS = 12, BLOCKS = 3 };

struct mean {
    float lse, o[D];
};

static int wrong;

static void report(const char *problem, const char *what)
{
    printf("%s: %s\n", problem, what);
    wrong++;
}

/* Of keys first..last - 1. None: o = 0, lse = -inf. */
static struct mean mean_of(const double *scores, double v[][D], int first, int last)
{
    double max = -INFINITY, sum = 0, o[D] = {0};
    for (int j = first; j < last; j++)
        max = fmax(max, scores[j]);
    for (int j = first; j < last; j++) {
        double p = exp(scores[j] - max);
        sum += p;
        for (int c = 0; c < D; c++)
            o[c] += p * v[j][c];
    }
    struct mean mean = {last > first ? (float)(max + log(sum)) : -INFINITY, {0}};
    for (int c = 0; c < D && last > first; c++)
        mean.o[c] = (float)(o[c] / sum);
    return mean;
}

static struct mean combined(struct mean from, struct mean to)
{
    combine_means(D, from.lse, from.o, &to.lse, to.o);
    return to;
}

static int near(struct mean a, struct mean b)
{
    int good = a.lse == b.lse || fabsf(a.lse - b.lse) <= 1e-6f * (1 + fabsf(b.lse));
    for (int c = 0; c < D; c++)
        good = good && fabsf(a.o[c] - b.o[c]) <= 1e-5f;
    return good;
}

/* Scores are multiples of `size`; the blocks end at keys a and b. */
static void judge(const char *problem, double size, int a, int b)
{
    static const int orders[][BLOCKS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    double scores[KEYS], v[KEYS][D];
    for (int j = 0; j < KEYS; j++) {
        scores[j] = size * (j * 7 % 11 - 4.7);
        for (int c = 0; c < D; c++)
            v[j][c] = sin(1 + 5 * j + c);
    }
    struct mean blocks[BLOCKS] = {mean_of(scores, v, 0, a), mean_of(scores, v, a, b),
                                  mean_of(scores, v, b, KEYS)};
    struct mean all = mean_of(scores, v, 0, KEYS);
    for (int i = 0; i < 6; i++) {
        const int *order = orders[i];
        struct mean two = combined(blocks[order[0]], blocks[order[1]]);
        struct mean swapped = combined(blocks[order[1]], blocks[order[0]]);
        if (memcmp(&two, &swapped, sizeof two) != 0) {
            report(problem, "two means have other bits the other way round");
            return;
        }
        if (!near(combined(blocks[order[2]], two), all)) {
            report(problem, "three means do not give that of all keys");
            return;
        }
    }
}

int main(void)
{
    judge("small scores", 0.3, 4, 8);
    judge("large scores", 30, 4, 8);
    judge("larger ones below zero", -300, 3, 8);
    judge("an empty block", 1, 5, 5);
    judge("two empty blocks", 1, 0, 0);
    struct mean none = {-INFINITY, {0}}, still = combined(none, none);
    if (memcmp(&none, &still, sizeof none) != 0)
        report("nothing and nothing", "is not nothing");
    if (wrong == 0)
        puts("right");
    return wrong > 0;
}
