/* figure: the pictures of chapter 11d: what the steps of a wgmma read of a tile in panels, and how
 * the roles of k06 hand tiles to each other.
 */
#include "figure.h"

#include "../../kernels/ra_panel.h"

/* ---- 11-panels: a tile of 128 keys, D = 128. */

enum { KEYS = 128, DIM = 128, SHOWN = 10, CHUNKS = 8, PANELS = DIM / RA_PANEL_COLUMNS };

/* The byte of a chunk, the hardware's way: without the swizzle, and then XORed. */
static int chunk_at(int row, int panel, int chunk)
{
    int address = panel * ra_panel_stride(KEYS) + row * RA_PANEL_ROW + 16 * chunk;
    return address ^ (address >> 7 & 7) << 4;
}

/* The first rows of a panel: who lies in each place. Two columns of 8 chunks are coloured. */
static void panel_rows(double x, double y, int panel, int first, const char *look)
{
    double width = 26, height = 17;
    for (int row = 0; row < SHOWN; row++)
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            int at = ra_panel_place(row, panel * RA_PANEL_COLUMNS + 8 * chunk, KEYS);
            if (at != chunk_at(row, panel, chunk))
                fail("11-panels: ra_panel_place is not what the hardware does");
            double left = x + at % RA_PANEL_ROW / 16 * width;
            bool read = chunk == first || chunk == first + 1;
            rect(left + 0.5, y + row * height + 0.5, width - 1, height - 1,
                 read ? look : FILL(LIGHT));
            text(left + width / 2, y + row * height + 13,
                 read ? MIDDLE BOLD FILL("#FFFFFF") : MIDDLE FILL("#555555"), "%d",
                 panel * CHUNKS + chunk);
        }
    for (int row = 0; row < SHOWN; row++)
        text(x - 7, y + row * height + 13, END " font-size=\"10\"", "%d", row);
    text(x + CHUNKS * width / 2, y + SHOWN * height + 13, MIDDLE, "…");
}

/* A whole panel, in bars of 8 rows. Products 0 and 1 of 16 rows each are coloured. */
static void panel_bars(double x, double y)
{
    double width = 150, height = 12;
    for (int bar = 0; bar < KEYS / 8; bar++)
        rect(x, y + bar * height + 0.5, width, height - 1,
             bar < 2   ? FILL(BLUE)
             : bar < 4 ? FILL(ORANGE)
                       : FILL(LIGHT));
}

void draw_panels(const char *source)
{
    (void)source; /* nothing is read */
    double left = 44, right = 420, top = 92, below = 330, wide = CHUNKS * 26;
    svg_open(
        566, "What wgmma reads of a tile of 128 keys in two panels",
        "Left: K as it lies. A row of a panel has eight chunks in swizzled places; one product "
        "reads two chunks of every row. Right: V turned. One product reads 16 rows of both "
        "panels.");
    heading(left - 24, 30, "K as it lies, for S = Q Kᵀ",
            "rows are keys; the number of each chunk of 8");
    for (int panel = 0; panel < PANELS; panel++)
        text(left, (panel ? below : top) - 7, BOLD, "panel %d: columns %d … %d", panel,
             panel * RA_PANEL_COLUMNS, panel * RA_PANEL_COLUMNS + 63);
    panel_rows(left, top, 0, 2, FILL(BLUE));
    panel_rows(left, below, 1, 0, FILL(ORANGE));
    text(left + wide + 10, top + 13, "", "128 bytes");
    line(left + wide + 6, top, left + wide + 6, top + 17, INK_LINE);
    legend(left, 546, FILL(BLUE), "product 1: + 32 bytes");
    legend(left + 190, 546, FILL(ORANGE), "product 4: + 16,384 bytes");

    heading(right - 4, 30, "V turned, for O = P V", "a bar is 8 keys, 1,024 bytes");
    for (int panel = 0; panel < PANELS; panel++) {
        double y = panel ? below : top;
        text(right, y - 7, BOLD, "panel %d", panel);
        panel_bars(right, y);
    }
    text(right + 160, top + 17, "", "keys 0 … 15");
    text(right + 160, top + 41, "", "keys 16 … 31");
    if (ra_panel_place(16, 0, KEYS) != 2048 || ra_panel_stride(KEYS) != 16384 ||
        ra_panel_place(0, 16, KEYS) != 32 || ra_panel_place(0, 64, KEYS) != 16384)
        fail("11-panels: the distances are others");
    arrow(right + 250, top + 6, right + 250, below + 6, INK_LINE);
    line(right + 244, top + 6, right + 256, top + 6, INK_LINE);
    text(right + 160, (top + below) / 2 + 30, "", "the stride:");
    text(right + 160, (top + below) / 2 + 46, "", "16,384 bytes");
    legend(right, 546, FILL(BLUE), "product 0");
    legend(right + 110, 546, FILL(ORANGE), "product 1: + 2,048 bytes");
}

/* ---- 11-roles: clocks of tests/rig/sm.c, each the middle of what it draws; a product is not
 * divided, and TMA has 65 bytes in a clock. */

enum { GROUPS = 3, TILES = 4, PLACES = 2, MOST = 200 };
enum {
    PRODUCT = 512,
    UNTIL_USED = 115,
    SOFTMAX = 1475,
    PACK = 250,
    LOOP = 300,
    COPY = 128 * 128 * 2 / 65
};
enum lane {
    KEYS_AT,
    VALUES_AT = KEYS_AT + PLACES,
    GROUP_AT = VALUES_AT + PLACES,
    TENSOR_AT = GROUP_AT + GROUPS
};

static struct bar {
    int lane, start, end, number;
    const char *look;
} bars[MOST];
static int bar_count;

