/* quire-receipt.h: what a reply cost, as JSON: the one form of it, for the local server and the command line. No GTK; any
 * thread. Each function appends one object. Its members are described in the server's openapi.json. */
#pragma once
#include <glib.h>
#include "engine/qe.h"

G_BEGIN_DECLS

/* OpenAI's usage: all choices of a prompt together; @n_cached of its tokens were not computed. */
void quire_receipt_add_usage (GString *out, guint n_prompt, guint64 n_generated, guint n_cached);
/* Times and speeds. */
void quire_receipt_add_timings (GString *out, const qe_receipt *receipt);
/* Where the prompt's tokens came from. */
void quire_receipt_add_cache (GString *out, const qe_receipt *receipt);

G_END_DECLS
