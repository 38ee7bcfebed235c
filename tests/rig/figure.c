/* figure: draws the figures of the chapters, as SVG. This file: the tools, and the program.
 *
 * They show numbers: of the project's own modules, which are asked here, or measured, in a CSV
 * file. The same program and data give the same bytes, so that a test can draw every committed
 * figure again and compare. A schematic without numbers is an SVG file in chapters/img that is
 * edited by hand.
 */
#include "figure.h"
#include "usage.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void fail(const char *format, ...)
{
    fputs("figure: ", stderr);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* Rounds to the two decimals that are written. Adding 0 turns -0 into 0. */
static double pixel(double x)
{
    return round(x * 100) / 100 + 0.0;
}

void svg_open(int height, const char *title, const char *description)
{
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"720\" height=\"%d\" "
           "viewBox=\"0 0 720 %d\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
           "font-size=\"12\">\n<title>%s</title>\n<desc>%s</desc>\n",
           height, height, title, description);
    printf("<rect width=\"720\" height=\"%d\" fill=\"#FFFFFF\"/>\n", height);
}

void text(double x, double y, const char *look, const char *format, ...)
{
    char letters[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(letters, sizeof letters, format, arguments);
    va_end(arguments);

    /* Letters above and below the line: few fonts have them. */
    bool small = strstr(letters, "\xE2\x81") || strstr(letters, "\xE2\x82");
    printf("<text x=\"%g\" y=\"%g\"%s%s%s>%s</text>\n", pixel(x), pixel(y),
           strstr(look, "fill=") ? "" : FILL(INK), look,
           small ? " font-family=\"'DejaVu Sans', Helvetica, Arial, sans-serif\"" : "", letters);
}

void rect(double x, double y, double width, double height, const char *look)
{
    printf("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"%s/>\n", pixel(x), pixel(y),
           pixel(width), pixel(height), look);
}

void polyline(int count, const struct point *points, const char *look)
{
    printf("<polyline points=\"");
    for (int k = 0; k < count; k++)
        printf("%s%g,%g", k > 0 ? " " : "", pixel(points[k].x), pixel(points[k].y));
    printf("\"%s/>\n", look);
}

void line(double x1, double y1, double x2, double y2, const char *look)
{
    polyline(2, (struct point[]){{x1, y1}, {x2, y2}}, look);
}

void heading(double x, double y, const char *title, const char *words)
{
    text(x, y, BOLD " font-size=\"14\"", "%s", title);
    text(x, y + 18, "", "%s", words);
}

void legend(double x, double y, const char *look, const char *words)
{
    rect(x, y - 12, 14, 14, look);
    text(x + 22, y, "", "%s", words);
}

void arrow(double x1, double y1, double x2, double y2, const char *stroke)
{
    double length = hypot(x2 - x1, y2 - y1), x = 6 * (x2 - x1) / length, y = 6 * (y2 - y1) / length;
    struct point head[] = {
        {x2 - x - y / 2, y2 - y + x / 2}, {x2, y2}, {x2 - x + y / 2, y2 - y - x / 2}};
    line(x1, y1, x2, y2, stroke);
    polyline(3, head, stroke);
}

double place(struct axis axis, double value)
{
    return axis.start + (value - axis.low) / (axis.high - axis.low) * (axis.end - axis.start);
}

const char *const lanes[] = {"work", "keys", "gradients"};

void lane_frame(double y, const char *rank_or_gpu, int rows, int lane_count, struct axis time)
{
    double step = pow(10, floor(log10(time.high)));
    if (time.high / step < 5)
        step /= time.high / step < 2 ? 5 : 2;
    for (int tick = 0; tick * step <= time.high; tick++) {
        double at = place(time, tick * step);
        line(at, y + 48, at, y + 42 + rows * LANE_ROW, STROKE(LIGHT, "1"));
        text(at, y + 42, MIDDLE, "%g", tick * step);
    }
    for (int row = 0; row < rows; row++) {
        text(20, y + 70 + row * LANE_ROW, BOLD, "%s %d", rank_or_gpu, row);
        for (int lane = 0; lane < lane_count; lane++)
            text(120, y + (lane == 0 ? 70 : 75 + 13 * lane) + row * LANE_ROW,
                 END " font-size=\"11\"", "%s", lanes[lane]);
    }
}

/* Is this field what `kind` wants? Words are drawn as they are: none may hold what XML takes for
 * its own. Numbers have at most 15 digits, which a double holds. */
static bool field_is(char kind, const char *field)
{
    const char *letters = "abcdefghijklmnopqrstuvwxyz0123456789-";
    const char *texts = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-+ ./:()";
    const char *allowed = kind == 'w'   ? letters
                          : kind == 't' ? texts
                          : kind == 'd' ? "0123456789."
                                        : "0123456789";
    size_t length = strlen(field), most = sizeof((struct row *)0)->words[0] - 1;
    if (kind == 'n' || kind == 'd') {
        /* strtod stops at a second point, and at once if there is no digit. */
        char *end;
        strtod(field, &end);
        most = *end ? 0 : 15;
    }
    return length > 0 && strspn(field, allowed) == length && length <= most;
}

/* The line of a file's first row: behind lines with #, which say where and how it was measured, and
 * behind the names of the columns. */
static int first_row;

int line_of_row(int row)
{
    return first_row + row;
}

int read_csv(const char *path, const char *header, const char *kinds, int most, struct row *rows)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    int c;
    for (first_row = 2; (c = getc(file)) == '#'; first_row++)
        while (c != '\n' && c != EOF)
            c = getc(file);
    ungetc(c, file);
    char line_read[256] = "";
    if (!fgets(line_read, sizeof line_read, file) && ferror(file))
        fail("%s: cannot be read", path);
    line_read[strcspn(line_read, "\n")] = '\0';
    if (strcmp(line_read, header) != 0)
        fail("%s:%d: the first line must be %s", path, line_of_row(-1), header);

    /* Cut each line at its commas, one piece for each column. */
    int count = 0;
    for (; fgets(line_read, sizeof line_read, file); count++) {
        if (count == most)
            fail("%s:%d: more than %d rows", path, line_of_row(count), most);
        char *at = line_read;
        for (int column = 0, words = 0, numbers = 0; kinds[column]; column++) {
            char *end = at + strcspn(at, kinds[column + 1] ? "," : "\n");
            bool cut = *end != '\0';
            *end = '\0';
            if (!cut || !field_is(kinds[column], at))
                fail("%s:%d: want %s, words of plain letters and numbers", path, line_of_row(count),
                     header);
            if (kinds[column] == 'w' || kinds[column] == 't')
                strcpy(rows[count].words[words++], at);
            else
                rows[count].numbers[numbers++] = strtod(at, NULL);
            at = end + 1;
        }
    }
    if (ferror(file))
        fail("%s: cannot be read", path);
    fclose(file);
    if (count == 0)
        fail("%s: holds no rows", path);
    return count;
}

