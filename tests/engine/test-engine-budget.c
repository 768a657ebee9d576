/* test-engine-budget.c: what fits a card, what is said when it does not, and the way back to the CPU. The card is
 * fake-cuda.c's. */
#include <glib/gstdio.h>
#include <string.h>
#include "engine/qe-host-paths.h"
#include "engine/qe-budget.h"
#include "engine/qe-limits.h"

#define GIB (1ull << 30)

/* The reference model on a 24 GB card. */
static qe_budget reference(void)
{
    return (qe_budget){
        .page_bytes = 16 * 147456,
        .context_max = 262144,
        .is_device = true,
        .memory_free = 23 * GIB,
        .weights = 8044936192,
        .workspace = GIB / 4,
        .reserve = GIB,
    };
}

static void test_pages(void)
{
    g_autoptr(GError) error = NULL;
    uint32_t n_pages = 0;
    qe_budget b = reference();
    uint64_t left = b.memory_free - b.weights - b.workspace - b.reserve;

    g_assert_true(qe_budget_pages(&b, &n_pages, &error));
    g_assert_cmpuint(n_pages, ==, left / b.page_bytes);
    b.reserve = 2 * GIB;
    g_assert_true(qe_budget_pages(&b, &n_pages, &error));
    g_assert_cmpuint(n_pages, ==, (left - GIB) / b.page_bytes);
    b.kv_wanted = GIB;
    g_assert_true(qe_budget_pages(&b, &n_pages, &error));
    g_assert_cmpuint(n_pages, ==, GIB / b.page_bytes);
    /* Never more than the default number of full contexts, however large the card. */
    b.kv_wanted = 0;
    b.memory_free = 4096 * GIB;
    g_assert_true(qe_budget_pages(&b, &n_pages, &error));
    g_assert_cmpuint(n_pages, ==, QE_KV_CONTEXTS * 262144 / 16);
    g_assert_no_error(error);
}

