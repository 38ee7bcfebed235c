/* own_kernel: judges any kernel that a reader has written for the last exercise of chapter 11a,
 * without a GPU: whether its rows are right, and how many numbers it reads from memory.
 *
 * The threads of a block run one after the other, each to the next __syncthreads or to its end, in
 * rising order and then in falling order. So what a barrier that is not there would let happen
 * does happen. Blocks run one after the other, and share nothing. */
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

enum { DIM = 32, THREADS = 64, MOST_READ = 2 };

static struct {
    int x;
} threadIdx, blockIdx;

static long long read_numbers;

/* An array in the GPU's memory, which counts what is read of it. */
struct numbers {
    const float *data;
    int count;
    float operator[](int e) const
    {
        if (e < 0 || e >= count) {
            printf("number %d is read of an array of %d\n", e, count);
            exit(1);
        }
        read_numbers++;
        return data[e];
    }
};

static ucontext_t scheduler, threads[THREADS];

#define __global__ static
#define __shared__ static
#define __syncthreads() next_thread()

/* Lets the other threads come to this barrier. */
static void next_thread(void)
{
    int self = threadIdx.x;
    swapcontext(&threads[self], &scheduler);
}

#include "attend.h"

static struct {
    numbers q, k, v;
    float *o;
    int n;
    float scale;
} call;
static bool ended[THREADS];

static void run(void)
{
    int self = threadIdx.x;
    attend(call.q, call.k, call.v, call.o, call.n, call.scale);
    ended[self] = true;
}

/* Runs all threads of one block. */
static void run_block(int block, bool falling)
{
    static char stacks[THREADS][1 << 16];
    blockIdx.x = block;
    for (int t = 0; t < THREADS; t++) {
        ended[t] = false;
        getcontext(&threads[t]);
        threads[t].uc_stack.ss_sp = stacks[t];
        threads[t].uc_stack.ss_size = sizeof stacks[t];
        threads[t].uc_link = &scheduler;
        makecontext(&threads[t], run, 0);
    }
    for (int left = THREADS; left > 0;) {
        left = 0;
        for (int e = 0; e < THREADS; e++) {
            int t = falling ? THREADS - 1 - e : e;
            if (ended[t])
                continue;
            threadIdx.x = t;
            swapcontext(&scheduler, &threads[t]);
            left += !ended[t];
        }
    }
}

/* The worst difference from the definition, in double; NaN if there is one. */
static double worst(const std::vector<float> &q, const std::vector<float> &k,
                    const std::vector<float> &v, const std::vector<float> &o, int n, float scale)
{
    double most = 0;
    for (int i = 0; i < n; i++) {
        std::vector<double> s(n);
        double max = -INFINITY, sum = 0;
        for (int j = 0; j < n; j++) {
            for (int c = 0; c < DIM; c++)
                s[j] += (double)scale * q[i * DIM + c] * k[j * DIM + c];
            max = fmax(max, s[j]);
        }
        for (int j = 0; j < n; j++)
            sum += s[j] = exp(s[j] - max);
        for (int c = 0; c < DIM; c++) {
            double wanted = 0;
            for (int j = 0; j < n; j++)
                wanted += s[j] / sum * v[j * DIM + c];
            double off = fabs(wanted - o[i * DIM + c]);
            if (!(off <= most))
                most = off;
        }
    }
    return most;
}

int main()
{
    int lengths[] = {1, 17, 63, 64, 65, 130, 256};
    float scales[] = {0.18f, 6};
    double for_a_pair = 0;
    for (int n : lengths)
        for (float scale : scales)
            for (bool falling : {false, true}) {
                std::vector<float> x[3], o(n * DIM, NAN);
                for (auto &array : x)
                    for (int e = 0; e < n * DIM; e++)
                        array.push_back(rand() / (float)RAND_MAX * 4 - 2);
                call = {{x[0].data(), n * DIM},
                        {x[1].data(), n * DIM},
                        {x[2].data(), n * DIM},
                        o.data(),
                        n,
                        scale};
                read_numbers = 0;
                for (int block = 0; block * THREADS < n; block++)
                    run_block(block, falling);
                for_a_pair = (double)read_numbers / n / n;
                double off = worst(x[0], x[1], x[2], o, n, scale);
                if (!(off <= 1e-3)) {
                    printf("n = %d, scale = %g: o is off by %g\n", n, scale, off);
                    return 1;
                }
            }
    printf("numbers read for each query and key: %.2f\n", for_a_pair);
    if (for_a_pair > MOST_READ) {
        printf("%.2f numbers are read for each query and key, wanted at most %d\n", for_a_pair,
               MOST_READ);
        return 1;
    }
}