void read_rows(const char *path, const char *header, const char *kinds, int count, struct row *rows)
{
    if (read_csv(path, header, kinds, count, rows) != count)
        fail("%s: want %d rows", path, count);
}

/* ---- The program. */

static const char usage[] =
    "usage: figure NAME [DATA.csv]\n"
    "       figure --data NAME\n"
    "\n"
    "Writes a figure of the book to stdout, as SVG. NAME is one of these, and\n"
    "where DATA.csv follows, the file begins with the line below:\n"
    "\n"
    "  01-memory DATA.csv    how much of the memory is scores\n"
    "                        " SHARE_HEADER "\n"
    "  02-memory DATA.csv    memory and work\n"
    "                        " MEMORY_HEADER "\n"
    "  03-memory DATA.csv    memory of a rank\n"
    "                        " RANKS_HEADER "\n"
    "  04-masks, 05-masks-striped, 05-masks-zigzag, 06-masks-contiguous,\n"
    "  06-masks-striped, 06-masks-zigzag, 06-jump\n"
    "                        what each rank sees at each hop; --data writes\n"
    "                        the numbers in it as CSV\n"
    "  04-work, 05-work, 13-work, 13-waiting DATA.csv\n"
    "                        multiply-adds of each rank at each hop\n"
    "                        " WORK_HEADER "\n"
    "  04-trace, 05-trace DATA.csv\n"
    "                        what each rank did when\n"
    "                        " TRACE_HEADER "\n"
    "  07-bytes DATA.csv     bytes sent for fewer and fewer key/value heads\n"
    "                        " GROUPS_HEADER "\n"
    "  08-plan DATA.csv      what a plan holds and what its rank sends; --data\n"
    "                        asks the library\n"
    "                        " PLANS_HEADER "\n"
    "  09-tricks DATA.csv    the tile on vectors, and with one trick undone\n"
    "                        " SPEEDS_HEADER "\n"
    "  10-curves DATA.csv    the loss of one rank and of four\n"
    "                        " LOSSES_HEADER "\n"
    "  10-memory DATA.csv    the memory of a rank that trains\n"
    "                        " MODEL_MEMORY_HEADER "\n"
    "  10-decode DATA.csv    one new token by the ring and by the tree\n"
    "                        " DECODE_HEADER "\n"
    "  11-rates DATA.csv     how fast the kernels are\n"
    "                        " RATES_HEADER "\n"
    "  11-roofline, 11c-roofline DATA.csv\n"
    "                        and what limits k01, k02 and k03; of the same data\n"
    "                        " RATES_HEADER "\n"
    "  11-tricks DATA.csv    and with one trick undone\n"
    "                        " TRICKS_HEADER "\n"
    "  11-ring DATA.csv      what each GPU of a ring did when\n"
    "                        " GPUS_HEADER "\n"
    "  12-ranks DATA.csv     how much of the time many ranks work; --data asks\n"
    "                        the library\n"
    "                        " SCALE_HEADER "\n"
    "  12-slow DATA.csv      one slow rank, one slow link; --data simulates\n"
    "                        " SLOW_HEADER "\n"
    "  12-predicted DATA.csv rings of GPUs, predicted and measured\n"
    "                        " PREDICTED_HEADER "\n"
    "  12-rates DATA.csv     rates of a GPU, few rows to many\n"
    "                        " ROWS_HEADER "\n"
    "  13-masks              masks of documents, prefixes and others, as slices\n"
    "  13a-varlen DATA.csv   documents, beside other programs\n"
    "                        " VARLEN_HEADER "\n"
    "  13a-documents-beside DATA.csv\n"
    "                        documents on two GPUs, beside PyTorch\n"
    "                        " RINGS_HEADER "\n"
    "  14a-step DATA.csv     what two GPUs did in a step of training\n"
    "                        " STEP_HEADER "\n"
    "\n"
    "Exit status: 0 all is well, 1 bad data or no room, 2 misuse.\n";

