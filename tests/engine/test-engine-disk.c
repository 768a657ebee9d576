/* test-engine-disk.c: conversations that come back after a restart. An engine saves, another one with the same directory
 * goes on: what it says equals what an engine without a disk tier says, whatever was done to the files meanwhile; receipts
 * tell what came from the disk. */
#include <gio/gio.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include "engine/qe-kv-pages.h"
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define QUOTA      (64ull << 20)
#define N_TOKENS   20u
#define N_CHILD    40u /* turns of the child that is killed */

static const char *program;
static qk_mock_options mock_options;

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    return qk_mock_open(&mock_options, out, error, error_size);
}

static void use_backend(bool mock)
{
    mock_options = (qk_mock_options){.seed = 5, .delay_us_max = 200, .n_threads = 2};
    et_set_backend(mock ? open_mock : NULL, NULL);
}

/* ---- Engines and requests ---- */

static qe_engine *engine_of(
    const char *dir, uint64_t quota, uint32_t n_device, uint32_t n_host, qe_kv_class kv)
{
    return et_engine_new(&(qe_engine_options){
        .kv_bytes_max = (uint64_t)n_device * PAGE_BYTES,
        .host_bytes_max = (uint64_t)n_host * PAGE_BYTES,
        .ring_bytes = 1 << 20,
        .step_rows_max = 64,
        .kv_class = kv,
        .disk_dir = dir,
        .disk_bytes_max = quota,
    });
}

static qe_engine *engine_with(const char *dir)
{
    return engine_of(dir, QUOTA, 400, 400, QE_KV_BF16);
}

static qe_session_id open_key(qe_engine *engine, const char *key)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.disk_key = key;
    return et_open_with(engine, &options);
}

static qe_generate_params params_of(qe_session_id session, const GArray *ids)
{
    qe_generate_params params =
        et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, N_TOKENS);
    params.ignore_eos = true;
    return params;
}

static void ask(qe_engine *engine, qe_session_id session, const GArray *ids, et_result *r)
{
    qe_generate_params params = params_of(session, ids);
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
}

/* One conversation saved by an engine of its own. */
static void save(const char *dir, const char *key, const GArray *ids)
{
    g_auto(et_result) r = {0};
    qe_engine *engine = engine_with(dir);
    ask(engine, open_key(engine, key), ids, &r);
    qe_engine_free(engine);
}

/* What an engine without a disk tier says. */
static void want(const GArray *ids, et_result *r)
{
    qe_engine *engine = engine_with(NULL);
    ask(engine, open_key(engine, NULL), ids, r);
    g_assert_cmpuint(r->receipt.n_restored_disk, ==, 0);
    qe_engine_free(engine);
}

static char *note_of(qe_engine *engine)
{
    et_pages_used(engine); /* waits for a publication */
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    g_assert_true(s->tiers[QE_TIER_DISK].present);
    char *note = g_strdup(s->tiers[QE_TIER_DISK].note);
    qe_snapshot_unref(s);
    return note;
}

/* The conversation again, in an engine of its own: the same text, @n_reused tokens from the disk. */
static void resume(const char *dir, const char *key, const GArray *ids, uint32_t n_reused, bool noted)
{
    g_auto(et_result) r = {0};
    g_auto(et_result) expected = {0};
    want(ids, &expected);
    qe_engine *engine = engine_with(dir);
    ask(engine, open_key(engine, key), ids, &r);
    et_assert_same(&expected, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, n_reused);
    g_assert_cmpuint(r.receipt.n_restored_disk, ==, n_reused);
    g_assert_cmpuint(r.receipt.n_shared, ==, 0);
    g_assert_cmpuint(r.receipt.n_recomputed, ==, 0);
    g_autofree char *note = note_of(engine);
    if (noted)
        g_assert_nonnull(note);
    else
        g_assert_cmpstr(note, ==, NULL);
    qe_engine_free(engine);
}

/* ---- Files ---- */

/* Paths of all files whose name has @part in it. Owned. */
static GPtrArray *find_files(const char *root, const char *part)
{
    GPtrArray *found = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GDir) top = g_dir_open(root, 0, NULL);
    for (const char *sub; (sub = g_dir_read_name(top));) {
        g_autofree char *path = g_build_filename(root, sub, NULL);
        g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
        for (const char *name; dir && (name = g_dir_read_name(dir));) {
            if (strstr(name, part))
                g_ptr_array_add(found, g_build_filename(path, name, NULL));
        }
    }
    return found;
}

static char *file_of(const char *root, const char *key, const char *suffix)
{
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, key, -1);
    hash[32] = '\0';
    g_autofree char *name = g_strconcat(hash, suffix, NULL);
    g_autoptr(GPtrArray) found = find_files(root, name);
    g_assert_cmpuint(found->len, ==, 1);
    return g_strdup(found->pdata[0]);
}

