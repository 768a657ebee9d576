/* test-gpu-backend.cu: the CUDA backend through its table: devices, buffers, copies, fills, events, running out of
 * memory, loading and giving up a model, and losing the device to a kernel that traps, with a fresh start after it.
 *
 * `--bench`: the load of an 8 GB model from a file in the page cache, with several tunings, and the ceilings. */
#include "kernels/cuda/cuda-backend.h"
#include "kernels/cuda/qk-cuda.h"
#include "tests/gpu/gpu-test.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <string>
#include <thread>

extern "C" const qk_cuda_module_table *qk_cuda_module(void);

static double now_s()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static qk_backend *open_backend(const char *isa = NULL, const char *device = NULL)
{
    qk_backend_options options = {};
    options.isa = isa;
    options.device = device;
    qk_backend *backend = NULL;
    char error[256] = "";
    if (qk_cuda_module()->open(&options, &backend, error, sizeof(error)) != QK_OK) {
        printf("Bail out! open: %s\n", error);
        exit(1);
    }
    return backend;
}

static qkc_backend *inside(qk_backend *backend)
{
    return (qkc_backend *)backend;
}

static bool has(const char *text, const char *words)
{
    return strstr(text, words) != NULL;
}

/* ---- Devices ------------------------------------------------------------------------------------------------- */

/* Whether this process has a context on device 0. */
static bool has_context()
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    tap_require(library != NULL);
    int (*state)(int, unsigned *, int *) =
        (int (*)(int, unsigned *, int *))dlsym(library, "cuDevicePrimaryCtxGetState");
    unsigned flags = 0;
    int active = 0;
    tap_require(state != NULL && state(0, &flags, &active) == 0);
    return active != 0;
}

static void test_devices()
{
    qk_probe probe = {};
    qk_device devices[QKC_DEVICES_MAX] = {};
    double begin = now_s();
    qk_cuda_module()->probe(&probe);
    size_t n = qk_cuda_module()->list_devices(devices, QKC_DEVICES_MAX);
    tap_note("probe and list: %.0f ms", (now_s() - begin) * 1e3);
    begin = now_s();
    qk_cuda_module()->probe(&probe);
    tap_note("probe again: %.1f ms", (now_s() - begin) * 1e3);
    tap_ok(
        probe.available && probe.reason[0] == '\0' && probe.device[0] != '\0', "available: %s", probe.device);
    tap_ok(!has_context(), "looking makes no context");
    bool ok = n >= 1;
    for (size_t i = 0; i < n; i++) {
        const qk_device *d = &devices[i];
        tap_note("%zu: %s %s, %.1f of %.1f GiB free, %u.%u %s", i, d->id, d->name,
            (double)d->memory_free / (1 << 30), (double)d->memory_total / (1 << 30), d->capability / 10,
            d->capability % 10, d->reason);
        ok = ok && (strncmp(d->id, "GPU-", 4) == 0 || strncmp(d->id, "MIG-", 4) == 0) && strlen(d->id) == 40;
        ok = ok && d->memory_total > 0 && d->memory_free <= d->memory_total &&
             d->usable == (d->reason[0] == '\0');
    }
    tap_ok(ok, "%zu devices with id, memory and verdict", n);
    tap_ok(qk_cuda_module()->list_devices(devices, 0) == n, "counting needs no room");

    const char *wrong[] = {"99", "GPU-00000000-0000-0000-0000-000000000000", "-1", "0x0", ""};
    for (const char *id : wrong) {
        qk_backend_options options = {};
        qk_backend *backend = NULL;
        char error[256] = "";
        options.device = id;
        qk_status status = qk_cuda_module()->open(&options, &backend, error, sizeof(error));
        tap_ok(status == QK_UNSUPPORTED && backend == NULL && has(error, devices[0].name), "\"%s\": %s", id,
            error);
    }
    tap_ok(!has_context(), "refusing makes no context");

    qk_backend *backend = open_backend(NULL, devices[0].id);
    qk_backend_free(backend);
    backend = open_backend(NULL, "0");
    qk_backend_free(backend);
    tap_ok(true, "a device opens by id and by index");
}

static void test_isa()
{
    qk_backend *backend = open_backend();
    const qkc_backend *self = inside(backend);
    const int capability = self->capability;
    tap_ok(self->pdl == (capability >= 90) && self->hopper == (capability == 90) && self->n_sms > 0,
        "the best kernels for %d.%d, %d SMs", capability / 10, capability % 10, self->n_sms);
    qk_backend_free(backend);
    backend = open_backend("portable");
    tap_ok(!inside(backend)->pdl && !inside(backend)->hopper, "portable: neither PDL nor Hopper's");
    qk_backend_free(backend);
    const char *wanted[] = {"hopper", "avx2"};
    for (const char *isa : wanted) {
        qk_backend_options options = {};
        char error[256] = "";
        options.isa = isa;
        backend = NULL;
        qk_status status = qk_cuda_module()->open(&options, &backend, error, sizeof(error));
        bool there = strcmp(isa, "hopper") == 0 && capability == 90;
        tap_ok(
            there ? status == QK_OK : status == QK_UNSUPPORTED && has(error, isa), "isa %s: %s", isa, error);
        qk_backend_free(backend);
    }
}

/* ---- Memory -------------------------------------------------------------------------------------------------- */

static qk_buffer *new_buffer(qk_backend *backend, qk_memory memory, uint64_t bytes)
{
    qk_buffer *buffer = NULL;
    if (qk_buffer_new(backend, memory, bytes, &buffer) != QK_OK) {
        printf("Bail out! buffer: %s\n", qk_backend_error(backend));
        exit(1);
    }
    return buffer;
}

