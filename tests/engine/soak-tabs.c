/* soak-tabs.c: fifty conversations in tiered mode, switched at random: asked, cancelled, forked, closed; on the CPU and on the
 * mock device, with memory for a few of them on the device and for less than half in the host tier. The engine's checker
 * runs after every step. Memory, pages and references must be flat: what a round leaves, the next finds.
 *
 * QUIRE_SOAK_SECONDS: how long each of them (3 by default, for the suite); -p /engine/soak-tabs/mock runs one. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "engine/qe-stats.h"
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define N_TABS     50u
#define N_DEVICE   60u
#define N_HOST     150u
#define N_SAMPLES  10u

static const char *const questions[] = {"My name is Mira.", "What is a KV cache?",
    "Tell me a long story about a cat.", "What is my name?", "Tell me another story about a mouse, please.",
    "I live in Oslo."};

static qk_backend *mock;

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    qk_mock_options options = {.seed = 3, .delay_us_max = 50, .n_threads = 1};
    qk_status status = qk_mock_open(&options, out, error, error_size);
    mock = *out;
    return status;
}

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    g_assert_nonnull(f);
    g_assert_cmpint(fscanf(f, "%llu %llu", &size, &resident), ==, 2);
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

typedef struct {
    uint64_t resident;
    uint32_t n_device, n_host, n_cached, n_shared;
    uint32_t n_snapshots, n_refs; /* n_refs: of all page tables */
} sample;

static sample take_sample(qe_engine *engine)
{
    et_pages_used(engine); /* all is done and published */
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    const qe_tier_view *gpu = &s->tiers[QE_TIER_GPU], *host = &s->tiers[QE_TIER_HOST];
    sample out = {resident_bytes(), gpu->present ? gpu->n_pages_used : 0, host->n_pages_used,
        s->n_pages_cached, gpu->n_pages_shared + host->n_pages_shared};
    g_assert_cmpuint(gpu->bytes_used, <=, gpu->bytes_max);
    g_assert_cmpuint(host->bytes_used, <=, host->bytes_max);
    double n_held = 0; /* pages: one with n references comes up n times */
    for (uint32_t i = 0; i < s->n_sessions; i++) {
        out.n_refs += s->sessions[i].n_pages;
        for (uint32_t k = 0; k < s->sessions[i].n_pages; k++)
            n_held += 1.0 / s->sessions[i].cells[k].n_refs;
    }
    g_assert_cmpfloat(n_held - (uint32_t)(n_held + 0.5), >, -1e-6); /* whole: each holder is in the list */
    g_assert_cmpfloat(n_held - (uint32_t)(n_held + 0.5), <, 1e-6);
    g_assert_cmpuint((uint32_t)(n_held + 0.5) + out.n_cached, <=, out.n_device + out.n_host);
    out.n_snapshots = qe_stats_n_snapshots();
    g_assert_cmpuint(out.n_snapshots, ==, 1); /* this one */
    qe_snapshot_unref(s);
    return out;
}

typedef struct {
    uint64_t n_turns, n_cancelled, n_forks, n_closed, n_restored, n_recomputed;
} counts;

static void operate(qe_engine *engine, qe_session_id *tabs, counts *n)
{
    uint32_t at = (uint32_t)g_test_rand_int_range(0, N_TABS), to = (uint32_t)g_test_rand_int_range(0, N_TABS);
    g_autoptr(GError) error = NULL;
    if (!tabs[at])
        tabs[at] = et_open(engine);
    int what = g_test_rand_int_range(0, 20);
    if (what == 0) {
        qe_engine_close_session(engine, tabs[at]);
        tabs[at] = 0;
        n->n_closed++;
        return;
    }
    if (what == 1 && to != at) {
        if (tabs[to])
            qe_engine_close_session(engine, tabs[to]);
        tabs[to] = qe_engine_fork_session(engine, tabs[at], QE_KEEP_ALL, &error);
        g_assert_no_error(error);
        n->n_forks++;
        return;
    }
    if (what < 6)
        qe_engine_prefetch_session(engine, tabs[at]);
    qe_message message;
    qe_generate_params params =
        et_user(tabs[at], questions[g_test_rand_int_range(0, G_N_ELEMENTS(questions))], &message);
    params.max_tokens = (uint32_t)g_test_rand_int_range(1, 12);
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    if (what < 9) {
        qe_request_cancel(request);
        n->n_cancelled++;
    }
    g_auto(et_result) r = {0};
    et_finish(request, &r);
    if (g_error_matches(r.error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH)) { /* a new one in its place */
        qe_engine_close_session(engine, tabs[at]);
        tabs[at] = 0;
    } else {
        g_assert_no_error(r.error);
    }
    n->n_turns++;
    n->n_restored += r.receipt.n_restored_host;
    n->n_recomputed += r.receipt.n_recomputed;
}

