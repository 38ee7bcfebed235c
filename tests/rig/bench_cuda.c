/* bench: how fast the kernels of the ladder are on this machine's GPU, and how far that is from
 * what the GPU could do. Under mpirun, one rank per GPU, the ring between them as well.
 *
 * Chapter 11. `ninja bench-cuda` builds and runs it; --help says what can be asked.
 *
 * All rates count multiplications and additions of the products by one convention: forward 2 B H n
 * m (D + D_v), backward 2 B H n m (3 D + 2 D_v), causal half. Times are medians of CUDA events
 * around whatever a caller pays: in the backward delta and, of gradients that the kernel only adds
 * to, emptying and rounding.
 */
#include "bench_cuda.h"
#include "usage.h"
#include <getopt.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench-cuda [flags]\n"
    "       mpirun -n P bench-cuda [flags]      one rank per GPU\n"
    "\n"
    "Measures every kernel on one GPU, then the ring of all ranks.\n"
    "\n"
    "  --only TEXT    only lines whose name has this text, such as 'k03 forward', 'd64 causal',\n"
    "                 'ring backward', 'striped', or 'slices' or 'documents' alone\n"
    "  --quick        fewer shapes, three repeats\n"
    "  --repeat N     repeats of which the median counts (10)\n"
    "  --csv FILE     the numbers of one GPU, and more, separated by commas\n"
    "  --turns        instead, for each line of the input the lines whose name has its text, and "
    "then\n"
    "                 'end': so another program can take turns with this one. A line such as\n"
    "                 'ring 131072 16 128 striped' asks for a causal ring over so many tokens in\n"
    "                 all, heads, numbers per head, and in this layout ('buckets', then perhaps "
    "of\n"
    "                 how many rows); 32/8 are 32 heads on 8 of keys, and 'method "
    "exchanged-heads'\n"
    "                 at the end asks for another method than the ring; the answer is 'ring', ms\n"
    "                 forward, ms forward and backward, GHz, W. 'documents 65536 512 16 128 "
    "dealt'\n"
    "                 asks for causal documents of 512 (0: log-normal), 'dealt' or 'contiguous', "
    "and\n"
    "                 'lengths 65536 512' for how long each is, a multiple of 2P\n"
    "  --timeline FILE\n"
    "                 when each rank of the ring computed and copied, hop by hop, in the last of\n"
    "                 N calls\n"
    "  -h, --help     this text; --version: the version\n";

struct bench bench = {NULL, false, false, 10, NULL, NULL, false};

/* A file of rank 0; NULL on other ranks, and if there is no name. */
static FILE *create(const char *name)
{
    FILE *file = name && rig.rank == 0 ? fopen(name, "w") : NULL;
    if (name && rig.rank == 0 && !file)
        stop(name, "cannot be created");
    return file;
}

/* Ends the program on all ranks, with one rank's words. */
static _Noreturn void explain(void)
{
    if (rig.rank == 0)
        fputs(usage, stderr);
    MPI_Finalize();
    exit(2);
}

static void read_options(int argc, char **argv)
{
    static const struct option words[] = {
        {"only", required_argument, NULL, 'o'},
        {"quick", no_argument, NULL, 'q'},
        {"repeat", required_argument, NULL, 'r'},
        {"csv", required_argument, NULL, 'c'},
        {"timeline", required_argument, NULL, 't'},
        {"turns", no_argument, NULL, 'u'},
        {NULL, 0, NULL, 0},
    };
    const char *csv = NULL, *timeline = NULL;
    bool repeat_given = false;
    for (int word; (word = getopt_long(argc, argv, "", words, NULL)) != -1;) {
        switch (word) {
        case 'o':
            bench.only = optarg;
            break;
        case 'q':
            bench.quick = true;
            break;
        case 'r':
            bench.repeats = atoi(optarg);
            repeat_given = true;
            break;
        case 'c':
            csv = optarg;
            break;
        case 't':
            timeline = optarg;
            break;
        case 'u':
            bench.turns = true;
            break;
        default:
            explain();
        }
    }
    if (optind < argc || bench.repeats < 1 || bench.repeats > 100000)
        explain();
    if (bench.quick && !repeat_given)
        bench.repeats = 3;
    bench.csv = create(csv);
    bench.timeline = create(timeline);
    bench.has_timeline = timeline != NULL;
    if (bench.csv)
        fprintf(bench.csv, "kernel,pass,shape,dim,mask,type,ms,TFLOP/s,operations,exponentials,"
                           "bytes,floor of products ms,floor of exponentials ms,floor of bytes "
                           "ms,GHz,W\n");
    if (bench.timeline)
        fprintf(bench.timeline, "ring,rank,what,number,start ms,end ms\n");
}

/* The next line of rank 0's input, without its end, on all ranks; false if there is none. */
static bool next_line(char *line, int size)
{
    if (rig.rank == 0 && !fgets(line, size, stdin))
        *line = 0;
    MPI_Bcast(line, size, MPI_CHAR, 0, MPI_COMM_WORLD);
    bool is_line = *line != 0;
    line[strcspn(line, "\n")] = 0;
    return is_line;
}

int main(int argc, char **argv)
{
    answer_usage(argc, argv, "bench-cuda", usage);
    rig_begin("bench-cuda", &argc, &argv);
    read_options(argc, argv);
    rig_choose_device("rings mean nothing");
    find_ceiling();
    static char line[256];
    while (bench.turns && next_line(line, sizeof line)) {
        bench.only = line;
        bench_ring_turn(line);
        bench_document_turn(line);
        if (rig.rank > 0)
            continue;
        bench_kernels();
        puts("end");
        fflush(stdout);
    }
    if (rig.rank == 0 && !bench.turns) {
        bench_kernels();
        bench_slices();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!bench.turns) {
        bench_rings();
        bench_document_rings();
    }
    if (bench.csv && fclose(bench.csv))
        stop("--csv", "cannot be written");
    if (bench.timeline && fclose(bench.timeline))
        stop("--timeline", "cannot be written");
    rig_end();
    return 0;
}