static void wait_for(qk_backend *backend, qk_stream stream)
{
    qk_event *event = NULL;
    tap_require(qk_event_new(backend, &event) == QK_OK);
    tap_require(qk_event_record(event, stream) == QK_OK && qk_event_wait(event) == QK_OK);
    tap_require(qk_event_query(event) == QK_OK);
    qk_event_free(event);
}

/* Pieces of random size, some adjacent, some not, there and back. */
static void test_copies(qk_backend *backend, uint64_t seed)
{
    const uint64_t bytes = (1 << 20) + 12;
    Random random(seed);
    qk_buffer *from = new_buffer(backend, QK_MEMORY_HOST, bytes),
              *to = new_buffer(backend, QK_MEMORY_HOST, bytes);
    qk_buffer *a = new_buffer(backend, QK_MEMORY_DEVICE, bytes),
              *b = new_buffer(backend, QK_MEMORY_DEVICE, bytes);
    tap_ok(a->host == NULL && from->host != NULL && a->address % 64 == 0 && from->address % 64 == 0 &&
               a->address != 0,
        "buffers: device memory has no host address, all are aligned");
    uint8_t *src = (uint8_t *)from->host, *dst = (uint8_t *)to->host;
    for (uint64_t i = 0; i < bytes; i++)
        src[i] = (uint8_t)random.next();
    memset(dst, 0, bytes);

    std::vector<qk_copy> up, across, down;
    std::vector<uint8_t> expected(bytes, 0);
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = std::min<uint64_t>(random.below(5000), bytes - at); /* 0 too */
        uint64_t gap = random.below(3) == 0 ? std::min<uint64_t>(random.below(100), bytes - at - n) : 0;
        up.push_back({a, at, from, at, n});
        across.push_back({b, at, a, at, n});
        down.push_back({to, at, b, at, n});
        memcpy(&expected[at], &src[at], n);
        at += n + gap;
    }
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_DEVICE, up.data(), (uint32_t)up.size()) == QK_OK);
    wait_for(backend, QK_STREAM_TO_DEVICE);
    tap_require(qk_copy_submit(backend, QK_STREAM_COMPUTE, across.data(), (uint32_t)across.size()) == QK_OK);
    wait_for(backend, QK_STREAM_COMPUTE);
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_HOST, down.data(), (uint32_t)down.size()) == QK_OK);
    wait_for(backend, QK_STREAM_TO_HOST);
    tap_ok(memcmp(dst, expected.data(), bytes) == 0, "%zu copies up, across and down", up.size());

    qk_copy within = {to, 100, from, 7, 1000};
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_HOST, &within, 1) == QK_OK);
    wait_for(backend, QK_STREAM_TO_HOST);
    tap_ok(memcmp(dst + 100, src + 7, 1000) == 0, "a copy within host memory");
    qk_copy outside = {a, bytes - 4, from, 0, 5};
    tap_ok(qk_copy_submit(backend, QK_STREAM_TO_DEVICE, &outside, 1) == QK_INVALID, "past the end: refused");
    tap_ok(qk_copy_submit(backend, QK_STREAM_TO_DEVICE, NULL, 0) == QK_OK, "no copies at all");
    qk_buffer_free(from);
    qk_buffer_free(to);
    qk_buffer_free(a);
    qk_buffer_free(b);
}

/* Fills at every alignment and of every small size, and a large one; neighbours stay. */
static void test_fills(qk_backend *backend, qk_memory memory)
{
    const uint64_t n_words = 1 << 16;
    qk_buffer *buffer = new_buffer(backend, memory, n_words * 4),
              *back = new_buffer(backend, QK_MEMORY_HOST, n_words * 4);
    std::vector<uint32_t> expected(n_words, 0xffffffffu);
    tap_require(qk_fill_submit(backend, QK_STREAM_COMPUTE, buffer, 0, n_words * 4, 0xffffffffu) == QK_OK);
    uint64_t at = 0;
    uint32_t word = 0x01020304;
    for (uint32_t align = 0; align < 4; align++) {
        for (uint32_t n = 0; n < 20; n++, word += 0x01010101) {
            uint64_t begin = at + align + 4;
            tap_require(qk_fill_submit(backend, QK_STREAM_COMPUTE, buffer, begin * 4, n * 4, word) == QK_OK);
            std::fill_n(expected.begin() + (long)begin, n, word);
            at += 32;
        }
    }
    const uint64_t begin = 8001, n = 40002;
    tap_require(begin > at);
    tap_require(qk_fill_submit(backend, QK_STREAM_COMPUTE, buffer, begin * 4, n * 4, 0x7fc00001u) == QK_OK);
    std::fill_n(expected.begin() + (long)begin, n, 0x7fc00001u);
    qk_copy copy = {back, 0, buffer, 0, n_words * 4};
    tap_require(qk_copy_submit(backend, QK_STREAM_COMPUTE, &copy, 1) == QK_OK);
    wait_for(backend, QK_STREAM_COMPUTE);
    tap_ok(memcmp(back->host, expected.data(), n_words * 4) == 0, "fills of %s memory",
        memory == QK_MEMORY_HOST ? "host" : "device");
    qk_buffer_free(buffer);
    qk_buffer_free(back);
}

