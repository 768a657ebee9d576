/* qe-budget.c: sizes before and at a load. */
#include "engine/qe-budget.h"
#include <string.h>
#include <unistd.h>
#include "engine/qe-host-paths.h"
#include "engine/qe-backend.h"
#include "engine/qe-limits.h"

qk_shape qe_budget_shape(const qe_config *c, uint32_t context_max)
{
    return (qk_shape){
        .n_layers = c->n_layers,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .hidden = c->hidden,
        .ffn = c->ffn,
        .vocab = c->vocab,
        .max_positions = context_max,
        .rms_eps = (float)c->rms_eps,
        .rope_factor = (float)c->rope_attn_factor,
        .rope_inv_freq = c->rope_inv_freq,
    };
}

static uint32_t context_pages(uint32_t context_max)
{
    return (uint32_t)(((uint64_t)context_max + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS);
}

void qe_budget_params(const qk_shape *shape, qe_kv_class kv_class, uint32_t rows_max, qk_context_params *out)
{
    uint32_t logits_max =
        (uint32_t)CLAMP(QE_LOGITS_BYTES / (4 * (uint64_t)shape->vocab), 1, QE_LOGITS_ROWS_MAX);
    *out = (qk_context_params){
        .rows_max = rows_max,
        .seqs_max = MIN(QE_RUNNING_MAX, rows_max),
        .pages_max = QE_RUNNING_MAX * context_pages(shape->max_positions),
        .outputs_max = MIN(QE_RUNNING_MAX + logits_max, rows_max),
        .logits_max = MIN(logits_max, rows_max),
        .slots_max = QE_RUNNING_MAX,
        .select_max = QE_SELECT_PAGES_MAX,
        .masks_max = QE_RUNNING_MAX,
        .biases_max = QE_RUNNING_MAX * QE_LOGIT_BIAS_MAX,
    };
    qk_kv_layout_page_major(shape, kv_class == QE_KV_F32 ? QK_F32 : QK_BF16, &out->layout);
    qk_kv_layout_page_major(shape, QK_I8, &out->layout_1);
}

static uint64_t physical_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

/* Host memory: what was asked for, else the default that qe-limits.h documents. */
static uint64_t host_pages(const qe_budget *b)
{
    uint64_t full = context_pages(b->context_max), memory = physical_memory();
    if (b->kv_wanted)
        return b->kv_wanted / b->page_bytes;
    uint64_t n = MIN(memory / QE_KV_MEMORY_DIVISOR / b->page_bytes, QE_KV_CONTEXTS * full);
    return n < full ? MIN(full, memory / 2 / b->page_bytes) : n;
}

/* MemAvailable of /proc/meminfo: what can be had without swapping; 0: unknown. */
static uint64_t available_memory(void)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/meminfo", &text, NULL, NULL))
        return 0;
    const char *line = strstr(text, "MemAvailable:");
    return line ? g_ascii_strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024 : 0;
}

void qe_budget_add_partial(qk_context_params *params, uint32_t context_max)
{
    params->partial = qk_host_attend;
    params->partial_max = context_max / QK_SPAN_TOKENS + 1;
}

uint64_t qe_budget_host_bytes(uint64_t wanted, bool is_host)
{
    if (wanted)
        return wanted > 1 ? wanted : 0;
    return is_host ? 0 : available_memory() / QE_HOST_MEMORY_DIVISOR;
}

static bool refuse_device(const qe_budget *b, uint64_t left, uint64_t needed, GError **error)
{
    g_autofree char *free_text = g_format_size_full(b->memory_free, G_FORMAT_SIZE_IEC_UNITS);
    g_autofree char *weights = g_format_size_full(b->weights, G_FORMAT_SIZE_IEC_UNITS);
    g_autofree char *workspace = g_format_size_full(b->workspace, G_FORMAT_SIZE_IEC_UNITS);
    g_autofree char *reserve = g_format_size_full(b->reserve, G_FORMAT_SIZE_IEC_UNITS);
    g_autofree char *left_text = g_format_size_full(left, G_FORMAT_SIZE_IEC_UNITS);
    g_autofree char *needed_text = g_format_size_full(needed, G_FORMAT_SIZE_IEC_UNITS);
    g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
        "The graphics card has %s free. The model takes %s for weights and %s to compute in, %s stay for the "
        "desktop; %s are left for the cache, which needs %s. %s",
        free_text, weights, workspace, reserve, left_text, needed_text,
        b->kv_wanted && left >= b->page_bytes
            ? "Lower the cache memory, or close other programs that use the card."
            : "Close other programs that use the card, lower the memory reserve, or take a smaller model.");
    return false;
}

