/* figure: the streams of one GPU in a ring of three, what is enqueued on them, and which slots that
 * uses.
 *
 * The loops of src/cuda/ra_cuda_ring.c once more, for the picture. All GPUs of this ring do the
 * same at the same time: what a neighbour tells this one, this one tells the other neighbour then.
 */
#include "figure.h"
#include <math.h>
#include <stdio.h>

enum { STEPS = 3, HOME = 4, PITCH = 58, HIGH = 22, SLOT_PITCH = 17, LEFT = 108 };
enum lane { KEYS, CALLER, GRADIENTS, LANES };
static const char *const lane_names[] = {"keys", "the caller's", "gradients"};

/* How long things last, in pixels: to be read, not to scale. */
static const double SIGNAL = 14, COPY = 38, LAUNCH = 92, SMALL = 24;

static const char *const slot_fills[] = {FILL(BLUE), FILL(ORANGE), FILL(GREEN), FILL(PURPLE),
                                         FILL("#7A5C00")};
static const char *const pale_fills[] = {FILL(PALE_BLUE), FILL(PALE_ORANGE), FILL("#CFEBE0"),
                                         FILL("#EBD8E2"), FILL("#EFE3C2")};

/* The panel that is being drawn: where its lanes are, and how far each stream is. */
static struct {
    double top, now[LANES], slots; /* slots: where the first one is drawn */
    int lanes;
} panel;

static double lane_at(enum lane lane)
{
    return panel.top + PITCH * lane;
}

/* Holds a stream until a time. */
static void hold(enum lane lane, double until)
{
    double y = lane_at(lane) + HIGH / 2.0;
    if (until <= panel.now[lane])
        return;
    line(panel.now[lane], y, until, y, STROKE(GREY, "1") DASHES);
    panel.now[lane] = until;
}

/* A task that uses slot a and then, if that is another one, slot b. Returns when it is done. */
static double task(enum lane lane, double width, int a, int b, const char *words)
{
    double x = panel.now[lane], y = lane_at(lane);
    rect(x + 0.5, y, width - 1, HIGH, a < 0 ? FILL(LIGHT) : slot_fills[a]);
    if (b != a)
        rect(x + width / 2, y, width / 2 - 0.5, HIGH, slot_fills[b]);
    text(x + width / 2, y + 15,
         a < 0 ? MIDDLE " font-size=\"10\"" : MIDDLE FILL("#FFFFFF") " font-size=\"10\"", "%s",
         words);
    return panel.now[lane] = x + width;
}

/* A signal: "ready" or "room", written into a neighbour's flag, or waited for. */
enum signal { READY, ROOM };

static void mark(double x, double y, enum signal signal, bool told)
{
    if (told)
        rect(x + 1, y, SIGNAL - 2, HIGH, signal == READY ? FILL(INK) : FILL(GREY));
    else
        rect(x + 1.5, y + 0.5, SIGNAL - 3, HIGH - 1,
             signal == READY ? FILL("#FFFFFF") " stroke=\"" INK "\""
                             : FILL(LIGHT) " stroke=\"" GREY "\"");
    text(x + SIGNAL / 2, y + 15, told ? MIDDLE BOLD FILL("#FFFFFF") : MIDDLE BOLD, "%c",
         told ? '!' : '?');
}

/* Writes a flag of a neighbour. Returns when. */
static double tell(enum lane lane, enum signal signal)
{
    mark(panel.now[lane], lane_at(lane), signal, true);
    return panel.now[lane] += SIGNAL;
}

/* Waits for a flag of this GPU, which a neighbour writes at this time. */
static void wait_for(enum lane lane, enum signal signal, double flag)
{
    hold(lane, flag - SIGNAL);
    mark(panel.now[lane], lane_at(lane), signal, false);
    panel.now[lane] += SIGNAL;
}

/* An event: what follows in lane `to` comes after all that is enqueued in lane `from` by now. */
static void event(enum lane from, enum lane to, const char *words)
{
    double x1 = panel.now[from], x2 = fmax(panel.now[to], x1);
    bool down = from < to;
    double y1 = lane_at(from) + (down ? HIGH : 0), y2 = lane_at(to) + (down ? 0 : HIGH);
    hold(to, x2);
    arrow(x1, y1, x2, y2, STROKE(INK, "1"));
    text(down ? x1 + 3 : x1 - 3, down ? y1 + 12 : y1 - 5,
         down ? " font-size=\"10\"" : END " font-size=\"10\"", "%s", words);
}

/* A slot: something comes into it, lies in it until it is no longer wanted. */
static void stay(int slot, double comes, double there, double leaves)
{
    double y = panel.slots + SLOT_PITCH * slot;
    rect(comes, y, there - comes, SLOT_PITCH - 5, pale_fills[slot]);
    rect(there, y, leaves - there, SLOT_PITCH - 5, slot_fills[slot]);
}

static int slot_of(int step)
{
    return step == 0 ? 0 : 2 - step % 2;
}

static void open_panel(double y, int lanes, int slots, const char *title, const char *words,
                       const char *what)
{
    heading(20, y, title, words);
    panel.top = y + 46;
    panel.lanes = lanes;
    panel.slots = panel.top + PITCH * (lanes - 1) + HIGH + 24;
    for (int lane = 0; lane < lanes; lane++) {
        panel.now[lane] = LEFT;
        text(20, lane_at(lane) + 15, BOLD, "%s", lane_names[lane]);
    }
    for (int slot = 0; slot < slots; slot++)
        text(20, panel.slots + SLOT_PITCH * slot + 10, "", "%s slot %d", what, slot);
}