static void test_no_memory(qk_backend *backend)
{
    qk_backend_info info;
    qk_buffer *buffer = NULL;
    qk_backend_get_info(backend, &info);
    qk_status status = qk_buffer_new(backend, QK_MEMORY_DEVICE, info.memory_total * 10, &buffer);
    const char *error = qk_backend_error(backend);
    tap_ok(status == QK_NO_MEMORY && buffer == NULL && has(error, "GiB") && has(error, "free") &&
               has(error, "lower"),
        "ten times the card: %s", error);
    status = qk_buffer_new(backend, QK_MEMORY_HOST, 1ull << 50, &buffer);
    error = qk_backend_error(backend);
    tap_ok(status == QK_NO_MEMORY && buffer == NULL && has(error, "host memory") && has(error, "lower"),
        "a PiB of host memory: %s", error);
    status = qk_buffer_new(backend, QK_MEMORY_DEVICE, UINT64_MAX, &buffer);
    tap_ok(status == QK_NO_MEMORY && buffer == NULL, "as many bytes as there are numbers");
    buffer = new_buffer(backend, QK_MEMORY_DEVICE, 1 << 20);
    qk_buffer_free(buffer);
    tap_ok(!qkc_is_lost(inside(backend)), "the next allocation works");
}

static void test_info(qk_backend *backend)
{
    qk_backend_info before, after;
    qk_backend_get_info(backend, &before);
    qk_buffer *buffer = new_buffer(backend, QK_MEMORY_DEVICE, 1ull << 30);
    usleep(300000); /* NVML's figures are read four times a second */
    qk_backend_get_info(backend, &after);
    tap_note("%s: %.2f of %.2f GiB free, process %.3f GiB, %d%%", after.device,
        (double)after.memory_free / (1 << 30), (double)after.memory_total / (1 << 30),
        (double)after.memory_process / (1 << 30), after.utilization);
    tap_ok(strcmp(after.name, "cuda") == 0 && !after.is_host && after.device[0] != '\0' &&
               after.memory_total > 0,
        "name and memory");
    tap_ok(before.memory_free >= after.memory_free + (1ull << 30) - (64ull << 20),
        "an allocation shows in free memory");
    tap_ok(after.utilization >= -1 && after.utilization <= 100, "utilisation");
    if (after.memory_process == 0)
        tap_skip("NVML does not tell what this process holds");
    else
        tap_ok(after.memory_process >= 1ull << 30, "what this process holds: %llu MiB",
            (unsigned long long)after.memory_process >> 20);
    qk_buffer_free(buffer);
}

/* ---- Events -------------------------------------------------------------------------------------------------- */

/* Waits for the host's word, ten seconds at most, then writes. */
__global__ void wait_then_write(const volatile uint32_t *gate, uint32_t *out, uint32_t value)
{
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*gate == 0 && now - begin < 10000000000ull);
    *out = value;
}

static void test_events(qk_backend *backend)
{
    qk_buffer *gate = new_buffer(backend, QK_MEMORY_HOST, 64),
              *back = new_buffer(backend, QK_MEMORY_HOST, 64);
    qk_buffer *value = new_buffer(backend, QK_MEMORY_DEVICE, 64);
    volatile uint32_t *open_gate = (volatile uint32_t *)gate->host;
    qk_event *done = NULL, *copied = NULL;
    tap_require(qk_event_new(backend, &done) == QK_OK && qk_event_new(backend, &copied) == QK_OK);
    *open_gate = 0;
    *(uint32_t *)back->host = 0;
    wait_then_write<<<1, 1, 0, inside(backend)->streams[QK_STREAM_COMPUTE]>>>(
        (const volatile uint32_t *)(uintptr_t)gate->address, (uint32_t *)(uintptr_t)value->address, 12345);
    CUDA_OK(cudaGetLastError());
    qk_copy copy = {back, 0, value, 0, 4};
    tap_require(qk_event_record(done, QK_STREAM_COMPUTE) == QK_OK);
    tap_require(qk_stream_wait(backend, QK_STREAM_TO_HOST, done) == QK_OK);
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
    tap_require(qk_event_record(copied, QK_STREAM_TO_HOST) == QK_OK);
    snprintf(inside(backend)->error, sizeof(inside(backend)->error), "mine");
    qk_status there = QK_OK, during = QK_OK;
    std::thread([&] { there = qk_event_query(copied); }).join();
    /* A query on one thread while another captures a graph. */
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    std::thread([&] { during = qk_event_query(done); }).join();
    cudaError_t captured = cudaStreamEndCapture(stream, &graph);
    CUDA_OK(cudaStreamDestroy(stream));
    tap_ok(qk_event_query(done) == QK_PENDING && qk_event_query(copied) == QK_PENDING && there == QK_PENDING,
        "pending while the kernel runs, on another thread too");
    tap_ok(during == QK_PENDING && captured == cudaSuccess, "queries leave a capture alone");
    if (graph != NULL)
        cudaGraphDestroy(graph);
    tap_ok(*(uint32_t *)back->host == 0, "the copy waits for the other stream's event");
    tap_ok(strcmp(inside(backend)->error, "mine") == 0, "queries leave the error line alone");
    *open_gate = 1;
    tap_ok(
        qk_event_wait(copied) == QK_OK && *(uint32_t *)back->host == 12345, "then it brings the new value");
    tap_ok(qk_event_query(done) == QK_OK && qk_event_wait(done) == QK_OK, "both have fired");
    tap_ok(cudaGetLastError() == cudaSuccess, "no error is left behind");
    qk_event_free(done);
    qk_event_free(copied);
    qk_buffer_free(gate);
    qk_buffer_free(back);
    qk_buffer_free(value);
}

/* ---- Models -------------------------------------------------------------------------------------------------- */