static void rewrite(const char *path, gsize flip, gsize cut_to)
{
    g_autofree char *bytes = NULL;
    gsize n;
    g_assert_true(g_file_get_contents(path, &bytes, &n, NULL));
    g_assert_cmpuint(n, >, MIN(flip, cut_to));
    if (flip < n)
        bytes[flip] ^= 0x40;
    g_assert_true(g_file_set_contents(path, bytes, (gssize)MIN(n, cut_to), NULL));
}

/* ---- The pool's side ---- */

static void check_pool(const qe_kv_pool *pool, const qe_page *held, uint32_t n)
{
    g_autoptr(GError) error = NULL;
    g_autofree uint32_t *counts = g_new0(uint32_t, qe_kv_pool_n_pages(pool) + 1);
    for (uint32_t i = 0; i < n; i++)
        counts[held[i]]++;
    qe_kv_pool_check(pool, counts, &error);
    g_assert_no_error(error);
}

/* Imports are nobody's until they are done; pinned pages keep their slots whatever becomes of them. */
static void test_pool(void)
{
    enum { BYTES = 4096, N_HOST = 4 };
    g_autoptr(GError) error = NULL;
    use_backend(false);
    qe_backend_opener opener = {.name = (char *)"cpu", .n_threads = 1};
    qk_backend *backend = qe_backend_open(&opener, false, &error);
    g_assert_no_error(error);
    qk_kv_layout layout = {.dtype = QK_BF16, .page_bytes = BYTES};
    qe_kv_pool *pool = qe_kv_pool_new(backend, &layout, 8, 8, false);
    qe_kv_pool_add_host(pool, N_HOST, N_HOST, false, NULL, NULL);
    uint32_t ids[6][16];
    qe_page pages[6];
    void *bytes[6];
    for (uint32_t i = 0; i < 6; i++) {
        for (uint32_t k = 0; k < 16; k++)
            ids[i][k] = i * 100 + k;
    }
    for (uint32_t i = 0; i < N_HOST; i++) {
        g_assert_cmpint(qe_kv_pool_import(pool, NULL, ids[i], &pages[i], &bytes[i]), ==, QE_IMPORT_TAKEN);
        memset(bytes[i], (int)i + 1, BYTES);
        g_assert_cmpuint(qe_kv_pool_find(pool, NULL, ids[i]), ==, QE_PAGE_NONE);
        check_pool(pool, NULL, 0);
    }
    g_assert_cmpint(qe_kv_pool_import(pool, NULL, ids[4], &pages[4], &bytes[4]), ==, QE_IMPORT_FULL);
    qe_kv_page_import_done(pool, pages[0], true);
    qe_kv_page_import_done(pool, pages[1], true);
    qe_kv_page_import_done(pool, pages[2], false);
    check_pool(pool, NULL, 0);
    g_assert_cmpuint(qe_kv_pool_find(pool, NULL, ids[2]), ==, QE_PAGE_NONE);
    g_assert_cmpint(qe_kv_pool_import(pool, NULL, ids[0], &pages[4], &bytes[4]), ==, QE_IMPORT_EXISTS);

    /* A page that somebody computed while it was being read stays the one. */
    qe_page mine, found;
    g_assert_true(qe_kv_page_alloc(pool, &mine, &error));
    qe_kv_page_seal(pool, mine);
    g_assert_cmpuint(qe_kv_page_publish(pool, mine, NULL, ids[3]), ==, mine);
    qe_kv_page_import_done(pool, pages[3], true);
    found = qe_kv_pool_find(pool, NULL, ids[3]);
    g_assert_cmpuint(found, ==, mine);
    check_pool(pool, (qe_page[]){mine, mine}, 2);
    qe_kv_page_unref(pool, found);

    /* Pinned: neither evicted nor unsealed, and its bytes stay when nothing names it any more. */
    found = qe_kv_pool_find(pool, NULL, ids[0]);
    g_assert_cmpuint(found, ==, pages[0]);
    const uint8_t *host = qe_kv_page_host(pool, found);
    g_assert_cmpuint(host[0], ==, 1);
    qe_kv_page_pin(pool, found);
    qe_kv_page_pin(pool, found);
    qe_kv_page_unref(pool, found);
    check_pool(pool, &mine, 1);
    g_assert_cmpuint(qe_kv_pool_n_host_available(pool), ==, N_HOST - 1);
    g_assert_cmpuint(qe_kv_pool_evict_cached_host(pool, 10), ==, 1);
    g_assert_cmpuint(qe_kv_pool_find(pool, NULL, ids[1]), ==, QE_PAGE_NONE);
    qe_kv_page_unpin(pool, found);
    /* The device's own page of that name takes it over. */
    g_assert_true(qe_kv_page_alloc(pool, &pages[1], &error));
    qe_kv_page_seal(pool, pages[1]);
    g_assert_cmpuint(qe_kv_page_publish(pool, pages[1], NULL, ids[0]), ==, pages[1]);
    check_pool(pool, (qe_page[]){mine, pages[1]}, 2);
    g_assert_cmpuint(qe_kv_pool_n_host_available(pool), ==, N_HOST - 1);
    g_assert_cmpuint(host[BYTES - 1], ==, 1);
    qe_kv_page_unpin(pool, found);
    check_pool(pool, (qe_page[]){mine, pages[1]}, 2);
    g_assert_cmpuint(qe_kv_pool_n_host_available(pool), ==, N_HOST);
    qe_kv_counters counters;
    qe_kv_pool_get_counters(pool, &counters);
    g_assert_cmpuint(counters.n_found_imported, ==, 1);
    qe_kv_page_unref(pool, mine);
    qe_kv_page_unref(pool, pages[1]);
    qe_kv_pool_free(pool);
    qk_backend_free(backend);
}