static const struct {
    const char *name;
    bool has_data;
    void (*draw)(const char *source);
} figures[] = {
    {"01-memory", true, draw_share},
    {"02-memory", true, draw_memory},
    {"03-memory", true, draw_ranks},
    {"04-masks", false, draw_masks},
    {"04-work", true, draw_work},
    {"04-trace", true, draw_trace},
    {"05-masks-striped", false, draw_masks},
    {"05-masks-zigzag", false, draw_masks},
    {"05-work", true, draw_work},
    {"05-trace", true, draw_trace},
    {"06-masks-contiguous", false, draw_masks},
    {"06-masks-striped", false, draw_masks},
    {"06-masks-zigzag", false, draw_masks},
    {"06-jump", false, draw_jump},
    {"07-bytes", true, draw_groups},
    {"08-plan", true, draw_plans},
    {"09-tricks", true, draw_speeds},
    {"10-curves", true, draw_losses},
    {"10-memory", true, draw_model_memory},
    {"10-decode", true, draw_decode},
    {"11-rates", true, draw_rates},
    {"11-roofline", true, draw_float32_roofline},
    {"11c-roofline", true, draw_tensor_roofline},
    {"11-tricks", true, draw_tricks},
    {"11-ring", true, draw_gpus},
    {"12-ranks", true, draw_scale},
    {"12-slow", true, draw_slow},
    {"12-predicted", true, draw_predicted},
    {"12-rates", true, draw_rows},
    {"13-masks", false, draw_slices},
    {"13-work", true, draw_work},
    {"13-waiting", true, draw_waiting},
    {"13a-varlen", true, draw_varlen},
    {"13a-documents-beside", true, draw_rings},
    {"14a-step", true, draw_step},
};

/* Draws what the command line asks for. Returns false if it makes no sense. */
static bool obey(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--data") == 0)
        return write_masks(argv[2]) || write_plans(argv[2]) || write_scale(argv[2]);
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++)
        if (argc == 2 + figures[k].has_data && strcmp(argv[1], figures[k].name) == 0) {
            figures[k].draw(argv[argc - 1]);
            puts("</svg>");
            return true;
        }
    return false;
}

int main(int argc, char **argv)
{
    answer_usage(argc, argv, "figure", usage);
    if (!obey(argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }

    /* A full disk shows up only here. */
    if (fflush(stdout) != 0 || ferror(stdout))
        fail("cannot write the output");
    return 0;
}
