/* qe-core-synthetic.c: pages of random K and V in the place of a prompt's, so that the speed of decoding at a length can
 * be measured without computing the prompt.
 *
 * A synthetic session is made so and stays so. Its pages are like all others but for what is in them, so they must never
 * be taken for a conversation's: its policy shares nothing, whatever its cache config says, so no page of it has a name to
 * be found by, in memory or on disk (the disk tier keeps named pages alone); a fork of it is synthetic too.
 *
 * K has unit variance, as the norm of the heads leaves it, and V too. A few different pages are made for each class and
 * copied over and over, on COMPUTE, so that steps behind them see them. They stay until the device goes. */
#include "engine/qe-core.h"
#include <math.h>
#include <string.h>

#define MASTERS 4u /* different pages */
#define SEED    20250705u

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Uniform with unit variance. */
static float draw(uint64_t *state)
{
    return ((float)next_random(state) / 1073741824.0f - 1.0f) * 1.7320508f;
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* sqrt(3) / 127 as fp16: 0.013638 = 1.7457 * 2^-7. */
#define I8_SCALE ((uint16_t)(((15 - 7) << 10) | 764))

/* The K or V of a head: 16 tokens, and their scales. */
static void fill_head(char *slice, const qk_kv_layout *l, uint32_t dim, uint64_t *state)
{
    for (uint32_t t = 0; t < QK_PAGE_TOKENS; t++) {
        char *token = slice + (gsize)t * l->token_stride;
        for (uint32_t d = 0; d < dim; d++) {
            if (l->dtype == QK_I8)
                ((int8_t *)token)[d] = (int8_t)((int)(next_random(state) % 255) - 127);
            else if (l->dtype == QK_BF16)
                ((uint16_t *)(void *)token)[d] = bf16_of(draw(state));
            else
                ((float *)(void *)token)[d] = draw(state);
        }
        if (l->dtype == QK_I8)
            ((uint16_t *)(void *)(slice + l->scale_offset))[t] = I8_SCALE;
    }
}

static qk_buffer *masters_of(qe_core *core, uint32_t kv_class, GError **error)
{
    const qk_kv_layout *l = kv_class ? &core->params.layout_1 : &core->params.layout;
    const qe_config *c = qe_model_get_config(core->model);
    uint64_t state = SEED;
    if (core->synthetic[kv_class])
        return core->synthetic[kv_class];
    qk_status status =
        qk_buffer_new(core->backend, QK_MEMORY_HOST, MASTERS * l->page_bytes, &core->synthetic[kv_class]);
    if (status != QK_OK) {
        core->synthetic[kv_class] = NULL;
        qe_backend_set_error(error, core->backend, status, "Cannot make synthetic pages");
        return NULL;
    }
    memset(core->synthetic[kv_class]->host, 0, MASTERS * l->page_bytes);
    for (uint32_t m = 0; m < MASTERS; m++)
        for (uint32_t i = 0; i < c->n_layers * c->n_kv_heads * 2; i++) {
            uint32_t layer = i / 2 / c->n_kv_heads, head = i / 2 % c->n_kv_heads;
            char *slice = (char *)core->synthetic[kv_class]->host + m * l->page_bytes +
                          layer * l->layer_stride + head * l->head_stride + i % 2 * l->v_offset;
            fill_head(slice, l, c->head_dim, &state);
        }
    return core->synthetic[kv_class];
}

bool qe_core_write_synthetic(qe_core *core, const qe_timeline *t, uint32_t first, uint32_t n, GError **error)
{
    qe_kv_pool *pool = qe_session_pool(t->session);
    uint64_t page_bytes = qe_kv_pool_page_bytes(pool);
    qk_buffer *masters = masters_of(core, t->kv_class, error);
    if (!masters)
        return false;
    g_autofree qk_copy *copies = g_new(qk_copy, n);
    for (uint32_t i = 0; i < n; i++) {
        qk_copy *c = &copies[i];
        *c = (qk_copy){.src = masters, .src_offset = (first + i) % MASTERS * page_bytes, .bytes = page_bytes};
        c->dst = qe_kv_page_buffer(pool, qe_session_pages(t->session)[first + i], &c->dst_offset);
    }
    qk_status status = qk_copy_submit(core->backend, QK_STREAM_COMPUTE, copies, n);
    if (status == QK_OK)
        return true;
    qe_backend_set_error(error, core->backend, status, "Cannot fill synthetic pages");
    return false;
}

/* The copies read them: nothing may be on its way. */
void qe_core_drop_synthetic(qe_core *core)
{
    for (int c = 0; c < QE_KV_CLASSES; c++)
        g_clear_pointer(&core->synthetic[c], qk_buffer_free);
}
