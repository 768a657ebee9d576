/* qe-turn.h: a request's prompt becomes ids on its session. Internal; engine thread. */
#pragma once
#include "engine/qe-core.h"

G_BEGIN_DECLS

/* Puts the prompt of @request on @t's session and fills in what the request knows of it (n_prompt, n_generate_max,
 * n_stripped, receipt.first_mismatch). Computes nothing. On failure the session is as before. */
bool qe_turn_prepare(qe_core *core, qe_timeline *t, qe_request *request, GError **error);
/* A generated token was appended to the session. @closed: it is the template's end-of-turn token and ended the reply. */
void qe_turn_extend(qe_core *core, qe_timeline *t, qe_request *request, bool closed);

G_END_DECLS
