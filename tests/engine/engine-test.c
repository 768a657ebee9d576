/* engine-test.c: helpers of the engine's tests. */
#include "tests/engine/engine-test.h"
#include <glib/gstdio.h>

static qe_backend_open_fn backend_open;
static void *backend_user;

const char *et_model_dir(void)
{
    const char *dir = g_getenv("QUIRE_TEST_MODEL");
    return dir ? dir : "data/demo-model";
}

void et_set_backend(qe_backend_open_fn open, void *user)
{
    backend_open = open;
    backend_user = user;
}

qe_engine *et_engine_new(const qe_engine_options *options)
{
    return et_engine_new_for(options, et_model_dir());
}

qe_engine *et_engine_new_for(const qe_engine_options *options, const char *dir)
{
    qe_engine_options o = options ? *options : (qe_engine_options){0};
    o.check_invariants = true;
    if (o.n_threads == 0)
        o.n_threads = 2;
    g_autoptr(GError) error = NULL;
    qe_engine *engine = qe_engine_new_with_backend(&o, backend_open, backend_user, &error);
    g_assert_no_error(error);
    qe_engine_load(engine, dir);
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    return engine;
}

void et_result_clear(et_result *r)
{
    if (r->text)
        g_string_free(r->text, TRUE);
    g_clear_pointer(&r->ids, g_array_unref);
    g_clear_error(&r->error);
    g_clear_pointer(&r->top, g_free);
    g_clear_pointer(&r->ranges, g_free);
    *r = (et_result){0};
}

qe_generate_params et_user(qe_session_id session, const char *text, qe_message *message)
{
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    *message = (qe_message){QE_ROLE_USER, text, -1};
    params.session = session;
    params.messages = message;
    params.n_messages = 1;
    return params;
}

qe_generate_params et_ids(qe_session_id session, const uint32_t *ids, uint32_t n, uint32_t max_tokens)
{
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = session;
    params.ids = ids;
    params.n_ids = n;
    params.max_tokens = max_tokens;
    return params;
}

GArray *et_some_ids(uint32_t n, uint32_t seed)
{
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_autoptr(GRand) rand = g_rand_new_with_seed(seed);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)g_rand_int_range(rand, 10, 2000);
        g_array_append_val(ids, id);
    }
    return ids;
}

void et_finish(qe_request *request, et_result *result)
{
    et_result_clear(result);
    result->text = g_string_new(NULL);
    result->ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    bool done = false;
    while (!done) {
        qe_update update;
        qe_request_wait(request, -1);
        qe_request_take(request, &update);
        g_assert_true(g_utf8_validate(update.text, (gssize)update.n_text, NULL));
        g_string_append_len(result->text, update.text, (gssize)update.n_text);
        if (update.n_ids)
            g_array_append_vals(result->ids, update.ids, update.n_ids);
        result->n_takes += update.n_text > 0;
        done = update.state == QE_REQUEST_DONE;
        if (done) {
            result->finish = update.finish;
            result->receipt = update.receipt;
            result->error = g_steal_pointer(&update.error);
            result->top = g_steal_pointer(&update.top);
            result->n_top = update.n_top;
            result->ranges = g_steal_pointer(&update.ranges);
            result->n_ranges = update.n_ranges;
        }
        qe_update_clear(&update);
    }
    qe_request_unref(request);
}

void et_generate(qe_engine *engine, const qe_generate_params *params, et_result *result)
{
    g_autoptr(GError) error = NULL;
    qe_request *request = qe_engine_generate(engine, params, &error);
    g_assert_no_error(error);
    et_finish(request, result);
}

void et_ask(
    qe_engine *engine, qe_session_id session, const char *text, uint32_t max_tokens, et_result *result)
{
    qe_message message;
    qe_generate_params params = et_user(session, text, &message);
    params.max_tokens = max_tokens;
    et_generate(engine, &params, result);
    g_assert_no_error(result->error);
}

qe_session_id et_open(qe_engine *engine)
{
    g_autoptr(GError) error = NULL;
    qe_session_id id = qe_engine_open_session(engine, &error);
    g_assert_no_error(error);
    return id;
}

void et_assert_same(const et_result *a, const et_result *b)
{
    g_assert_cmpstr(a->text->str, ==, b->text->str);
    g_assert_cmpmem(a->ids->data, a->ids->len * 4, b->ids->data, b->ids->len * 4);
    g_assert_cmpint(a->finish, ==, b->finish);
}

uint32_t et_pages_used(qe_engine *engine)
{
    /* An evaluation is worked off after every command before it; its own session is gone when it returns. Then the
     * next publication shows what is left; one comes, because the rates of the last second have to fall to zero. */
    g_autoptr(GError) error = NULL;
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    g_autofree float *logits = g_new(float, status.model->vocab);
    qe_engine_status_clear(&status);
    uint32_t id = 1;
    qe_engine_eval(engine, 0, &id, 1, 0, logits, &error);
    g_assert_no_error(error);
    const qe_snapshot *before = qe_engine_dup_snapshot(engine);
    uint64_t serial = before->serial;
    qe_snapshot_unref(before);
    for (;;) {
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        uint32_t n = s->tiers[QE_TIER_HOST].n_pages_used + s->tiers[QE_TIER_GPU].n_pages_used;
        bool settled = s->serial > serial && s->n_running == 0 && s->n_queued == 0;
        for (uint32_t i = 0; i < s->n_sessions; i++)
            settled &= s->sessions[i].id < UINT64_MAX / 2;
        qe_snapshot_unref(s);
        if (settled)
            return n;
        g_usleep(10 * 1000);
    }
}

void et_ask_exactly(
    qe_engine *engine, qe_session_id session, const char *text, uint32_t n_tokens, et_result *result)
{
    qe_message message;
    qe_generate_params params = et_user(session, text, &message);
    params.max_tokens = n_tokens;
    params.ignore_eos = true;
    et_generate(engine, &params, result);
    g_assert_no_error(result->error);
}

qe_session_id et_open_with(qe_engine *engine, const qe_session_options *options)
{
    g_autoptr(GError) error = NULL;
    qe_session_id id = qe_engine_open_session_with(engine, options, &error);
    g_assert_no_error(error);
    return id;
}

void et_wait_lost(qe_engine *engine)
{
    qe_engine_status status = {0};
    do {
        qe_engine_status_clear(&status);
        qe_engine_get_status(engine, &status);
    } while (status.state != QE_ENGINE_LOST);
    qe_engine_status_clear(&status);
}

void et_recover(qe_engine *engine)
{
    g_autoptr(GError) error = NULL;
    qe_engine_recover(engine);
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
}

char *et_scratch(void)
{
    g_autoptr(GError) error = NULL;
    char *dir = g_dir_make_tmp("quire-test-XXXXXX", &error);
    g_assert_no_error(error);
    return dir;
}

void et_scratch_free(char *dir)
{
    et_remove_all(dir);
    g_free(dir);
}

void et_remove_all(const char *path)
{
    GDir *dir = g_dir_open(path, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        et_remove_all(child);
    }
    if (dir)
        g_dir_close(dir);
    g_remove(path);
}