/* ---- Tests ---- */

static void restart(bool mock)
{
    char *dir = et_scratch();
    use_backend(mock);
    g_autoptr(GArray) ids = et_some_ids(300, 3);
    g_auto(et_result) first = {0};
    qe_engine *engine = engine_with(dir);
    ask(engine, open_key(engine, "one"), ids, &first);
    g_assert_cmpuint(first.receipt.n_restored_disk, ==, 0);
    qe_engine_free(engine);
    /* The same prompt: all of its full pages but the one with the last token. */
    resume(dir, "one", ids, (ids->len - 1) / 16 * 16, false);
    /* The reply too, whose last token was never computed. */
    g_array_append_vals(ids, first.ids->data, first.ids->len);
    uint32_t n_computed = ids->len - 1;
    g_autoptr(GArray) more = et_some_ids(40, 4);
    g_array_append_vals(ids, more->data, more->len);
    resume(dir, "one", ids, n_computed / 16 * 16, false);
    /* And what that turn added. */
    resume(dir, "one", ids, (ids->len - 1) / 16 * 16, false);
    resume(dir, "two", ids, 0, false);
    et_scratch_free(dir);
}

static void test_restart_cpu(void)
{
    restart(false);
}

static void test_restart_mock(void)
{
    restart(true);
}

/* A chat by its messages, as an application that starts again asks it. */
static void test_history(void)
{
    static const char *const texts[] = {"Tell me a long story about a cat and a mouse.",
        "It was a dark night.", "My name is Mira. What is a KV cache?", "It keeps what was computed.",
        "What is my name?"};
    char *dir = et_scratch();
    et_result results[3] = {{0}};
    qe_message messages[5];
    for (guint i = 0; i < G_N_ELEMENTS(messages); i++)
        messages[i] = (qe_message){i % 2 ? QE_ROLE_ASSISTANT : QE_ROLE_USER, texts[i], -1};
    use_backend(false);
    for (int k = 0; k < 3; k++) { /* without a disk, saving, restored */
        qe_engine *engine = engine_with(k == 0 ? NULL : dir);
        qe_generate_params params;
        qe_generate_params_init(&params, NULL);
        params.session = open_key(engine, "chat");
        params.messages = messages;
        params.n_messages = G_N_ELEMENTS(messages);
        params.whole_history = true;
        params.max_tokens = N_TOKENS;
        et_generate(engine, &params, &results[k]);
        g_assert_no_error(results[k].error);
        et_assert_same(&results[0], &results[k]);
        qe_engine_free(engine);
    }
    const qe_receipt *r = &results[2].receipt;
    g_assert_cmpuint(r->n_prompt, >, 32);
    g_assert_cmpuint(r->n_restored_disk, ==, (r->n_prompt - 1) / 16 * 16);
    g_assert_cmpuint(r->n_new, ==, r->n_prompt - r->n_restored_disk);
    for (int k = 0; k < 3; k++)
        et_result_clear(&results[k]);
    et_scratch_free(dir);
}

/* A session that is closed is saved; opened again in the same engine it goes on, and so does a restart. */
static void test_close(void)
{
    for (int mock = 0; mock < 2; mock++) {
        char *dir = et_scratch();
        use_backend(mock);
        g_autoptr(GArray) ids = et_some_ids(200, 8);
        qe_engine *engine = engine_with(dir);
        for (int i = 0; i < 3; i++) {
            g_auto(et_result) r = {0};
            qe_session_id session = open_key(engine, "k");
            ask(engine, session, ids, &r);
            g_assert_cmpuint(r.receipt.n_reused, ==, i ? 192 : 0);
            qe_engine_close_session(engine, session);
        }
        qe_engine_free(engine);
        resume(dir, "k", ids, 192, false);
        et_scratch_free(dir);
    }
}

/* What an edit replaced is gone from the disk, what came before and after it is there. */
static void test_edit(void)
{
    char *dir = et_scratch();
    use_backend(false);
    g_autoptr(GArray) a = et_some_ids(300, 20), b = et_some_ids(260, 21);
    memcpy(b->data, a->data, 150 * sizeof(uint32_t));
    g_auto(et_result) r = {0};
    qe_engine *engine = engine_with(dir);
    qe_session_id session = open_key(engine, "edited");
    ask(engine, session, a, &r);
    ask(engine, session, b, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 150);
    qe_engine_free(engine);
    resume(dir, "edited", b, 256, false);
    resume(dir, "edited", a, 144, false);
    resume(dir, "edited", b, 144, false);
    /* Rewound and not continued: what lies behind is still valid. */
    g_array_set_size(b, 100);
    resume(dir, "edited", b, 96, false);
    et_scratch_free(dir);
}

