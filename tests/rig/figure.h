/* figure: what the pictures of all chapters are drawn with.
 *
 * figure.c holds the tools and the program; figure_tile.c draws chapters 01, 02 and 09; of the
 * chapters of the ring, figure_masks.c draws what each rank sees, figure_measured.c the
 * measurements; figure_model.c draws chapters 10 and 14, figure_cuda.c chapter 11, figure_scale.c
 * chapter 12, figure_slices.c chapter 13.
 */
#ifndef FIGURE_H
#define FIGURE_H

#include <stdbool.h>

/* The palette of Okabe and Ito, which colour-blind readers can tell apart, and greys. */
#define BLUE "#0072B2"
#define PALE_BLUE "#D6E8F3"
#define ORANGE "#D55E00"
#define PALE_ORANGE "#FBE3CF"
#define GREEN "#009E73"
#define SKY "#56B4E9"
#define PURPLE "#A6487E" /* theirs, darker: white text must be readable on it */
#define INK "#222222"
#define GREY "#8A8A8A"
#define LIGHT "#E6E6E6"

/* Looks, as SVG attributes. Two of them side by side are both. */
#define FILL(colour) " fill=\"" colour "\""
#define STROKE(colour, width) " fill=\"none\" stroke=\"" colour "\" stroke-width=\"" width "\""
#define INK_LINE STROKE(INK, "1.5")
#define DASHES " stroke-dasharray=\"3 3\""
#define MIDDLE " text-anchor=\"middle\""
#define END " text-anchor=\"end\""
#define BOLD " font-weight=\"bold\""

/* Ends the program with a line on stderr. */
_Noreturn void fail(const char *format, ...);

/* ---- Drawing: x goes right and y goes down, in pixels; (x, y) of a text is on its baseline. */

struct point {
    double x, y;
};

/* Opens a picture on stdout, 720 pixels wide. It brings its own white paper: the page around it may
 * be dark. */
void svg_open(int height, const char *title, const char *description);

/* The text of format, as printf has it; <, > and & must come as XML wants them. */
void text(double x, double y, const char *look, const char *format, ...);

void rect(double x, double y, double width, double height, const char *look);
void polyline(int count, const struct point *points, const char *look);
void line(double x1, double y1, double x2, double y2, const char *look);

/* The title of a panel, and below it what is to be seen. */
void heading(double x, double y, const char *title, const char *words);

/* One entry of a legend. */
void legend(double x, double y, const char *look, const char *words);

/* A line in this colour, with a head at (x2, y2). */
void arrow(double x1, double y1, double x2, double y2, const char *stroke);

/* A scale: the value `low` is at pixel `start` and the value `high` at pixel `end`. */
struct axis {
    double low, high, start, end;
};

double place(struct axis axis, double value);

/* Lanes against time, with lines at 1, 2 or 5 times a power of 10: below each other so many rows,
 * rank 0, 1 and so on, or GPU, each of the first of these lanes. The caller draws what is in them,
 * the first at y + 54. */
enum { LANE_ROW = 62 };
extern const char *const lanes[3];
void lane_frame(double y, const char *rank_or_gpu, int rows, int lane_count, struct axis time);

/* ---- Data. */

/* A row of a CSV file: its words and its numbers, each in the order of the columns. */
struct row {
    char words[5][48];
    double numbers[6];
};

/* Reads a CSV file that begins with this line, perhaps behind lines with #, and has after it one
 * row or more, at most `most` (the caller's memory). `kinds` has a letter for each column: w a
 * word, t a few words, n a whole number, d a decimal one, both 0 or more. Returns how many rows
 * there are; ends the program if anything is not as it should be. */
int read_csv(const char *path, const char *header, const char *kinds, int most, struct row *rows);

/* The same of a file that must have this many rows. */
void read_rows(const char *path, const char *header, const char *kinds, int count,
               struct row *rows);

/* Returns the line, from 1, of a row, from 0, in the file that was read last. */
int line_of_row(int row);

/* ---- The figures. `source` is the data's file or, where a figure has none, the figure's name. */

#define SHARE_HEADER "N,peak_bytes,score_bytes"
#define MEMORY_HEADER "N,program,peak_bytes,multiply_adds"
#define RANKS_HEADER "P,peak_bytes_per_rank"
#define WORK_HEADER "layout,rank,hop,multiply_adds"
#define TRACE_HEADER "layout,rank,row,name,hop,start_us,end_us"
#define GROUPS_HEADER "G,bytes_sent_forward,bytes_sent_backward"
#define PLANS_HEADER "type,P,plan_bytes,bytes_sent"
#define DECODE_HEADER "way,P,bytes,us" /* as bench-decode has it */
#define RATES_HEADER "kernel,pass,dim,mask,tflops"
#define TRICKS_HEADER "trick,pass,full,causal"
#define SPEEDS_HEADER "trick,pass,gflops"
#define SCALE_HEADER "way,P,working"
#define SLOW_HEADER "case,rank,work us,waiting us"
#define PREDICTED_HEADER "machine,GPUs,heads,key_heads,rows,layout,pass,predicted,measured,off_by"
#define ROWS_HEADER "machine,kernel,type,dim,mask,rows,forward,backward"
#define VARLEN_HEADER "pass,mask,before,after,FA4,flex,varlen,to_best"
#define RINGS_HEADER "documents,pass,contiguous,dealt,better,unbalanced,per_document,PTRR"
#define LOSSES_HEADER "run,step,loss"
#define MODEL_MEMORY_HEADER "forward,P,bytes,bytes_of_weights"
#define STEP_HEADER "rank,lane,name,layer,start ms,end ms"
#define GPUS_HEADER "ring,rank,what,number,start ms,end ms" /* as bench-cuda --timeline has it */

void draw_share(const char *source);
void draw_memory(const char *source);

void draw_ranks(const char *source);
void draw_masks(const char *source);
void draw_jump(const char *source);
void draw_work(const char *source);
void draw_waiting(const char *source);
void draw_trace(const char *source);
void draw_groups(const char *source);
void draw_plans(const char *source);
void draw_speeds(const char *source);

void draw_losses(const char *source);
void draw_model_memory(const char *source);
void draw_decode(const char *source);
void draw_step(const char *source);

void draw_rates(const char *source);
void draw_float32_roofline(const char *source);
void draw_tensor_roofline(const char *source);
void draw_tricks(const char *source);
void draw_gpus(const char *source);

void draw_scale(const char *source);
void draw_slow(const char *source);
void draw_predicted(const char *source);
void draw_rows(const char *source);

void draw_slices(const char *source);
void draw_varlen(const char *source);
void draw_rings(const char *source);

/* Writes what figure 04-masks, 05-masks-..., 06-masks-... or 06-jump shows, as CSV. Returns false
 * if there is no such figure. */
bool write_masks(const char *name);

/* The same for figure 08-plan, and for those of chapter 12. */
bool write_plans(const char *name);
bool write_scale(const char *name);

#endif