static void add_bar(int lane, int start, int end, int number, const char *look)
{
    if (bar_count == MOST)
        fail("11-roles: too many bars");
    bars[bar_count++] = (struct bar){lane, start, end, number, look};
}

/* When tile n of keys (kind 0) or of values (1) is asked for, is there, and is given back by the
 * last warpgroup. */
static int full[2][TILES], given[2][TILES], fetched[2][TILES];

/* The loading warp's next tile: it begins when TMA is free and its place is empty. */
static int fetch(int kind, int tile, int free)
{
    int empty = tile < PLACES ? 0 : given[kind][tile - PLACES];
    fetched[kind][tile] = free > empty ? free : empty;
    full[kind][tile] = fetched[kind][tile] + COPY;
    return full[kind][tile];
}

/* A warpgroup does S and P in turn, each when its keys or values are there; the one that can begin
 * first has the tensor cores. */
static void play(void)
{
    int ready[GROUPS] = {0}, step[GROUPS] = {0}, through[2][TILES] = {{0}};
    int tensor = 0, tma = 0, asked = 0;
    for (int done = 0; done < 2 * TILES * GROUPS; done++) {
        /* Keys and values of a tile, then of the next: as load_tiles of k06 asks for them. */
        for (; asked < 2 * TILES; asked++) {
            int kind = asked % 2, tile = asked / 2;
            if (tile >= PLACES && through[kind][tile - PLACES] < GROUPS)
                break;
            tma = fetch(kind, tile, tma);
        }
        int best = -1, first = 0;
        for (int g = 0; g < GROUPS; g++) {
            int kind = step[g] % 2, tile = step[g] / 2;
            if (tile == TILES || full[kind][tile] == 0)
                continue;
            int begin = ready[g] > full[kind][tile] ? ready[g] : full[kind][tile];
            if (best < 0 || begin < first)
                best = g, first = begin;
        }
        int kind = step[best] % 2, tile = step[best] / 2, start = first > tensor ? first : tensor;
        tensor = start + PRODUCT;
        add_bar(GROUP_AT + best, start, tensor, tile, kind ? FILL(ORANGE) : FILL(BLUE));
        add_bar(TENSOR_AT, start, tensor, best + 1, kind ? FILL(ORANGE) : FILL(BLUE));
        ready[best] = tensor + (kind ? LOOP : UNTIL_USED + SOFTMAX + PACK);
        if (!kind)
            add_bar(GROUP_AT + best, tensor + UNTIL_USED, ready[best], tile, FILL(LIGHT));
        given[kind][tile] = tensor > given[kind][tile] ? tensor : given[kind][tile];
        through[kind][tile]++;
        step[best]++;
    }
    for (int kind = 0; kind < 2; kind++)
        for (int tile = 0; tile < TILES; tile++) {
            int lane = (kind ? VALUES_AT : KEYS_AT) + tile % PLACES;
            if (tile >= PLACES && fetched[kind][tile] < given[kind][tile - PLACES])
                fail("11-roles: a place is filled too early");
            add_bar(lane, fetched[kind][tile], full[kind][tile], -1, FILL(PALE_BLUE));
            add_bar(lane, full[kind][tile], given[kind][tile], tile, FILL(GREEN));
        }
}

void draw_roles(const char *source)
{
    (void)source; /* nothing is read */
    static const char *const names[] = {"keys, place 0",   "keys, place 1", "values, place 0",
                                        "values, place 1", "warpgroup 1",   "warpgroup 2",
                                        "warpgroup 3",     "tensor cores"};
    struct axis time = {0, 15600, 122, 706};
    double top = 66, pitch = 30;
    svg_open(378, "The roles of k06, in the first four tiles of keys",
             "Lanes for the two places of keys, the two of values, three warpgroups and the tensor "
             "cores. A place is filled when all three warpgroups have given it back. While one "
             "warpgroup multiplies, the others are at their softmax.");
    heading(20, 26, "The first four tiles of k06",
            "the number of the tile; of the tensor cores, whom they serve");
    play();
    for (int lane = 0; lane <= TENSOR_AT; lane++) {
        double y = top + pitch * lane + (lane >= GROUP_AT ? 8 : 0) + (lane >= TENSOR_AT ? 8 : 0);
        text(116, y + 15, END " font-size=\"11\"", "%s", names[lane]);
        line(time.start, y + 22, time.end, y + 22, STROKE(LIGHT, "1"));
        for (int i = 0; i < bar_count; i++) {
            struct bar *bar = &bars[i];
            double start = place(time, bar->start), end = place(time, bar->end);
            if (bar->lane != lane)
                continue;
            if (end > time.end)
                fail("11-roles: longer than the picture: %d", bar->end);
            if (bar->number < 0)
                rect(start, y, end - start, 22, bar->look);
            else
                box(start + 0.5, y, end - start - 1, 22, bar->look, bar->number);
        }
    }
    double y = top + pitch * (TENSOR_AT + 1) + 22;
    for (int clock = 0; clock <= 14000; clock += 2000) {
        line(place(time, clock), y, place(time, clock), y + 5, STROKE(GREY, "1"));
        text(place(time, clock), y + 18, MIDDLE " font-size=\"10\"", clock ? "%d,000" : "%d",
             clock / 1000);
    }
    text(116, y + 18, END " font-size=\"10\"", "clocks");
    legend(20, y + 44, FILL(PALE_BLUE), "TMA fills it");
    legend(130, y + 44, FILL(GREEN), "full");
    legend(200, y + 44, FILL(BLUE), "S = Q Kᵀ");
    legend(300, y + 44, FILL(LIGHT), "softmax, pack");
    legend(430, y + 44, FILL(ORANGE), "O += P V");
}
