/* qe-sampler.c: sampling parameters. Defaults come from generation_config.json by way of qe_model_info. */
#include "engine/qe-sampler.h"
#include <math.h>

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
           check_range("presence_penalty", params->presence_penalty, -2, 2, false, error);
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
        .top_k = params->top_k <= 0 ? 0u : (uint32_t)MIN(params->top_k, (int64_t)UINT32_MAX),
    };
    /* A tiny penalty must not become 0 as a float, which kernels refuse. */
    if (out->repetition_penalty < 1e-6f)
        out->repetition_penalty = 1e-6f;
}
