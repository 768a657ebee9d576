/* test-engine-disk-card.c: the tiers with a card. Pages go from the card to host memory and to files, and back in an engine
 * that starts anew, exact and int8: a restored conversation goes on as it did; a flipped byte costs a prefill and is noted. A
 * conversation's limit on the card holds (the engine's checker looks at each page taken), and exact and int8 pages share one
 * budget of host memory. QUIRE_TEST_MODEL names the model folder. With --self the CPU's memory stands in for the card's. */
#include <gio/gio.h>
#include <stdio.h>
#include <string.h>
#include "tests/engine/engine-test.h"

#define N_PROMPT 500u
#define N_REPLY  24u
#define LIMIT    144u /* tokens */

static bool on_card;

static qe_engine *engine_in(const char *dir)
{
    return et_engine_new(&(qe_engine_options){
        .backend = on_card ? "cuda" : "cpu",
        .kv_bytes_max = 512ull << 20,
        .host_bytes_max = 256ull << 20,
        .disk_dir = dir,
        .disk_bytes_max = 512ull << 20,
    });
}

static qe_session_id open_as(qe_engine *engine, qe_cache_mode mode)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache.mode = mode;
    options.disk_key = "card";
    return et_open_with(engine, &options);
}

static void ask(qe_engine *engine, qe_session_id session, const GArray *ids, et_result *r)
{
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, N_REPLY);
    params.ignore_eos = true;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
}

/* Flips a bit in the middle of the only page file. */
static void flip(const char *root)
{
    g_autoptr(GDir) top = g_dir_open(root, 0, NULL);
    uint32_t n = 0;
    for (const char *sub; (sub = g_dir_read_name(top));) {
        g_autofree char *path = g_build_filename(root, sub, NULL);
        g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
        for (const char *name; dir && (name = g_dir_read_name(dir));) {
            if (!g_str_has_suffix(name, ".pages"))
                continue;
            g_autofree char *file = g_build_filename(path, name, NULL), *bytes = NULL;
            gsize n_bytes;
            g_assert_true(g_file_get_contents(file, &bytes, &n_bytes, NULL));
            bytes[n_bytes / 2] ^= 4;
            g_assert_true(g_file_set_contents(file, bytes, (gssize)n_bytes, NULL));
            n++;
        }
    }
    g_assert_cmpuint(n, ==, 1);
}

static char *note_of(qe_engine *engine)
{
    et_pages_used(engine); /* waits for a publication */
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    g_assert_true(s->tiers[QE_TIER_DISK].present);
    g_assert_true(s->tiers[QE_TIER_GPU].present == on_card);
    char *note = g_strdup(s->tiers[QE_TIER_DISK].note);
    qe_snapshot_unref(s);
    return note;
}

/* On a card a prompt that is computed in other pieces is summed in another order, and a later token may be another where two
 * are equally likely; the first one comes from the same logits. */
static void assert_same_reply(const et_result *a, const et_result *b)
{
    if (!on_card)
        et_assert_same(a, b);
    g_assert_cmpuint(g_array_index(a->ids, uint32_t, 0), ==, g_array_index(b->ids, uint32_t, 0));
}

enum { SAVED, AGAIN, TWICE, FURTHER, FURTHER_AGAIN, DAMAGED, N_ROUNDS };

/* Each round is an engine of its own. */
static void test_mode(gconstpointer data)
{
    static const char *const names[] = {"saved", "again", "twice", "further", "further again", "damaged"};
    qe_cache_mode mode = (qe_cache_mode)GPOINTER_TO_INT(data);
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("quire-card-disk-XXXXXX", &error);
    g_assert_no_error(error);
    g_autoptr(GArray) ids = et_some_ids(N_PROMPT, 5);
    et_result r[N_ROUNDS] = {{0}};
    for (int i = 0; i < N_ROUNDS; i++) {
        if (i == FURTHER) { /* behind the reply */
            g_array_append_vals(ids, r[TWICE].ids->data, r[TWICE].ids->len);
            g_autoptr(GArray) more = et_some_ids(40, 6);
            g_array_append_vals(ids, more->data, more->len);
        }
        if (i == DAMAGED)
            flip(dir);
        uint32_t n_all = ids->len / 16 * 16; /* whose logits are kept */
        uint32_t wanted[N_ROUNDS] = {0, n_all, n_all, (N_PROMPT + N_REPLY - 1) / 16 * 16, n_all, 0};
        qe_engine *engine = engine_in(dir);
        ask(engine, open_as(engine, mode), ids, &r[i]);
        g_assert_cmpint(r[i].receipt.mode, ==, mode);
        uint32_t n = r[i].receipt.n_restored_disk;
        g_test_message("%s, %s: %u of %u tokens from the disk, first token after %.2f ms",
            qe_cache_mode_name(mode), names[i], n, r[i].receipt.n_prompt, r[i].receipt.first_token_ms);
        if (i == DAMAGED)
            g_assert_cmpuint(n, <, n_all);
        else
            g_assert_cmpuint(n, ==, wanted[i]);
        g_autofree char *note = note_of(engine);
        g_assert_true((note != NULL) == (i == DAMAGED));
        qe_engine_free(engine);
    }
    assert_same_reply(&r[SAVED], &r[AGAIN]);
    et_assert_same(&r[AGAIN], &r[TWICE]); /* the same steps over the same bytes */
    assert_same_reply(&r[FURTHER], &r[FURTHER_AGAIN]);
    if (!on_card)
        et_assert_same(&r[FURTHER], &r[DAMAGED]);
    for (int i = 0; i < N_ROUNDS; i++)
        et_result_clear(&r[i]);
    et_remove_all(dir);
}

