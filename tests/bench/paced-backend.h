/* paced-backend.h: the real CPU backend, made to write a given text at a given pace. It computes every step whole, on the
 * tokens of that text; what it draws is put aside for the text's next token. */
#pragma once
#include "engine/qe-backend.h"

/* As qe_backend_open_fn; @user is not used. One backend of it at a time has a script. */
qk_status paced_backend_open(void *user, qk_backend **out, char *error, size_t error_size);
/* FALSE: decode steps of a script are not computed, where the machine cannot compute as many a second as are to be shown: all that the
 * engine and the window do with them remains. Prompts always are. */
void paced_backend_set_computes(gboolean on);
/* The next reply is @ids, then @end; NULL: what the model draws. Decode steps come at most @tokens_per_s. While no reply runs. */
void paced_backend_set_script(const uint32_t *ids, guint n_ids, uint32_t end, double tokens_per_s);
