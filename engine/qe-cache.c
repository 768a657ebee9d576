/* qe-cache.c: the names and the rules of cache modes, and what a context costs in each. Pure functions. */
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe.h"
#include "kernels/qk.h"

static const char *const mode_names[QE_N_CACHE_MODES] = {
    [QE_CACHE_AUTO] = "auto",
    [QE_CACHE_REBUILD] = "rebuild",
    [QE_CACHE_PAGED] = "paged",
    [QE_CACHE_SESSION] = "session",
    [QE_CACHE_TIERED] = "tiered",
    [QE_CACHE_TIERED_INT8] = "tiered-int8",
};

const char *qe_cache_mode_name(qe_cache_mode mode)
{
    return (guint)mode < QE_N_CACHE_MODES ? mode_names[mode] : "unknown";
}

bool qe_cache_mode_parse(const char *name, qe_cache_mode *out, GError **error)
{
    for (guint i = 0; i < QE_N_CACHE_MODES; i++) {
        if (strcmp(name, mode_names[i]) == 0) {
            *out = (qe_cache_mode)i;
            return true;
        }
    }
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
        "There is no cache mode \"%s\": expected auto, rebuild, paged, session, tiered or tiered-int8", name);
    return false;
}

const char *qe_mismatch_name(qe_mismatch mismatch)
{
    switch (mismatch) {
    case QE_MISMATCH_NONE:
        return "none";
    case QE_MISMATCH_EDITED:
        return "edited";
    case QE_MISMATCH_STRIPPED:
        return "stripped";
    case QE_MISMATCH_EVICTED:
        return "evicted";
    case QE_MISMATCH_MODE:
        return "mode";
    }
    return "unknown";
}

void qe_cache_config_init(qe_cache_config *config)
{
    *config = (qe_cache_config){.block_size = QK_PAGE_TOKENS, .offload_to_cpu = true, .use_cache = true};
}

void qe_cache_config_init_article(qe_cache_config *config)
{
    qe_cache_config_init(config);
    config->mode = QE_CACHE_TIERED;
    config->gpu_max_length = 32;
    config->hot_cache_length = 2048;
}

void qe_session_options_init(qe_session_options *options)
{
    *options = (qe_session_options){0};
    qe_cache_config_init(&options->cache);
}

static bool refuse(GError **error, const char *field, guint value, const char *expected)
{
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "cache: %s is %u; expected %s", field, value, expected);
    return false;
}

bool qe_cache_config_check(const qe_cache_config *config, GError **error)
{
    bool capped = config->gpu_max_length || config->hot_cache_length;
    bool tiered = config->mode == QE_CACHE_TIERED || config->mode == QE_CACHE_TIERED_INT8;
    if ((guint)config->mode >= QE_N_CACHE_MODES)
        return refuse(error, "mode", config->mode, "one of the modes");
    if (config->block_size != QK_PAGE_TOKENS)
        return refuse(error, "block_size", config->block_size,
            "16: pages of 16 tokens are what the kernels read and what tiers and files hold");
    if (config->max_cache_size > QE_CACHE_PAGES_MAX)
        return refuse(error, "max_cache_size", config->max_cache_size, "at most 1048576 pages");
    if (config->gpu_max_length > QE_MODEL_POSITIONS_MAX)
        return refuse(error, "gpu_max_length", config->gpu_max_length, "at most 16777216 tokens");
    if (config->hot_cache_length > QE_MODEL_POSITIONS_MAX)
        return refuse(error, "hot_cache_length", config->hot_cache_length, "at most 16777216 tokens");
    if (capped && config->gpu_max_length + config->hot_cache_length < QE_CACHE_GPU_TOKENS_MIN)
        return refuse(error, "gpu_max_length + hot_cache_length",
            config->gpu_max_length + config->hot_cache_length, "at least 64 tokens, or 0 for what fits");
    if (capped && !tiered)
        return refuse(error, "gpu_max_length + hot_cache_length",
            config->gpu_max_length + config->hot_cache_length,
            "0 unless the mode is tiered or tiered-int8: only there may pages leave the GPU");
    return true;
}

void qe_cache_cost_of(
    const qe_memory_plan *plan, const qe_cache_config *config, uint64_t n_tokens, qe_cache_cost *out)
{
    bool int8 = config->mode == QE_CACHE_TIERED_INT8;
    bool tiered =
        (int8 || config->mode == QE_CACHE_TIERED || config->mode == QE_CACHE_AUTO) && config->offload_to_cpu;
    uint64_t page_bytes = int8 ? plan->page_bytes_int8 : plan->page_bytes;
    uint64_t n_pages = n_tokens / QK_PAGE_TOKENS + (n_tokens % QK_PAGE_TOKENS != 0);
    *out = (qe_cache_cost){0};
    if (page_bytes == 0)
        return;
    uint64_t n_device = plan->kv / page_bytes, n_host = tiered ? plan->host_kv / page_bytes : 0;
    uint64_t cap = ((uint64_t)config->gpu_max_length + config->hot_cache_length) / QK_PAGE_TOKENS;
    if (cap && tiered)
        n_device = MIN(n_device, cap);
    uint64_t on_device = MIN(n_pages, n_device);
    out->bytes = n_pages * page_bytes;
    out->device_bytes = on_device * page_bytes;
    out->device_tokens = MIN(on_device * QK_PAGE_TOKENS, n_tokens);
    out->host_tokens = n_tokens - out->device_tokens;
    out->host_bytes = (n_pages - on_device) * page_bytes;
    /* A page that has left the GPU is one that the host has; those still there are written through as well. */
    out->fits = n_pages <= n_device || n_pages <= n_host;
    if (config->max_cache_size && n_pages > config->max_cache_size)
        out->fits = false;
}
