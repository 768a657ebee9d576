/* test-engine-outbox.c: order, edges, bounds, and two threads. */
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-outbox.h"

static void count_wakeup(void *user)
{
    g_atomic_int_inc((gint *)user);
}

static void test_edges(void)
{
    gint n_wakeups = 0;
    qe_outbox *box = qe_outbox_new(QE_OUTBOX_BYTES, count_wakeup, &n_wakeups);
    qe_update u;
    bool was_full;
    g_assert_false(qe_outbox_take(box, &u, &was_full));
    g_assert_cmpstr(u.text, ==, "");
    qe_update_clear(&u);
    const uint32_t ids[] = {1, 2, 3};
    qe_outbox_push(box, "ab", 2, ids, 2);
    qe_outbox_push(box, "c", 1, ids + 2, 1);
    qe_outbox_push(box, "", 0, NULL, 0);
    g_assert_cmpint(n_wakeups, ==, 1);
    g_assert_true(qe_outbox_wait(box, 0));
    g_assert_true(qe_outbox_take(box, &u, &was_full));
    g_assert_cmpstr(u.text, ==, "abc");
    g_assert_cmpmem(u.ids, u.n_ids * 4, ids, sizeof ids);
    qe_update_clear(&u);
    g_assert_false(qe_outbox_wait(box, 0));
    qe_outbox_set_queued(box, 0);
    g_assert_cmpint(n_wakeups, ==, 1); /* it was queued with nobody before it already */
    qe_outbox_set_queued(box, 2);
    g_assert_cmpint(n_wakeups, ==, 2);
    qe_receipt receipt = {.n_generated = 3};
    qe_outbox_finish(box, QE_FINISH_ERROR, &receipt, g_error_new(QE_ERROR, QE_ERROR_NUMERIC, "no"));
    g_assert_cmpint(n_wakeups, ==, 2);
    for (int i = 0; i < 2; i++) { /* the end can be read more than once */
        g_assert_cmpint(qe_outbox_take(box, &u, &was_full), ==, i == 0);
        g_assert_cmpint(u.state, ==, QE_REQUEST_DONE);
        g_assert_error(u.error, QE_ERROR, QE_ERROR_NUMERIC);
        g_assert_cmpuint(u.receipt.n_generated, ==, 3);
        qe_update_clear(&u);
    }
    qe_outbox_free(box);
}

static void test_full(void)
{
    qe_outbox *box = qe_outbox_new(QE_OUTBOX_BYTES, NULL, NULL);
    g_autofree char *text = g_strnfill(QE_OUTBOX_BYTES - 1, 'x');
    qe_update u;
    bool was_full;
    qe_outbox_push(box, text, strlen(text), NULL, 0);
    g_assert_false(qe_outbox_is_full(box));
    qe_outbox_push(box, "yz", 2, NULL, 0);
    g_assert_true(qe_outbox_is_full(box));
    qe_outbox_take(box, &u, &was_full);
    g_assert_true(was_full);
    g_assert_cmpuint(u.n_text, ==, QE_OUTBOX_BYTES + 1);
    g_assert_false(qe_outbox_is_full(box));
    qe_update_clear(&u);
    qe_outbox_take(box, &u, &was_full);
    g_assert_false(was_full);
    qe_update_clear(&u);
    qe_outbox_free(box);
}

#define N_NUMBERS 20000u

static void *write_numbers(void *user)
{
    qe_outbox *box = user;
    qe_receipt receipt = {0};
    for (uint32_t i = 0; i < N_NUMBERS; i++) {
        char text[16];
        int n = g_snprintf(text, sizeof text, "%u ", i);
        while (qe_outbox_is_full(box))
            g_usleep(50);
        qe_outbox_push(box, text, (gsize)n, &i, 1);
        if (i % 100 == 0)
            qe_outbox_set_progress(box, QE_REQUEST_DECODE, 1, 1, &receipt);
    }
    qe_outbox_finish(box, QE_FINISH_STOP, &receipt, NULL);
    return NULL;
}

static void test_threads(void)
{
    gint n_wakeups = 0;
    qe_outbox *box = qe_outbox_new(QE_OUTBOX_BYTES, count_wakeup, &n_wakeups);
    GThread *writer = g_thread_new("writer", write_numbers, box);
    g_autoptr(GString) text = g_string_new(NULL);
    uint32_t next = 0;
    gint n_takes = 0;
    for (bool done = false; !done;) {
        qe_update u;
        bool was_full;
        qe_outbox_wait(box, -1);
        n_takes += qe_outbox_take(box, &u, &was_full);
        for (uint32_t i = 0; i < u.n_ids; i++)
            g_assert_cmpuint(u.ids[i], ==, next++);
        g_string_append_len(text, u.text, (gssize)u.n_text);
        done = u.state == QE_REQUEST_DONE;
        qe_update_clear(&u);
    }
    g_thread_join(writer);
    g_assert_cmpuint(next, ==, N_NUMBERS);
    g_assert_cmpint(g_atomic_int_get(&n_wakeups), ==, n_takes);
    uint64_t sum = 0;
    for (char *p = text->str; *p;)
        sum += g_ascii_strtoull(p, &p, 10), p++;
    g_assert_cmpuint(sum, ==, (uint64_t)N_NUMBERS * (N_NUMBERS - 1) / 2);
    qe_outbox_free(box);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/outbox/edges", test_edges);
    g_test_add_func("/engine/outbox/full", test_full);
    g_test_add_func("/engine/outbox/threads", test_threads);
    return g_test_run();
}