static qk_shape small_shape()
{
    qk_shape s = {};
    s.n_layers = 3;
    s.n_heads = 10;
    s.n_kv_heads = 2;
    s.head_dim = 64;
    s.hidden = 264;
    s.ffn = 520;
    s.vocab = 1003;
    s.max_positions = 4096;
    s.rms_eps = 1e-6f;
    s.rope_factor = 1;
    return s;
}

/* A model's tensors in one block of host memory, as in a mapped file: at odd places, in an order of their own. */
struct Tensors {
    qk_model_desc desc = {};
    std::vector<qk_layer_tensors> layers;
    std::vector<double> inv_freq;
    std::vector<uint8_t> data;
    std::vector<std::pair<qk_tensor *, size_t>> at;
    Random random;
    int mode; /* 0: all bf16, 1: all float32, 2: mixed */

    size_t reserve(qk_tensor *t, uint32_t rows, uint32_t cols)
    {
        t->rows = rows;
        t->cols = cols;
        t->dtype = mode == 0 || (mode == 2 && random.below(2)) ? QK_BF16 : QK_F32;
        size_t element = t->dtype == QK_BF16 ? 2 : 4, begin = data.size() + random.below(3) * element;
        begin = (begin + element - 1) / element * element;
        data.resize(begin + (size_t)rows * cols * element);
        at.push_back({t, begin});
        return begin;
    }

    Tensors(const qk_shape &s, uint64_t seed, int mode_, bool tied)
        : layers(s.n_layers), random(seed), mode(mode_)
    {
        desc.shape = s;
        for (uint32_t i = 0; i < s.head_dim / 2; i++)
            inv_freq.push_back(pow(1e6, -2.0 * i / s.head_dim));
        const uint32_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
        reserve(&desc.final_norm, 1, s.hidden);
        for (uint32_t l = s.n_layers; l-- > 0;) {
            qk_layer_tensors *t = &layers[l];
            reserve(&t->down, s.hidden, s.ffn);
            reserve(&t->v, kv, s.hidden);
            reserve(&t->attn_norm, 1, s.hidden);
            reserve(&t->q, q, s.hidden);
            reserve(&t->k, kv, s.hidden);
            reserve(&t->q_norm, 1, s.head_dim);
            reserve(&t->o, s.hidden, q);
            reserve(&t->up, s.ffn, s.hidden);
            reserve(&t->k_norm, 1, s.head_dim);
            reserve(&t->gate, s.ffn, s.hidden);
            reserve(&t->ffn_norm, 1, s.hidden);
        }
        reserve(&desc.embed, s.vocab, s.hidden);
        if (!tied)
            reserve(&desc.lm_head, s.vocab, s.hidden);
        for (auto &[t, begin] : at) {
            t->data = &data[begin];
            for (uint64_t i = 0; i < (uint64_t)t->rows * t->cols; i++)
                put(&data[begin], t->dtype, i);
        }
        if (tied)
            desc.lm_head = desc.embed;
        desc.layers = layers.data();
        desc.shape.rope_inv_freq = inv_freq.data();
    }

    /* Any bits now and then: ties, denormals, infinities, NaN. */
    void put(uint8_t *to, qk_dtype dtype, uint64_t i)
    {
        float v = random.uniform();
        uint32_t bits = random.next();
        if (random.below(8) == 0)
            memcpy(&v, &bits, 4);
        else if (random.below(8) == 0) {
            memcpy(&bits, &v, 4);
            bits = (bits & 0xffff0000u) | 0x8000u;
            memcpy(&v, &bits, 4);
        }
        qkc_bf16 half = __float2bfloat16_rn(v);
        if (dtype == QK_BF16)
            memcpy(to + 2 * i, &half, 2);
        else
            memcpy(to + 4 * i, &v, 4);
    }
};

static std::vector<uint8_t> device_bytes(const void *from, uint64_t bytes)
{
    std::vector<uint8_t> out(bytes);
    CUDA_OK(cudaMemcpy(out.data(), from, bytes, cudaMemcpyDeviceToHost));
    return out;
}

/* How many elements of the device's matrix (bf16) or vector (float32) are not the tensor's. */
static uint64_t n_wrong(const void *device, const qk_tensor *t, bool vector)
{
    const uint64_t n = (uint64_t)t->rows * t->cols;
    std::vector<uint8_t> got = device_bytes(device, n * (vector ? 4 : 2));
    uint64_t wrong = (uintptr_t)device % 16 != 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t in_bits = 0, out_bits = 0, want;
        const uint32_t in_size = t->dtype == QK_BF16 ? 2 : 4, out_size = vector ? 4 : 2;
        memcpy(&in_bits, (const uint8_t *)t->data + i * in_size, in_size);
        memcpy(&out_bits, &got[i * out_size], out_size);
        if (t->dtype == QK_BF16)
            want = vector ? in_bits << 16 : in_bits;
        else if (vector)
            want = in_bits;
        else {
            float v;
            memcpy(&v, &in_bits, 4);
            qkc_bf16 half = __float2bfloat16_rn(v);
            uint16_t half_bits;
            memcpy(&half_bits, &half, 2);
            want = half_bits;
            if (isnan(v)) { /* any NaN will do */
                wrong += (out_bits & 0x7fff) <= 0x7f80;
                continue;
            }
        }
        wrong += out_bits != want;
    }
    return wrong;
}

