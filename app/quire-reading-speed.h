/* quire-reading-speed.h: how fast the loaded model reads a prompt here, measured by the replies, and kept for the next
 * start, so that costs can be told in seconds before they come. No GTK. Main thread only. */
#pragma once
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

/* A reply ended with @receipt. */
void quire_reading_speed_note (QuireEngineClient *client, const qe_receipt *receipt);
/* Tokens a second; 0: it was never measured. @model: one that may not be loaded, NULL: the one that is. */
double quire_reading_speed_get (QuireEngineClient *client, const qe_model_info *model);
/* "reads 16,512 tokens, about 4 s", without the seconds while nothing was measured. Returns: owned. */
char *quire_reading_speed_format (guint n_tokens, double tokens_per_s);

G_END_DECLS
