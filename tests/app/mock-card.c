/* mock-card.c: see mock-card.h. */
#include "tests/app/mock-card.h"

gboolean mock_card_use;
qk_backend *mock_card_last;
guint mock_card_n_opened;
static gint held;

qe_engine *__real_qe_engine_new(const qe_engine_options *options, GError **error);
qe_engine *__wrap_qe_engine_new(const qe_engine_options *options, GError **error);

void mock_card_hold(gboolean hold)
{
    g_atomic_int_set(&held, hold);
}

/* Engine thread. */
static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    qk_mock_options options = {.n_threads = 1, .memory_bytes = 1ull << 30};
    qk_status status = qk_mock_open(&options, out, error, error_size);

    while (g_atomic_int_get(&held))
        g_usleep(1000);
    mock_card_last = *out;
    mock_card_n_opened++;
    return status;
}

qe_engine *__wrap_qe_engine_new(const qe_engine_options *options, GError **error)
{
    qe_engine_options o = mock_card_options(options);

    return mock_card_use ? qe_engine_new_with_backend(&o, open_mock, NULL, error)
                         : __real_qe_engine_new(options, error);
}
