/* test-engine-select.c: the cache mode selective: up to its identity length the exact mode, to the bit; above it something
 * else, but the same wherever pages are, whatever happened to them; and never mixed with what others computed, in memory
 * or on disk. The choice itself is checked against float64 by tests/kernels/test-kernels-select.c. */
#include <math.h>
#include <string.h>
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define N_TURNS    4u
#define N_TOKENS   24u
#define N_LOGITS   40u /* rows that are looked at, of as many steps */

static const char *const questions[N_TURNS] = {"Tell me a long story about a cat and a mouse.",
    "My name is Mira.", "What is a KV cache?", "What is my name?"};

static qk_mock_options mock_options;

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    return qk_mock_open(&mock_options, out, error, error_size);
}

static void use_backend(bool mock, uint32_t seed)
{
    mock_options = (qk_mock_options){.seed = seed, .delay_us_max = 200, .n_threads = 2};
    et_set_backend(mock ? open_mock : NULL, NULL);
}

static qe_engine *engine_of(uint32_t n_device, uint32_t n_host, const char *dir)
{
    return et_engine_new(&(qe_engine_options){
        .kv_bytes_max = (uint64_t)n_device * PAGE_BYTES,
        .host_bytes_max = n_host ? (uint64_t)n_host * PAGE_BYTES : 1,
        .ring_bytes = 1 << 20,
        .step_rows_max = 64,
        .disk_dir = dir,
        .disk_bytes_max = dir ? 64ull << 20 : 0,
    });
}

/* Selective with lengths so small that much is left out: one sink page, two recent ones, @n_chosen between. */
static void small_config(qe_cache_config *config, uint32_t n_chosen)
{
    qe_cache_config_init(config);
    config->mode = QE_CACHE_SELECTIVE;
    config->sink_length = 16;
    config->recent_length = 32;
    config->select_length = 16 * n_chosen;
}

static qe_session_id open_with(qe_engine *engine, const qe_cache_config *config, const char *key)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache = *config;
    options.disk_key = key;
    return et_open_with(engine, &options);
}

static qe_session_id open_small(qe_engine *engine, uint32_t n_chosen, uint32_t hot_tokens)
{
    qe_cache_config config;
    small_config(&config, n_chosen);
    config.hot_cache_length = hot_tokens;
    return open_with(engine, &config, NULL);
}

static qe_session_id open_exact(qe_engine *engine)
{
    qe_cache_config config;
    qe_cache_config_init(&config);
    return open_with(engine, &config, NULL);
}

static void ask_ids(qe_engine *engine, qe_session_id session, const GArray *ids, et_result *r)
{
    qe_generate_params params =
        et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, N_TOKENS);
    params.ignore_eos = true;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
}

static gsize n_logits(qe_engine *engine)
{
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    gsize n = N_LOGITS * (gsize)status.model->vocab;
    qe_engine_status_clear(&status);
    return n;
}

