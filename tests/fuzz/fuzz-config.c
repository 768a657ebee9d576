/* fuzz-config.c: any bytes as config.json, as generation_config.json and as a shard index. */
#include "engine/qe-config.h"
#include "engine/qe-model.h"
#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_outcome(bool ok, const GError *error)
{
    g_assert(ok == (error == NULL));
    g_assert(ok || (error->domain == QE_ERROR && g_str_has_prefix(error->message, "input: ") &&
                       g_utf8_validate(error->message, -1, NULL)));
}

static void check_config(const qe_config *c)
{
    g_assert(c->n_kv_heads > 0 && c->n_heads % c->n_kv_heads == 0);
    g_assert(c->head_dim % 2 == 0 && c->head_dim <= QE_MODEL_HEAD_DIM_MAX);
    g_assert(c->n_layers > 0 && c->hidden > 0 && c->ffn > 0 && c->vocab > 0 && c->max_positions > 0);
    g_assert(c->rms_eps > 0 && isfinite(c->rope_attn_factor) && c->rope_attn_factor > 0);
    for (uint32_t i = 0; i < c->head_dim / 2; i++)
        g_assert(isfinite(c->rope_inv_freq[i]) && c->rope_inv_freq[i] > 0 && c->rope_inv_freq[i] <= 1);
    for (uint32_t i = 0; i < c->eos.n; i++)
        g_assert(c->eos.ids[i] < c->vocab);
    g_assert(qe_config_get_n_params(c) > 0 && qe_config_get_kv_token_bytes(c, 4) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const char *text = (const char *)data;
    qe_config config;
    qe_generation_defaults g;
    g_autoptr(GError) config_error = NULL, generation_error = NULL, index_error = NULL;

    bool ok = qe_config_parse("input", text, n_bytes, &config, &config_error);
    check_outcome(ok, config_error);
    if (ok)
        check_config(&config);

    ok = qe_generation_defaults_parse("input", text, n_bytes, &g, &generation_error);
    check_outcome(ok, generation_error);
    if (ok) {
        g_assert(g.temperature >= 0 && isfinite(g.temperature) && g.top_p > 0 && g.top_p <= 1);
        g_assert(g.min_p >= 0 && g.min_p <= 1 && g.repetition_penalty > 0 && g.eos.n < QE_MODEL_EOS_MAX);
    }

    g_autoptr(GHashTable) index = qe_model_index_parse("input", text, n_bytes, &index_error);
    check_outcome(index != NULL, index_error);
    if (index != NULL) {
        GHashTableIter iter;
        gpointer file;
        g_hash_table_iter_init(&iter, index);
        while (g_hash_table_iter_next(&iter, NULL, &file))
            g_assert(strchr(file, '/') == NULL && strcmp(file, "..") != 0);
    }
    return 0;
}