bool qe_budget_pages(const qe_budget *b, uint32_t *n_pages, GError **error)
{
    uint64_t full = context_pages(b->context_max), n;
    if (b->is_device) {
        uint64_t taken = b->weights + b->workspace + b->reserve;
        uint64_t left = b->memory_free > taken ? b->memory_free - taken : 0;
        uint64_t least = MIN(full, QE_KV_DEVICE_TOKENS_MIN / QK_PAGE_TOKENS) * b->page_bytes;
        if (b->kv_wanted > left)
            return refuse_device(b, left, b->kv_wanted, error);
        if (!b->kv_wanted && left < least)
            return refuse_device(b, left, least, error);
        n = b->kv_wanted ? b->kv_wanted / b->page_bytes : MIN(left / b->page_bytes, QE_KV_CONTEXTS * full);
    } else {
        n = host_pages(b);
    }
    if (n == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "KV memory of %" G_GUINT64_FORMAT " bytes holds no page: one has %" G_GUINT64_FORMAT " bytes",
            b->kv_wanted, b->page_bytes);
        return false;
    }
    *n_pages = (uint32_t)MIN(n, (uint64_t)INT32_MAX);
    return true;
}

qk_status qe_budget_estimate(const char *backend, const qk_shape *shape, bool tied, qk_context_params *params,
    qk_sizes *model, qk_sizes *context)
{
    qk_context_params tried = *params;
    qk_status status = QK_UNSUPPORTED;
    for (int less = 0; status == QK_UNSUPPORTED && qe_budget_without(params, less, &tried); less++)
        status = qk_estimate(backend, shape, tied, &tried, model, context);
    if (status == QK_OK)
        *params = tried;
    return status;
}

bool qe_budget_without(const qk_context_params *params, int less, qk_context_params *out)
{
    *out = *params;
    if (less & 1)
        out->select_max = 0;
    if (less & 2)
        out->layout_1 = (qk_kv_layout){0};
    return less < 4;
}

/* ---- Before a load ---- */

void qe_memory_plan_free(qe_memory_plan *plan)
{
    if (!plan)
        return;
    g_free(plan->backend);
    g_free(plan->device);
    g_free(plan->host_path_why);
    g_free(plan->host_path_int8_why);
    g_free(plan->host_path_key);
    g_free(plan->host_path_int8_key);
    g_free(plan->problem);
    g_free(plan);
}

/* The card that qe_backend_open() would take, or NULL with the reason in @problem when none can be used. */
static const qe_device_desc *choose_device(const GPtrArray *devices, const char *wanted, char **problem)
{
    const qe_device_desc *best = NULL;
    for (guint i = 0; i < devices->len; i++) {
        const qe_device_desc *d = devices->pdata[i];
        g_autofree char *index = g_strdup_printf("%u", i);
        if (wanted) {
            if (strcmp(wanted, d->id) == 0 || strcmp(wanted, index) == 0)
                best = d;
        } else if (!d->reason && (!best || d->memory_free > best->memory_free)) {
            best = d;
        }
    }
    if (!best)
        *problem = wanted ? g_strdup_printf("There is no graphics card \"%s\".", wanted)
                          : g_strdup("No graphics card can be used.");
    else if (best->reason)
        *problem = g_strdup(best->reason);
    return *problem ? NULL : best;
}

/* The last lines of a plan: the cache and the host memory beside it, or why there is none. */
static void plan_cache(
    qe_memory_plan *plan, const qe_budget *budget, const qk_context_params *params, uint64_t host_bytes)
{
    uint32_t n_pages = 0;
    g_autoptr(GError) error = NULL;
    plan->page_bytes = params->layout.page_bytes;
    plan->page_bytes_int8 = params->layout_1.page_bytes;
    plan->has_selective = params->select_max > 0;
    plan->host_kv = host_bytes / plan->page_bytes * plan->page_bytes;
    plan->host_kv_tokens = host_bytes / plan->page_bytes * QK_PAGE_TOKENS;
    if (qe_budget_pages(budget, &n_pages, &error)) {
        plan->kv = n_pages * budget->page_bytes;
        plan->kv_tokens = (uint64_t)n_pages * QK_PAGE_TOKENS;
    } else {
        plan->problem = g_strdup(error->message);
    }
}

static void plan_host_paths(
    qe_memory_plan *plan, const qe_engine_options *o, const qk_shape *shape, const qk_context_params *params)
{
    plan->host_path_key = qe_host_paths_key(plan->device, shape, params->layout.dtype);
    plan->host_path =
        qe_host_paths_choose(o->host_paths_file, plan->host_path_key, o->host_path, &plan->host_path_why);
    if (params->layout_1.page_bytes == 0)
        return;
    plan->host_path_int8_key = qe_host_paths_key(plan->device, shape, params->layout_1.dtype);
    plan->host_path_int8 = qe_host_paths_choose(
        o->host_paths_file, plan->host_path_int8_key, o->host_path, &plan->host_path_int8_why);
}

