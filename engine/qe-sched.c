/* qe-sched.c: the cost model and the choice of rows for one step.
 *
 * Invariants of a plan:
 *  1. Every decode that fits rows_max and seqs_max is in it.
 *  2. Prompt rows go to the oldest prompt first; a younger prompt gets rows only when the older ones got all they had.
 *  3. Predicted time <= ms_max, except for the decodes themselves and the oldest prompt's QE_PREFILL_ROWS_MIN rows.
 *  4. Some item has rows whenever there is an item. */
#include "engine/qe-sched.h"
#include <math.h>
#include "engine/qe-limits.h"

/* Old steps count for this much less with each new one, so the fit follows a machine that gets busy within ~50 steps. */
#define FORGET       0.98
#define PRIOR_WEIGHT 0.05

void qe_cost_init(
    qe_cost *cost, bool is_device, uint64_t weight_bytes, uint64_t n_params, uint64_t attend_flops_per_key)
{
    const double bytes_a_ms = is_device ? 500e6 : 8e6;
    const double flops_a_ms = is_device ? 50e9 : 30e6, attend_flops_a_ms = is_device ? 50e9 : 10e6;
    *cost = (qe_cost){
        .a = (double)weight_bytes / bytes_a_ms,
        .b = 2.0 * (double)n_params / flops_a_ms,
        .c = (double)attend_flops_per_key / attend_flops_a_ms,
    };
    cost->prior[0] = cost->a;
    cost->prior[1] = cost->b;
    cost->prior[2] = cost->c;
}

double qe_cost_attended(uint32_t start, uint32_t n_rows)
{
    return (double)n_rows * start + 0.5 * (double)n_rows * ((double)n_rows + 1);
}

double qe_cost_predict(const qe_cost *cost, double rows, double attended)
{
    return cost->a + cost->b * rows + cost->c * attended;
}

/* Solves the symmetric positive definite m x = r by Gaussian elimination with a pivot check. */
static bool solve3(double m[3][3], double r[3], double x[3])
{
    for (int i = 0; i < 3; i++) {
        if (fabs(m[i][i]) < 1e-30)
            return false;
        for (int j = i + 1; j < 3; j++) {
            double f = m[j][i] / m[i][i];
            for (int k = i; k < 3; k++)
                m[j][k] -= f * m[i][k];
            r[j] -= f * r[i];
        }
    }
    for (int i = 2; i >= 0; i--) {
        double s = r[i];
        for (int k = i + 1; k < 3; k++)
            s -= m[i][k] * x[k];
        x[i] = s / m[i][i];
    }
    return isfinite(x[0]) && isfinite(x[1]) && isfinite(x[2]);
}

void qe_cost_observe(qe_cost *cost, double rows, double attended, double ms)
{
    if (!(ms >= 0) || !isfinite(ms) || rows <= 0)
        return;
    /* Relative errors matter: a 2 ms step mispredicted by 2 ms is as bad as a 200 ms step by 200. */
    double w = 1.0 / fmax(ms * ms, 1e-4);
    const double x[3] = {1, rows, attended};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++)
            cost->xx[i][j] = FORGET * cost->xx[i][j] + w * x[i] * x[j];
        cost->xy[i] = FORGET * cost->xy[i] + w * x[i] * ms;
    }
    cost->n_steps++;

    /* Scaled by the prior, the unknowns are factors near 1, which keeps the ridge term meaningful. A factor that comes
     * out negative is set to a small share of the prior and the others are solved again. */
    bool fixed[3] = {false, false, false};
    double f[3];
    for (int round = 0; round < 3; round++) {
        double m[3][3], r[3];
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < 3; j++)
                m[i][j] = cost->xx[i][j] * cost->prior[i] * cost->prior[j];
            r[i] = cost->xy[i] * cost->prior[i] + PRIOR_WEIGHT;
            m[i][i] += PRIOR_WEIGHT;
        }
        for (int i = 0; i < 3; i++) {
            if (!fixed[i])
                continue;
            for (int j = 0; j < 3; j++) {
                r[j] -= m[j][i] * 0.01 * !fixed[j];
                m[i][j] = m[j][i] = 0;
            }
            m[i][i] = 1;
            r[i] = 0.01;
        }
        if (!solve3(m, r, f))
            return;
        bool again = false;
        for (int i = 0; i < 3; i++) {
            if (!fixed[i] && f[i] < 0.01)
                fixed[i] = again = true;
        }
        if (!again)
            break;
    }
    cost->a = fmax(f[0], 0.01) * cost->prior[0];
    cost->b = fmax(f[1], 0.01) * cost->prior[1];
    cost->c = fmax(f[2], 0.01) * cost->prior[2];
}

/* The most rows of a prompt at @start that keep the step within @ms_max. The time grows with the rows: bisection. */
static uint32_t rows_within(
    const qe_cost *cost, double ms_max, double rows, double attended, uint32_t start, uint32_t n)
{
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (qe_cost_predict(cost, rows + mid, attended + qe_cost_attended(start, mid)) <= ms_max)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

double qe_sched_plan(
    const qe_cost *cost, const qe_sched_limits *limits, qe_sched_item *items, uint32_t n, uint32_t rotate)
{
    uint32_t rows = 0, seqs = 0, logits = 0, outputs = 0;
    double attended = 0;

    for (uint32_t k = 0; k < n; k++)
        items[k].n_rows = 0;
    for (uint32_t k = 0; k < n; k++) {
        qe_sched_item *item = &items[(k + rotate) % n];
        if (!item->decode || rows == limits->rows_max || seqs == limits->seqs_max ||
            outputs == limits->outputs_max)
            continue;
        item->n_rows = 1;
        attended += qe_cost_attended(item->start, 1);
        rows++, seqs++, outputs++;
    }
    bool oldest = true;
    for (uint32_t k = 0; k < n; k++) {
        qe_sched_item *item = &items[k];
        if (item->decode)
            continue;
        uint32_t room = MIN(limits->rows_max - rows, item->n_known);
        if (item->n_rows_max)
            room = MIN(room, item->n_rows_max);
        if (room == 0 || seqs == limits->seqs_max || outputs == limits->outputs_max)
            break;
        uint32_t take = rows_within(cost, limits->ms_max, rows, attended, item->start, room);
        if (oldest)
            take = MAX(take, MIN(room, QE_PREFILL_ROWS_MIN));
        /* Rows whose logits are wanted: no more than can be copied out of one step. */
        uint32_t plain = item->n_known - item->n_logit_rows;
        uint32_t room_logits = MIN(limits->logits_max - logits, limits->outputs_max - outputs);
        if (take > plain && take - plain > room_logits)
            take = plain + room_logits;
        if (take == 0)
            break;
        item->n_rows = take;
        attended += qe_cost_attended(item->start, take);
        rows += take;
        seqs++;
        if (take > plain) {
            logits += take - plain;
            outputs += take - plain;
        } else if (take == item->n_known) {
            outputs++;
        }
        if (take < item->n_known)
            break;
        oldest = false;
    }
    return qe_cost_predict(cost, rows, attended);
}

bool qe_sched_admits(uint32_t n_pages_max, uint32_t n_pinned, uint32_t n_promised, uint32_t n_needed)
{
    return (uint64_t)n_pinned + n_promised + n_needed <= n_pages_max;
}
