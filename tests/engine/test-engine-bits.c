/* test-engine-bits.c: logits are the same bits however a prompt is computed: whole, in chunks, beside others, after a
 * fork, a rewind or a second prefill, with one thread or two. (kernels/qk.h, promise 4; the CPU backend.) */
#include <string.h>
#include "tests/engine/engine-test.h"

#define N_IDS 150u

static void make_ids(uint32_t *ids, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = 200 + (seed >> 8) % 5000;
    }
}

static uint32_t vocab_of(qe_engine *engine)
{
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    uint32_t vocab = status.model->vocab;
    qe_engine_status_clear(&status);
    return vocab;
}

static float *eval(qe_engine *engine, qe_session_id session, const uint32_t *ids, uint32_t n, uint32_t first)
{
    g_autoptr(GError) error = NULL;
    float *out = g_new0(float, (gsize)(n - first) * vocab_of(engine));
    qe_engine_eval(engine, session, ids, n, first, out, &error);
    g_assert_no_error(error);
    return out;
}

static float *reference(const uint32_t *ids, uint32_t n)
{
    qe_engine *engine = et_engine_new(NULL);
    float *out = eval(engine, 0, ids, n, 0);
    qe_engine_free(engine);
    return out;
}

static void test_chunks(void)
{
    uint32_t ids[N_IDS];
    make_ids(ids, N_IDS, 1);
    g_autofree float *want = reference(ids, N_IDS);
    const uint32_t rows[] = {1, 16, 36, 37, 64};
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        for (uint32_t threads = 1; threads <= 2; threads++) {
            qe_engine *engine =
                et_engine_new(&(qe_engine_options){.step_rows_max = rows[i], .n_threads = threads});
            uint32_t vocab = vocab_of(engine);
            g_autofree float *all = eval(engine, 0, ids, N_IDS, 0);
            g_assert_cmpmem(all, N_IDS * vocab * 4, want, N_IDS * vocab * 4);
            /* 37 tokens, and the same with 10 of them cached already. */
            g_autofree float *b30 = eval(engine, 0, ids, 37, 36);
            g_assert_cmpmem(b30, vocab * 4, want + 36 * vocab, vocab * 4);
            qe_session_id session = et_open(engine);
            g_autofree float *ten = eval(engine, session, ids, 10, 9);
            g_assert_cmpmem(ten, vocab * 4, want + 9 * vocab, vocab * 4);
            g_autofree float *more = eval(engine, session, ids, 37, 10);
            g_assert_cmpmem(more, 27 * vocab * 4, want + 10 * vocab, 27 * vocab * 4);
            qe_engine_free(engine);
        }
    }
}

static void test_beside_others(void)
{
    uint32_t ids[N_IDS];
    make_ids(ids, N_IDS, 2);
    g_autofree float *want = reference(ids, N_IDS);
    qe_engine *engine = et_engine_new(&(qe_engine_options){.step_rows_max = 48});
    uint32_t vocab = vocab_of(engine);
    qe_request *others[3];
    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        g_autoptr(GError) error = NULL;
        qe_message message;
        qe_generate_params params = et_user(et_open(engine), "Tell me a story.", &message);
        params.max_tokens = 200;
        params.ignore_eos = true;
        others[i] = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
    }
    for (int round = 0; round < 3; round++) {
        g_autofree float *got = eval(engine, 0, ids, N_IDS, 0);
        g_assert_cmpmem(got, N_IDS * vocab * 4, want, N_IDS * vocab * 4);
    }
    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        g_auto(et_result) r = {0};
        et_finish(others[i], &r);
        g_assert_cmpuint(r.ids->len, ==, 200);
    }
    qe_engine_free(engine);
}

static void test_fork_and_rewind(void)
{
    uint32_t ids[N_IDS], other[N_IDS];
    make_ids(ids, N_IDS, 3);
    make_ids(other, N_IDS, 4);
    memcpy(other, ids, 41 * sizeof *ids);
    g_autofree float *want = reference(ids, N_IDS);
    g_autofree float *want_other = reference(other, N_IDS);
    qe_engine *engine = et_engine_new(NULL);
    uint32_t vocab = vocab_of(engine);
    g_autoptr(GError) error = NULL;

    qe_session_id a = et_open(engine);
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = a;
    params.ids = ids;
    params.n_ids = 100;
    params.max_tokens = 1;
    g_auto(et_result) r = {0};
    et_generate(engine, &params, &r);
    qe_session_id b = qe_engine_fork_session(engine, a, 1, &error);
    g_assert_no_error(error);
    /* The fork goes another way from token 41, in the middle of a shared page; the parent goes on. */
    g_autofree float *forked = eval(engine, b, other, N_IDS, 41);
    g_assert_cmpmem(forked, (N_IDS - 41) * vocab * 4, want_other + 41 * vocab, (N_IDS - 41) * vocab * 4);
    g_autofree float *parent = eval(engine, a, ids, N_IDS, 100);
    g_assert_cmpmem(parent, (N_IDS - 100) * vocab * 4, want + 100 * vocab, (N_IDS - 100) * vocab * 4);
    /* Back to the parent's way, which is another rewind; then everything again. */
    g_autofree float *back = eval(engine, b, ids, N_IDS, 50);
    g_assert_cmpmem(back, (N_IDS - 50) * vocab * 4, want + 50 * vocab, (N_IDS - 50) * vocab * 4);
    g_autofree float *again = eval(engine, b, ids, N_IDS, 0);
    g_assert_cmpmem(again, N_IDS * vocab * 4, want, N_IDS * vocab * 4);
    qe_engine_close_session(engine, a);
    qe_engine_close_session(engine, b);
    g_assert_cmpuint(et_pages_used(engine), ==, 0);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/bits/chunks", test_chunks);
    g_test_add_func("/engine/bits/beside-others", test_beside_others);
    g_test_add_func("/engine/bits/fork-and-rewind", test_fork_and_rewind);
    return g_test_run();
}
