/* stage_report: what a program counts, the timeline that it traces, the seconds that it took. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_clock.h"
#include "ra_path.h"
#include "stage.h"
#include "stage_output.h"

static const char *const lap_names[STAGE_LAPS] = {"read", "forward", "backward", "wait", "write"};
static const char *const lane_names[STAGE_LANES] = {"work", "keys", "gradients", "parts", "sums"};

struct stage_counter {
    const char *name;
    int hop;
    int64_t value;
};

struct stage_event {
    enum stage_lane lane;
    const char *name;
    int hop;
    double start, end;
};

/* Room for one more element in a growing array; the number of elements is doubled at powers of
 * two. */
static void *grow(struct stage *stage, void *array, int64_t count, size_t size)
{
    if ((count & (count - 1)) != 0)
        return array;
    array = realloc(array, (size_t)(count > 0 ? 2 * count : 1) * size);
    if (!array)
        stage_fail(stage, "out of memory");
    return array;
}

/* The largest of what all ranks give. */
static int64_t largest(const struct stage *stage, int64_t mine)
{
    int64_t most = 0;
    stage_gather(stage, mine);
    for (int r = 0; r < stage->world.ranks; r++)
        most = stage->gathered[r] > most ? stage->gathered[r] : most;
    return most;
}

/* ---- Counts. */

void stage_count(struct stage *stage, const char *name, int hop, int64_t value)
{
    for (int64_t c = 0; c < stage->counter_count; c++)
        if (stage->counters[c].hop == hop && strcmp(stage->counters[c].name, name) == 0) {
            stage->counters[c].value += value;
            return;
        }
    stage->counters = grow(stage, stage->counters, stage->counter_count, sizeof *stage->counters);
    stage->counters[stage->counter_count++] = (struct stage_counter){name, hop, value};
}

/* What this rank counted under this name, over all hops. */
static int64_t sum_of(const struct stage *stage, const char *name)
{
    int64_t sum = 0;
    for (int64_t c = 0; c < stage->counter_count; c++)
        if (strcmp(stage->counters[c].name, name) == 0)
            sum += stage->counters[c].value;
    return sum;
}

/* Is this the first counter of its name? */
static bool is_first(const struct stage *stage, int64_t counter)
{
    for (int64_t c = 0; c < counter; c++)
        if (strcmp(stage->counters[c].name, stage->counters[counter].name) == 0)
            return false;
    return true;
}

/* Prints every number, by rank and hop. */
static void print_hops(const struct stage *stage)
{
    for (int64_t c = 0; c < stage->counter_count; c++) {
        const struct stage_counter *counter = &stage->counters[c];
        stage_gather(stage, counter->value);
        for (int r = 0; r < stage->world.ranks && stage->world.rank == 0; r++)
            printf("rank %d hop %d %s %" PRId64 "\n", r, counter->hop, counter->name,
                   stage->gathered[r]);
    }
}

/* On rank 0, prints what all ranks counted: with --per-hop every number; of each name the total
 * and, if there are several ranks, the busiest rank's share of it. */
void stage_print_counts(struct stage *stage)
{
    bool prints = stage->world.rank == 0;
    if (stage->per_hop)
        print_hops(stage);
    for (int64_t c = 0; c < stage->counter_count; c++) {
        const char *name = stage->counters[c].name;
        if (!is_first(stage, c))
            continue;
        int64_t total = 0, most = largest(stage, sum_of(stage, name));
        for (int r = 0; r < stage->world.ranks; r++)
            total += stage->gathered[r];
        if (prints)
            printf("%s %" PRId64 "\n", name, total);
        if (prints && stage->world.ranks > 1)
            printf("%s, busiest rank %" PRId64 "\n", name, most);
    }
    int64_t peak = largest(stage, stage->peak_bytes);
    if (prints)
        printf("peak bytes%s %" PRId64 "\n", stage->number > 2 ? " per rank" : "", peak);
}

/* ---- The trace. */

/* Static, because a signal handler removes it. */
static struct ra_whole trace;

/* Ends the program if the trace would take the place of something else. */
static void check_trace(const struct stage *stage)
{
    const char *path = stage->trace_path;
    char name[PATH_MAX];
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        stage_end(stage, 2, "--trace %s: is not a regular file; name a new file", path);
    for (int i = 0; i < STAGE_INPUTS && stage->problem_folder; i++) {
        snprintf(name, sizeof name, "%s/%s.npy", stage->problem_folder, stage_input_names[i]);
        if (ra_path_same(path, name))
            stage_end(stage, 2, "--trace %s: is the input %s; name a new file", path,
                      stage_input_names[i]);
    }

    /* RESULT is replaced as a whole. */
    if (stage->result_folder && ra_path_within(path, stage->result_folder))
        stage_end(stage, 2, "--trace %s: is RESULT, or in it; name a file elsewhere", path);
}

/* Rank 0 makes the file that becomes the trace: before the work, to find out then that it cannot be
 * written. */
static void create_trace(struct stage *stage)
{
    int file = open(trace.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 || write(file, "[\n", 2) != 2 || close(file) != 0)
        stage_fail(stage, "--trace %s: %s", stage->trace_path, strerror(errno));
}