typedef enum { FLIP_PAGE, CUT_PAGES, FLIP_INDEX, CUT_INDEX, NO_PAGES, OTHERS_FILES, N_DAMAGES } damage;

static void damage_files(const char *dir, damage kind)
{
    g_autofree char *pages = file_of(dir, "mine", ".pages");
    g_autofree char *index = file_of(dir, "mine", ".index");
    g_autofree char *others_pages = file_of(dir, "theirs", ".pages");
    g_autofree char *others_index = file_of(dir, "theirs", ".index");
    switch (kind) {
    case FLIP_PAGE:
        rewrite(pages, 5 * PAGE_BYTES + 1234, G_MAXSIZE);
        break;
    case CUT_PAGES:
        rewrite(pages, G_MAXSIZE, 7 * PAGE_BYTES + 77);
        break;
    case FLIP_INDEX:
        rewrite(index, 200, G_MAXSIZE);
        break;
    case CUT_INDEX:
        rewrite(index, G_MAXSIZE, 100);
        break;
    case NO_PAGES:
        g_remove(pages);
        break;
    default:
        g_rename(others_pages, pages);
        g_rename(others_index, index);
    }
}

/* Damage costs a prefill from where it is, is told, and the files are whole again afterwards. */
static void test_damage(void)
{
    g_autoptr(GArray) mine = et_some_ids(300, 30), theirs = et_some_ids(300, 31);
    for (int mock = 0; mock < 2; mock++) {
        use_backend(mock);
        for (int kind = 0; kind < N_DAMAGES; kind++) {
            char *dir = et_scratch();
            save(dir, "mine", mine);
            save(dir, "theirs", theirs);
            damage_files(dir, (damage)kind);
            uint32_t n = kind == FLIP_PAGE ? 80 : kind == CUT_PAGES ? 112 : 0;
            resume(dir, "mine", mine, n, true);
            resume(dir, "mine", mine, 288, false);
            et_scratch_free(dir);
        }
    }
}

/* Another kind of page: nothing is found, nothing is harmed. */
static void test_other_digest(void)
{
    char *dir = et_scratch();
    use_backend(false);
    g_autoptr(GArray) ids = et_some_ids(200, 40);
    save(dir, "k", ids);
    for (int i = 0; i < 2; i++) {
        g_auto(et_result) r = {0};
        qe_engine *engine = engine_of(dir, QUOTA, 400, 400, QE_KV_F32);
        ask(engine, open_key(engine, "k"), ids, &r);
        g_assert_cmpuint(r.receipt.n_restored_disk, ==, i ? 192 : 0);
        qe_engine_free(engine);
    }
    resume(dir, "k", ids, 192, false);
    et_scratch_free(dir);
}

/* Pages of other instructions have other bits: an engine finds those of its own kind alone, whether it was asked to be of
 * that kind or is by itself. */
static void test_other_kernels(void)
{
    char *dir = et_scratch(), error[160];
    use_backend(false);
    qk_backend *backend;
    g_assert_cmpint(
        qk_backend_open("cpu", &(qk_backend_options){.n_threads = 1}, &backend, error, sizeof error), ==,
        QK_OK);
    qk_backend_info info;
    qk_backend_get_info(backend, &info);
    qk_backend_free(backend);
    bool is_reference = strcmp(info.kernels, "reference") == 0;
    const struct {
        const char *isa;
        bool found;
    } rounds[] = {{"reference", false}, {NULL, is_reference}, {"reference", true}, {info.kernels, true}};
    g_autoptr(GArray) ids = et_some_ids(200, 42);
    for (guint i = 0; i < G_N_ELEMENTS(rounds); i++) {
        g_auto(et_result) r = {0};
        qe_engine *engine = et_engine_new(&(qe_engine_options){
            .host_bytes_max = 400 * PAGE_BYTES,
            .isa = rounds[i].isa,
            .disk_dir = dir,
            .disk_bytes_max = QUOTA,
        });
        ask(engine, open_key(engine, "k"), ids, &r);
        g_assert_cmpuint(r.receipt.n_restored_disk, ==, rounds[i].found ? 192 : 0);
        qe_engine_free(engine);
    }
    et_scratch_free(dir);
}

/* No room: replies are what they are, and the tier says why it keeps less. */
static void test_quota(void)
{
    char *dir = et_scratch();
    use_backend(false);
    g_autoptr(GArray) ids = et_some_ids(300, 50);
    g_auto(et_result) expected = {0};
    want(ids, &expected);
    for (int i = 0; i < 2; i++) {
        g_auto(et_result) r = {0};
        qe_engine *engine = engine_of(dir, 4 * PAGE_BYTES, 400, 400, QE_KV_BF16);
        ask(engine, open_key(engine, "k"), ids, &r);
        et_assert_same(&expected, &r);
        g_assert_cmpuint(r.receipt.n_restored_disk, <=, 64);
        for (g_autofree char *note = NULL; !note; note = note_of(engine))
            ;
        qe_engine_free(engine);
    }
    et_scratch_free(dir);
}