/* The raw logits of the last rows of @ids: in a selective session computed as a reply's. */
static float *logits_of(qe_engine *engine, qe_session_id session, const GArray *ids)
{
    g_autoptr(GError) error = NULL;
    float *out = g_new(float, n_logits(engine));
    bool ok = qe_engine_eval(engine, session, (const uint32_t *)(const void *)ids->data, ids->len,
        ids->len - N_LOGITS, out, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    return out;
}

static double difference(const float *a, const float *b, gsize n)
{
    double sum = 0, squares = 0;
    for (gsize i = 0; i < n; i++) {
        squares += (double)a[i] * a[i];
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return sqrt(sum / squares);
}

static void test_config(void)
{
    g_autoptr(GError) error = NULL;
    qe_cache_config c;
    qe_cache_config_init(&c);
    g_assert_cmpuint(qe_cache_identity_tokens(&c), ==, 64 + 512 + 2048);
    c.mode = QE_CACHE_SELECTIVE;
    g_assert_true(qe_cache_config_check(&c, &error));
    c.hot_cache_length = 2048;
    g_assert_true(qe_cache_config_check(&c, &error));
    g_assert_no_error(error);
    const struct {
        uint32_t *field, value;
        const char *line;
    } wrong[] = {
        {&c.recent_length, 16, "recent_length is 16; expected a multiple of 16 tokens, at least 32"},
        {&c.sink_length, 20, "sink_length is 20"},
        {&c.select_length, 2047, "select_length is 2047"},
        {&c.select_length, 262144, "at most 262144 tokens"},
        {&c.select_length, UINT32_MAX - 15, "at most 262144 tokens"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        uint32_t before = *wrong[i].field;
        *wrong[i].field = wrong[i].value;
        g_assert_false(qe_cache_config_check(&c, &error));
        g_assert_nonnull(strstr(error->message, wrong[i].line));
        g_clear_error(&error);
        *wrong[i].field = before;
    }
}

/* What it costs: a 16th more, in device memory, once pages are left out. */
static void test_cost(void)
{
    const qe_memory_plan plan = {.kv = 1000, .host_kv = 3000, .page_bytes = 10, .page_bytes_int8 = 6};
    qe_cache_config c;
    qe_cache_cost cost;
    small_config(&c, 4);
    qe_cache_cost_of(&plan, &c, 112, &cost);
    g_assert_cmpuint(cost.bytes, ==, 70);
    g_assert_cmpuint(cost.bounds_bytes, ==, 0);
    qe_cache_cost_of(&plan, &c, 16 * 160, &cost);
    g_assert_cmpuint(cost.bounds_bytes, ==, 100);
    g_assert_cmpuint(cost.bytes, ==, 1700);
    g_assert_cmpuint(cost.device_bytes, ==, 1000);
    g_assert_cmpuint(cost.host_bytes, ==, 700);
    g_assert_true(cost.fits);
    const qe_memory_plan small = {.kv = 80, .host_kv = 30000, .page_bytes = 10, .page_bytes_int8 = 6};
    qe_cache_cost_of(&small, &c, 16 * 160, &cost);
    g_assert_false(cost.fits); /* the bounds alone do not */
}

static void test_identity(void)
{
    g_autoptr(GArray) ids = et_some_ids(450, 7);
    use_backend(false, 0);
    qe_engine *engine = engine_of(400, 400, NULL);
    gsize bytes = n_logits(engine) * sizeof(float);
    g_autofree float *want = logits_of(engine, open_exact(engine), ids);
    qe_engine_free(engine);
    for (int mock = 0; mock < 2; mock++) {
        use_backend(mock, 2);
        engine = engine_of(mock ? 12 : 400, 400, NULL);
        qe_cache_config config;
        qe_cache_config_init(&config);
        config.mode = QE_CACHE_SELECTIVE;
        g_autofree float *got = logits_of(engine, open_with(engine, &config, NULL), ids);
        g_assert_cmpmem(got, bytes, want, bytes);
        /* 29 pages: with 1 + 2 + 26 nothing is left out. */
        g_autofree float *all = logits_of(engine, open_small(engine, 26, 0), ids);
        g_assert_cmpmem(all, bytes, want, bytes);
        g_autofree float *less = logits_of(engine, open_small(engine, 25, 0), ids);
        g_assert_true(memcmp(less, want, bytes) != 0);
        qe_engine_free(engine);
    }
}

/* The same logits and the same replies wherever pages are. */
static void test_placement(void)
{
    static const struct {
        bool mock;
        uint32_t n_device, n_host, hot_tokens;
    } places[] = {{false, 400, 400, 0}, {true, 400, 400, 0}, {false, 9, 400, 0}, {true, 9, 400, 0},
        {true, 12, 400, 64}, {true, 40, 400, 96}};
    g_autoptr(GArray) ids = et_some_ids(450, 7);
    et_result want[N_TURNS] = {0};
    use_backend(false, 0);
    qe_engine *engine = engine_of(400, 0, NULL);
    gsize n = n_logits(engine);
    g_autofree float *exact = logits_of(engine, open_exact(engine), ids);
    g_autofree float *logits = logits_of(engine, open_small(engine, 4, 0), ids);
    double error = difference(exact, logits, n);
    g_test_message("7 of 29 pages: relative error of the logits %.3f", error);
    g_assert_cmpfloat(error, >, 1e-3);
    qe_session_id session = open_small(engine, 4, 0);
    for (guint i = 0; i < N_TURNS; i++)
        et_ask_exactly(engine, session, questions[i], N_TOKENS, &want[i]);
    g_assert_cmpfloat(want[0].receipt.skipped_share, ==, 0);
    g_assert_cmpfloat(want[N_TURNS - 1].receipt.skipped_share, >, 0.2);
    qe_engine_free(engine);
    for (guint k = 0; k < G_N_ELEMENTS(places); k++) {
        uint32_t n_on_host = 0;
        use_backend(places[k].mock, k);
        engine = engine_of(places[k].n_device, places[k].n_host, NULL);
        g_autofree float *got = logits_of(engine, open_small(engine, 4, places[k].hot_tokens), ids);
        g_assert_cmpmem(got, n * sizeof *got, logits, n * sizeof *logits);
        session = open_small(engine, 4, places[k].hot_tokens);
        for (guint i = 0; i < N_TURNS; i++) {
            g_auto(et_result) r = {0};
            et_ask_exactly(engine, session, questions[i], N_TOKENS, &r);
            et_assert_same(&want[i], &r);
            g_assert_cmpint(r.receipt.mode, ==, QE_CACHE_SELECTIVE);
            g_assert_cmpfloat(r.receipt.skipped_share, ==, want[i].receipt.skipped_share);
            g_assert_cmpuint(r.receipt.n_recomputed, ==, 0);
            n_on_host += r.receipt.n_on_host;
        }
        if (places[k].n_device < 20)
            g_assert_cmpuint(n_on_host, >, 0);
        et_pages_used(engine);
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        const qe_tier_view *home = &s->tiers[places[k].mock ? QE_TIER_GPU : QE_TIER_HOST];
        if (places[k].n_device > 20) /* else they have given way since */
            g_assert_cmpuint(home->bytes_bounds, >=, PAGE_BYTES);
        g_assert_cmpuint(home->bytes_bounds % PAGE_BYTES, ==, 0);
        qe_snapshot_unref(s);
        qe_engine_free(engine);
    }
    for (guint i = 0; i < N_TURNS; i++)
        et_result_clear(&want[i]);
}

/* Selective replies beside exact ones, prompts and each other: everybody says what he says alone. */
static void test_beside(void)
{
    enum { N = 6 };
    for (int mock = 0; mock < 2; mock++) {
        et_result want[N] = {0}, got[N] = {0};
        GArray *ids[N];
        qe_request *requests[N];
        for (int round = 0; round < 2; round++) {
            use_backend(mock, 4);
            qe_engine *engine = engine_of(round && mock ? 90 : 600, 600, NULL);
            for (uint32_t i = 0; i < N; i++) {
                g_autoptr(GError) error = NULL;
                qe_session_id session = i % 3 == 2 ? open_exact(engine) : open_small(engine, 3 + i % 2, 0);
                if (round == 0)
                    ids[i] = et_some_ids(150 + 40 * i, 30 + i);
                qe_generate_params params =
                    et_ids(session, (const uint32_t *)(const void *)ids[i]->data, ids[i]->len, N_TOKENS);
                params.ignore_eos = true;
                requests[i] = qe_engine_generate(engine, &params, &error);
                g_assert_no_error(error);
                if (round == 0)
                    et_finish(requests[i], &want[i]);
            }
            for (uint32_t i = 0; i < N && round == 1; i++) {
                et_finish(requests[i], &got[i]);
                g_assert_no_error(got[i].error);
                et_assert_same(&want[i], &got[i]);
                g_assert_true((got[i].receipt.skipped_share > 0.1) == (i % 3 != 2));
            }
            qe_engine_free(engine);
        }
        for (uint32_t i = 0; i < N; i++) {
            et_result_clear(&want[i]);
            et_result_clear(&got[i]);
            g_array_unref(ids[i]);
        }
    }
}

/* Found are pages of sessions that select in the same way, and no others. */
static void test_shared(void)
{
    g_autoptr(GArray) ids = et_some_ids(200, 11);
    use_backend(false, 0);
    qe_engine *engine = engine_of(600, 0, NULL);
    for (int i = 0; i < 6; i++) {
        g_auto(et_result) r = {0};
        qe_session_id session = i % 3 == 0 ? open_exact(engine) : open_small(engine, i % 3 == 1 ? 4 : 5, 0);
        ask_ids(engine, session, ids, &r);
        g_assert_cmpuint(r.receipt.n_shared, ==, i < 3 ? 0 : 192);
        g_assert_cmpuint(r.receipt.n_reused, ==, i < 3 ? 0 : 192);
    }
    qe_engine_free(engine);
}

static void set_cache(qe_engine *engine, qe_session_id session, const qe_cache_config *config)
{
    g_autoptr(GError) error = NULL;
    while (!qe_engine_set_cache(engine, session, config, &error)) {
        g_assert_error(error, QE_ERROR, QE_ERROR_BUSY); /* a reply's end comes a moment before */
        g_clear_error(&error);
    }
}

/* To another mode and back: all is computed again, and nothing of the one gets into the other. */
static void test_change(void)
{
    et_result want[N_TURNS] = {0};
    qe_cache_config exact, selective;
    qe_cache_config_init(&exact);
    small_config(&selective, 3);
    exact.use_cache = selective.use_cache = false; /* else pages of two turns before are found again */
    use_backend(false, 0);
    qe_engine *engine = engine_of(400, 400, NULL);
    qe_session_id session = open_exact(engine);
    for (guint i = 0; i < N_TURNS; i++)
        et_ask_exactly(engine, session, questions[i], N_TOKENS, &want[i]);
    qe_engine_free(engine);

    engine = engine_of(400, 400, NULL);
    session = open_with(engine, &selective, NULL);
    for (guint i = 0; i < N_TURNS; i++) {
        g_auto(et_result) r = {0};
        set_cache(engine, session, i == 1 || i == 3 ? &exact : &selective);
        et_ask_exactly(engine, session, questions[i], N_TOKENS, &r);
        g_assert_cmpint(r.receipt.mode, ==, i == 1 || i == 3 ? QE_CACHE_TIERED : QE_CACHE_SELECTIVE);
        g_assert_cmpuint(r.receipt.n_reused, ==, 0);
        g_assert_cmpint(r.receipt.mismatch, ==, i ? QE_MISMATCH_MODE : QE_MISMATCH_NONE);
        if (i < 2) /* the first turn is below the identity length */
            et_assert_same(&want[i], &r);
    }
    qe_engine_free(engine);
    for (guint i = 0; i < N_TURNS; i++)
        et_result_clear(&want[i]);
}

/* A fork has its parent's pages and way to select. */
static void test_fork(void)
{
    g_autoptr(GError) error = NULL;
    use_backend(true, 6);
    qe_engine *engine = engine_of(40, 400, NULL);
    qe_session_id session = open_small(engine, 3, 0);
    g_auto(et_result) first = {0};
    g_auto(et_result) a = {0};
    g_auto(et_result) b = {0};
    et_ask_exactly(engine, session, questions[0], N_TOKENS, &first);
    et_result_clear(&first);
    et_ask_exactly(engine, session, questions[2], N_TOKENS, &first);
    qe_session_id fork = qe_engine_fork_session(engine, session, QE_KEEP_ALL, &error);
    g_assert_no_error(error);
    et_ask_exactly(engine, fork, questions[1], N_TOKENS, &b);
    et_ask_exactly(engine, session, questions[1], N_TOKENS, &a);
    et_assert_same(&a, &b);
    g_assert_cmpint(b.receipt.mode, ==, QE_CACHE_SELECTIVE);
    g_assert_cmpfloat(b.receipt.skipped_share, >, 0);
    g_assert_cmpfloat(b.receipt.skipped_share, ==, a.receipt.skipped_share);
    g_assert_cmpuint(b.receipt.n_reused, >, 64);
    g_assert_cmpuint(a.receipt.n_reused, >=, b.receipt.n_reused); /* it finds what the fork has sealed, too */
    qe_engine_free(engine);
}

/* After a restart its pages come from the disk, and get bounds there; for another way to select, or exact, they do not. */
static void test_restart(void)
{
    for (int mock = 0; mock < 2; mock++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *dir = g_dir_make_tmp("quire-select-XXXXXX", &error);
        g_assert_no_error(error);
        g_autoptr(GArray) ids = et_some_ids(300, 12);
        use_backend(mock, 8);
        g_auto(et_result) want = {0};
        g_auto(et_result) want_exact = {0};
        qe_engine *engine = engine_of(400, 400, NULL);
        ask_ids(engine, open_small(engine, 4, 0), ids, &want);
        ask_ids(engine, open_exact(engine), ids, &want_exact);
        qe_engine_free(engine);
        /* Who opens the conversation: selective, again, exactly, again, otherwise selective, selective as at first. */
        static const uint32_t n_chosen[] = {4, 4, 0, 0, 5, 4};
        for (guint i = 0; i < G_N_ELEMENTS(n_chosen); i++) {
            g_auto(et_result) r = {0};
            qe_cache_config config;
            small_config(&config, n_chosen[i]);
            if (n_chosen[i] == 0)
                config.mode = QE_CACHE_TIERED;
            engine = engine_of(mock && i == 1 ? 30 : 400, 400, dir);
            ask_ids(engine, open_with(engine, &config, "k"), ids, &r);
            bool kept = i == 1 || i == 3;
            g_assert_cmpuint(r.receipt.n_restored_disk, ==, kept ? 288 : 0);
            g_assert_cmpuint(r.receipt.n_reused, ==, kept ? 288 : 0);
            if (n_chosen[i] != 5)
                et_assert_same(n_chosen[i] ? &want : &want_exact, &r);
            g_assert_true((r.receipt.skipped_share > 0.5) == (n_chosen[i] > 0));
            qe_engine_free(engine);
        }
        et_remove_all(dir);
    }
}

/* The bounds go with the device and are made again from what the host has. */
static void test_lost(void)
{
    g_autoptr(GArray) ids = et_some_ids(300, 13);
    g_auto(et_result) want = {0};
    use_backend(true, 3);
    qe_engine *engine = engine_of(200, 400, NULL);
    ask_ids(engine, open_small(engine, 4, 0), ids, &want);
    qe_engine_free(engine);
    uint32_t n_losses = 0;
    for (uint32_t lose_at = 8; lose_at < 90; lose_at += 17) {
        g_autoptr(GError) error = NULL;
        g_auto(et_result) r = {0};
        use_backend(true, lose_at);
        mock_options.lose_at = lose_at;
        engine = engine_of(200, 400, NULL);
        mock_options.lose_at = 0;
        qe_session_id session = open_small(engine, 4, 0);
        qe_generate_params params =
            et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, N_TOKENS);
        params.ignore_eos = true;
        et_generate(engine, &params, &r);
        if (r.error) {
            g_assert_error(r.error, QE_ERROR, QE_ERROR_DEVICE_LOST);
            n_losses++;
            et_wait_lost(engine);
            et_recover(engine);
            et_result_clear(&r);
            et_generate(engine, &params, &r);
            g_assert_no_error(r.error);
        }
        et_assert_same(&want, &r);
        qe_engine_free(engine);
    }
    g_assert_cmpuint(n_losses, >, 1);
}

/* Conversations that do not fit together: bounds of idle ones give way, and are made again. */
static void test_many(void)
{
    enum { N = 4 };
    et_result want[N][N_TURNS] = {{{0}}};
    use_backend(false, 0);
    qe_engine *engine = engine_of(800, 0, NULL);
    for (guint i = 0; i < N; i++) {
        qe_session_id s = open_small(engine, 3, 0);
        for (guint t = 0; t < N_TURNS; t++)
            et_ask_exactly(engine, s, questions[(t + i) % N_TURNS], N_TOKENS, &want[i][t]);
    }
    qe_engine_free(engine);
    for (int mock = 0; mock < 2; mock++) {
        use_backend(mock, 3);
        engine = engine_of(16, 400, NULL);
        qe_session_id sessions[N];
        for (guint i = 0; i < N; i++)
            sessions[i] = open_small(engine, 3, 0);
        for (guint t = 0; t < N_TURNS; t++) {
            for (guint i = 0; i < N; i++) {
                g_auto(et_result) r = {0};
                et_ask_exactly(engine, sessions[i], questions[(t + i) % N_TURNS], N_TOKENS, &r);
                et_assert_same(&want[i][t], &r);
                g_assert_cmpuint(r.receipt.n_recomputed, ==, 0);
            }
        }
        qe_engine_free(engine);
    }
    for (guint i = 0; i < N * N_TURNS; i++)
        et_result_clear(&want[i / N_TURNS][i % N_TURNS]);
}

/* ---- How good it is ---- */

static const char *const animals[] = {"fox", "cat", "dog", "bear", "mouse", "bird", "frog", "hare"};
static const char *const things[] = {"ball", "hat", "stone", "cake", "book", "kite", "lamp"};

static char *story(guint i)
{
    const char *a = animals[i * 5 % 8], *b = animals[(i * 3 + 1) % 8], *t = things[i * 4 % 7];
    return g_strdup_printf("One day a little %s found a %s in the garden. The %s was happy and ran to the "
                           "%s. They played with the "
                           "%s until the sun went down. Then they went home and told everyone about the %s.",
        a, t, a, b, t, t);
}

/* A name told after a third of so many stories, asked for behind them all. Whether the reply has it. */
static bool recalls(qe_engine *engine, qe_session_id session, guint n_stories, et_result *r)
{
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GArray) messages = g_array_new(FALSE, FALSE, sizeof(qe_message));
    for (guint i = 0; i < n_stories; i++) {
        if (i == n_stories / 3) {
            g_ptr_array_add(texts, g_strdup("My name is Mira."));
            g_ptr_array_add(texts, g_strdup("Nice to meet you, Mira!"));
        }
        g_ptr_array_add(texts, g_strdup_printf("Tell me a story about a %s.", animals[i * 5 % 8]));
        g_ptr_array_add(texts, story(i));
    }
    g_ptr_array_add(texts, g_strdup("What is my name?"));
    for (guint i = 0; i < texts->len; i++) {
        const qe_message m = {i % 2 ? QE_ROLE_ASSISTANT : QE_ROLE_USER, texts->pdata[i], -1};
        g_array_append_val(messages, m);
    }
    qe_message message;
    qe_generate_params params = et_user(session, "", &message);
    params.messages = (const qe_message *)(const void *)messages->data;
    params.n_messages = messages->len;
    params.whole_history = true;
    params.max_tokens = 16;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
    return strstr(r->text->str, "Mira") != NULL;
}

/* The shipped model finds a name with 18 of hundreds of pages, and not without those that are chosen. */
static void test_recall(void)
{
    static const guint n_stories[] = {8, 24, 62};
    use_backend(false, 0);
    qe_engine *engine = engine_of(120, 600, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(n_stories); i++) {
        qe_cache_config config;
        for (uint32_t n_chosen = 0; n_chosen <= 16; n_chosen += 16) {
            g_auto(et_result) r = {0};
            small_config(&config, n_chosen);
            config.sink_length = 0;
            bool right = recalls(engine, open_with(engine, &config, NULL), n_stories[i], &r);
            g_test_message("%u tokens, %u pages chosen, %.0f %% left out: %s", r.receipt.n_prompt, n_chosen,
                100 * r.receipt.skipped_share, r.text->str);
            g_assert_true(right == (n_chosen > 0));
            if (i == G_N_ELEMENTS(n_stories) - 1)
                g_assert_cmpfloat(r.receipt.skipped_share, >, 0.9);
        }
        g_auto(et_result) r = {0};
        g_assert_true(recalls(engine, open_exact(engine), n_stories[i], &r));
    }
    qe_engine_free(engine);
}

/* How near it is to the exact mode: over the last rows of texts of stories. */
static void test_error(void)
{
    static const uint32_t lengths[] = {500, 1000, 4000};
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) text = g_string_new(NULL);
    use_backend(false, 0);
    qe_engine *engine = engine_of(800, 0, NULL);
    gsize vocab = n_logits(engine) / N_LOGITS;
    for (guint i = 0; i < 120; i++) {
        g_autofree char *one = story(i);
        g_string_append(text, one);
        g_string_append_c(text, i % 3 ? ' ' : '\n');
    }
    qe_tokenizer *tokenizer = qe_engine_dup_tokenizer(engine);
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_assert_true(qe_tokenizer_encode(tokenizer, text->str, text->len, 0, all, &error));
    g_assert_no_error(error);
    qe_tokenizer_unref(tokenizer);
    for (guint i = 0; i < G_N_ELEMENTS(lengths); i++) {
        g_assert_cmpuint(all->len, >=, lengths[i]);
        g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
        g_array_append_vals(ids, all->data, lengths[i]);
        g_autofree float *exact = logits_of(engine, open_exact(engine), ids);
        double last_kl = INFINITY;
        for (uint32_t n_chosen = 16; n_chosen <= 64; n_chosen *= 4) {
            g_autofree float *got = logits_of(engine, open_small(engine, n_chosen, 0), ids);
            double kl = 0;
            uint32_t n_same = 0;
            for (guint row = 0; row < N_LOGITS; row++) {
                const float *p = exact + row * vocab, *q = got + row * vocab;
                double p_max = -INFINITY, q_max = -INFINITY, p_sum = 0, q_sum = 0;
                gsize p_best = 0, q_best = 0;
                for (gsize k = 0; k < vocab; k++) {
                    p_best = p[k] > p[p_best] ? k : p_best;
                    q_best = q[k] > q[q_best] ? k : q_best;
                }
                p_max = (double)p[p_best], q_max = (double)q[q_best];
                for (gsize k = 0; k < vocab; k++) {
                    p_sum += exp(p[k] - p_max);
                    q_sum += exp(q[k] - q_max);
                }
                for (gsize k = 0; k < vocab; k++) {
                    double log_p = p[k] - p_max - log(p_sum), log_q = q[k] - q_max - log(q_sum);
                    kl += exp(log_p) * (log_p - log_q) / N_LOGITS;
                }
                n_same += p_best == q_best;
            }
            g_test_message("%u tokens, %u + 3 of %u pages: KL %.4f, the same best token in %u of %u rows",
                lengths[i], n_chosen, (lengths[i] + 15) / 16, kl, n_same, N_LOGITS);
            g_assert_cmpfloat(kl, <, n_chosen == 16 ? 0.4 : 0.1);
            g_assert_cmpuint(n_same, >=, n_chosen == 16 ? N_LOGITS * 6 / 10 : N_LOGITS * 8 / 10);
            g_assert_cmpfloat(kl, <, last_kl);
            last_kl = kl;
        }
    }
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/select/config", test_config);
    g_test_add_func("/engine/select/cost", test_cost);
    g_test_add_func("/engine/select/identity", test_identity);
    g_test_add_func("/engine/select/placement", test_placement);
    g_test_add_func("/engine/select/beside", test_beside);
    g_test_add_func("/engine/select/shared", test_shared);
    g_test_add_func("/engine/select/change", test_change);
    g_test_add_func("/engine/select/fork", test_fork);
    g_test_add_func("/engine/select/restart", test_restart);
    g_test_add_func("/engine/select/lost", test_lost);
    g_test_add_func("/engine/select/many", test_many);
    g_test_add_func("/engine/select/recall", test_recall);
    g_test_add_func("/engine/select/error", test_error);
    return g_test_run();
}
