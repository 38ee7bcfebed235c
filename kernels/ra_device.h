/* ra_device: the finished tricks of the kernels, each a few lines, for device code.
 *
 * Chapter 11. The instructions that CUDA C has no words for are written here once, in PTX, the
 * assembly language of NVIDIA's GPUs; "PTX ISA" is its manual.
 */
#ifndef RA_DEVICE_H
#define RA_DEVICE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>
#include <stdint.h>

#include "ra_kernel.h"
#include "ra_range.h"

#define RA_DEVICE static __device__ __forceinline__

/* Scores are kept times log2(e), so that e^x is one instruction, 2^x. */
#define RA_LOG2E 1.4426950408889634f
#define RA_LN2 0.6931471805599453f

/* The largest score of a row that has seen keys, but no number that float32 can hold: all of its
 * scores were -inf, and it has no answer. A row that has seen no key has -inf itself. */
#define RA_LOWEST_SCORE (-CUDART_MAX_NORMAL_F)

/* 2^x. 0 for -inf. */
RA_DEVICE float ra_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* If `on`, the first two numbers times the first factor and the others times the second:
 * instructions that take their turn in any case, but do nothing if it is not. */
RA_DEVICE void ra_multiply_if(bool on, float (&x)[4], const float (&factors)[2])
{
    asm("{ .reg .pred on; setp.ne.b32 on, %6, 0; @on mul.f32 %0, %0, %4; @on mul.f32 %1, %1, %4; "
        "@on mul.f32 %2, %2, %5; @on mul.f32 %3, %3, %5; }"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
        : "f"(factors[0]), "f"(factors[1]), "r"((int)on));
}

/* tanh(x) = 1 - 2 / (e^2x + 1), within 2e-7: closer than tanh.approx, which has 11 bits. */
RA_DEVICE float ra_tanh(float x)
{
    return 1 - __fdividef(2, ra_exp2(2 * RA_LOG2E * x) + 1);
}

/* x, as if it were another number each time: so what follows from it is worked out afresh and not
 * kept in registers, where these are scarce. */
RA_DEVICE unsigned ra_afresh(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* ---- Shared memory, filled while the threads compute. */

/* The address of shared memory as the instructions below want it. */
RA_DEVICE uint32_t ra_shared(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Begins to copy 16 bytes from global memory, both addresses multiples of 16; with valid = false
 * writes 16 zeros and reads nothing. */
RA_DEVICE void ra_copy16(uint32_t shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* The same for 4 bytes. */
RA_DEVICE void ra_copy4(uint32_t shared, const void *global, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

/* Ends a group of copies; and waits until at most `Left` of the groups of this thread are under
 * way. What other threads copied is there only after a __syncthreads, too. */
RA_DEVICE void ra_copies_end(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int Left> RA_DEVICE void ra_copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

/* __syncthreads, but not every warp needs to come to the same line. */
RA_DEVICE void ra_meet(void)
{
    asm volatile("bar.sync 0;" ::: "memory");
}

/* ---- Sums in global memory, to which other threads add, too. No thread waits for them. */

RA_DEVICE void ra_add1(float *to, float x)
{
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

/* Two neighbours, the address a multiple of 8. */
RA_DEVICE void ra_add2(float *to, float first, float second)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second)
                 : "memory");
#else
    ra_add1(to, first);
    ra_add1(to + 1, second);
#endif
}

/* A semaphore that is to be released: where it is, and the number of the warp that comes next. */
struct ra_semaphore {
    int *at, next;
};

/* Waits until *semaphore == mine, and then what was written before ra_semaphore_release can be
 * seen; and lets the next warp go on. For a whole warp, whose first thread alone reads and writes a
 * struct ra_semaphore. */
RA_DEVICE void ra_semaphore_wait(const int *semaphore, int mine)
{
    if (threadIdx.x % 32 == 0) {
        int now;
        do
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                         : "=r"(now)
                         : "l"(semaphore)
                         : "memory");
        while (now != mine);
    }
    __syncwarp();
}

RA_DEVICE void ra_semaphore_release(const struct ra_semaphore *semaphore)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(semaphore->at),
                     "r"(semaphore->next)
                     : "memory");
}

