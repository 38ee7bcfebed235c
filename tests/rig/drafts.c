/* drafts: a text is continued by guesses, three tokens at a time, of which the first is right and
 * the others may be wrong. For the exercise of page 10b Pieces.
 */
#include <math.h>
#include <ring_attention_model.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PROMPT = 41, END = 100, NEW = 3, H = 4, G = 2, D = 16, ROW = H * D };

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "%s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Is the guess for this position right, if it comes first among the new tokens, or later? */
static bool is_right(int64_t position, int64_t among)
{
    return among == 0 || (position % 5 != 4 && position % 7 != 3);
}

/* The rows of `count` tokens from position first on: a wrong guess has other numbers. */
static struct ra_tensor rows(float *x, int kind, int64_t first, int64_t count, int64_t heads,
                             bool guessed)
{
    for (int64_t e = 0; e < count * heads * D; e++) {
        int64_t among = e / D / heads, number = first + among;
        if (guessed && !is_right(number, among))
            number += 1000;
        x[e] = 2 * sinf((float)(kind + 7 * number % 97 + 3 * (e / D % heads) + 5 * (e % D)));
    }
    return ra_tensor_bnhd(x, RA_FLOAT32, count, heads, D);
}

/* Attention of `count` new tokens from position first on: o is (count, ROW). */
static void attend(struct ra_tree *tree, int64_t first, int64_t count, bool guessed, float *o)
{
    float q[NEW * ROW], k[NEW * G * D], v[NEW * G * D], lse[NEW * H];
    check(ra_tree_keep(tree, first, count, rows(k, 1, first, count, G, guessed),
                       rows(v, 2, first, count, G, guessed)),
          ra_tree_error(tree));
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = rows(q, 3, first, count, H, guessed);
    arrays.o = ra_tensor_bnhd(o, RA_FLOAT32, count, H, D);
    arrays.lse = ra_tensor_bhn(lse, count, H);
    check(ra_tree_attend(tree, count, &arrays), ra_tree_error(tree));
}

/* Continues the text from PROMPT to END - 1, and writes each token's o to its row. Returns how
 * often the tree was asked. */
static int continue_text(struct ra_tree *tree, float (*o)[ROW])
{
    int asked = 0;
    for (int64_t i = PROMPT; i < END; asked++) {
        int64_t count = END - i < NEW ? END - i : NEW, right = 0;
        attend(tree, i, count, true, o[i]);
        while (right < count && is_right(i + right, right))
            right++;
        i += right;
    }
    return asked;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct ra_config config = RA_CONFIG_INIT;
    config.keys = END + NEW;
    config.queries = NEW;
    config.heads = H;
    config.key_heads = G;
    config.dim = D;
    config.causal = true;
    config.layout = RA_STRIPED;
    struct ra_tree *tree;
    char error[RA_ERROR_SIZE];
    static float o[END + NEW][ROW], want[END + NEW][ROW];
    check(ra_tree_create(&tree, &config, MPI_COMM_WORLD, error), error);

    /* Token by token, without guesses; then the prompt again, and guesses. */
    for (int64_t i = 0; i < END; i++)
        attend(tree, i, 1, false, want[i]);
    for (int64_t i = 0; i < PROMPT; i++)
        attend(tree, i, 1, false, o[i]);
    int asked = continue_text(tree, o);
    int64_t length = ra_tree_length(tree);
    ra_tree_destroy(tree);
    MPI_Finalize();
    if (rank > 0)
        return 0;
    for (int64_t i = 0; i < END; i++)
        for (int e = 0; e < ROW; e++)
            if (!(fabsf(o[i][e] - want[i][e]) <= 1e-5f)) {
                printf("token %d attends to other tokens than those of the text: WRONG\n", (int)i);
                return 1;
            }
    if (asked >= END - PROMPT || length != END) {
        printf("the tree was asked %d times for %d tokens, and has %d of %d: WRONG\n", asked,
               END - PROMPT, (int)length, END);
        return 1;
    }
    printf("%d tokens, asked %d times\n", END - PROMPT, asked);
    return 0;
}