static void soak(bool on_mock)
{
    const char *text = g_getenv("QUIRE_SOAK_SECONDS");
    gint64 length = (text ? g_ascii_strtoll(text, NULL, 10) : 3) * G_USEC_PER_SEC;
    et_set_backend(on_mock ? open_mock : NULL, NULL);
    qe_engine *engine = et_engine_new(&(qe_engine_options){
        .kv_bytes_max = N_DEVICE * PAGE_BYTES,
        .host_bytes_max = N_HOST * PAGE_BYTES,
        .ring_bytes = 1 << 20,
        .step_rows_max = 64,
        .context_max = 400,
        .n_threads = 1,
    });
    qe_session_id tabs[N_TABS] = {0};
    sample samples[N_SAMPLES + 1];
    counts n = {0};
    gint64 begin = g_get_monotonic_time();
    for (uint32_t i = 1; i <= N_SAMPLES; i++) {
        while (g_get_monotonic_time() < begin + length * i / N_SAMPLES)
            operate(engine, tabs, &n);
        samples[i] = take_sample(engine);
        g_test_message("%3.0f%%: %.1f MB resident, %u pages on the device, %u on the host, %u cached, %u "
                       "shared, %u references",
            100.0 * i / N_SAMPLES, (double)samples[i].resident / 1e6, samples[i].n_device, samples[i].n_host,
            samples[i].n_cached, samples[i].n_shared, samples[i].n_refs);
    }
    g_test_message("%" G_GUINT64_FORMAT " turns, %" G_GUINT64_FORMAT " cancelled, %" G_GUINT64_FORMAT
                   " forks, %" G_GUINT64_FORMAT " closed; %" G_GUINT64_FORMAT
                   " tokens restored from the host, %" G_GUINT64_FORMAT " computed again",
        n.n_turns, n.n_cancelled, n.n_forks, n.n_closed, n.n_restored, n.n_recomputed);
    for (uint32_t i = 0; i < N_TABS; i++) {
        if (tabs[i])
            qe_engine_close_session(engine, tabs[i]);
    }
    sample end = take_sample(engine);
    g_test_message("closed: %u pages on the device, %u on the host, %u cached, %u shared", end.n_device,
        end.n_host, end.n_cached, end.n_shared);
    g_assert_cmpuint(end.n_shared, ==, 0); /* nobody is left to share */
    g_assert_cmpuint(end.n_refs, ==, 0);
    g_assert_cmpuint(end.n_cached, <=, N_DEVICE + N_HOST);
    g_assert_cmpuint(end.n_device + end.n_host, <=, 2 * end.n_cached); /* what is left has no holder */
    if (length >= 60 * G_USEC_PER_SEC) { /* the first tenths fill what there is */
        g_assert_cmpuint(samples[N_SAMPLES].resident, <, samples[3].resident + (8 << 20));
        g_assert_cmpuint(n.n_restored, >, 0);
        g_assert_cmpuint(n.n_recomputed, >, 0);
    }
    if (on_mock) { /* one slab on the device; the host's */
        qk_mock_stats stats;
        qk_mock_get_stats(mock, &stats);
        g_assert_cmpuint(stats.n_buffers, <=, 1 + stats.n_registered);
    }
    qe_engine_free(engine);
    g_assert_cmpuint(qe_stats_n_snapshots(), ==, 0);
}

static void test_cpu(void)
{
    soak(false);
}

static void test_mock(void)
{
    soak(true);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/soak-tabs/cpu", test_cpu);
    g_test_add_func("/engine/soak-tabs/mock", test_mock);
    return g_test_run();
}
