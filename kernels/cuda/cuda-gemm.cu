/* cuda-gemm.cu: large matrix products by cublasLt, which is opened at run time.
 *
 *   y[n_rows, n_out] = x[n_rows, n_in] w[n_out, n_in]^T       (+ y)
 *
 * cublasLt thinks in columns: a row-major matrix is its transpose, so y^T[n_out, n_rows] = w x^T with w as the column
 * matrix [n_in, n_out], transposed, and x as the column matrix [n_in, n_rows], as it is.
 *
 * Invariants
 *  1. Row counts are rounded up, by less than QKC_GEMM_ROWS_UNIT, and a kind of product (n_out, n_in, type, add) has one
 *     algorithm for each rounded count, chosen by cublasLt's heuristic in qkc_gemm_prepare(). So qkc_gemm_run() asks for nothing
 *     and allocates nothing, and the same shape is always computed by the same algorithm.
 *  2. The rows between n_rows and the rounded count are read and written: x and y must have room for them. What they
 *     hold is left as it is found, stale or not a number: row r of y depends on row r of x alone.
 *  3. Sums are float32 in an order that the algorithm fixes. Split sums are allowed only with a separate reduction of
 *     float32 parts out of the workspace; reduction in place, which depends on who comes first, is not.
 *  4. Pointers need 16-byte alignment, no more.
 *  5. The library stays loaded: its kernels belong to the context, not to this object.
 *
 * FLOPs: 2 n_rows n_out n_in. The reference layer at 2,048 rows: QKV 64 GFLOP, O 43, gate and up 204, down 102: 413
 * GFLOP, 0.52 ms at 790 TFLOP/s (H200), 18.8 ms for 36 layers. Below about 190 rows reading the weights is the floor:
 * 202 MB a layer, 48 us at 4.2 TB/s.
 *
 * Choosing costs one heuristic query (tens of microseconds) a kind and rounded count: 41 of each kind for 2,048 rows,
 * 137 for 8,192. Engine thread. */
#include "kernels/cuda/cuda-backend.h"
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT_BYTES 16u

typedef struct {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetStatusName) status_name;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
} cublas_fns;

/* One rounded row count of a kind. */
typedef struct {
    cublasLtMatrixLayout_t x, y;
    cublasLtMatmulAlgo_t algo;
    bool is_first; /* no smaller row count of the kind has the same algorithm */
} entry;

typedef struct {
    uint32_t n_out, n_in;
    qk_dtype y_dtype;
    bool add;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w;
    entry *entries; /* [n_entries]: number i is for rows_of(i) rows */
    uint32_t n_entries;
} kind;

struct qkc_gemm {
    qkc_backend *backend;
    cublas_fns fns;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    kind *kinds; /* [n_kinds] */
    uint32_t n_kinds;
};

static qk_status fail(qkc_gemm *self, cublasStatus_t status, const char *what, uint32_t n_rows, const kind *k)
{
    const char *name = self->fns.status_name(status);
    cudaError_t code = cudaGetLastError();
    return qkc_fail(self->backend, status == CUBLAS_STATUS_ALLOC_FAILED ? QK_NO_MEMORY : QK_UNSUPPORTED, code,
        "cublasLt: %s for [%u, %u] x [%u, %u]^T to %s: %s", what, n_rows, k != NULL ? k->n_in : 0,
        k != NULL ? k->n_out : 0, k != NULL ? k->n_in : 0, k != NULL && k->y_dtype == QK_F32 ? "f32" : "bf16",
        name != NULL ? name : "unknown status");
}

/* ---- The library --------------------------------------------------------------------------------------------- */

