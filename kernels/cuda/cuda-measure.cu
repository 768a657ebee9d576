/* cuda-measure.cu: the ceilings of this device, measured: reading memory, and bf16 matrix products.
 *
 * Reading: every SM reads a buffer of 2 GiB (less where less is free, but far more than any L2 cache) once, 16 bytes a
 * load and eight loads in flight a thread; the best of ten. On an H200 2 GiB take 0.52 ms at 4.13 TB/s.
 * Products: [8192, 8192] times [8192, 8192] by cublasLt on random numbers (a product of zeros draws less power and so
 * runs faster); the best of ten. 1.1 TFLOP, 1.4 ms at 790 TFLOP/s; 403 MB.
 * Both take milliseconds; cublasLt's opening is the longer part. Engine thread, nothing else running on the device. */
#include "kernels/cuda/cuda-backend.h"

#define READ_BYTES       (2ull << 30)
#define READ_BYTES_MIN   (256ull << 20)
#define READ_THREADS     512u
#define READ_LOADS       8u
#define READ_BLOCKS_A_SM 2u /* all resident, each with the same number of pieces */
#define PRODUCT_SIZE     8192u
#define N_RUNS           10

/* Block b reads pieces b, b + gridDim, ... of READ_THREADS * READ_LOADS quads; n is a multiple of that. */
__global__ void __launch_bounds__(READ_THREADS, READ_BLOCKS_A_SM)
    read_all(const uint4 *in, uint64_t n, uint32_t *out)
{
    const uint64_t piece = READ_THREADS * READ_LOADS;
    uint32_t sum = 0;
    for (uint64_t begin = blockIdx.x * piece; begin < n; begin += gridDim.x * piece) {
        uint4 v[READ_LOADS];
#pragma unroll
        for (uint32_t j = 0; j < READ_LOADS; j++)
            v[j] = __ldcs(&in[begin + j * READ_THREADS + threadIdx.x]);
#pragma unroll
        for (uint32_t j = 0; j < READ_LOADS; j++)
            sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x9e3779b9u) /* so that the loads have a use */
        *out = sum;
}

/* Uniform in [-1, 1). */
__global__ void fill_random(qkc_bf16 *out, uint64_t n, uint32_t seed)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t h = ((uint32_t)i ^ seed) * 0x9e3779b1u;
        h = (h ^ (h >> 15)) * 0x85ebca77u;
        h ^= h >> 13;
        out[i] = __float2bfloat16((float)(int32_t)(h * 0xc2b2ae3du) * (1.0f / 2147483648.0f));
    }
}

/* Milliseconds of the fastest of N_RUNS calls of run(), after one that does not count; 0 with *code set. */
template <typename F> static double best_ms(qkc_backend *self, cudaError_t *code, F run)
{
    cudaStream_t stream = self->streams[QK_STREAM_COMPUTE];
    cudaEvent_t begin = NULL, end = NULL;
    float best = 0;
    *code = cudaEventCreate(&begin);
    if (*code == cudaSuccess)
        *code = cudaEventCreate(&end);
    for (int i = -1; i < N_RUNS && *code == cudaSuccess; i++) {
        float ms = 0;
        *code = cudaEventRecord(begin, stream);
        if (*code == cudaSuccess && !run())
            *code = cudaErrorNotSupported;
        if (*code == cudaSuccess)
            *code = cudaEventRecord(end, stream);
        if (*code == cudaSuccess)
            *code = cudaEventSynchronize(end);
        if (*code == cudaSuccess)
            *code = cudaEventElapsedTime(&ms, begin, end);
        if (i >= 0 && (best == 0 || ms < best))
            best = ms;
    }
    if (begin != NULL)
        cudaEventDestroy(begin);
    if (end != NULL)
        cudaEventDestroy(end);
    return best;
}

