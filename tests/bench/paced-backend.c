/* paced-backend.c: see paced-backend.h. The engine thread runs all of it but the setting of a script. */
#include "tests/bench/paced-backend.h"
#include <string.h>
#include "kernels/qk-backend.h"

static const qk_backend_ops *cpu_ops;
static GMutex lock; /* guards what follows */
static uint32_t *script, script_end;
static guint n_script, n_submitted, n_drawn;
static gint64 interval_us, due_us;
static gboolean computes = TRUE;

static int32_t nth_token(guint i)
{
    return (int32_t)(i < n_script ? script[i] : script_end);
}

void paced_backend_set_script(const uint32_t *ids, guint n_ids, uint32_t end, double tokens_per_s)
{
    g_mutex_lock(&lock);
    g_free(script);
    script = ids != NULL ? g_memdup2(ids, n_ids * sizeof *ids) : NULL;
    n_script = n_ids;
    script_end = end;
    n_submitted = n_drawn = 0;
    interval_us = tokens_per_s > 0 ? (gint64)(1e6 / tokens_per_s) : 0;
    due_us = 0;
    g_mutex_unlock(&lock);
}

void paced_backend_set_computes(gboolean on)
{
    g_mutex_lock(&lock);
    computes = on;
    g_mutex_unlock(&lock);
}

static qk_status step_submit(qk_step *step)
{
    qk_plan *plan = cpu_ops->step_plan(step);
    gint64 wait_us = 0;
    gboolean skip = FALSE;

    g_mutex_lock(&lock);
    if (script != NULL && plan->n_outputs == 1) {
        if (n_submitted > 0 && plan->n_rows == 1) {
            gint64 now_us = g_get_monotonic_time();

            due_us = MAX(due_us + interval_us, now_us);
            wait_us = due_us - now_us;
            plan->tokens[0] = nth_token(n_submitted - 1);
            skip = !computes;
        }
        n_submitted++;
    }
    g_mutex_unlock(&lock);
    if (wait_us > 0)
        g_usleep((gulong)wait_us);
    /* A step that was done before reads as done, with what it had. */
    return skip ? QK_OK : cpu_ops->step_submit(step);
}

static const qk_result *step_result(qk_step *step)
{
    static qk_result result;
    static qk_output_result output;
    const qk_result *drawn = cpu_ops->step_result(step);

    g_mutex_lock(&lock);
    if (script != NULL && cpu_ops->step_plan(step)->n_outputs == 1) {
        output = drawn->outputs[0];
        output.token = nth_token(n_drawn++);
        result = *drawn;
        result.outputs = &output;
        drawn = &result;
    }
    g_mutex_unlock(&lock);
    return drawn;
}

qk_status paced_backend_open(void *user, qk_backend **out, char *error, size_t error_size)
{
    static qk_backend_ops ops;
    qk_status status = qk_cpu_open(&(qk_backend_options){0}, out, error, error_size);

    (void)user;
    if (status != QK_OK)
        return status;
    cpu_ops = (*out)->ops;
    ops = *cpu_ops;
    ops.step_submit = step_submit;
    ops.step_result = step_result;
    (*out)->ops = &ops;
    return QK_OK;
}
