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
    [QE_CACHE_SELECTIVE] = "selective",
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
        "There is no cache mode \"%s\": expected auto, rebuild, paged, session, tiered, tiered-int8 or "
        "selective",
        name);
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
    *config = (qe_cache_config){
        .block_size = QK_PAGE_TOKENS,
        .sink_length = QE_CACHE_SINK_TOKENS,
        .recent_length = QE_CACHE_RECENT_TOKENS,
        .select_length = QE_CACHE_SELECT_TOKENS,
        .offload_to_cpu = true,
        .use_cache = true,
    };
}

uint32_t qe_cache_identity_tokens(const qe_cache_config *config)
{
    return config->sink_length + config->recent_length + config->select_length;
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

static bool check_select(const qe_cache_config *config, GError **error)
{
    const struct {
        const char *name;
        uint32_t value, least;
    } lengths[] = {
        {"sink_length", config->sink_length, 0},
        {"recent_length", config->recent_length, QE_CACHE_RECENT_MIN},
        {"select_length", config->select_length, 0},
    };
    if (config->mode != QE_CACHE_SELECTIVE)
        return true;
    uint64_t sum = 0;
    for (guint i = 0; i < G_N_ELEMENTS(lengths); i++) {
        if (lengths[i].value % QK_PAGE_TOKENS != 0 || lengths[i].value < lengths[i].least)
            return refuse(error, lengths[i].name, lengths[i].value,
                lengths[i].least ? "a multiple of 16 tokens, at least 32" : "a multiple of 16 tokens");
        sum += lengths[i].value;
    }
    if (sum > (uint64_t)QE_SELECT_PAGES_MAX * QK_PAGE_TOKENS)
        return refuse(error, "sink_length + recent_length + select_length",
            (guint)MIN(sum, (uint64_t)UINT32_MAX), "at most 262144 tokens");
    return true;
}

bool qe_cache_config_check(const qe_cache_config *config, GError **error)
{
    bool capped = config->gpu_max_length || config->hot_cache_length;
    bool tiered = config->mode == QE_CACHE_TIERED || config->mode == QE_CACHE_TIERED_INT8 ||
                  config->mode == QE_CACHE_SELECTIVE;
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
            "0 unless the mode is tiered, tiered-int8 or selective: only there may pages leave the GPU");
    return check_select(config, error);
}

void qe_cache_cost_of(
    const qe_memory_plan *plan, const qe_cache_config *config, uint64_t n_tokens, qe_cache_cost *out)
{
    bool int8 = config->mode == QE_CACHE_TIERED_INT8;
    bool selective = config->mode == QE_CACHE_SELECTIVE;
    bool tiered = (int8 || selective || config->mode == QE_CACHE_TIERED || config->mode == QE_CACHE_AUTO) &&
                  config->offload_to_cpu;
    uint64_t page_bytes = int8 ? plan->page_bytes_int8 : plan->page_bytes;
    uint64_t n_pages = n_tokens / QK_PAGE_TOKENS + (n_tokens % QK_PAGE_TOKENS != 0);
    *out = (qe_cache_cost){0};
    if (page_bytes == 0)
        return;
    uint64_t n_device = plan->kv / page_bytes, n_host = tiered ? plan->host_kv / page_bytes : 0;
    uint64_t cap = ((uint64_t)config->gpu_max_length + config->hot_cache_length) / QK_PAGE_TOKENS;
    /* The bounds of 16 pages take the device memory of one; there are none while all pages are attended to. */
    uint64_t n_bounds = 0;
    if (selective && n_tokens > qe_cache_identity_tokens(config))
        n_bounds = (n_pages + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    bool bounds_fit = n_bounds == 0 || n_bounds < n_device;
    n_device -= MIN(n_bounds, n_device);
    if (cap && tiered)
        n_device = MIN(n_device, cap);
    uint64_t on_device = MIN(n_pages, n_device);
    out->bounds_bytes = n_bounds * page_bytes;
    out->bytes = n_pages * page_bytes + out->bounds_bytes;
    out->device_bytes = on_device * page_bytes + out->bounds_bytes;
    out->device_tokens = MIN(on_device * QK_PAGE_TOKENS, n_tokens);
    out->host_tokens = n_tokens - out->device_tokens;
    out->host_bytes = (n_pages - on_device) * page_bytes;
    /* A page that has left the GPU is one that the host has; those still there are written through as well. */
    out->fits = bounds_fit && (n_pages <= n_device || n_pages <= n_host);
    if (config->max_cache_size && n_pages > config->max_cache_size)
        out->fits = false;
}