static uint64_t n_wrong_in_model(const qkc_model *m, const Tensors &t)
{
    const qk_shape &s = t.desc.shape;
    const uint64_t q = (uint64_t)s.n_heads * s.head_dim, kv = (uint64_t)s.n_kv_heads * s.head_dim;
    uint64_t wrong = 0;
    for (uint32_t l = 0; l < s.n_layers; l++) {
        const qkc_layer &layer = m->layers[l];
        const qk_layer_tensors &from = t.layers[l];
        wrong += n_wrong(layer.qkv, &from.q, false);
        wrong += n_wrong(layer.qkv + q * s.hidden, &from.k, false);
        wrong += n_wrong(layer.qkv + (q + kv) * s.hidden, &from.v, false);
        wrong += n_wrong(layer.o, &from.o, false);
        wrong += n_wrong(layer.gate_up, &from.gate, false);
        wrong += n_wrong(layer.gate_up + (uint64_t)s.ffn * s.hidden, &from.up, false);
        wrong += n_wrong(layer.down, &from.down, false);
        wrong += n_wrong(layer.attn_norm, &from.attn_norm, true);
        wrong += n_wrong(layer.ffn_norm, &from.ffn_norm, true);
        wrong += n_wrong(layer.q_norm, &from.q_norm, true);
        wrong += n_wrong(layer.k_norm, &from.k_norm, true);
    }
    wrong += n_wrong(m->embed, &t.desc.embed, false);
    wrong += n_wrong(m->lm_head, &t.desc.lm_head, false);
    wrong += n_wrong(m->final_norm, &t.desc.final_norm, true);
    std::vector<uint8_t> inv_freq = device_bytes(m->inv_freq, s.head_dim / 2 * sizeof(double));
    return wrong + (memcmp(inv_freq.data(), t.inv_freq.data(), inv_freq.size()) != 0);
}

struct Progress {
    uint64_t last = 0, total = 0;
    uint32_t n_calls = 0, stop_after = UINT32_MAX;
    bool ordered = true;
    std::thread::id thread = std::this_thread::get_id();
};

static bool note_progress(void *user, uint64_t done, uint64_t total)
{
    Progress *p = (Progress *)user;
    p->ordered = p->ordered && done >= p->last && done <= total && p->thread == std::this_thread::get_id();
    p->last = done;
    p->total = total;
    return ++p->n_calls < p->stop_after;
}

static void test_load(qk_backend *backend, const Tensors &t, const qkc_load_tuning *tuning, const char *what)
{
    qk_model *model = NULL;
    Progress progress;
    qk_status status = tuning != NULL
                           ? qkc_model_load_tuned(backend, &t.desc, note_progress, &progress, tuning, &model)
                           : qk_model_load(backend, &t.desc, note_progress, &progress, &model);
    if (!tap_ok(status == QK_OK, "%s: loads: %s", what, status == QK_OK ? "" : qk_backend_error(backend)))
        return;
    const qkc_model *m = (const qkc_model *)model;
    const bool tied = t.desc.lm_head.data == t.desc.embed.data;
    qk_sizes sizes = {};
    tap_ok(n_wrong_in_model(m, t) == 0 && (m->embed == m->lm_head) == tied,
        "%s: every weight is in its place", what);
    tap_ok(progress.ordered && progress.n_calls > 0 && progress.last == progress.total,
        "%s: progress to the end", what);
    tap_ok(qkc_model_measure(&t.desc.shape, tied, &sizes) == QK_OK && sizes.device_bytes == m->block_bytes,
        "%s: counted before as %llu bytes", what, (unsigned long long)m->block_bytes);
    qk_model_free(model);
}

static void test_models(qk_backend *backend, uint64_t seed)
{
    const qkc_load_tuning tiny = {4096, 2, 3}, one = {1 << 20, 1, 1};
    qk_shape s = small_shape();
    test_load(backend, Tensors(s, seed, 0, true), NULL, "bf16, tied");
    test_load(backend, Tensors(s, seed + 1, 2, false), NULL, "mixed");
    test_load(backend, Tensors(s, seed + 2, 2, false), &tiny, "mixed, small chunks");
    test_load(backend, Tensors(s, seed + 3, 1, true), &one, "float32, one worker");
    s.head_dim = 128;
    s.n_heads = s.n_kv_heads = 1;
    s.n_layers = 1;
    s.hidden = 8;
    s.ffn = 8;
    s.vocab = 1;
    test_load(backend, Tensors(s, seed + 4, 2, false), NULL, "the smallest");

    const struct {
        const char *field;
        uint32_t n_heads, n_kv_heads, head_dim, hidden, ffn;
    } refused[] = {
        {"head_dim is 96", 4, 2, 96, 64, 64},
        {"9 query heads", 9, 1, 64, 64, 64},
        {"hidden is 68", 4, 2, 64, 68, 64},
        {"ffn is 100", 4, 2, 64, 64, 100},
    };
    for (const auto &r : refused) {
        qk_model *model = NULL;
        s = small_shape();
        s.n_heads = r.n_heads;
        s.n_kv_heads = r.n_kv_heads;
        s.head_dim = r.head_dim;
        s.hidden = r.hidden;
        s.ffn = r.ffn;
        Tensors t(s, seed, 0, true);
        qk_status status = qk_model_load(backend, &t.desc, NULL, NULL, &model);
        const char *error = qk_backend_error(backend);
        tap_ok(status == QK_UNSUPPORTED && model == NULL && has(error, r.field) && has(error, "expected"),
            "refused: %s", error);
    }
}

