/* not_finite: what a hidden key does to gradients if it is not finite, without a GPU.
 *
 * Chapter 11e, exercise 3. `hide.h` has the kernels' `hide`, and `guess.h` which gradients the
 * reader takes to be infinite or NaN. A query sees keys 0 and 1; key 2 is hidden from it. D is 1.
 */
#include <cmath>
#include <cstdio>
#include <iterator>

#define RA_DEVICE static inline
#define CUDART_NAN_F NAN

#include "guess.h"
#include "hide.h"

static void set_weight(float &weight, float &, bool hidden)
{
    weight = hidden ? 0 : weight;
}

static void set_dp(float &, float &dp, bool hidden)
{
    dp = hidden ? 0 : dp;
}

static void multiply_both(float &weight, float &dp, bool hidden)
{
    weight *= !hidden;
    dp *= !hidden;
}

static void as_kernels(float &weight, float &dp, bool hidden)
{
    hide(weight, dp, hidden, false);
}

/* Of a hidden key: its score is so high that its weight is infinite, and its value is NaN; or the
 * key itself is NaN, and so its score. */
static const struct {
    const char *name;
    void (*hide)(float &, float &, bool);
    float key, score, value;
} cases[] = {
    {"value NaN, weight set to 0", set_weight, 2, 200, NAN},
    {"value NaN, dp set to 0", set_dp, 2, 200, NAN},
    {"value NaN, both multiplied by 0", multiply_both, 2, 200, NAN},
    {"value NaN, hide", as_kernels, 2, 200, NAN},
    {"key NaN, hide", as_kernels, NAN, NAN, 2},
};

int main()
{
    int wrong = 0;
    for (int i = 0; i < (int)std::size(cases); i++) {
        float q = 1, d_out = 2, k[] = {0.5f, 1, cases[i].key}, v[] = {1, 3, cases[i].value};
        float score[] = {0.5f, 1, cases[i].score};
        float lse = std::log(std::exp(score[0]) + std::exp(score[1]));
        float o = std::exp(score[0] - lse) * v[0] + std::exp(score[1] - lse) * v[1];
        float dq = 0, dk = 0, dv = 0, delta = d_out * o;
        for (int b = 0; b < 3; b++) {
            float weight = std::exp(score[b] - lse), dp = d_out * v[b];
            cases[i].hide(weight, dp, b == 2);
            float ds = weight * (dp - delta);
            dq += ds * k[b];
            dk = ds * q;
            dv = weight * d_out;
        }
        const float made[] = {dq, dk, dv};
        static const char *const names[] = {"dq", "dk", "dv"};
        for (int e = 0; e < 3; e++)
            if (not_finite[i][e] == (bool)std::isfinite(made[e])) {
                printf("%s: %s is %sfinite\n", cases[i].name, names[e],
                       std::isfinite(made[e]) ? "" : "not ");
                wrong++;
            }
    }
    return wrong > 0;
}