void stage_open_trace(struct stage *stage)
{
    if (!stage->trace_path)
        return;
    if (stage->world.rank == 0)
        check_trace(stage);
    stage_begin_output(stage, &trace, stage->trace_path, 0, NULL, true, "--trace ");
    if (stage->world.rank == 0)
        create_trace(stage);
    stage_check_all(stage);
}

void stage_trace(struct stage *stage, enum stage_lane lane, const char *name, int hop, double start,
                 double end)
{
    if (!stage->trace_path)
        return;
    stage->events = grow(stage, stage->events, stage->event_count, sizeof *stage->events);
    stage->events[stage->event_count++] = (struct stage_event){lane, name, hop, start, end};
}

void stage_begin_trace(struct stage *stage)
{
    /* Traces of ranks on one machine share its clock; else each begins when all have come here. */
    stage_gather(stage, (int64_t)(1e9 * ra_seconds()));
    stage->trace_start = stage->world.ranks_here == stage->world.ranks
                             ? 1e-9 * (double)stage->gathered[0]
                             : ra_seconds();
    stage->event_count = 0;
}

/* Has a trace this lane? Those of a ring are always there. */
static bool has_lane(const struct stage *stage, enum stage_lane lane)
{
    for (int64_t e = 0; e < stage->event_count && lane > STAGE_LANE_GRADIENTS; e++)
        if (stage->events[e].lane == lane)
            return true;
    return lane <= STAGE_LANE_GRADIENTS;
}

/* The events of this rank as Chrome trace JSON: one object a line, each ended by a comma. The
 * ranks are the processes, their lanes the threads. Returns memory to free. */
static char *trace_text(struct stage *stage, size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (!out)
        stage_fail(stage, "%s: %s", stage->trace_path, strerror(errno));
    int rank = stage->world.rank;
    for (int lane = 0; lane < STAGE_LANES; lane++) {
        if (!has_lane(stage, (enum stage_lane)lane))
            continue;
        fprintf(out,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"name\":\"%s\"}},\n",
                rank, lane, lane_names[lane]);
    }
    for (int64_t e = 0; e < stage->event_count; e++) {
        const struct stage_event *event = &stage->events[e];
        fprintf(out,
                "{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.1f,\"dur\":%.1f,\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"%s\":%d}},\n",
                event->name, 1e6 * (event->start - stage->trace_start),
                1e6 * (event->end - event->start), rank, (int)event->lane,
                event->lane > STAGE_LANE_GRADIENTS ? "layer" : "hop", event->hop);
    }
    fprintf(out,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}%s",
            rank, rank, rank == stage->world.ranks - 1 ? "\n]\n" : ",\n");
    if (fclose(out) != 0)
        stage_fail(stage, "out of memory");
    return text;
}

/* Writes the trace: every rank its own part of one file, behind those of the ranks before it. */
void stage_write_trace(struct stage *stage)
{
    if (!stage->trace_path)
        return;
    size_t length;
    char *text = trace_text(stage, &length);
    stage_gather(stage, (int64_t)length);
    int64_t at = 2; /* behind the "[\n" of create_trace */
    for (int r = 0; r < stage->world.rank; r++)
        at += stage->gathered[r];

    int file = open(trace.path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    bool written = file >= 0;
    for (size_t done = 0; written && done < length;) {
        ssize_t step = pwrite(file, text + done, length - done, at + (off_t)done);
        written = step > 0 || (step < 0 && errno == EINTR);
        done += step > 0 ? (size_t)step : 0;
    }
    if (!written || close(file) != 0)
        stage_fail(stage, "--trace %s: %s", stage->trace_path, strerror(errno));
    free(text);
}

void stage_name_trace(struct stage *stage)
{
    if (stage->trace_path)
        stage_name_output(stage, &trace, "--trace ");
}

void stage_close_trace(struct stage *stage)
{
    stage_write_trace(stage);
    stage_gather(stage, 0);
    if (stage->world.rank == 0)
        stage_name_trace(stage);
    ra_whole_forget(&trace);
    stage->trace_path = NULL;
}

/* ---- Laps. */

void stage_lap(struct stage *stage, enum stage_lap lap)
{
    double now = ra_seconds();
    stage->seconds[lap] += now - stage->lap_start;
    stage->lap_start = now;
}

/* The seconds of each lap, of the rank that took longest. The line is written at once: mpirun of
 * Open MPI 5.0 puts the beginning of one in front of what this rank says next, on stdout, too. */
void stage_print_laps(struct stage *stage)
{
    char line[STAGE_LAPS * 40];
    size_t length = 0;
    for (int l = 0; l < STAGE_LAPS; l++) {
        if (l == STAGE_WAIT && stage->number < 3)
            continue;
        int64_t longest = largest(stage, (int64_t)(1e9 * stage->seconds[l]));
        length += (size_t)snprintf(line + length, sizeof line - length, " %s %.6f", lap_names[l],
                                   1e-9 * (double)longest);
    }
    if (stage->world.rank == 0)
        fprintf(stderr, "seconds%s\n", line);
}