/* Hardly any host memory: as much comes back as fits, and pages on their way out keep nobody from theirs. */
static void test_little_memory(void)
{
    g_autoptr(GArray) ids = et_some_ids(300, 51);
    g_autoptr(GArray) other = et_some_ids(310, 52);
    for (int mock = 0; mock < 2; mock++) {
        char *dir = et_scratch();
        use_backend(mock);
        et_result expected[2] = {{0}};
        want(ids, &expected[0]);
        want(other, &expected[1]);
        save(dir, "a", ids);
        for (int i = 0; i < 3; i++) {
            et_result r[2] = {{0}};
            qe_engine *engine = engine_of(dir, QUOTA, 24, i == 2 ? 30 : 9, QE_KV_BF16);
            qe_session_id a = open_key(engine, "a"), b = open_key(engine, "b");
            ask(engine, a, ids, &r[0]);
            ask(engine, b, other, &r[1]);
            et_assert_same(&expected[0], &r[0]);
            et_assert_same(&expected[1], &r[1]);
            et_result_clear(&r[0]);
            ask(engine, a, ids, &r[0]);
            et_assert_same(&expected[0], &r[0]);
            qe_engine_free(engine);
            et_result_clear(&r[0]);
            et_result_clear(&r[1]);
        }
        et_result_clear(&expected[0]);
        et_result_clear(&expected[1]);
        et_scratch_free(dir);
    }
}

/* Deleting takes the files of the conversation, open or not, and no other's. */
static void test_delete(void)
{
    char *dir = et_scratch();
    use_backend(false);
    g_autoptr(GArray) a = et_some_ids(200, 60), b = et_some_ids(200, 61);
    save(dir, "a", a);
    save(dir, "b", b);
    g_autofree char *pages = file_of(dir, "a", ".pages");
    g_autofree char *index = file_of(dir, "a", ".index");
    for (int open = 0; open < 2; open++) {
        g_auto(et_result) r = {0};
        qe_engine *engine = engine_with(dir);
        if (open) {
            qe_session_id session = open_key(engine, "a");
            ask(engine, session, a, &r);
            qe_engine_delete_session_files(engine, "a");
            ask(engine, session, a, &r); /* goes on without */
        } else {
            qe_engine_delete_session_files(engine, "a");
            qe_engine_delete_session_files(engine, "never there");
        }
        qe_engine_free(engine); /* at once: what was asked for is done */
        g_assert_false(g_file_test(pages, G_FILE_TEST_EXISTS));
        g_assert_false(g_file_test(index, G_FILE_TEST_EXISTS));
        resume(dir, "a", a, 0, false);
        resume(dir, "b", b, 192, false);
    }
    et_scratch_free(dir);
}

/* Conversations of one directory, asked at the same time after a restart: each has its own pages. */
static void test_two(void)
{
    enum { N = 4 };
    for (int mock = 0; mock < 2; mock++) {
        char *dir = et_scratch();
        use_backend(mock);
        et_result expected[N] = {{0}}, got[N] = {{0}};
        GArray *ids[N];
        for (int i = 0; i < N; i++) {
            ids[i] = et_some_ids(200 + 16 * (uint32_t)i, 70 + (uint32_t)i);
            want(ids[i], &expected[i]);
        }
        for (int round = 0; round < 2; round++) {
            qe_engine *engine = engine_with(dir);
            qe_request *requests[N];
            for (int i = 0; i < N; i++) {
                g_autoptr(GError) error = NULL;
                g_autofree char *key = g_strdup_printf("conversation %d", i);
                qe_generate_params params = params_of(open_key(engine, key), ids[i]);
                requests[i] = qe_engine_generate(engine, &params, &error);
                g_assert_no_error(error);
            }
            for (int i = 0; i < N; i++) {
                et_finish(requests[i], &got[i]);
                g_assert_no_error(got[i].error);
                et_assert_same(&expected[i], &got[i]);
                g_assert_cmpuint(got[i].receipt.n_restored_disk, ==, round ? (ids[i]->len - 1) / 16 * 16 : 0);
            }
            qe_engine_free(engine);
        }
        for (int i = 0; i < N; i++) {
            et_result_clear(&expected[i]);
            et_result_clear(&got[i]);
            g_array_unref(ids[i]);
        }
        et_scratch_free(dir);
    }
}

/* A reply whose prompt is asked again after a restart begins without a step: what of the prompt no page holds is computed
 * beside its first token. It is the reply that it was, however it is drawn; after another prompt it is computed as always. */