static void *open_library(void)
{
    static const char *const names[] = {
        "libcublasLt.so.13",
        "libcublasLt.so.12",
        "libcublasLt.so",
        "/usr/local/cuda/lib64/libcublasLt.so.13",
        "/usr/local/cuda/lib64/libcublasLt.so.12",
        "/usr/local/cuda/lib64/libcublasLt.so",
    };
    void *library = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* Returns the name of the first function that is missing, or NULL. */
static const char *find_functions(void *library, cublas_fns *fns)
{
    const struct {
        const char *name;
        void **fn;
    } table[] = {
        {"cublasLtCreate", (void **)&fns->create},
        {"cublasLtDestroy", (void **)&fns->destroy},
        {"cublasLtGetStatusName", (void **)&fns->status_name},
        {"cublasLtMatmul", (void **)&fns->matmul},
        {"cublasLtMatmulAlgoGetHeuristic", (void **)&fns->get_heuristic},
        {"cublasLtMatmulDescCreate", (void **)&fns->desc_create},
        {"cublasLtMatmulDescDestroy", (void **)&fns->desc_destroy},
        {"cublasLtMatmulDescSetAttribute", (void **)&fns->desc_set},
        {"cublasLtMatmulPreferenceCreate", (void **)&fns->preference_create},
        {"cublasLtMatmulPreferenceDestroy", (void **)&fns->preference_destroy},
        {"cublasLtMatmulPreferenceSetAttribute", (void **)&fns->preference_set},
        {"cublasLtMatrixLayoutCreate", (void **)&fns->layout_create},
        {"cublasLtMatrixLayoutDestroy", (void **)&fns->layout_destroy},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        *table[i].fn = dlsym(library, table[i].name);
        if (*table[i].fn == NULL)
            return table[i].name;
    }
    return NULL;
}

static cublasStatus_t make_preference(qkc_gemm *self)
{
    const cublas_fns *f = &self->fns;
    const uint64_t workspace = QKC_GEMM_WORKSPACE_BYTES;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = ALIGNMENT_BYTES;
    const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasStatus_t status = f->preference_create(&self->preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = f->preference_set(
            self->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = f->preference_set(
            self->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction));
    for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]) && status == CUBLAS_STATUS_SUCCESS; i++)
        status = f->preference_set(self->preference, alignments[i], &alignment, sizeof(alignment));
    return status;
}

qk_status qkc_gemm_new(qkc_backend *backend, qkc_gemm **out)
{
    void *library = open_library();
    if (library == NULL)
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
            "cuBLAS is missing: neither libcublasLt.so.13 nor libcublasLt.so.12 can be opened; install "
            "CUDA's "
            "libcublas for this driver");
    qkc_gemm *self = (qkc_gemm *)calloc(1, sizeof(*self));
    if (self == NULL)
        return qkc_fail(backend, QK_NO_MEMORY, cudaSuccess, "cublasLt: no memory");
    self->backend = backend;
    const char *missing = find_functions(library, &self->fns);
    if (missing != NULL) {
        free(self);
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
            "cuBLAS is too old: libcublasLt has no function %s; install libcublas of CUDA 12 or newer",
            missing);
    }
    cublasStatus_t status = self->fns.create(&self->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_preference(self);
    if (status != CUBLAS_STATUS_SUCCESS) {
        qk_status result = fail(self, status, "starting", 0, NULL);
        qkc_gemm_free(self);
        return result;
    }
    *out = self;
    return QK_OK;
}

static void clear_kind(qkc_gemm *self, kind *k)
{
    for (uint32_t i = 0; i < k->n_entries; i++) {
        if (k->entries[i].x != NULL)
            self->fns.layout_destroy(k->entries[i].x);
        if (k->entries[i].y != NULL)
            self->fns.layout_destroy(k->entries[i].y);
    }
    free(k->entries);
    if (k->w != NULL)
        self->fns.layout_destroy(k->w);
    if (k->desc != NULL)
        self->fns.desc_destroy(k->desc);
    *k = {};
}

