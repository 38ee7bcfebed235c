/* move_heads: rows of some heads, moved between arrays that order them differently. See ra_move.h.
 *
 * Chapter 12. New here: a kernel that writes to the memory of another GPU, or reads there. Nothing
 * else runs while heads are exchanged, so the multiprocessors are free to copy, and need not pack a
 * message first. Where the arrays allow it, a thread moves 16 bytes at a time.
 */
#include "ra_device.h"
#include "ra_move.h"
#include "row_chunks.h"

enum { THREADS = 256 };

/* How the rows of a move are taken, in chunks of 16 bytes of what is only copied, of 8 numbers of
 * what is converted or added, or of one number. */
enum form { BYTES, NUMBERS, SINGLE };

/* How a move is taken: in `chunks` to a head, by `across` threads to a row. */
struct how {
    enum form form;
    int chunks, across;
};

struct launch {
    struct ra_moves moves;
    struct how how[RA_MOST_MOVES];
};

/* Where the first head of a row of a batch begins, in numbers. */
static __device__ __forceinline__ int64_t place(const struct ra_rows_view &view, int64_t b,
                                                int64_t row)
{
    return b * view.array.batch + (view.row ? view.row[row] : row) * view.array.row;
}

static __device__ __forceinline__ int64_t bytes_of(enum ra_type type)
{
    return type == RA_FLOAT32 ? 4 : type == RA_BOOL ? 1 : 2;
}

static __device__ __forceinline__ void move_chunk(const struct ra_move &move, enum form form,
                                                  int64_t to, int64_t from)
{
    const struct ra_tensor &out = move.to.array, &in = move.from.array;
    if (form == BYTES) {
        const char *source = (const char *)in.data + from * bytes_of(in.type);
        *(uint4 *)((char *)out.data + to * bytes_of(out.type)) = *(const uint4 *)source;
    } else if (form == NUMBERS) {
        __align__(16) float x[CHUNK], y[CHUNK];
        load<CHUNK>(x, in, from);
        if (move.adds) {
            load<CHUNK>(y, out, to);
#pragma unroll
            for (int c = 0; c < CHUNK; c++)
                x[c] += y[c];
        }
        store<CHUNK>(out, to, x);
    } else if (in.type == RA_BOOL) {
        ((bool *)out.data)[to] = ((const unsigned char *)in.data)[from] != 0;
    } else {
        float x = ra_load(in.data, in.type, from);
        ra_store(out.data, out.type, to, move.adds ? x + ra_load(out.data, out.type, to) : x);
    }
}

/* Block (x, y) has some rows of move y: thread t of them row t / across, and of this row chunks
 * t % across and every across-th after it. */
static __global__ void __launch_bounds__(THREADS)
    move_kernel(const __grid_constant__ struct launch launch)
{
    const struct ra_move &move = launch.moves.move[blockIdx.y];
    const struct how &how = launch.how[blockIdx.y];
    int chunks = how.chunks, across = how.across;
    int numbers = move.width / chunks, count = move.keys * move.per_key * chunks;
    int64_t i = (int64_t)blockIdx.x * (THREADS / across) + threadIdx.x / across;
    if (i >= launch.moves.batch * move.rows)
        return;
    int64_t b = i / move.rows, row = i % move.rows;
    int64_t to = place(move.to, b, row), from = place(move.from, b, row);
    for (int c = threadIdx.x % across; c < count; c += across) {
        int head = c / chunks, first = c % chunks * numbers;
        int key = head / move.per_key, query = head % move.per_key;
        move_chunk(move, how.form, to + key * move.to.key + query * move.to.array.head + first,
                   from + key * move.from.key + query * move.from.array.head + first);
    }
}

/* Does every head of a view begin at a multiple of 16 bytes? */
static bool in_chunks(const struct ra_rows_view *view, int64_t width)
{
    int64_t numbers = 16 / ra_type_bytes(view->array.type);
    return ra_in_chunks(view->array, width) && view->key % numbers == 0;
}

/* Finds the widest chunks that both arrays of a move allow; and threads to a row, a power of two,
 * so that each has one chunk if a block has that many. */
static struct how how_of(const struct ra_move *move)
{
    enum ra_type to = move->to.array.type, from = move->from.array.type;
    struct how how = {SINGLE, move->width, 1};
    if (in_chunks(&move->to, move->width) && in_chunks(&move->from, move->width)) {
        if (to == from && !move->adds)
            how = {BYTES, (int)(move->width * ra_type_bytes(to) / 16), 1};
        else if (to != RA_BOOL && move->width % CHUNK == 0)
            how = {NUMBERS, move->width / CHUNK, 1};
    }
    while (how.across < THREADS && how.across < move->keys * move->per_key * how.chunks)
        how.across *= 2;
    return how;
}

extern "C" cudaError_t ra_move_rows(const struct ra_moves *moves, cudaStream_t stream)
{
    /* One launch for all: as many blocks to each move as the longest of them takes. */
    struct launch launch = {*moves, {}};
    int64_t most = 0;
    for (int i = 0; i < moves->count; i++) {
        launch.how[i] = how_of(&moves->move[i]);
        int64_t rows = THREADS / launch.how[i].across;
        int64_t blocks = (moves->batch * moves->move[i].rows + rows - 1) / rows;
        most = blocks > most ? blocks : most;
    }
    if (most == 0)
        return cudaSuccess;
    move_kernel<<<dim3((unsigned)most, (unsigned)moves->count), THREADS, 0, stream>>>(launch);
    return cudaGetLastError();
}