static qk_status measure_read(qkc_backend *self, double *out)
{
    const unsigned n_blocks = (unsigned)self->n_sms * READ_BLOCKS_A_SM;
    const uint64_t unit = (uint64_t)n_blocks * READ_THREADS * READ_LOADS * sizeof(uint4);
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t code = cudaMemGetInfo(&free_bytes, &total_bytes);
    uint64_t bytes = READ_BYTES < free_bytes / 2 ? READ_BYTES : free_bytes / 2;
    if (code != cudaSuccess)
        return qkc_fail(self, QK_UNSUPPORTED, code, "measure: free memory");
    if (bytes < READ_BYTES_MIN)
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess,
            "measure: %llu bytes of GPU memory are free, expected at least %llu",
            (unsigned long long)free_bytes, 2 * READ_BYTES_MIN);
    bytes = bytes / unit * unit;
    void *data = NULL;
    code = cudaMalloc(&data, bytes + sizeof(uint4));
    if (code != cudaSuccess)
        return qkc_fail_memory(self, code, "measure", bytes);
    cudaStream_t stream = self->streams[QK_STREAM_COMPUTE];
    code = cudaMemsetAsync(data, 0x5a, bytes + sizeof(uint4), stream);
    double ms = 0;
    if (code == cudaSuccess)
        ms = best_ms(self, &code, [&] {
            read_all<<<n_blocks, READ_THREADS, 0, stream>>>(
                (const uint4 *)data, bytes / sizeof(uint4), (uint32_t *)((char *)data + bytes));
            return cudaPeekAtLastError() == cudaSuccess;
        });
    cudaFree(data);
    if (code != cudaSuccess || ms <= 0)
        return qkc_fail(self, QK_UNSUPPORTED, code, "measure: reading %llu bytes", (unsigned long long)bytes);
    *out = (double)bytes / (ms * 1e-3);
    return QK_OK;
}

/* @block: x, w and y, then cublasLt's workspace. */
static qk_status time_product(qkc_backend *self, qkc_gemm *gemm, char *block, double *out)
{
    const uint64_t n = (uint64_t)PRODUCT_SIZE * PRODUCT_SIZE, matrix_bytes = n * sizeof(qkc_bf16);
    cudaStream_t stream = self->streams[QK_STREAM_COMPUTE];
    qkc_gemm_args args = {};
    args.x = (const qkc_bf16 *)block;
    args.w = (const qkc_bf16 *)(block + matrix_bytes);
    args.y = block + 2 * matrix_bytes;
    args.y_dtype = QK_BF16;
    args.n_rows = args.n_out = args.n_in = PRODUCT_SIZE;
    fill_random<<<(unsigned)self->n_sms * 8, 256, 0, stream>>>((qkc_bf16 *)block, n, 0x1234567u);
    fill_random<<<(unsigned)self->n_sms * 8, 256, 0, stream>>>(
        (qkc_bf16 *)(block + matrix_bytes), n, 0x89abcdefu);
    cudaError_t code = cudaGetLastError();
    qk_status status = QK_OK;
    double ms = 0;
    if (code == cudaSuccess)
        ms = best_ms(self, &code, [&] {
            status = qkc_gemm_run(gemm, stream, block + 3 * matrix_bytes, &args);
            return status == QK_OK;
        });
    if (status != QK_OK)
        return status; /* with its own line */
    if (code != cudaSuccess || ms <= 0)
        return qkc_fail(
            self, QK_UNSUPPORTED, code, "measure: a product of %u x %u", PRODUCT_SIZE, PRODUCT_SIZE);
    *out = 2.0 * PRODUCT_SIZE * (double)n / (ms * 1e-3);
    return QK_OK;
}

static qk_status measure_products(qkc_backend *self, double *out)
{
    const uint64_t bytes = 3ull * PRODUCT_SIZE * PRODUCT_SIZE * sizeof(qkc_bf16) + QKC_GEMM_WORKSPACE_BYTES;
    qkc_gemm *gemm = NULL;
    void *block = NULL;
    qk_status status = qkc_gemm_new(self, &gemm);
    if (status == QK_OK)
        status = qkc_gemm_prepare(gemm, PRODUCT_SIZE, PRODUCT_SIZE, PRODUCT_SIZE, QK_BF16, false);
    if (status == QK_OK) {
        cudaError_t code = cudaMalloc(&block, bytes);
        status = code == cudaSuccess ? time_product(self, gemm, (char *)block, out)
                                     : qkc_fail_memory(self, code, "measure", bytes);
    }
    if (block != NULL)
        cudaFree(block);
    if (gemm != NULL)
        qkc_gemm_free(gemm);
    return status;
}

qk_status qkc_measure(qk_backend *backend, qk_measure what, double *out)
{
    qkc_backend *self = (qkc_backend *)backend;
    if (qkc_refuse(self))
        return QK_DEVICE_LOST;
    cudaError_t code = cudaSetDevice(self->device);
    if (code != cudaSuccess)
        return qkc_fail(self, QK_UNSUPPORTED, code, "selecting %s", self->name);
    return what == QK_MEASURE_READ_BYTES_PER_S ? measure_read(self, out) : measure_products(self, out);
}