/* ---- Tensor cores: 16 x 8 numbers of C += A B at a time, by the 32 threads of a warp together. */

/* Four 8 x 8 matrices of 16-bit numbers out of shared memory. Thread 8 i + r gives the address of
 * row r of matrix i, 16 bytes; thread t gets of each matrix row t / 4, columns 2 (t % 4) and the
 * next. Transposed: the same of the transposed matrices. */
RA_DEVICE void ra_load_matrices(uint32_t x[4], uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared)
                 : "memory");
}

RA_DEVICE void ra_load_transposed(uint32_t x[4], uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared)
                 : "memory");
}

/* The two 16-bit types: pairs of numbers in 32 bits, the first in the low half. */
struct ra_bfloat16 {
    typedef __nv_bfloat16 number;

    static __device__ __forceinline__ uint32_t pair(float first, float second)
    {
        uint32_t x;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
        return x;
    }

    /* sum + 0 x, of pairs. */
    static __device__ __forceinline__ uint32_t detect_nonfinite(uint32_t sum, uint32_t x)
    {
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
        return sum;
    }

    /* c (16, 8) += a (16, 16) b (16, 8). Thread t has in c: row t / 4, columns 2 (t % 4) and the
     * next, then the same of row t / 4 + 8. In a: 8 x 8 matrices top left, bottom left, top right,
     * bottom right. In b, given as its transpose (8, 16): left, right. */
    static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0,
                                                    uint32_t b1)
    {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct ra_float16 {
    typedef __half number;

    static __device__ __forceinline__ uint32_t pair(float first, float second)
    {
        uint32_t x;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
        return x;
    }

    /* sum + 0 x, of pairs. */
    static __device__ __forceinline__ uint32_t detect_nonfinite(uint32_t sum, uint32_t x)
    {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
        return sum;
    }

    static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0,
                                                    uint32_t b1)
    {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

/* ---- Rows that pass: the next from `at` on, those before `end`; in a list those of a part of a
 * tile, and then those of its next part. */
template <class Int> struct ra_passing {
    Int at, end;
    int part;
};

/* Those of the first part of a tile. */
template <class Int>
RA_DEVICE struct ra_passing<Int> ra_pass_tile(const struct ra_work &work,
                                              const struct ra_work_tile &tile) {
    struct ra_sight some = work.part[tile.part].some;
    return {some.first, some.end, tile.part};
}

/* Those behind the next `step` ones; once there are none, from row `rows` on, which is not
 * there. */
template <bool Listed, class Int>
RA_DEVICE struct ra_passing<Int> ra_pass(struct ra_passing<Int> now, const struct ra_work &work,
                                         const struct ra_work_tile &tile, int step, Int rows) {
    now.at += step;
    if (Listed && now.at >= now.end) {
        bool more = ++now.part < tile.part + tile.parts;
        struct ra_sight some = more ? work.part[now.part].some : ra_sight{0, 0};
        now.at = more ? some.first : rows;
        now.end = more ? some.end : rows;
    }
    return now;
}

/* ---- Arrays of the caller's. */

/* Can the D numbers of every row be read as whole chunks of 16 bytes? For the host. */
static inline bool
ra_in_chunks(struct ra_tensor x, int64_t dim)
{
    int64_t numbers = 16 / ra_type_bytes(x.type);
    return (uintptr_t)x.data % 16 == 0 && dim % numbers == 0 && x.batch % numbers == 0 &&
           x.row % numbers == 0 && x.head % numbers == 0;
}

/* The D numbers of one head, or the one number, in an array of float32. */
RA_DEVICE float *ra_floats(struct ra_tensor x, int64_t b, int64_t row, int64_t head)
{
    return (float *)x.data + b * x.batch + row * x.row + head * x.head;
}

/* The number of a head in an array (H) of float32. */
RA_DEVICE float ra_of_head(const struct ra_tensor &x, int head)
{
    return ((const float *)x.data)[head * x.head];
}

/* Where row `row` of so many lies; of a row that is not there, where the last one does. Asked for
 * each time, in the order of the program: registers are scarce. */
RA_DEVICE int ra_place_of_row(const struct ra_tensor &places, int64_t row, int64_t rows)
{
    int place;
    const int *at = (const int *)places.data + (row < rows ? row : rows - 1) * places.row;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(place) : "l"(at));
    return place;
}

/* Numbers as ints in the same order, and back; NaN is above all. */
RA_DEVICE int ra_ordered(int bits)
{
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

/* Raises the largest score of a head to this one, if it is larger. */
RA_DEVICE void ra_raise(const struct ra_tensor &largest, int head, float score)
{
    int *at = (int *)largest.data + head * largest.head;
    int mine = isnan(score) ? 0x7fffffff : ra_ordered(__float_as_int(score));
    if (mine > *(volatile int *)at)
        atomicMax(at, mine);
}

/* Does the mask, if there is one, allow this key? */
RA_DEVICE bool ra_allowed(struct ra_tensor mask, int64_t b, int64_t key)
{
    return !mask.data || ((const bool *)mask.data)[b * mask.batch + key * mask.row];
}

/* Where row `row` of batch b and head h begins, in numbers. */
RA_DEVICE int64_t ra_offset(const struct ra_tensor &x, int64_t b, int64_t row, int64_t h)
{
    return b * x.batch + row * x.row + h * x.head;
}

/* A number of any float type, as float32. */
RA_DEVICE float ra_load(const void *data, enum ra_type type, int64_t i)
{
    switch (type) {
    case RA_FLOAT16:
        return __half2float(((const __half *)data)[i]);
    case RA_BFLOAT16:
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

RA_DEVICE void ra_store(void *data, enum ra_type type, int64_t i, float x)
{
    switch (type) {
    case RA_FLOAT16:
        ((__half *)data)[i] = __float2half_rn(x);
        break;
    case RA_BFLOAT16:
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x);
        break;
    default:
        ((float *)data)[i] = x;
    }
}

/* *sum += more. What rounding cuts off is kept in *comp, if it is given, and added next time: so
 * the error stays that of one rounding, however many times something is added. See ra_sum_add in
 * src/ra_sum.h; every step is rounded by itself, so that nvcc makes no fused ones of them. */
RA_DEVICE void ra_add_kept(float *sum, float *comp, float more)
{
    float a = *sum, b = comp ? __fadd_rn(more, *comp) : more;
    float all = __fadd_rn(a, b), part = __fsub_rn(all, a);
    *sum = all;
    if (comp) {
        float error = __fadd_rn(__fsub_rn(a, __fsub_rn(all, part)), __fsub_rn(b, part));
        *comp = isnan(error) ? 0 : error;
    }
}

/* ---- Launching, for the host. */

/* What the current device says of itself. */
static inline cudaError_t ra_ask_device(int *value, enum cudaDeviceAttr attribute)
{
    int device;
    cudaError_t error = cudaGetDevice(&device);
    return error != cudaSuccess ? error : cudaDeviceGetAttribute(value, attribute, device);
}

/* Launches a kernel with this many bytes of shared memory: more than 48 KiB have to be asked
 * for. */
template <class... Parameters>
static cudaError_t ra_launch(void (*kernel)(Parameters...), int64_t blocks, int threads,
                             size_t bytes, cudaStream_t stream, Parameters... parameters)
{
    cudaError_t error = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<(unsigned)blocks, threads, bytes, stream>>>(parameters...);
    return cudaGetLastError();
}

#endif
