/* check_heads: the two head maps.
 */
#include "ra_heads.h"
#include "suite.h"

enum { HEADS = 24 };

static int key_head(enum ra_head_map map, int64_t H, int64_t G, int64_t h)
{
    return (int)ra_heads_key(map, H, G, h);
}

/* The example that tells the maps apart. */
START_TEST(six_heads_read_two)
{
    static const int grouped[] = {0, 0, 0, 1, 1, 1}, interleaved[] = {0, 1, 0, 1, 0, 1};
    for (int h = 0; h < 6; h++) {
        ck_assert_int_eq(key_head(RA_GROUPED, 6, 2, h), grouped[h]);
        ck_assert_int_eq(key_head(RA_INTERLEAVED, 6, 2, h), interleaved[h]);
    }
}
END_TEST

/* G = H is ordinary attention, G = 1 multi-query attention, under either map. */
START_TEST(ordinary_and_multi_query)
{
    for (int H = 1; H <= HEADS; H++)
        for (int h = 0; h < H; h++) {
            ck_assert_int_eq(key_head(_i, H, H, h), h);
            ck_assert_int_eq(key_head(_i, H, 1, h), 0);
        }
}
END_TEST

/* Every key head is read by H / G query heads: by neighbours when grouped, by every G-th when
 * interleaved. */
START_TEST(equal_shares)
{
    for (int H = 1; H <= HEADS; H++)
        for (int G = 1; G <= H; G++) {
            if (H % G != 0)
                continue;
            int grouped[HEADS], interleaved[HEADS];
            for (int g = 0; g < G; g++)
                for (int share = 0; share < H / G; share++)
                    grouped[g * (H / G) + share] = interleaved[share * G + g] = g;
            for (int h = 0; h < H; h++) {
                ck_assert_int_eq(key_head(RA_GROUPED, H, G, h), grouped[h]);
                ck_assert_int_eq(key_head(RA_INTERLEAVED, H, G, h), interleaved[h]);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heads");
    TCase *cases = tcase_create("heads");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, six_heads_read_two);
    tcase_add_loop_test(cases, ordinary_and_multi_query, RA_GROUPED, RA_INTERLEAVED + 1);
    tcase_add_test(cases, equal_shares);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