static void test_cancel(qk_backend *backend)
{
    qk_shape s = small_shape();
    s.hidden = 1024;
    s.ffn = 4096;
    s.vocab = 20000;
    Tensors t(s, 77, 0, true);
    size_t before = 0, after = 0, total = 0;
    qk_model *model = NULL;
    CUDA_OK(cudaMemGetInfo(&before, &total));
    for (uint32_t stop_after = 1; stop_after <= 3; stop_after++) {
        Progress progress;
        progress.stop_after = stop_after;
        qk_status status = qk_model_load(backend, &t.desc, note_progress, &progress, &model);
        /* A fast load may be done before the third call. */
        tap_ok(status == QK_CANCELLED ? model == NULL && progress.n_calls == stop_after
                                      : status == QK_OK && progress.n_calls < stop_after && stop_after > 1,
            "given up at call %u of %u: %s", stop_after, progress.n_calls, qk_status_name(status));
        qk_model_free(model);
        model = NULL;
    }
    CUDA_OK(cudaMemGetInfo(&after, &total));
    tap_ok(after + (8u << 20) >= before, "what was given up is freed");
    tap_ok(qk_model_load(backend, &t.desc, NULL, NULL, &model) == QK_OK &&
               n_wrong_in_model((const qkc_model *)model, t) == 0,
        "and the model loads afterwards");
    qk_model_free(model);
}

/* A model that does not fit: nothing is read, since there is nothing there. */
static void test_model_too_large(qk_backend *backend)
{
    qk_shape s = small_shape();
    s.hidden = 1 << 16;
    s.vocab = 1 << 24;
    Tensors t(small_shape(), 5, 0, true);
    qk_model_desc desc = t.desc;
    std::vector<qk_layer_tensors> layers = t.layers;
    const uint32_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
    desc.shape = s;
    desc.shape.rope_inv_freq = t.inv_freq.data();
    for (qk_layer_tensors &l : layers) {
        const void *data = t.data.data();
        l.attn_norm = l.ffn_norm = {data, QK_BF16, 1, s.hidden};
        l.q = {data, QK_BF16, q, s.hidden};
        l.k = l.v = {data, QK_BF16, kv, s.hidden};
        l.o = {data, QK_BF16, s.hidden, q};
        l.gate = l.up = {data, QK_BF16, s.ffn, s.hidden};
        l.down = {data, QK_BF16, s.hidden, s.ffn};
    }
    desc.layers = layers.data();
    desc.final_norm = {t.data.data(), QK_BF16, 1, s.hidden};
    desc.embed = desc.lm_head = {t.data.data(), QK_BF16, s.vocab, s.hidden};
    qk_model *model = NULL;
    qk_status status = qk_model_load(backend, &desc, NULL, NULL, &model);
    const char *error = qk_backend_error(backend);
    tap_ok(status == QK_NO_MEMORY && model == NULL && has(error, "weights") && has(error, "free") &&
               has(error, "smaller model"),
        "two TiB of weights: %s", error);
}

static void test_measure(qk_backend *backend)
{
    double bytes = 0, flops = 0;
    tap_ok(qk_backend_measure(backend, QK_MEASURE_READ_BYTES_PER_S, &bytes) == QK_OK && bytes > 1e11,
        "reading: %.3f TB/s %s", bytes * 1e-12, bytes > 0 ? "" : qk_backend_error(backend));
    tap_ok(qk_backend_measure(backend, QK_MEASURE_F32_FLOPS, &flops) == QK_OK && flops > 1e12,
        "products: %.1f TFLOP/s %s", flops * 1e-12, flops > 0 ? "" : qk_backend_error(backend));
}

/* ---- Loss ---------------------------------------------------------------------------------------------------- */

__global__ void trap()
{
    asm volatile("trap;");
}

static bool says_lost(qk_backend *backend, qk_status status)
{
    return status == QK_DEVICE_LOST && has(qk_backend_error(backend), "lost");
}

