/* bench-turn.c: what the engine itself takes of a turn, on a backend that computes nothing: from the call to the submission of
 * the turn's first step, from its result to the reader's first token, and for each token of a reply. A conversation of
 * about 7,000 tokens gets turns of about 128; medians over the turns, in microseconds.
 *
 * bench-turn MODEL_DIR [TURNS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/qe-engine.h"
#include "engine/qe.h"
#include "kernels/qk-backend.h"

#define N_REPLY 128u

static const qk_backend_ops *cpu_ops;
static gint64 submitted; /* of the first step since it was 0; the engine thread's until a request ends */
static qk_output_result outputs[4096];
static const qk_result result = {.outputs = outputs};

static gint64 now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static qk_status step_submit(qk_step *step)
{
    if (submitted == 0)
        submitted = now_ns();
    return QK_OK;
}

static qk_status step_done(qk_step *step)
{
    return QK_OK;
}

static void step_cancel(qk_step *step)
{
}

static const qk_result *step_result(qk_step *step)
{
    return &result;
}

static qk_status open_nothing(void *user, qk_backend **out, char *error, size_t error_size)
{
    static qk_backend_ops ops;
    qk_status status = qk_cpu_open(&(qk_backend_options){.n_threads = 1}, out, error, error_size);
    if (status != QK_OK)
        return status;
    cpu_ops = (*out)->ops;
    ops = *cpu_ops;
    ops.step_submit = step_submit;
    ops.step_poll = ops.step_wait = step_done;
    ops.step_cancel = step_cancel;
    ops.step_result = step_result;
    (*out)->ops = &ops;
    for (size_t i = 0; i < G_N_ELEMENTS(outputs); i++)
        outputs[i].token = 1000;
    return QK_OK;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, double *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, compare);
    printf("%-44s %9.1f  (10%%: %.1f, 90%%: %.1f)\n", what, us[n / 2], us[n / 10], us[n * 9 / 10]);
}

/* A user's message of @n_sentences behind the first @keep messages. *@first: when the reader had its first token. */
static void ask(qe_engine *engine, qe_session_id session, int salt, int n_sentences, uint32_t keep,
    uint32_t max_tokens, uint32_t *n_new, gint64 *first)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) text = g_string_new(NULL);
    g_string_append_printf(text, "%d. ", salt); /* a text that was not there before */
    for (int i = 0; i < n_sentences; i++)
        g_string_append(text, "What is a KV cache, and what is it for? ");
    const qe_message message = {QE_ROLE_USER, text->str, -1};
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = session;
    params.messages = &message;
    params.n_messages = 1;
    params.keep_messages = keep;
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    for (bool done = false; !done;) {
        qe_update update;
        qe_request_wait(request, -1);
        if (!qe_request_take(request, &update)) {
            qe_update_clear(&update);
            continue;
        }
        if (update.n_ids > 0 && first && *first == 0)
            *first = now_ns();
        done = update.state == QE_REQUEST_DONE;
        *n_new = update.receipt.n_new;
        g_assert_no_error(update.error);
        qe_update_clear(&update);
    }
    qe_request_unref(request);
}

static void measure(qe_engine *engine, qe_cache_mode mode, int n_turns)
{
    g_autoptr(GError) error = NULL;
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache.mode = mode;
    qe_session_id session = qe_engine_open_session_with(engine, &options, &error);
    uint32_t n_history = 0, n_new = 0;
    ask(engine, session, -(int)mode, 620, 0, 1, &n_history, NULL);
    g_autofree double *to_submit = g_new(double, n_turns), *to_token = g_new(double, n_turns),
                      *each = g_new(double, n_turns);
    for (int i = 0; i < n_turns; i++) {
        gint64 first = 0, begin = now_ns();
        submitted = 0;
        ask(engine, session, i, 11, 2, N_REPLY, &n_new, &first);
        gint64 end = now_ns();
        to_submit[i] = (double)(submitted - begin) / 1e3;
        to_token[i] = (double)(first - submitted) / 1e3;
        each[i] = (double)(end - first) / 1e3 / (N_REPLY - 1);
        g_usleep(2000);
    }
    printf("%s, %u tokens and %u new, %d turns; microseconds\n", qe_cache_mode_name(mode), n_history, n_new,
        n_turns);
    show("from the call to the first step", to_submit, n_turns);
    show("from the first step to the reader's token", to_token, n_turns);
    show("each further token", each, n_turns);
    qe_engine_close_session(engine, session);
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s MODEL_DIR [TURNS]\n", argv[0]);
        return 2;
    }
    qe_engine *engine = qe_engine_new_with_backend(
        &(qe_engine_options){.host_bytes_max = 256ull << 20, .step_rows_max = 2048}, open_nothing, NULL,
        &error);
    g_assert_no_error(error);
    qe_engine_load(engine, argv[1]);
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    int n_turns = argc == 3 ? MAX(atoi(argv[2]), 1) : 200;
    measure(engine, QE_CACHE_SESSION, n_turns);
    measure(engine, QE_CACHE_TIERED, n_turns);
    qe_engine_free(engine);
    return 0;
}
