/* ra_products: products of matrices on a GPU. See ra_products.h.
 *
 * Chapter 14.
 */
#include "ra_products.h"
#include <cublasLt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes in which cuBLASLt may add up parts of a product, and how many products are known. */
enum { WORKSPACE = 32 << 20, MOST_KNOWN = 256 };

/* A product as cuBLASLt sees it, whose matrices have their columns side by side: d (m, n) = a (m,
 * k) b (k, n) + c. `transposed`: a lies as (k, m), b as (n, k). Distances are from column to
 * column. */
struct shape {
    int64_t m, n, k, a, b, d;
    bool a_transposed, b_transposed, wide, bias, adds;
    int alignment;
};

/* What was found out of a shape. */
struct known {
    struct shape shape;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

struct ra_products {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    cudaDataType type;
    void *workspace;
    struct known known[MOST_KNOWN];
    int count, oldest;
    char error[RA_ERROR_SIZE];
};

enum ra_status ra_products_create(struct ra_products **products, enum ra_type type,
                                  cudaStream_t stream, char error[RA_ERROR_SIZE])
{
    struct ra_products *made = calloc(1, sizeof *made);
    *products = NULL;
    if (!made) {
        snprintf(error, RA_ERROR_SIZE, "no memory for products");
        return RA_OUT_OF_MEMORY;
    }
    made->stream = stream;
    made->type = type == RA_BFLOAT16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasStatus_t code = cublasLtCreate(&made->handle);
    bool has_memory =
        code == CUBLAS_STATUS_SUCCESS && cudaMalloc(&made->workspace, WORKSPACE) == cudaSuccess;
    if (has_memory) {
        *products = made;
        return RA_OK;
    }
    snprintf(error, RA_ERROR_SIZE, "cublasLtCreate: %s",
             code == CUBLAS_STATUS_SUCCESS ? "no memory of the GPU for a workspace"
                                           : cublasLtGetStatusString(code));
    ra_products_destroy(made);
    return RA_DEVICE;
}

static void forget(const struct known *known)
{
    cublasLtMatmulDescDestroy(known->product);
    cublasLtMatrixLayoutDestroy(known->a);
    cublasLtMatrixLayoutDestroy(known->b);
    cublasLtMatrixLayoutDestroy(known->d);
}

void ra_products_destroy(struct ra_products *products)
{
    if (!products)
        return;
    for (int i = 0; i < products->count; i++)
        forget(&products->known[i]);
    if (products->handle)
        cublasLtDestroy(products->handle);
    cudaFree(products->workspace);
    free(products);
}

int64_t ra_products_bytes(void)
{
    return WORKSPACE;
}

const char *ra_products_error(const struct ra_products *products)
{
    return products->error;
}

/* Notes a failure, unless there was one; false. */
static bool fail(struct ra_products *products, const struct shape *shape, const char *call,
                 cublasStatus_t code)
{
    if (!products->error[0])
        snprintf(products->error, sizeof products->error,
                 "%s, for a product of (%" PRId64 ", %" PRId64 ") and (%" PRId64 ", %" PRId64
                 "): %s",
                 call, shape->n, shape->k, shape->k, shape->m, cublasLtGetStatusString(code));
    return false;
}

static cublasStatus_t lay_out(cublasLtMatrixLayout_t *layout, cudaDataType type, int64_t rows,
                              int64_t columns, bool transposed, int64_t distance)
{
    return cublasLtMatrixLayoutCreate(layout, type, (uint64_t)(transposed ? columns : rows),
                                      (uint64_t)(transposed ? rows : columns), distance);
}

/* Asks cuBLASLt for the algorithm that it holds to be best. No algorithm is timed: that would find
 * another one now and then, and so other bits. */
static bool look_up(struct ra_products *products, struct known *known)
{
    const struct shape *s = &known->shape;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType wide = CUDA_R_32F, out = s->wide ? wide : products->type;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    const size_t workspace = WORKSPACE;
    const uint32_t alignment = (uint32_t)s->alignment;
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t codes[] = {
        cublasLtMatmulDescCreate(&known->product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        lay_out(&known->a, products->type, s->m, s->k, s->a_transposed, s->a),
        lay_out(&known->b, products->type, s->k, s->n, s->b_transposed, s->b),
        lay_out(&known->d, out, s->m, s->n, false, s->d),
        cublasLtMatmulPreferenceCreate(&wish),
    };
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        code = code == CUBLAS_STATUS_SUCCESS ? codes[i] : code;
#define SET(object, name, value)                                                       \
    (code = code == CUBLAS_STATUS_SUCCESS                                              \
                ? object##SetAttribute(wish_or_product, name, &(value), sizeof(value)) \
                : code)
    cublasLtMatmulDesc_t wish_or_product = known->product;
    if (s->a_transposed)
        SET(cublasLtMatmulDesc, CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (s->b_transposed)
        SET(cublasLtMatmulDesc, CUBLASLT_MATMUL_DESC_TRANSB, transposed);
    if (s->bias) {
        SET(cublasLtMatmulDesc, CUBLASLT_MATMUL_DESC_EPILOGUE, bias);
        SET(cublasLtMatmulDesc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
    }
#undef SET
#define WISH(name, value)                                                                   \
    (code = code == CUBLAS_STATUS_SUCCESS                                                   \
                ? cublasLtMatmulPreferenceSetAttribute(wish, name, &(value), sizeof(value)) \
                : code)
    WISH(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
#undef WISH
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulAlgoGetHeuristic(products->handle, known->product, known->a, known->b,
                                              known->d, known->d, wish, 1, &found, &count);
    if (wish)
        cublasLtMatmulPreferenceDestroy(wish);
    if (code == CUBLAS_STATUS_SUCCESS && count == 0)
        code = CUBLAS_STATUS_NOT_SUPPORTED;
    if (code != CUBLAS_STATUS_SUCCESS)
        return fail(products, s, "cublasLtMatmulAlgoGetHeuristic", code);
    known->algorithm = found.algo;
    return true;
}

/* The power of two, at most 256, of which all of these are multiples. */
static int alignment_of(const void *a, const void *b, const void *c, const void *d)
{
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | 256;
    return (int)(bits & -bits);
}

static bool multiply(struct ra_products *products, struct shape wanted, const void *a,
                     const void *b, const void *bias, const void *c, void *d)
{
    /* Padding is compared, too. */
    struct shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = wanted.m, shape.n = wanted.n, shape.k = wanted.k;
    shape.a = wanted.a, shape.b = wanted.b, shape.d = wanted.d;
    shape.a_transposed = wanted.a_transposed, shape.b_transposed = wanted.b_transposed;
    shape.wide = wanted.wide, shape.bias = bias != NULL, shape.adds = c != NULL;
    shape.alignment = alignment_of(a, b, c, d);
    struct known *known = products->known, *end = known + products->count;
    if (products->error[0])
        return false;
    if (shape.m * shape.n * shape.k == 0)
        return true; /* a rank without rows: gradients stay what they are */
    while (known < end && memcmp(&known->shape, &shape, sizeof shape) != 0)
        known++;
    if (known == end) {
        /* Where documents are dealt, each batch has another number of rows. The oldest goes: what
         * it was for has been enqueued. */
        if (products->count < MOST_KNOWN) {
            products->count++;
        } else {
            known = &products->known[products->oldest];
            products->oldest = (products->oldest + 1) % MOST_KNOWN;
            forget(known);
        }
        memset(known, 0, sizeof *known);
        known->shape = shape;
        if (!look_up(products, known))
            return false;
    }
    const float one = 1, beta = c ? 1 : 0;
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    if (bias)
        code = cublasLtMatmulDescSetAttribute(known->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                              &bias, sizeof bias);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmul(products->handle, known->product, &one, a, known->a, b, known->b,
                              &beta, c ? c : d, known->d, d, known->d, &known->algorithm,
                              products->workspace, WORKSPACE, products->stream);
    return code == CUBLAS_STATUS_SUCCESS || fail(products, &shape, "cublasLtMatmul", code);
}

bool ra_products_forward(struct ra_products *products, int64_t rows, int64_t in, int64_t out,
                         const void *x, const void *weight, const void *bias, const float *base,
                         bool wide, void *y)
{
    struct shape shape = {.m = out,
                          .n = rows,
                          .k = in,
                          .a = in,
                          .b = in,
                          .d = out,
                          .a_transposed = true,
                          .wide = wide};
    return multiply(products, shape, weight, x, bias, base, y);
}

bool ra_products_d_weight(struct ra_products *products, int64_t rows, int64_t in, int64_t out,
                          const void *x, const void *dy, int64_t stride, bool add, float *d_weight)
{
    struct shape shape = {.m = in,
                          .n = out,
                          .k = rows,
                          .a = in,
                          .b = stride,
                          .d = in,
                          .b_transposed = true,
                          .wide = true};
    return multiply(products, shape, x, dy, NULL, add ? d_weight : NULL, d_weight);
}

bool ra_products_d_x(struct ra_products *products, int64_t rows, int64_t in, int64_t out,
                     const void *weight, const void *dy, int64_t stride, void *dx)
{
    struct shape shape = {.m = in, .n = rows, .k = out, .a = in, .b = stride, .d = in};
    return multiply(products, shape, weight, dy, NULL, NULL, dx);
}