void qkc_gemm_free(qkc_gemm *self)
{
    if (self == NULL)
        return;
    for (uint32_t i = 0; i < self->n_kinds; i++)
        clear_kind(self, &self->kinds[i]);
    free(self->kinds);
    if (self->preference != NULL)
        self->fns.preference_destroy(self->preference);
    /* A lost device's handle goes with its context. */
    if (self->handle != NULL && !qkc_is_lost(self->backend))
        self->fns.destroy(self->handle);
    free(self);
}

/* ---- Choosing ------------------------------------------------------------------------------------------------ */

/* Row counts that have algorithms: 64; from there on every 16 rows up to 256, where a product takes longer by steps of its
 * tiles' width (an H200, a layer of the reference model: 78 us for 128 rows, 93 for 192); then every 64. */
#define FINE_ROWS  16u
#define FINE_END   256u
#define FINE_COUNT ((FINE_END - QKC_GEMM_ROWS_UNIT) / FINE_ROWS)

static uint32_t rows_of(uint32_t index)
{
    return index <= FINE_COUNT ? QKC_GEMM_ROWS_UNIT + index * FINE_ROWS
                               : FINE_END + (index - FINE_COUNT) * QKC_GEMM_ROWS_UNIT;
}

/* The entry for @n_rows > 0: the first with so many rows or more. */
static uint32_t entry_of(uint32_t n_rows)
{
    if (n_rows <= QKC_GEMM_ROWS_UNIT)
        return 0;
    return n_rows <= FINE_END ? (n_rows - QKC_GEMM_ROWS_UNIT - 1) / FINE_ROWS + 1
                              : (n_rows - FINE_END - 1) / QKC_GEMM_ROWS_UNIT + 1 + FINE_COUNT;
}

static kind *find_kind(qkc_gemm *self, uint32_t n_out, uint32_t n_in, qk_dtype y_dtype, bool add)
{
    for (uint32_t i = 0; i < self->n_kinds; i++) {
        kind *k = &self->kinds[i];
        if (k->n_out == n_out && k->n_in == n_in && k->y_dtype == y_dtype && k->add == add)
            return k;
    }
    return NULL;
}