/* Loses the device and opens it again; false where the driver does not give it back to this process. */
static bool test_loss(int round)
{
    qk_backend *backend = open_backend(), *other = open_backend("portable");
    qk_buffer *device = new_buffer(backend, QK_MEMORY_DEVICE, 4096),
              *host = new_buffer(backend, QK_MEMORY_HOST, 4096);
    qk_buffer *others = new_buffer(other, QK_MEMORY_DEVICE, 4096), *none = NULL;
    qk_event *event = NULL, *none_event = NULL;
    qk_model *model = NULL, *none_model = NULL;
    Tensors t(small_shape(), 9, 0, true);
    tap_require(qk_event_new(backend, &event) == QK_OK);
    tap_require(qk_model_load(backend, &t.desc, NULL, NULL, &model) == QK_OK);

    trap<<<1, 1, 0, inside(backend)->streams[QK_STREAM_COMPUTE]>>>();
    CUDA_OK(cudaGetLastError());
    qk_event_record(event, QK_STREAM_COMPUTE);
    qk_status status = round == 0 ? qk_event_wait(event) : QK_OK, there = QK_OK;
    if (round > 0) { /* found out by another thread's query */
        std::thread([&] {
            double begin = now_s();
            do
                status = qk_event_query(event);
            while (status == QK_PENDING && now_s() - begin < 5);
        }).join();
    }
    tap_ok(
        status == QK_DEVICE_LOST, "loss %d: a trap is a lost device: %s", round, qk_backend_error(backend));

    qk_copy copy = {device, 0, host, 0, 64};
    tap_ok(says_lost(backend, qk_buffer_new(backend, QK_MEMORY_DEVICE, 64, &none)) && none == NULL,
        "no new memory");
    tap_ok(says_lost(backend, qk_buffer_new(backend, QK_MEMORY_HOST, 64, &none)) && none == NULL,
        "nor host memory");
    tap_ok(says_lost(backend, qk_copy_submit(backend, QK_STREAM_TO_DEVICE, &copy, 1)), "no copy");
    tap_ok(says_lost(backend, qk_fill_submit(backend, QK_STREAM_COMPUTE, device, 0, 64, 1)), "no fill");
    tap_ok(says_lost(backend, qk_event_new(backend, &none_event)) && none_event == NULL, "no event");
    tap_ok(says_lost(backend, qk_event_record(event, QK_STREAM_COMPUTE)), "no recording");
    tap_ok(says_lost(backend, qk_event_wait(event)), "no waiting");
    tap_ok(says_lost(backend, qk_stream_wait(backend, QK_STREAM_TO_HOST, event)), "no waiting of streams");
    tap_ok(says_lost(backend, qk_model_load(backend, &t.desc, NULL, NULL, &none_model)) && none_model == NULL,
        "no model");
    double value;
    tap_ok(
        says_lost(backend, qk_backend_measure(backend, QK_MEASURE_READ_BYTES_PER_S, &value)), "no measuring");
    std::thread([&] { there = qk_event_query(event); }).join();
    tap_ok(
        there == QK_DEVICE_LOST && qk_event_query(event) == QK_DEVICE_LOST, "queries say so on every thread");
    tap_note("%s", qk_backend_error(backend));
    qk_backend_info info;
    qk_backend_get_info(backend, &info);
    tap_ok(info.memory_free == 0 && info.memory_total > 0, "information still comes");
    tap_ok(says_lost(other, qk_buffer_new(other, QK_MEMORY_DEVICE, 64, &none)) && none == NULL,
        "the device's other backend is lost too");

    qk_probe probe = {};
    qk_cuda_module()->probe(&probe);
    tap_ok(!probe.available && has(probe.reason, "lost"), "the probe says: %s", probe.reason);
    qk_buffer_free(device);
    qk_buffer_free(host);
    qk_event_free(event);
    qk_model_free(model);
    qk_backend_free(backend);
    qk_backend_options options = {};
    char error[256] = "";
    backend = NULL;
    status = qk_cuda_module()->open(&options, &backend, error, sizeof(error));
    tap_ok(status != QK_OK && backend == NULL, "not before the last has closed: %s", error);
    qk_buffer_free(others);
    qk_backend_free(other);

    status = qk_cuda_module()->open(&options, &backend, error, sizeof(error));
    /* Drivers differ: where the process does not get the card back, it has to say what to do. */
    if (!tap_ok(status == QK_OK || strstr(error, "restart Quire") != NULL, "a fresh start: %s", error) ||
        status != QK_OK)
        return false;
    test_copies(backend, 1000 + (uint64_t)round);
    test_fills(backend, QK_MEMORY_DEVICE);
    test_load(backend, t, NULL, "after the loss");
    test_measure(backend);
    qk_backend_free(backend);
    return true;
}

/* ---- Benchmark ----------------------------------------------------------------------------------------------- */

