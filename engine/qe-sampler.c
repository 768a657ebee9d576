/* qe-sampler.c: sampling parameters. Defaults come from generation_config.json by way of qe_model_info. */
#include "engine/qe-sampler.h"
#include <math.h>
#include <stdlib.h>
#include "engine/qe-limits.h"

void qe_sampling_params_init(qe_sampling_params *params, const qe_model_info *info)
{
    *params = (qe_sampling_params){.top_p = 1, .repetition_penalty = 1};
    if (!info)
        return;
    params->temperature = info->temperature;
    params->top_p = info->top_p;
    params->min_p = info->min_p;
    params->top_k = info->top_k;
    params->repetition_penalty = info->repetition_penalty;
}

static bool check_range(
    const char *name, double value, double low, double high, bool open_low, GError **error)
{
    bool ok = isfinite(value) && (open_low ? value > low : value >= low) && value <= high;
    if (!ok) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "%s must be in %s%g, %g], not %g", name,
            open_low ? "(" : "[", low, high, value);
    }
    return ok;
}

/* 1e6 stands for "any finite number" where the meaning has no upper end; it keeps float32 arithmetic finite. */
bool qe_sampling_params_check(const qe_sampling_params *params, GError **error)
{
    return check_range("temperature", params->temperature, 0, 1e6, false, error) &&
           check_range("top_p", params->top_p, 0, 1, false, error) &&
           check_range("min_p", params->min_p, 0, 1, false, error) &&
           check_range("repetition_penalty", params->repetition_penalty, 0, 1e6, true, error) &&
           check_range("presence_penalty", params->presence_penalty, -2, 2, false, error) &&
           check_range("frequency_penalty", params->frequency_penalty, -2, 2, false, error);
}

static int compare_bias(const void *a, const void *b)
{
    const qk_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

bool qe_sampler_bias_to_kernel(const qe_logit_bias *bias, uint32_t n, qk_bias **out, GError **error)
{
    *out = NULL;
    if (n > QE_LOGIT_BIAS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "logit_bias has %u entries, at most %u are allowed", n,
            QE_LOGIT_BIAS_MAX);
        return false;
    }
    g_autofree qk_bias *list = g_new(qk_bias, n + 1);
    for (uint32_t i = 0; i < n; i++) {
        if (!check_range("logit_bias", (double)bias[i].value, -100, 100, false, error))
            return false;
        list[i] = (qk_bias){bias[i].id, bias[i].value};
    }
    qsort(list, n, sizeof *list, compare_bias);
    for (uint32_t i = 1; i < n; i++) {
        if (list[i].id == list[i - 1].id) {
            g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "logit_bias has id %u twice", list[i].id);
            return false;
        }
    }
    *out = n ? g_steal_pointer(&list) : NULL;
    return true;
}

void qe_sampler_to_kernel(const qe_sampling_params *params, qk_sampling *out)
{
    uint64_t drawn = ((uint64_t)g_random_int() << 32) | g_random_int();
    *out = (qk_sampling){
        .seed = params->has_seed ? params->seed : drawn,
        .temperature = (float)params->temperature,
        .top_p = (float)params->top_p,
        .min_p = (float)params->min_p,
        .repetition_penalty = (float)params->repetition_penalty,
        .presence_penalty = (float)params->presence_penalty,
        .frequency_penalty = (float)params->frequency_penalty,
        .top_k = params->top_k <= 0 ? 0u : (uint32_t)MIN(params->top_k, (int64_t)UINT32_MAX),
    };
    /* A tiny penalty must not become 0 as a float, which kernels refuse. */
    if (out->repetition_penalty < 1e-6f)
        out->repetition_penalty = 1e-6f;
}