static cublasStatus_t fill_kind(qkc_gemm *self, kind *k)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t status = self->fns.desc_create(&k->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = self->fns.desc_set(k->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = self->fns.layout_create(&k->w, CUDA_R_16BF, k->n_in, k->n_out, k->n_in);
    return status;
}

static qk_status add_kind(
    qkc_gemm *self, uint32_t n_out, uint32_t n_in, qk_dtype y_dtype, bool add, kind **out)
{
    kind *kinds = (kind *)realloc(self->kinds, (self->n_kinds + 1) * sizeof(*kinds));
    if (kinds == NULL)
        return qkc_fail(self->backend, QK_NO_MEMORY, cudaSuccess, "cublasLt: no memory");
    self->kinds = kinds;
    kind *k = &kinds[self->n_kinds];
    *k = {};
    k->n_out = n_out, k->n_in = n_in, k->y_dtype = y_dtype, k->add = add;
    cublasStatus_t status = fill_kind(self, k);
    if (status != CUBLAS_STATUS_SUCCESS) {
        qk_status result = fail(self, status, "describing a product", 0, k);
        clear_kind(self, k);
        return result;
    }
    self->n_kinds++;
    *out = k;
    return QK_OK;
}

static cublasStatus_t fill_entry(qkc_gemm *self, kind *k, uint32_t index)
{
    const cudaDataType_t y_type = k->y_dtype == QK_F32 ? CUDA_R_32F : CUDA_R_16BF;
    const uint64_t n_rows = rows_of(index);
    entry *e = &k->entries[index];
    cublasStatus_t status = self->fns.layout_create(&e->x, CUDA_R_16BF, k->n_in, n_rows, k->n_in);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = self->fns.layout_create(&e->y, y_type, k->n_out, n_rows, k->n_out);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    cublasLtMatmulHeuristicResult_t found = {};
    int n_found = 0;
    status = self->fns.get_heuristic(
        self->handle, k->desc, k->w, e->x, e->y, e->y, self->preference, 1, &found, &n_found);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (n_found == 0 || found.state != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    e->algo = found.algo;
    e->is_first = true;
    for (uint32_t i = 0; i < index && e->is_first; i++)
        e->is_first = memcmp(&k->entries[i].algo, &e->algo, sizeof(e->algo)) != 0;
    return CUBLAS_STATUS_SUCCESS;
}

qk_status qkc_gemm_prepare(
    qkc_gemm *self, uint32_t rows_max, uint32_t n_out, uint32_t n_in, qk_dtype y_dtype, bool add)
{
    kind *k = find_kind(self, n_out, n_in, y_dtype, add);
    if (k == NULL) {
        qk_status status = add_kind(self, n_out, n_in, y_dtype, add, &k);
        if (status != QK_OK)
            return status;
    }
    const uint32_t n = rows_max > 0 ? entry_of(rows_max) + 1 : 0;
    if (n <= k->n_entries)
        return QK_OK;
    entry *entries = (entry *)realloc(k->entries, n * sizeof(*entries));
    if (entries == NULL)
        return qkc_fail(self->backend, QK_NO_MEMORY, cudaSuccess, "cublasLt: no memory for %u algorithms", n);
    memset(entries + k->n_entries, 0, (n - k->n_entries) * sizeof(*entries));
    k->entries = entries;
    for (uint32_t i = k->n_entries; i < n; i++) {
        cublasStatus_t status = fill_entry(self, k, i);
        if (status != CUBLAS_STATUS_SUCCESS) {
            if (entries[i].x != NULL)
                self->fns.layout_destroy(entries[i].x);
            if (entries[i].y != NULL)
                self->fns.layout_destroy(entries[i].y);
            return fail(self, status, "no algorithm", rows_of(i), k);
        }
        k->n_entries = i + 1;
    }
    return QK_OK;
}

/* ---- Running ------------------------------------------------------------------------------------------------- */

static qk_status run_entry(qkc_gemm *self, cudaStream_t stream, void *workspace, const qkc_gemm_args *args,
    const kind *k, uint32_t index)
{
    const entry *e = &k->entries[index];
    const float one = 1, beta = args->add ? 1 : 0;
    cublasStatus_t status = self->fns.matmul(self->handle, k->desc, &one, args->w, k->w, args->x, e->x, &beta,
        args->y, e->y, args->y, e->y, &e->algo, workspace, QKC_GEMM_WORKSPACE_BYTES, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return fail(self, status, "a product", rows_of(index), k);
    return QK_OK;
}

qk_status qkc_gemm_run(qkc_gemm *self, cudaStream_t stream, void *workspace, const qkc_gemm_args *args)
{
    if (args->n_rows == 0)
        return QK_OK;
    const kind *k = find_kind(self, args->n_out, args->n_in, args->y_dtype, args->add);
    const uint32_t index = entry_of(args->n_rows);
    if (k == NULL || index >= k->n_entries)
        return qkc_fail(self->backend, QK_INVALID, cudaSuccess,
            "cublasLt: a product of %u rows [%u, %u], for which nothing was prepared", args->n_rows,
            args->n_out, args->n_in);
    return run_entry(self, stream, workspace, args, k, index);
}

qk_status qkc_gemm_warm(qkc_gemm *self, cudaStream_t stream, void *workspace, const qkc_gemm_args *args)
{
    const kind *k = find_kind(self, args->n_out, args->n_in, args->y_dtype, args->add);
    const uint32_t n = args->n_rows > 0 ? entry_of(args->n_rows) + 1 : 0;
    qk_status status = QK_OK;
    for (uint32_t i = 0; k != NULL && i < n && i < k->n_entries && status == QK_OK; i++)
        if (k->entries[i].is_first)
            status = run_entry(self, stream, workspace, args, k, i);
    return status;
}
