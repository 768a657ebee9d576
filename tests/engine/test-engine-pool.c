/* test-engine-pool.c: too few pages for all: queueing, dropped caches, preemption and a random soak give the texts of a
 * huge pool; secrets stay in their session; impossible prompts are refused with numbers. */
#include <string.h>
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */

static qe_engine *engine_with_pages(uint32_t n_pages)
{
    return et_engine_new(&(qe_engine_options){.kv_bytes_max = (uint64_t)n_pages * PAGE_BYTES});
}

static const char *const openings[] = {"Tell me a story.", "My name is Mira.", "What is a KV cache?",
    "I live in Oslo.", "Tell me a long story about a cat."};

static qe_request *post(qe_engine *engine, qe_session_id session, const char *text, uint32_t max_tokens)
{
    g_autoptr(GError) error = NULL;
    qe_message message;
    qe_generate_params params = et_user(session, text, &message);
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    return request;
}

/* All openings at once, then a second turn for each; the results in order. */
static void run_all(qe_engine *engine, uint32_t max_tokens, et_result *results /* [2][n] */)
{
    const guint n = G_N_ELEMENTS(openings);
    qe_session_id sessions[G_N_ELEMENTS(openings)];
    qe_request *requests[G_N_ELEMENTS(openings)];
    for (guint i = 0; i < n; i++)
        sessions[i] = et_open(engine);
    for (guint turn = 0; turn < 2; turn++) {
        for (guint i = 0; i < n; i++)
            requests[i] = post(engine, sessions[i], turn ? "Go on." : openings[i], max_tokens);
        for (guint i = 0; i < n; i++) {
            et_result *r = &results[turn * n + i];
            et_finish(requests[i], r);
            g_assert_no_error(r->error);
        }
    }
    for (guint i = 0; i < n; i++)
        qe_engine_close_session(engine, sessions[i]);
    g_assert_cmpuint(et_pages_used(engine), ==, 0);
}

static void compare_pools(uint32_t n_pages, uint32_t max_tokens)
{
    const guint n = 2 * G_N_ELEMENTS(openings);
    et_result big[2 * G_N_ELEMENTS(openings)] = {0}, small[2 * G_N_ELEMENTS(openings)] = {0};
    qe_engine *engine = engine_with_pages(4000);
    run_all(engine, max_tokens, big);
    qe_engine_free(engine);
    engine = engine_with_pages(n_pages);
    run_all(engine, max_tokens, small);
    qe_engine_free(engine);
    uint32_t n_recomputed = 0;
    for (guint i = 0; i < n; i++) {
        et_assert_same(&big[i], &small[i]);
        n_recomputed += small[i].receipt.n_recomputed;
        et_result_clear(&big[i]);
        et_result_clear(&small[i]);
    }
    g_assert_cmpuint(n_recomputed, >, 0);
}

static void test_queueing(void)
{
    compare_pools(6, 24);  /* room for one conversation */
    compare_pools(10, 24); /* for two */
}

/* Replies without max_tokens are admitted on a reserve and grow: the younger ones are preempted, and still say the same. */
static void test_preemption(void)
{
    et_result alone[3] = {0};
    qe_engine *engine = engine_with_pages(26);
    qe_session_id sessions[3];
    for (int i = 0; i < 3; i++) {
        qe_session_id session = et_open(engine);
        et_finish(post(engine, session, openings[i], 0), &alone[i]);
        g_assert_cmpint(alone[i].finish, ==, QE_FINISH_CONTEXT);
        g_assert_cmpuint(alone[i].receipt.n_prompt + alone[i].ids->len, ==, 26 * 16);
        qe_engine_close_session(engine, session);
        sessions[i] = et_open(engine);
    }
    qe_request *requests[3];
    for (int i = 0; i < 3; i++)
        requests[i] = post(engine, sessions[i], openings[i], 0);
    for (int i = 0; i < 3; i++) {
        g_auto(et_result) r = {0};
        et_finish(requests[i], &r);
        g_assert_no_error(r.error);
        et_assert_same(&r, &alone[i]);
        et_result_clear(&alone[i]);
    }
    qe_engine_free(engine);

    /* Two that fit their reserves beside each other (2 x 17 pages), then outgrow the pool together. */
    engine = engine_with_pages(40);
    for (int i = 0; i < 2; i++) {
        qe_session_id session = et_open(engine);
        et_finish(post(engine, session, openings[i], 0), &alone[i]);
        qe_engine_close_session(engine, session);
    }
    for (int i = 0; i < 2; i++)
        requests[i] = post(engine, et_open(engine), openings[i], 0);
    uint32_t n_recomputed = 0;
    for (int i = 0; i < 2; i++) {
        g_auto(et_result) r = {0};
        et_finish(requests[i], &r);
        g_assert_no_error(r.error);
        et_assert_same(&r, &alone[i]);
        n_recomputed += r.receipt.n_recomputed;
        et_result_clear(&alone[i]);
    }
    g_assert_cmpuint(n_recomputed, >, 0);
    qe_engine_free(engine);
}