/* A file of random bytes in the page cache, without a name. Returns its descriptor. */
static int random_file(uint64_t bytes)
{
    std::string path =
        std::string(getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp") + "/quire-load-XXXXXX";
    int fd = mkstemp(&path[0]);
    tap_require(fd >= 0);
    unlink(path.c_str());
    const unsigned n_threads = std::max(1u, std::min(16u, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (unsigned w = 0; w < n_threads; w++)
        threads.emplace_back([=] {
            Random random(w + 1);
            std::vector<uint32_t> piece(1 << 20);
            for (uint64_t at = w * 4ull << 20; at < bytes; at += n_threads * 4ull << 20) {
                for (uint32_t &v : piece)
                    v = random.next() & 0x3fff3fffu; /* small bf16 numbers */
                uint64_t n = std::min<uint64_t>(piece.size() * 4, bytes - at);
                tap_require(pwrite(fd, piece.data(), n, (off_t)at) == (ssize_t)n);
            }
        });
    for (std::thread &t : threads)
        t.join();
    return fd;
}

/* The reference model's shape. @take: called for every tensor in the file's order. */
template <typename F>
static void each_tensor(const qk_shape &s, qk_model_desc *desc, qk_layer_tensors *layers, F take)
{
    const uint32_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
    take(&desc->embed, s.vocab, s.hidden);
    for (uint32_t l = 0; l < s.n_layers; l++) {
        qk_layer_tensors *t = &layers[l];
        take(&t->attn_norm, 1u, s.hidden);
        take(&t->down, s.hidden, s.ffn);
        take(&t->gate, s.ffn, s.hidden);
        take(&t->up, s.ffn, s.hidden);
        take(&t->ffn_norm, 1u, s.hidden);
        take(&t->k_norm, 1u, s.head_dim);
        take(&t->k, kv, s.hidden);
        take(&t->o, s.hidden, q);
        take(&t->q_norm, 1u, s.head_dim);
        take(&t->q, q, s.hidden);
        take(&t->v, kv, s.hidden);
    }
    take(&desc->final_norm, 1u, s.hidden);
    desc->lm_head = desc->embed;
}

static void bench_load(qk_backend *backend)
{
    qk_shape s = small_shape();
    s.n_layers = 36;
    s.n_heads = 32;
    s.n_kv_heads = 8;
    s.head_dim = 128;
    s.hidden = 2560;
    s.ffn = 9728;
    s.vocab = 151936;
    std::vector<double> inv_freq(64, 0.5);
    std::vector<qk_layer_tensors> layers(s.n_layers);
    qk_model_desc desc = {};
    desc.shape = s;
    desc.shape.rope_inv_freq = inv_freq.data();
    desc.layers = layers.data();
    uint64_t bytes = 0;
    each_tensor(s, &desc, layers.data(),
        [&](qk_tensor *, uint32_t rows, uint32_t cols) { bytes += 2ull * rows * cols; });
    double begin = now_s();
    int fd = random_file(bytes);
    printf("# file of %.2f GB written in %.1f s\n", (double)bytes * 1e-9, now_s() - begin);

    qkc_load_tuning usual;
    qkc_load_default_tuning(&usual);
    const qkc_load_tuning tunings[] = {usual, usual, usual, {1u << 20, 3, usual.n_workers},
        {4u << 20, 2, usual.n_workers}, {4u << 20, 3, usual.n_workers}, {8u << 20, 2, usual.n_workers},
        {2u << 20, 3, 1}, {2u << 20, 3, 2}, {2u << 20, 3, 4}, {2u << 20, 3, 12}, {2u << 20, 2, 16},
        {4u << 20, 2, 12}};
    for (const qkc_load_tuning &tuning : tunings) {
        /* Mapped anew: a load finds no page tables. */
        uint8_t *map = (uint8_t *)mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        tap_require(map != MAP_FAILED);
        uint64_t at = 0;
        each_tensor(s, &desc, layers.data(), [&](qk_tensor *t, uint32_t rows, uint32_t cols) {
            *t = {map + at, QK_BF16, rows, cols};
            at += 2ull * rows * cols;
        });
        desc.shape.rope_inv_freq = inv_freq.data();
        qk_model *model = NULL;
        Progress progress;
        begin = now_s();
        qk_status status = qkc_model_load_tuned(backend, &desc, note_progress, &progress, &tuning, &model);
        double loaded = now_s() - begin;
        tap_require(status == QK_OK);
        begin = now_s();
        qk_model_free(model);
        printf("load %5.2f GB: %6.3f s %6.2f GB/s  (%2u workers, %u slots of %zu MiB; %u progress calls; "
               "free %.0f ms)\n",
            (double)bytes * 1e-9, loaded, (double)bytes * 1e-9 / loaded, tuning.n_workers, tuning.n_slots,
            tuning.chunk_bytes >> 20, progress.n_calls, (now_s() - begin) * 1e3);
        munmap(map, bytes);
    }
    close(fd);
}

static void bench()
{
    double begin = now_s();
    qk_backend *backend = open_backend();
    printf("# first open %.0f ms\n", (now_s() - begin) * 1e3);
    const uint64_t bytes = 1ull << 30;
    begin = now_s();
    qk_buffer *host = new_buffer(backend, QK_MEMORY_HOST, bytes);
    printf("# pinning 1 GiB: %.0f ms\n", (now_s() - begin) * 1e3);
    memset(host->host, 1, bytes);
    qk_buffer *device = new_buffer(backend, QK_MEMORY_DEVICE, bytes);
    for (int down = 0; down < 2; down++) {
        qk_copy copy = {device, 0, host, 0, bytes};
        if (down)
            copy = {host, 0, device, 0, bytes};
        double ms = gpu_time(inside(backend)->streams[QK_STREAM_TO_DEVICE], 5,
            [&](int) { tap_require(qk_copy_submit(backend, QK_STREAM_TO_DEVICE, &copy, 1) == QK_OK); });
        printf("copy to the %s: %.1f GB/s\n", down ? "host" : "device", (double)bytes / ms * 1e-6);
    }
    double fill_ms = gpu_time(inside(backend)->streams[QK_STREAM_COMPUTE], 10, [&](int i) {
        tap_require(qk_fill_submit(backend, QK_STREAM_COMPUTE, device, 0, bytes, (uint32_t)i) == QK_OK);
    });
    printf("fill: %.0f GB/s\n", (double)bytes / fill_ms * 1e-6);
    qk_buffer_free(host);
    qk_buffer_free(device);
    qk_backend_info info;
    for (int i = 0; i < 3; i++) {
        begin = now_s();
        qk_backend_get_info(backend, &info);
        printf("# information: %.3f ms\n", (now_s() - begin) * 1e3);
    }
    for (qk_measure what : {QK_MEASURE_READ_BYTES_PER_S, QK_MEASURE_F32_FLOPS}) {
        double value = 0;
        begin = now_s();
        qk_status status = qk_backend_measure(backend, what, &value);
        printf("measure %d: %.4g %s (%.0f ms)\n", (int)what, value,
            status == QK_OK ? "" : qk_backend_error(backend), (now_s() - begin) * 1e3);
    }
    bench_load(backend);
    qk_backend_free(backend);
}

int main(int argc, char **argv)
{
    gpu_require();
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    const uint64_t seed = (uint64_t)time(NULL);
    tap_note("seed %llu", (unsigned long long)seed);
    test_devices();
    test_isa();
    qk_backend *backend = open_backend();
    test_copies(backend, seed);
    test_fills(backend, QK_MEMORY_DEVICE);
    test_fills(backend, QK_MEMORY_HOST);
    test_no_memory(backend);
    test_info(backend);
    test_events(backend);
    test_models(backend, seed);
    test_cancel(backend);
    test_model_too_large(backend);
    test_measure(backend);
    qk_backend_free(backend);
    if (!test_loss(0) || !test_loss(1))
        tap_note(
            "this driver keeps a lost card from the process, so it was not lost a second time or used again");
    return tap_done();
}
