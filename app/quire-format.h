/* quire-format.h: figures as people read them, and the words of a reply's status. No GTK. Translated. */
#pragma once
#include "app/quire-message.h"

G_BEGIN_DECLS

/* Reading that takes longer than this has a bar, and says what is left. */
#define QUIRE_READING_SLOW_US (400 * 1000)

/* "0.14 s", "12 ms", "1 min 5 s". Returns: owned, as all below. */
char *quire_format_ms (double ms);
/* "96 tok/s", "4.2 tok/s". */
char *quire_format_speed (double tokens_per_s);
/* "16,384", with the locale's separators. */
char *quire_format_count (guint64 n);
/* "980", "16.5K": only for the context meter. */
char *quire_format_count_short (guint64 n);
/* IEC. */
char *quire_format_bytes (guint64 bytes);
/* "4.0 billion"; in units of 10^8 and 10^4 where the language counts so. */
char *quire_format_parameters (guint64 n);
/* One sentence after the other, with what the language puts between them. */
char *quire_format_sentences (const char *first, const char *second);

/* The line of a reply while it runs: "Queued (2 before)", "Reading 6,120 of 16,512 tokens", "96 tok/s". */
char *quire_format_progress (QuireMessage *message);
/* The figures of a finished reply, most important first: first token, tok/s, new, reused, brought back from the host and
 * the disk, computed again and why. NULL-terminated, owned. */
char **quire_format_receipt_figures (QuireMessage *message);
/* "Stopped", "Cut at 512 tokens"...; NULL for a reply that ended by itself. */
char *quire_format_ending (QuireMessage *message);
/* Why not all that the chat had computed was used, and from which token on; NULL when all was. */
char *quire_format_mismatch (const qe_receipt *receipt);
/* The same, in terms of what the user did. */
char *quire_format_why (QuireMessage *message);
/* (element-type utf8) label and value in turn, NULL-terminated: the receipt table. */
char **quire_format_receipt_table (QuireMessage *message);

G_END_DECLS