static void test_last_logits(void)
{
    for (int mock = 0; mock < 2; mock++) {
        for (uint32_t n = 288; n <= 300; n += 12) { /* whole pages; and a tail */
            char *dir = et_scratch();
            use_backend(mock);
            g_autoptr(GArray) ids = et_some_ids(n, 97);
            save(dir, "k", ids);
            for (int draw = 0; draw < 5; draw++) {
                et_result r[2] = {{0}};
                for (int kept = 0; kept < 2; kept++) {
                    const qe_logit_bias bias = {ids->len, 3};
                    qe_engine *engine = engine_with(kept ? dir : NULL);
                    qe_generate_params params = params_of(open_key(engine, "k"), ids);
                    params.sampling.temperature = draw ? 0.9 : 0;
                    params.sampling.seed = 5;
                    params.sampling.has_seed = true;
                    params.sampling.repetition_penalty = draw == 2 ? 1.3 : 1;
                    params.sampling.presence_penalty = draw == 2 ? 0.5 : 0;
                    params.logprobs = draw == 3;
                    params.n_top_logprobs = draw == 3 ? 5 : 0;
                    params.logit_bias = &bias;
                    params.n_logit_bias = draw == 3;
                    params.n_top = draw == 3 ? 7 : 0;
                    params.constraint = draw == 4 ? qe_constraint_new_json_object() : NULL;
                    params.ignore_eos = draw != 4;
                    et_generate(engine, &params, &r[kept]);
                    qe_constraint_unref(params.constraint);
                    g_assert_no_error(r[kept].error);
                    g_assert_true(draw != 4 || r[kept].text->str[0] == '{');
                    g_assert_cmpuint(r[kept].receipt.n_reused, ==, kept ? n / 16 * 16 : 0);
                    g_assert_cmpuint(r[kept].receipt.n_new, ==, n - r[kept].receipt.n_reused);
                    if (kept) /* no rate of rows that nothing waited for */
                        g_assert_cmpfloat(r[kept].receipt.prefill_tokens_per_s, ==, 0);
                    qe_engine_free(engine);
                }
                et_assert_same(&r[0], &r[1]);
                et_result_clear(&r[0]);
                et_result_clear(&r[1]);
            }
            g_array_append_vals(ids, ids->data, 5);
            resume(dir, "k", ids, n / 16 * 16, false);
            et_scratch_free(dir);
        }
    }
}

/* Until @n pages were written since the engine began; the logits behind them are kept from before that on. */
static void wait_written(qe_engine *engine, uint64_t n)
{
    uint64_t n_bytes = 0;
    for (int i = 0; i < 3000 && n_bytes < n * PAGE_BYTES; i++) {
        et_pages_used(engine);
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        n_bytes = s->tiers[QE_TIER_DISK].bytes_in;
        qe_snapshot_unref(s);
    }
    g_assert_cmpuint(n_bytes, >=, n * PAGE_BYTES);
}

/* The same in an engine that goes on: a reply that is made anew, shorter or longer than the one before. */
static void test_regenerate(void)
{
    char *dir = et_scratch();
    use_backend(true);
    g_autoptr(GArray) ids = et_some_ids(150, 98);
    g_auto(et_result) expected = {0};
    want(ids, &expected);
    qe_engine *engine = engine_with(dir);
    qe_session_id session = open_key(engine, "k");
    for (int i = 0; i < 4; i++) {
        g_auto(et_result) r = {0};
        qe_generate_params params = params_of(session, ids);
        params.max_tokens = i == 2 ? 1 : N_TOKENS;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpuint(r.ids->len, ==, params.max_tokens);
        g_assert_cmpmem(r.ids->data, r.ids->len * 4, expected.ids->data, r.ids->len * 4);
        g_assert_cmpuint(r.receipt.n_reused, ==, i ? 150 : 0);
        wait_written(engine, 150 / 16);
    }
    /* As long, and the same at its end, but for a token of another page, or of the last, or in a prompt of half a page. */
    static const uint32_t changed[][2] = {{150, 5}, {150, 148}, {9, 0}, {9, 8}, {9, 0}};
    for (guint i = 0; i < G_N_ELEMENTS(changed); i++) {
        g_auto(et_result) r = {0};
        g_auto(et_result) other = {0};
        g_array_set_size(ids, changed[i][0]);
        g_array_index(ids, uint32_t, changed[i][1])++;
        want(ids, &other);
        ask(engine, session, ids, &r);
        et_assert_same(&other, &r);
        g_assert_cmpuint(r.receipt.n_reused, ==, changed[i][1]);
    }
    qe_engine_free(engine);
    et_scratch_free(dir);
}