/* Room for one conversation, two that tell different secrets, in turn and at once. */
static void test_secrets(void)
{
    qe_engine *engine = engine_with_pages(9);
    qe_session_id a = et_open(engine), b = et_open(engine);
    g_auto(et_result) ra = {0};
    g_auto(et_result) rb = {0};
    qe_request *pa = post(engine, a, "My name is Mira.", 12);
    qe_request *pb = post(engine, b, "My name is Otto.", 12);
    et_finish(pa, &ra);
    et_finish(pb, &rb);
    for (int round = 0; round < 3; round++) {
        g_autoptr(GError) error = NULL;
        qe_message message;
        qe_generate_params params = et_user(a, "What is my name?", &message);
        params.keep_messages = 2;
        params.max_tokens = 20;
        qe_request *qa = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        if (round != 1)
            et_finish(qa, &ra);
        params.session = b;
        qe_request *qb = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        if (round == 1)
            et_finish(qa, &ra);
        et_finish(qb, &rb);
        g_assert_nonnull(strstr(ra.text->str, "Mira"));
        g_assert_null(strstr(ra.text->str, "Otto"));
        g_assert_nonnull(strstr(rb.text->str, "Otto"));
        g_assert_null(strstr(rb.text->str, "Mira"));
    }
    qe_engine_free(engine);
}

static void test_never_fits(void)
{
    qe_engine *engine = engine_with_pages(4);
    uint32_t ids[65];
    for (uint32_t i = 0; i < 65; i++)
        ids[i] = 300 + i;
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.ids = ids;
    params.n_ids = 65;
    g_auto(et_result) r = {0};
    et_generate(engine, &params, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_NO_MEMORY);
    g_assert_nonnull(strstr(r.error->message, "5 KV pages"));
    params.n_ids = 60;
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    g_assert_cmpuint(r.ids->len, <=, 4);
    qe_engine_free(engine);
}

typedef struct {
    qe_session_id id;
    qe_request *request;
} seat;

static void settle(seat *s)
{
    if (!s->request)
        return;
    g_auto(et_result) r = {0};
    et_finish(g_steal_pointer(&s->request), &r);
    /* A conversation may have become longer than its context; nothing else may go wrong. */
    if (!g_error_matches(r.error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH))
        g_assert_no_error(r.error);
}

/* Two hundred random operations on a small pool, the checker on after every step. */
static void test_soak(void)
{
    qe_engine *engine = et_engine_new(&(qe_engine_options){
        .kv_bytes_max = 30u * PAGE_BYTES, .step_rows_max = 40, .context_max = 300, .outbox_bytes = 100});
    seat seats[6] = {0};
    for (int i = 0; i < 200; i++) {
        seat *s = &seats[g_test_rand_int_range(0, G_N_ELEMENTS(seats))];
        g_autoptr(GError) error = NULL;
        switch (g_test_rand_int_range(0, 8)) {
        case 0:
            if (s->id && !s->request) {
                qe_engine_close_session(engine, s->id);
                s->id = 0;
            }
            break;
        case 1: {
            seat *to = &seats[g_test_rand_int_range(0, G_N_ELEMENTS(seats))];
            if (s->id && to->id == 0) {
                to->id = qe_engine_fork_session(engine, s->id, g_test_rand_bit() ? QE_KEEP_ALL : 0, &error);
                g_assert_no_error(error);
            }
            break;
        }
        case 2:
            if (s->request) {
                qe_request_cancel(s->request);
                settle(s);
            }
            break;
        case 3:
            settle(s);
            break;
        default:
            if (s->id == 0)
                s->id = et_open(engine);
            if (!s->request) {
                qe_message message;
                qe_generate_params params = et_user(s->id, openings[i % 5], &message);
                params.keep_messages = g_test_rand_bit() ? 0 : QE_KEEP_ALL;
                params.thinking = (qe_thinking)g_test_rand_int_range(0, 3);
                params.max_tokens = (uint32_t)g_test_rand_int_range(0, 30);
                params.sampling.temperature = g_test_rand_bit() ? 1 : 0;
                params.sampling.repetition_penalty = g_test_rand_bit() ? 1.2 : 1;
                s->request = qe_engine_generate(engine, &params, &error);
                g_assert_no_error(error);
            }
            break;
        }
        /* A long conversation ends for lack of context: begin a new one. */
        if (s->id && !s->request && i % 17 == 0) {
            qe_engine_close_session(engine, s->id);
            s->id = 0;
        }
    }
    for (guint i = 0; i < G_N_ELEMENTS(seats); i++) {
        settle(&seats[i]);
        if (seats[i].id)
            qe_engine_close_session(engine, seats[i].id);
    }
    g_assert_cmpuint(et_pages_used(engine), ==, 0);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/pool/queueing", test_queueing);
    g_test_add_func("/engine/pool/preemption", test_preemption);
    g_test_add_func("/engine/pool/secrets", test_secrets);
    g_test_add_func("/engine/pool/never-fits", test_never_fits);
    g_test_add_func("/engine/pool/soak", test_soak);
    return g_test_run();
}
