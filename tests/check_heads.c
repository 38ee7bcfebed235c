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
TEST(six_heads_read_two)
{
    static const int grouped[] = {0, 0, 0, 1, 1, 1}, interleaved[] = {0, 1, 0, 1, 0, 1};
    for (int h = 0; h < 6; h++) {
        ck_assert_int_eq(key_head(RA_GROUPED, 6, 2, h), grouped[h]);
        ck_assert_int_eq(key_head(RA_INTERLEAVED, 6, 2, h), interleaved[h]);
    }
}

/* G = H is ordinary attention, G = 1 multi-query attention, under either map. */
TESTS(ordinary_and_multi_query, RA_GROUPED, RA_INTERLEAVED + 1)
{
    for (int H = 1; H <= HEADS; H++)
        for (int h = 0; h < H; h++) {
            ck_assert_int_eq(key_head(_i, H, H, h), h);
            ck_assert_int_eq(key_head(_i, H, 1, h), 0);
        }
}

/* Every key head is read by H / G query heads: by neighbours when grouped, by every G-th when
 * interleaved. */
TEST(equal_shares)
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

int main(void)
{
    return suite_main("heads", 60);
}