static void plan_device(qe_memory_plan *plan, const qe_engine_options *o, const qe_config *config)
{
    g_autoptr(GPtrArray) devices = qe_list_devices();
    const qe_device_desc *device = choose_device(devices, o->device, &plan->problem);
    if (!device)
        return;
    uint32_t context_max =
        o->context_max ? MIN(o->context_max, config->max_positions) : config->max_positions;
    qk_shape shape = qe_budget_shape(config, context_max);
    qk_context_params params;
    qe_budget_params(&shape, o->kv_class, o->step_rows_max ? o->step_rows_max : QE_STEP_ROWS_DEVICE, &params);
    uint64_t host_bytes = qe_budget_host_bytes(o->host_bytes_max, false);
    if (host_bytes)
        params.ring_bytes = o->ring_bytes ? o->ring_bytes : QE_RING_BYTES_DEFAULT;
    if (host_bytes && o->host_path == QE_HOST_PATH_CPU)
        qe_budget_add_partial(&params, context_max);
    qk_sizes weights = {0}, workspace = {0};
    qk_status status = qe_budget_estimate("cuda", &shape, config->tied, &params, &weights, &workspace);
    g_free(plan->device);
    plan->device = g_strdup(device->name);
    if (host_bytes)
        plan_host_paths(plan, o, &shape, &params);
    plan->memory_total = device->memory_total;
    plan->memory_free = device->memory_free + o->memory_returned;
    plan->reserve = o->memory_reserve ? o->memory_reserve : QE_MEMORY_RESERVE_DEFAULT;
    plan->weights = weights.device_bytes;
    plan->workspace = workspace.device_bytes;
    if (status != QK_OK) {
        plan->problem =
            g_strdup_printf("The graphics card does not run this model: %s.", qk_status_name(status));
        return;
    }
    qe_budget budget = {
        .page_bytes = params.layout.page_bytes,
        .context_max = context_max,
        .kv_wanted = o->kv_bytes_max,
        .is_device = true,
        .memory_free = plan->memory_free,
        .weights = plan->weights,
        .workspace = plan->workspace,
        .reserve = plan->reserve,
    };
    plan_cache(plan, &budget, &params, host_bytes);
}

static void plan_host(qe_memory_plan *plan, const qe_engine_options *o, const qe_config *config)
{
    uint32_t context_max =
        o->context_max ? MIN(o->context_max, config->max_positions) : config->max_positions;
    qk_shape shape = qe_budget_shape(config, context_max);
    qk_context_params params;
    qe_budget_params(
        &shape, o->kv_class, o->step_rows_max ? o->step_rows_max : QE_STEP_ROWS_DEFAULT, &params);
    qe_budget budget = {
        .page_bytes = params.layout.page_bytes, .context_max = context_max, .kv_wanted = o->kv_bytes_max};
    plan->memory_total = physical_memory();
    plan_cache(plan, &budget, &params, qe_budget_host_bytes(o->host_bytes_max, true));
}

qe_memory_plan *qe_plan_memory(const qe_engine_options *options, const char *dir, GError **error)
{
    const qe_engine_options defaults = {0};
    const qe_engine_options *o = options ? options : &defaults;
    g_autoptr(qe_model) model = qe_model_open(dir, error);
    if (!model)
        return NULL;
    g_autoptr(GPtrArray) backends = qe_list_backends();
    const qe_backend_desc *chosen = NULL;
    for (guint i = 0; i < backends->len && !chosen; i++) {
        const qe_backend_desc *b = backends->pdata[i];
        if (o->backend ? strcmp(o->backend, b->name) == 0 : !b->reason)
            chosen = b;
    }
    if (!chosen) {
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "There is no backend \"%s\"",
            o->backend ? o->backend : "");
        return NULL;
    }
    qe_memory_plan *plan = g_new0(qe_memory_plan, 1);
    plan->backend = g_strdup(chosen->name);
    plan->device = g_strdup(chosen->device);
    plan->on_device = strcmp(chosen->name, "cpu") != 0;
    plan->weights = qe_model_get_weight_bytes(model);
    if (chosen->reason)
        plan->problem = g_strdup(chosen->reason);
    else if (plan->on_device)
        plan_device(plan, o, qe_model_get_config(model));
    else
        plan_host(plan, o, qe_model_get_config(model));
    return plan;
}
