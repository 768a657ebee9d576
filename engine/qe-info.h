/* qe-info.h: a model folder opened as a whole: weights, tokenizer, template. Internal; any thread. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe-model.h"
#include "engine/qe-template.h"
#include "engine/qe-tokenizer.h"
#include "engine/qe.h"

G_BEGIN_DECLS

/* Opens and checks all three; nothing is left open on failure. The results are owned by the caller. */
bool qe_info_open(
    const char *dir, qe_model **model, qe_tokenizer **tokenizer, qe_template **tmpl, GError **error);
/* Returns: owned. */
qe_model_info *qe_info_build(const qe_model *model, const qe_tokenizer *tokenizer, const qe_template *tmpl);

G_END_DECLS