static const char *const launches[] = {"launch, hop 0", "launch, hop 1", "launch, hop 2"};
static const char *const copies[] = {"0 → 1", "1 → 2"}, *const sums[] = {"", "1 → 3", "home"};

/* The keys of each hop. */
struct keys {
    double comes[STEPS], there[STEPS]; /* into this GPU's slots, and when that is told */
};

static void pass_keys(struct keys *keys, int step)
{
    if (step == 0)
        event(CALLER, KEYS, "packed");
    if (step + 1 == STEPS)
        return;
    wait_for(KEYS, ROOM, 0); /* told by the call before */
    keys->comes[step + 1] = panel.now[KEYS];
    task(KEYS, COPY, slot_of(step), slot_of(step + 1), copies[step]);
    keys->there[step + 1] = tell(KEYS, READY);
}

static void leave_keys(struct keys *keys, int step)
{
    event(CALLER, KEYS, "computed");
    double left = panel.now[KEYS];
    if (panel.lanes == 2)
        stay(slot_of(step), keys->comes[step], keys->there[step], left);
    if (step > 0)
        tell(KEYS, ROOM);
}

static void take_keys(struct keys *keys, int step)
{
    if (step + 1 == STEPS)
        return;
    wait_for(KEYS, READY, keys->there[step + 1]);
    event(KEYS, CALLER, "arrived");
}

static void forward(void)
{
    struct keys keys = {.comes = {LEFT}};
    keys.there[0] = task(CALLER, SMALL, 0, 0, "pack");
    for (int step = 0; step < STEPS; step++) {
        pass_keys(&keys, step);
        task(CALLER, LAUNCH, slot_of(step), slot_of(step), launches[step]);
        leave_keys(&keys, step);
        take_keys(&keys, step);
    }
}

static void backward(void)
{
    struct keys keys = {.comes = {LEFT}};
    double own = 0, comes = 0, there = 0;
    keys.there[0] = task(CALLER, SMALL, -1, -1, "pack");
    for (int step = 0; step < STEPS; step++) {
        int slot = slot_of(step);
        pass_keys(&keys, step);
        double cleared = panel.now[CALLER];
        task(CALLER, SMALL, slot, slot, "= 0");
        task(CALLER, LAUNCH, slot, slot, launches[step]);
        leave_keys(&keys, step);
        if (step == 0)
            own = cleared;
        if (step > 1) {
            wait_for(GRADIENTS, READY, there);
            event(GRADIENTS, CALLER, "arrived");
            task(CALLER, SMALL, slot, 3, "+ 3");
            stay(3, comes, there, panel.now[CALLER]);
        }
        if (step > 0) {
            event(CALLER, GRADIENTS, "summed");
            if (step > 1)
                tell(GRADIENTS, ROOM);

            /* For the first sum there has been room since the call before; for the last, which goes
             * home, always. */
            if (step + 1 < STEPS)
                wait_for(GRADIENTS, ROOM, 0);
            comes = panel.now[GRADIENTS];
            task(GRADIENTS, COPY, slot, step + 1 < STEPS ? 3 : HOME, sums[step]);
            stay(slot, cleared, cleared, panel.now[GRADIENTS]);
            there = tell(GRADIENTS, READY);
        }
        take_keys(&keys, step);
    }
    task(CALLER, LAUNCH, 0, 0, "rest of hop 0");
    wait_for(GRADIENTS, READY, there);
    event(GRADIENTS, CALLER, "arrived");
    task(CALLER, SMALL + 10, 0, HOME, "write");
    stay(0, own, own, panel.now[CALLER]);
    stay(HOME, comes, there, panel.now[CALLER]);
}

void draw_streams(const char *source)
{
    (void)source; /* nothing is read */
    svg_open(685, "The streams of one GPU in a ring of three",
             "Two panels. Forward: the stream of keys and the caller's stream, with launches and "
             "copies coloured by the slots that they use, signals that are written and waited for, "
             "events as arrows from stream to stream, and below when each slot of keys is in use. "
             "Backward: the same with the stream of gradients and the slots of gradients.");
    open_panel(30, 2, 3, "Forward", "one GPU of three; a row is a stream", "keys,");
    forward();
    open_panel(260, 3, 5, "Backward", "the same, and the gradients one hop behind", "gradients,");
    backward();

    double y = 585;
    static const char *const words[] = {
        "tells the right GPU: your keys (or gradients) are ready", "waits until they are",
        "tells the left GPU: there is room in this slot again", "waits until there is"};
    for (int k = 0; k < 4; k++) {
        double x = k % 2 == 0 ? 20 : 450, down = y + 28 * (k / 2);
        mark(x, down - 16, k < 2 ? READY : ROOM, k % 2 == 0);
        text(x + 22, down, "", "%s", words[k]);
    }
    y += 56;
    rect(20, y - 12, 12, 14, slot_fills[0]);
    rect(32, y - 12, 12, 14, slot_fills[1]);
    text(52, y, "", "a copy from slot 0 into slot 1 of the right GPU; each slot has a colour");
    rect(450, y - 12, 12, 14, pale_fills[2]);
    rect(462, y - 12, 12, 14, slot_fills[2]);
    text(482, y, "", "a slot that is being filled, and in use");
    arrow(20, y + 24, 44, y + 24, STROKE(INK, "1"));
    text(52, y + 28, "",
         "an event, by its name. Not to scale: a launch takes much longer than a copy, "
         "a signal next to no time.");
}
