/* lost-card.c: linked into the real programs, window and server, in the place of the engine's making. The card is the mock
 * device, and it behaves as real ones were seen to: after a fault the process that had it cannot open it again, another
 * image can. SIGUSR1: the next piece of work faults. Each image adds its process id to the file $QUIRE_TEST_IMAGES; each piece
 * of work waits up to $QUIRE_TEST_DELAY_US. */
#include <glib-unix.h>
#include <glib.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/app/mock-card.h"

static qk_backend *card; /* borrowed: the engine's */
static gint is_lost;

qe_engine *__real_qe_engine_new(const qe_engine_options *options, GError **error);
qe_engine *__wrap_qe_engine_new(const qe_engine_options *options, GError **error);

/* Engine thread. */
static qk_status open_card(void *user, qk_backend **out, char *error, size_t error_size)
{
    const char *delay = g_getenv("QUIRE_TEST_DELAY_US");
    qk_mock_options options = {.n_threads = 1,
        .memory_bytes = 1ull << 30,
        .delay_us_max = delay != NULL ? (uint32_t)g_ascii_strtoull(delay, NULL, 10) : 0};
    qk_status status;

    if (g_atomic_int_get(&is_lost)) {
        g_strlcpy(error, "mock: the context of this process is destroyed", error_size);
        return QK_DEVICE_LOST;
    }
    status = qk_mock_open(&options, out, error, error_size);
    card = *out;
    return status;
}

static gboolean lose_cb(gpointer user)
{
    g_atomic_int_set(&is_lost, TRUE);
    qk_mock_lose_at(card, 1);
    return G_SOURCE_CONTINUE;
}

static void note_image(void)
{
    const char *path = g_getenv("QUIRE_TEST_IMAGES");
    FILE *file = path != NULL ? fopen(path, "ae") : NULL;

    if (file == NULL)
        return;
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

qe_engine *__wrap_qe_engine_new(const qe_engine_options *options, GError **error)
{
    static gboolean once;
    qe_engine_options o = mock_card_options(options);

    if (!once) {
        note_image();
        g_unix_signal_add(SIGUSR1, lose_cb, NULL);
    }
    once = TRUE;
    return qe_engine_new_with_backend(&o, open_card, NULL, error);
}
