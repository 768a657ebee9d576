/* qe-info.c: what a model folder holds, for people and for the engine's load; and the version of this build. */
#include "engine/qe-info.h"

#ifndef QE_VERSION
#error "the build passes QE_VERSION"
#endif

const char *qe_version(void)
{
    return QE_VERSION;
}

bool qe_info_open(
    const char *dir, qe_model **model, qe_tokenizer **tokenizer, qe_template **tmpl, GError **error)
{
    g_autoptr(qe_model) m = qe_model_open(dir, error);
    if (!m)
        return false;
    g_autoptr(qe_tokenizer) tok = qe_tokenizer_new(dir, error);
    if (!tok)
        return false;
    qe_template *t = qe_template_new(dir, tok, error);
    if (!t)
        return false;
    *model = g_steal_pointer(&m);
    *tokenizer = g_steal_pointer(&tok);
    *tmpl = t;
    return true;
}

qe_model_info *qe_info_build(const qe_model *model, const qe_tokenizer *tokenizer, const qe_template *tmpl)
{
    const qe_config *c = qe_model_get_config(model);
    const qe_generation_defaults *g = qe_model_get_generation(model);
    qe_model_info *info = g_new0(qe_model_info, 1);
    *info = (qe_model_info){
        .name = g_utf8_make_valid(qe_model_get_name(model), -1),
        .dir = g_strdup(qe_model_get_dir(model)),
        .n_layers = c->n_layers,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .hidden = c->hidden,
        .ffn = c->ffn,
        .vocab = c->vocab,
        .context_max = c->max_positions,
        .tied_embeddings = c->tied,
        .has_thinking = qe_template_has_thinking(tmpl),
        .n_params = qe_model_get_n_params(model),
        .weight_bytes = qe_model_get_weight_bytes(model),
        .kv_bytes_per_token = qe_config_get_kv_token_bytes(c, 2),
        .temperature = g->temperature,
        .top_p = g->top_p,
        .min_p = g->min_p,
        .repetition_penalty = g->repetition_penalty,
        .top_k = g->top_k,
    };
    /* do_sample false, or a folder that proposes nothing, means greedy. */
    bool proposes = g->has_temperature || g->has_top_k || g->has_top_p || g->has_min_p;
    if (g->has_do_sample ? !g->do_sample : !proposes)
        info->temperature = 0;
    return info;
}

qe_model_info *qe_model_info_new(const char *dir, GError **error)
{
    g_autoptr(qe_model) model = NULL;
    g_autoptr(qe_tokenizer) tokenizer = NULL;
    g_autoptr(qe_template) tmpl = NULL;
    if (!qe_info_open(dir, &model, &tokenizer, &tmpl, error))
        return NULL;
    return qe_info_build(model, tokenizer, tmpl);
}

qe_model_info *qe_model_info_copy(const qe_model_info *info)
{
    qe_model_info *copy = g_memdup2(info, sizeof *info);
    copy->name = g_strdup(info->name);
    copy->dir = g_strdup(info->dir);
    return copy;
}

void qe_model_info_free(qe_model_info *info)
{
    if (!info)
        return;
    g_free(info->name);
    g_free(info->dir);
    g_free(info);
}