static void must_refuse(const qe_budget *b, const char *advice)
{
    g_autoptr(GError) error = NULL;
    uint32_t n_pages;
    g_assert_false(qe_budget_pages(b, &n_pages, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    if (!strstr(error->message, advice))
        g_error("\"%s\" does not say \"%s\"", error->message, advice);
}

static void test_refusals(void)
{
    qe_budget b = reference();
    b.memory_free = 8 * GIB;
    must_refuse(&b, "Close other programs");
    must_refuse(&b, "8.0");
    must_refuse(&b, "lower the memory reserve");
    b = reference();
    b.kv_wanted = 20 * GIB;
    must_refuse(&b, "Lower the cache memory");
    b.memory_free = 0;
    must_refuse(&b, "0 bytes");
}

static void test_plan(void)
{
    g_autoptr(GError) error = NULL;
    qe_engine_options options = {.memory_reserve = 2 * GIB};
    g_autoptr(qe_memory_plan) plan = qe_plan_memory(&options, g_getenv("QUIRE_TEST_MODEL"), &error);
    g_assert_no_error(error);
    g_assert_true(plan->on_device);
    g_assert_cmpstr(plan->device, ==, "Test Card");
    g_assert_cmpuint(plan->weights, ==, 8 * GIB);
    g_assert_cmpuint(plan->reserve, ==, 2 * GIB);
    g_assert_cmpuint(plan->kv, >, 0);
    g_assert_cmpuint(plan->kv_tokens * 4096, ==, plan->kv);
    g_assert_null(plan->problem);
    g_assert_cmpuint(plan->workspace, ==, GIB);

    /* The CPU for the device takes room for its results, a row of each span; the fake counts a MiB for one. */
    qe_memory_plan_free(plan);
    options.host_path = QE_HOST_PATH_CPU;
    options.context_max = 2048;
    plan = qe_plan_memory(&options, g_getenv("QUIRE_TEST_MODEL"), &error);
    g_assert_no_error(error);
    g_assert_cmpuint(plan->workspace, ==, GIB + (9 << 20));
    qe_memory_plan_free(plan);
    options.host_bytes_max = 1; /* without host pages there is nothing to attend to */
    plan = qe_plan_memory(&options, g_getenv("QUIRE_TEST_MODEL"), &error);
    g_assert_cmpuint(plan->workspace, ==, GIB);

    qe_memory_plan_free(plan);
    options.device = "GPU-other";
    plan = qe_plan_memory(&options, g_getenv("QUIRE_TEST_MODEL"), &error);
    g_assert_nonnull(strstr(plan->problem, "GPU-other"));
    qe_memory_plan_free(plan);
    options = (qe_engine_options){.kv_bytes_max = 40 * GIB};
    plan = qe_plan_memory(&options, g_getenv("QUIRE_TEST_MODEL"), &error);
    g_assert_nonnull(strstr(plan->problem, "Lower the cache memory"));
    g_assert_null(qe_plan_memory(NULL, "/nonexistent", &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FILE);
}

static char *dup_gpu_reason(qe_engine *engine)
{
    const qe_snapshot *snapshot = qe_engine_dup_snapshot(engine);
    char *reason = g_strdup(snapshot->tiers[QE_TIER_GPU].reason);
    qe_snapshot_unref(snapshot);
    return reason;
}

/* The choice is the engine's: the CPU carries on, and the snapshot says why it is not the card. */
static void test_fallback(const void *how)
{
    g_autoptr(GError) error = NULL;
    qe_engine_status status;
    g_setenv("FAKE_CUDA", how, TRUE);
    g_autoptr(qe_engine) engine = qe_engine_new(NULL, &error);
    qe_engine_load(engine, g_getenv("QUIRE_TEST_MODEL"));
    g_assert_true(qe_engine_wait_ready(engine, &error));
    qe_engine_get_status(engine, &status);
    g_assert_cmpstr(status.backend, ==, "cpu");
    qe_engine_status_clear(&status);
    for (int i = 0;; i++) {
        g_autofree char *reason = dup_gpu_reason(engine);
        if (reason && strstr(reason, "the test card fails"))
            break;
        g_assert_cmpint(i, <, 200);
        g_usleep(20 * 1000);
    }
}

/* The user chose the card: the failure is his to see. */
static void test_no_fallback(void)
{
    qe_engine_options options = {.backend = "cuda"};
    g_autoptr(GError) error = NULL;
    g_setenv("FAKE_CUDA", "memory", TRUE);
    g_autoptr(qe_engine) engine = qe_engine_new(&options, &error);
    qe_engine_load(engine, g_getenv("QUIRE_TEST_MODEL"));
    g_assert_false(qe_engine_wait_ready(engine, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    g_assert_nonnull(strstr(error->message, "the test card fails"));
}

/* A budget below what idle chats hold frees their pages; what comes next computes them again. */
static void test_set_kv(void)
{
    g_autoptr(GError) error = NULL;
    qe_engine_options options = {.backend = "cpu", .n_threads = 1};
    g_autoptr(qe_engine) engine = qe_engine_new(&options, &error);
    qe_engine_load(engine, g_getenv("QUIRE_TEST_MODEL"));
    g_assert_true(qe_engine_wait_ready(engine, &error));
    uint32_t ids[200], expected = 0;
    for (uint32_t i = 0; i < G_N_ELEMENTS(ids); i++)
        ids[i] = 5 + i % 50;
    qe_session_id session = qe_engine_open_session(engine, &error);
    const uint64_t budgets[] = {0, 14 * 65536, 2 * 65536, 0};
    for (guint i = 0; i < G_N_ELEMENTS(budgets); i++) {
        qe_generate_params params = {.session = session, .ids = ids, .n_ids = 200, .max_tokens = 1};
        params.sampling = (qe_sampling_params){.top_p = 1, .repetition_penalty = 1};
        params.ignore_eos = true;
        qe_engine_set_kv_bytes(engine, budgets[i]);
        g_autoptr(qe_request) request = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        qe_update update = {0};
        uint32_t id = UINT32_MAX;
        do {
            qe_update_clear(&update);
            qe_request_wait(request, -1);
            qe_request_take(request, &update);
            if (update.n_ids > 0)
                id = update.ids[0];
        } while (update.state != QE_REQUEST_DONE);
        if (i == 2) {
            g_assert_cmpint(update.finish, ==, QE_FINISH_ERROR);
        } else {
            g_assert_cmpint(update.finish, ==, QE_FINISH_LENGTH);
            g_assert_cmpuint(update.receipt.n_reused, ==, i == 1 ? 199 : 0);
            if (i == 0)
                expected = id;
            g_assert_cmpuint(id, ==, expected);
        }
        qe_update_clear(&update);
    }
}

/* A kept choice is found under its key alone; what is asked for wins; a file that is none is the default. */
static void test_host_paths(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("quire-paths-XXXXXX", &error);
    g_assert_no_error(error);
    g_autofree char *folder = g_build_filename(dir, "new", NULL);
    g_autofree char *file = g_build_filename(folder, "paths.ini", NULL);
    const qk_shape shape = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .hidden = 64};
    g_autofree char *key = qe_host_paths_key("A [card]", &shape, QK_BF16);
    g_autofree char *int8 = qe_host_paths_key("A [card]", &shape, QK_I8);
    g_assert_cmpstr(key, !=, int8);
    const double ms[QE_N_HOST_PATHS] = {0, 3, 2, 1};
    g_assert_true(qe_host_paths_store(file, key, QE_HOST_PATH_CPU, 1000, ms, &error));
    g_assert_no_error(error);
    g_assert_true(qe_host_paths_store(file, int8, QE_HOST_PATH_READ, 1000, ms, &error));
    g_assert_no_error(error);
    const struct {
        const char *file, *key;
        qe_host_path wanted, expected;
        const char *why;
    } cases[] = {
        {file, key, QE_HOST_PATH_AUTO, QE_HOST_PATH_CPU, "measured ("},
        {file, int8, QE_HOST_PATH_AUTO, QE_HOST_PATH_READ, "measured ("},
        {file, key, QE_HOST_PATH_READ, QE_HOST_PATH_READ, "asked for"},
        {file, "another", QE_HOST_PATH_AUTO, QE_HOST_PATH_STREAM, "default"},
        {folder, key, QE_HOST_PATH_AUTO, QE_HOST_PATH_STREAM, "default"},
        {NULL, key, QE_HOST_PATH_AUTO, QE_HOST_PATH_STREAM, "default"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *why = NULL;
        g_assert_cmpint(
            qe_host_paths_choose(cases[i].file, cases[i].key, cases[i].wanted, &why), ==, cases[i].expected);
        g_assert_nonnull(strstr(why, cases[i].why));
    }
    g_autofree char *why = NULL;
    g_assert_true(g_file_set_contents(file, "[x\npath=cpu\n\xff", -1, &error));
    g_assert_cmpint(qe_host_paths_choose(file, key, QE_HOST_PATH_AUTO, &why), ==, QE_HOST_PATH_STREAM);
    g_assert_true(qe_host_paths_store(file, key, QE_HOST_PATH_READ, 1000, ms, &error)); /* begins anew */
    g_clear_pointer(&why, g_free);
    g_assert_cmpint(qe_host_paths_choose(file, key, QE_HOST_PATH_AUTO, &why), ==, QE_HOST_PATH_READ);
    g_assert_cmpint(g_remove(file), ==, 0);
    g_assert_cmpint(g_rmdir(folder), ==, 0);
    g_assert_cmpint(g_rmdir(dir), ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/budget/pages", test_pages);
    g_test_add_func("/engine/budget/refusals", test_refusals);
    g_test_add_func("/engine/budget/plan", test_plan);
    g_test_add_data_func("/engine/budget/fallback/memory", "memory", test_fallback);
    g_test_add_data_func("/engine/budget/fallback/lost", "lost", test_fallback);
    g_test_add_func("/engine/budget/no-fallback", test_no_fallback);
    g_test_add_func("/engine/budget/set-kv", test_set_kv);
    g_test_add_func("/engine/budget/host-paths", test_host_paths);
    return g_test_run();
}