/* int8 pages have files of their own: a conversation in either mode comes back in that, and neither finds the other's. */
static void test_int8(void)
{
    for (int mock = 0; mock < 2; mock++) {
        char *dir = et_scratch();
        use_backend(mock);
        g_autoptr(GArray) ids = et_some_ids(200, 82);
        et_result first = {0};
        for (int i = 0; i < 4; i++) { /* saved, restored, exact, both there */
            g_auto(et_result) r = {0};
            qe_session_options options;
            qe_session_options_init(&options);
            options.disk_key = "k";
            options.cache.mode = i == 2 ? QE_CACHE_TIERED : QE_CACHE_TIERED_INT8;
            qe_engine *engine = engine_with(dir);
            ask(engine, et_open_with(engine, &options), ids, &r);
            g_assert_cmpint(r.receipt.mode, ==, options.cache.mode);
            g_assert_cmpuint(r.receipt.n_restored_disk, ==, i % 2 ? 192 : 0);
            if (i == 0)
                ask(engine, et_open(engine), ids, &first); /* exact: what is on disk is another matter */
            qe_engine_free(engine);
            if (i == 2)
                et_assert_same(&first, &r);
            et_result_clear(&first);
            first = r;
            r = (et_result){0};
        }
        et_result_clear(&first);
        /* The mode changes while the engine runs: what it had stays on disk. */
        qe_engine *engine = engine_with(dir);
        qe_session_id session = open_key(engine, "k");
        qe_cache_config config;
        qe_cache_config_init(&config);
        for (int i = 0; i < 4; i++) {
            g_autoptr(GError) error = NULL;
            g_auto(et_result) r = {0};
            config.mode = i % 2 ? QE_CACHE_TIERED_INT8 : QE_CACHE_TIERED;
            qe_engine_set_cache(engine, session, &config, &error);
            g_assert_no_error(error);
            ask(engine, session, ids, &r);
            g_assert_cmpuint(r.receipt.n_reused, ==, 192);
        }
        g_autofree char *note = note_of(engine);
        g_assert_cmpstr(note, ==, NULL);
        qe_engine_free(engine);
        et_scratch_free(dir);
    }
}

/* Who does not use the cache, or has but one tier, is not kept. */
static void test_not_kept(void)
{
    char *dir = et_scratch();
    use_backend(false);
    g_autoptr(GArray) ids = et_some_ids(200, 80);
    for (int i = 0; i < 3; i++) {
        g_autoptr(GError) error = NULL;
        g_auto(et_result) r = {0};
        qe_session_options options;
        qe_session_options_init(&options);
        options.disk_key = "k";
        options.cache.use_cache = i != 0;
        options.cache.mode = i == 1 ? QE_CACHE_PAGED : i == 2 ? QE_CACHE_SESSION : QE_CACHE_AUTO;
        qe_engine *engine = engine_with(dir);
        qe_session_id session = qe_engine_open_session_with(engine, &options, &error);
        g_assert_no_error(error);
        ask(engine, session, ids, &r);
        qe_engine_free(engine);
        g_autoptr(GPtrArray) found = find_files(dir, ".pages");
        g_assert_cmpuint(found->len, ==, 0);
    }
    et_scratch_free(dir);
}

/* A directory that cannot be used, or is in use, is a reason, not an error. */
static void test_unusable(void)
{
    char *dir = et_scratch();
    use_backend(false);
    g_autoptr(GArray) ids = et_some_ids(100, 81);
    g_autofree char *missing = g_build_filename(dir, "not", "there", NULL);
    qe_engine *owner = engine_with(dir);
    const char *const dirs[] = {missing, dir, NULL};
    for (int i = 0; i < 3; i++) {
        g_auto(et_result) r = {0};
        qe_engine *engine = engine_with(dirs[i]);
        ask(engine, open_key(engine, "k"), ids, &r);
        et_pages_used(engine);
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        g_assert_false(s->tiers[QE_TIER_DISK].present);
        if (dirs[i])
            g_assert_nonnull(strstr(s->tiers[QE_TIER_DISK].reason, dirs[i]));
        else
            g_assert_cmpstr(s->tiers[QE_TIER_DISK].reason, ==, "Off");
        qe_snapshot_unref(s);
        qe_engine_free(engine);
    }
    qe_engine_free(owner);
    et_scratch_free(dir);
}

/* Cancelling and closing while pages are being read leaves everything as it was. */
static void test_cancel(void)
{
    for (int mock = 0; mock < 2; mock++) {
        char *dir = et_scratch();
        use_backend(mock);
        g_autoptr(GArray) ids = et_some_ids(300, 90);
        save(dir, "k", ids);
        qe_engine *engine = engine_with(dir);
        for (int i = 0; i < 6; i++) {
            g_autoptr(GError) error = NULL;
            g_auto(et_result) r = {0};
            qe_session_id session = open_key(engine, "k");
            qe_generate_params params = params_of(session, ids);
            qe_request *request = qe_engine_generate(engine, &params, &error);
            g_assert_no_error(error);
            if (i % 2)
                qe_request_cancel(request);
            else
                qe_engine_close_session(engine, session);
            et_finish(request, &r);
            g_assert_no_error(r.error);
            if (i % 2)
                qe_engine_close_session(engine, session);
        }
        qe_engine_free(engine);
        resume(dir, "k", ids, 288, false);
        et_scratch_free(dir);
    }
}