static qe_engine *engine_of(uint64_t host_bytes)
{
    return et_engine_new(&(qe_engine_options){
        .backend = on_card ? "cuda" : "cpu",
        .kv_bytes_max = 512ull << 20,
        .host_bytes_max = host_bytes,
    });
}

static qe_session_id open_limited(qe_engine *engine, qe_cache_mode mode, uint32_t limit)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache.mode = mode;
    options.cache.hot_cache_length = limit;
    return et_open_with(engine, &options);
}

/* As ask(); the session's pages on the card stay within its limit all the time. */
static void ask_watched(qe_engine *engine, qe_session_id session, const GArray *ids, et_result *r)
{
    g_autoptr(GError) error = NULL;
    uint32_t n_most = 0;
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, N_REPLY);
    params.ignore_eos = true;
    r->text = g_string_new(NULL);
    r->ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    for (bool done = false; !done;) {
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        for (uint32_t i = 0; i < s->n_sessions; i++) {
            if (s->sessions[i].id == session)
                n_most = MAX(n_most, s->sessions[i].n_pages_tier[QE_TIER_GPU]);
        }
        qe_snapshot_unref(s);
        qe_update update;
        qe_request_wait(request, 1);
        qe_request_take(request, &update);
        done = update.state == QE_REQUEST_DONE;
        g_string_append_len(r->text, update.text, (gssize)update.n_text);
        if (update.n_ids > 0)
            g_array_append_vals(r->ids, update.ids, update.n_ids);
        r->receipt = update.receipt;
        r->finish = update.finish;
        g_assert_no_error(update.error);
        qe_update_clear(&update);
    }
    qe_request_unref(request);
    g_test_message("at most %u of %u pages seen on the card", n_most, (ids->len + N_REPLY + 15) / 16);
    g_assert_cmpuint(n_most, <=, LIMIT / 16);
}

static void test_limit(void)
{
    g_autoptr(GArray) ids = et_some_ids(on_card ? 4010 : 1010, 8);
    g_auto(et_result) want = {0}, first = {0}, second = {0};
    qe_engine *engine = engine_of(256ull << 20);
    ask(engine, open_limited(engine, QE_CACHE_SESSION, 0), ids, &want);
    qe_engine_free(engine);
    engine = engine_of(256ull << 20);
    qe_session_id session = open_limited(engine, QE_CACHE_TIERED, LIMIT);
    ask_watched(engine, session, ids, &first);
    assert_same_reply(&want, &first);
    ask_watched(engine, session, ids, &second); /* over pages that are in host memory */
    assert_same_reply(&first, &second);
    g_assert_cmpuint(second.receipt.n_reused, ==, ids->len - 1);
    g_assert_cmpuint(second.receipt.n_on_host + LIMIT, >=, ids->len / 16 * 16);
    qe_engine_free(engine);
}

/* Closed conversations of one class have filled host memory; one of the other gets what it needs there, all of it: its pages
 * outlive the card's memory. */
static void test_classes(void)
{
    static const qe_cache_mode orders[][2] = {
        {QE_CACHE_TIERED, QE_CACHE_TIERED_INT8}, {QE_CACHE_TIERED_INT8, QE_CACHE_TIERED}};
    g_autoptr(GArray) a = et_some_ids(on_card ? 4010 : 1010, 9), b = et_some_ids(on_card ? 4010 : 1010, 10);
    for (guint i = 0; i < G_N_ELEMENTS(orders); i++) {
        g_auto(et_result) r = {0}, again = {0};
        qe_engine *engine = engine_of(128ull << 20); /* two slabs; an exact conversation has almost one */
        for (int k = 0; k < 4; k++) {
            qe_session_id session = open_limited(engine, orders[i][0], 0);
            g_array_index(a, uint32_t, 0)++;
            ask(engine, session, a, &r);
            et_pages_used(engine);
            qe_engine_close_session(engine, session);
        }
        qe_session_id session = open_limited(engine, orders[i][1], 0);
        ask(engine, session, b, &r);
        if (on_card) {
            qe_engine_release(engine);
            et_recover(engine);
        }
        ask(engine, session, b, &again);
        assert_same_reply(&r, &again);
        g_test_message("%s after %s: %u of %u tokens reused, %u from host memory",
            qe_cache_mode_name(orders[i][1]), qe_cache_mode_name(orders[i][0]), again.receipt.n_reused,
            b->len, again.receipt.n_restored_host);
        g_assert_cmpuint(again.receipt.n_reused, >=, b->len / 16 * 16);
        qe_engine_free(engine);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    on_card = !(argc == 2 && strcmp(argv[1], "--self") == 0);
    if (on_card) {
        g_autoptr(GPtrArray) devices = qe_list_devices();
        bool usable = false;
        for (guint i = 0; i < devices->len; i++)
            usable |= ((const qe_device_desc *)devices->pdata[i])->reason == NULL;
        if (!usable) {
            puts("1..0 # SKIP there is no card that can be used");
            return 0;
        }
    }
    g_test_add_data_func("/gpu/disk/tiered", GINT_TO_POINTER(QE_CACHE_TIERED), test_mode);
    g_test_add_data_func("/gpu/disk/tiered-int8", GINT_TO_POINTER(QE_CACHE_TIERED_INT8), test_mode);
    g_test_add_func("/gpu/tiers/limit", test_limit);
    g_test_add_func("/gpu/tiers/classes", test_classes);
    return g_test_run();
}