/* The device goes while pages are written and read: after the recovery, and after a restart, all is as it should be. */
static void test_lost(void)
{
    g_autoptr(GArray) ids = et_some_ids(300, 95);
    g_auto(et_result) expected = {0};
    use_backend(true);
    want(ids, &expected);
    for (guint at = 4; at < 30; at += 5) {
        g_autoptr(GError) error = NULL;
        g_auto(et_result) r = {0};
        char *dir = et_scratch();
        save(dir, "k", ids);
        mock_options.lose_at = at;
        qe_engine *engine = engine_with(dir);
        mock_options.lose_at = 0;
        qe_session_id session = open_key(engine, "k");
        qe_generate_params params = params_of(session, ids);
        et_generate(engine, &params, &r);
        if (r.error) {
            g_assert_error(r.error, QE_ERROR, QE_ERROR_DEVICE_LOST);
            et_wait_lost(engine);
            et_recover(engine);
            et_generate(engine, &params, &r);
            g_assert_no_error(r.error);
        }
        et_assert_same(&expected, &r);
        qe_engine_free(engine);
        resume(dir, "k", ids, 288, false);
        et_scratch_free(dir);
    }
}

/* ---- A process that is killed while it saves ---- */

static GArray *child_ids(uint32_t turn)
{
    GArray *ids = et_some_ids(60 + 60 * turn, 99);
    return ids;
}

/* The child: a conversation that grows, a line after each turn. */
static int run_child(const char *dir)
{
    use_backend(false);
    qe_engine *engine = engine_of(dir, QUOTA, 1000, 1000, QE_KV_BF16);
    qe_session_id session = open_key(engine, "killed");
    for (uint32_t turn = 0; turn < N_CHILD; turn++) {
        g_autoptr(GArray) ids = child_ids(turn % 12);
        g_auto(et_result) r = {0};
        qe_generate_params params = params_of(session, ids);
        params.max_tokens = 1;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        puts("turn");
        fflush(stdout);
    }
    qe_engine_free(engine);
    return 0;
}

static void test_killed(void)
{
    for (guint n_turns = 2; n_turns < 14; n_turns += 4) {
        g_autoptr(GError) error = NULL;
        char *dir = et_scratch();
        g_autoptr(GSubprocess) child =
            g_subprocess_new(G_SUBPROCESS_FLAGS_STDOUT_PIPE, &error, program, "--child", dir, NULL);
        g_assert_no_error(error);
        g_autoptr(GDataInputStream) lines = g_data_input_stream_new(g_subprocess_get_stdout_pipe(child));
        for (guint i = 0; i < n_turns; i++) {
            g_autofree char *line = g_data_input_stream_read_line(lines, NULL, NULL, &error);
            g_assert_no_error(error);
            g_assert_cmpstr(line, ==, "turn");
        }
        g_usleep(n_turns % 8 == 2 ? 1100 * 1000 : 0); /* an index may be replaced meanwhile */
        g_subprocess_send_signal(child, SIGKILL);
        g_subprocess_wait(child, NULL, &error);
        g_assert_no_error(error);

        use_backend(false);
        g_autoptr(GArray) ids = child_ids(11);
        g_auto(et_result) expected = {0};
        g_auto(et_result) r = {0};
        want(ids, &expected);
        qe_engine *engine = engine_with(dir);
        ask(engine, open_key(engine, "killed"), ids, &r);
        et_assert_same(&expected, &r);
        g_test_message("killed after %u turns: %u tokens came back", n_turns, r.receipt.n_restored_disk);
        qe_engine_free(engine);
        resume(dir, "killed", ids, ids->len / 16 * 16, false); /* and the logits behind it */
        et_scratch_free(dir);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return run_child(argv[2]);
    program = argv[0];
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/disk/pool", test_pool);
    g_test_add_func("/engine/disk/restart/cpu", test_restart_cpu);
    g_test_add_func("/engine/disk/restart/mock", test_restart_mock);
    g_test_add_func("/engine/disk/history", test_history);
    g_test_add_func("/engine/disk/close", test_close);
    g_test_add_func("/engine/disk/edit", test_edit);
    g_test_add_func("/engine/disk/damage", test_damage);
    g_test_add_func("/engine/disk/other-digest", test_other_digest);
    g_test_add_func("/engine/disk/other-kernels", test_other_kernels);
    g_test_add_func("/engine/disk/quota", test_quota);
    g_test_add_func("/engine/disk/little-memory", test_little_memory);
    g_test_add_func("/engine/disk/delete", test_delete);
    g_test_add_func("/engine/disk/two", test_two);
    g_test_add_func("/engine/disk/last-logits", test_last_logits);
    g_test_add_func("/engine/disk/regenerate", test_regenerate);
    g_test_add_func("/engine/disk/int8", test_int8);
    g_test_add_func("/engine/disk/not-kept", test_not_kept);
    g_test_add_func("/engine/disk/unusable", test_unusable);
    g_test_add_func("/engine/disk/cancel", test_cancel);
    g_test_add_func("/engine/disk/lost", test_lost);
    g_test_add_func("/engine/disk/killed", test_killed);
    return g_test_run();
}
