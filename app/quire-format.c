/* quire-format.c: figures and states in words. See quire-format.h. */
#include "app/quire-format.h"

#include <glib/gi18n.h>

#include "app/quire-cache-modes.h"

char *
quire_format_ms (double ms)
{
  if (ms < 100)
    return g_strdup_printf (_ ("%.0f ms"), ms);
  if (ms < 10000)
    return g_strdup_printf (_ ("%.2f s"), ms / 1000);
  if (ms < 60000)
    return g_strdup_printf (_ ("%.0f s"), ms / 1000);

  guint s = (guint)(ms / 1000);
  return g_strdup_printf (_ ("%u min %u s"), s / 60, s % 60);
}

char *
quire_format_speed (double tokens_per_s)
{
  if (tokens_per_s >= 10)
    return g_strdup_printf (_ ("%.0f tok/s"), tokens_per_s);
  return g_strdup_printf (_ ("%.1f tok/s"), tokens_per_s);
}

char *
quire_format_count (guint64 n)
{
  return g_strdup_printf ("%'" G_GUINT64_FORMAT, n);
}

char *
quire_format_count_short (guint64 n)
{
  if (n < 1000)
    return g_strdup_printf ("%" G_GUINT64_FORMAT, n);
  if (n < 100 * 1024)
    return g_strdup_printf ("%.1fK", (double)n / 1024);
  return g_strdup_printf ("%.0fK", (double)n / 1024);
}

char *
quire_format_bytes (guint64 bytes)
{
  return g_format_size_full (bytes, G_FORMAT_SIZE_IEC_UNITS);
}

/* With the seconds that are left, once that can be told. */
static char *
format_reading (const QuireReply *reply)
{
  gint64 elapsed_us = g_get_monotonic_time () - reply->reading_us;
  guint n_read = reply->n_prompt_done - MIN (reply->n_read_at, reply->n_prompt_done);
  const qe_receipt *r = &reply->receipt;
  g_autofree char *done = quire_format_count (reply->n_prompt_done);
  g_autofree char *all = quire_format_count (reply->n_prompt);
  guint s;

  if (n_read == 0 && r->n_restored_host + r->n_restored_disk > 0)
    {
      g_autofree char *n = quire_format_count (r->n_restored_host + r->n_restored_disk);

      return r->n_restored_disk > 0
                 /* Translators: tokens whose pages come back from a slower tier. */
                 ? g_strdup_printf (_ ("Bringing back %s tokens from disk"), n)
                 : g_strdup_printf (_ ("Bringing back %s tokens from host memory"), n);
    }
  if (elapsed_us < QUIRE_READING_SLOW_US || n_read == 0 || reply->reading_us == 0)
    /* Translators: tokens of the prompt that the model has read so far, and all of them. */
    return g_strdup_printf (_ ("Reading %s of %s tokens"), done, all);
  s = (guint)((double)(reply->n_prompt - MIN (reply->n_prompt_done, reply->n_prompt)) * elapsed_us
                  / n_read / G_USEC_PER_SEC
              + 0.999);
  /* Translators: as above, then the seconds that are left. */
  return g_strdup_printf (
      ngettext ("Reading %s of %s tokens · %u s left", "Reading %s of %s tokens · %u s left", s),
      done, all, s);
}

char *
quire_format_parameters (guint64 n)
{
  /* Translators: the powers of ten that large numbers are counted in, as "%.1f billion" and "%.1f million" name them.
   * "8 4" for Chinese, Japanese and Korean; else "9 6". */
  const char *powers = C_ ("powers of ten", "9 6");
  double large = 1e9, small = 1e6;

  if (g_str_equal (powers, "8 4"))
    large = 1e8, small = 1e4;
  if ((double)n >= large)
    return g_strdup_printf (_ ("%.1f billion"), (double)n / large);
  return g_strdup_printf (_ ("%.1f million"), (double)n / small);
}

char *
quire_format_sentences (const char *first, const char *second)
{
  /* Translators: two sentences, one after the other. */
  return g_strdup_printf (C_ ("two sentences", "%s %s"), first, second);
}

char *
quire_format_progress (QuireMessage *message)
{
  const QuireReply *reply = quire_message_get_reply (message);

  switch (quire_message_get_state (message))
    {
    case QUIRE_REPLY_QUEUED:
      if (reply->n_before > 0)
        return g_strdup_printf (
            ngettext ("Queued (%u before)", "Queued (%u before)", reply->n_before),
            reply->n_before);
      return g_strdup (_ ("Queued"));
    case QUIRE_REPLY_READING:
      return format_reading (reply);
    case QUIRE_REPLY_WRITING:
      if (reply->receipt.decode_tokens_per_s > 0)
        return quire_format_speed (reply->receipt.decode_tokens_per_s);
      return g_strdup (_ ("Writing"));
    case QUIRE_REPLY_WAITING:
    case QUIRE_REPLY_DONE:
    case QUIRE_REPLY_LENGTH:
    case QUIRE_REPLY_CONTEXT:
    case QUIRE_REPLY_STOPPED:
    case QUIRE_REPLY_FAILED:
    default:
      return g_strdup ("");
    }
}

char *
quire_format_ending (QuireMessage *message)
{
  const QuireReply *reply = quire_message_get_reply (message);

  switch (quire_message_get_state (message))
    {
    case QUIRE_REPLY_STOPPED:
      return g_strdup (_ ("Stopped"));
    case QUIRE_REPLY_INTERRUPTED:
      return g_strdup (_ ("Interrupted when Quire closed"));
      case QUIRE_REPLY_LENGTH: {
        g_autofree char *n = quire_format_count (reply->receipt.n_generated);

        return g_strdup_printf (
            ngettext ("Cut at %s token", "Cut at %s tokens", reply->receipt.n_generated), n);
      }
    case QUIRE_REPLY_CONTEXT:
      return g_strdup (_ ("The context is full"));
    case QUIRE_REPLY_WAITING:
    case QUIRE_REPLY_QUEUED:
    case QUIRE_REPLY_READING:
    case QUIRE_REPLY_WRITING:
    case QUIRE_REPLY_DONE:
    case QUIRE_REPLY_FAILED:
    default:
      return NULL;
    }
}

char *
quire_format_mismatch (const qe_receipt *receipt)
{
  g_autofree char *at = quire_format_count ((guint64)MAX (receipt->first_mismatch, 0));
  gboolean placed = receipt->first_mismatch >= 0;

  switch (receipt->mismatch)
    {
    case QE_MISMATCH_EDITED:
      return placed ? g_strdup_printf (_ ("the chat was changed at token %s"), at)
                    : g_strdup (_ ("the chat was changed"));
    case QE_MISMATCH_STRIPPED:
      return placed ? g_strdup_printf (_ ("earlier thoughts left the chat at token %s"), at)
                    : g_strdup (_ ("earlier thoughts left the chat"));
    case QE_MISMATCH_EVICTED:
      return placed ? g_strdup_printf (_ ("pages from token %s on were given up for memory"), at)
                    : g_strdup (_ ("pages were given up for memory"));
    case QE_MISMATCH_MODE:
      if (receipt->mode == QE_CACHE_REBUILD || receipt->mode == QE_CACHE_PAGED)
        /* Translators: name of a cache mode. */
        return g_strdup_printf (_ ("the mode %s keeps nothing"),
                                quire_cache_mode_get_title (receipt->mode));
      return g_strdup (_ ("the cache mode was changed"));
    case QE_MISMATCH_NONE:
    default:
      return NULL;
    }
}

char *
quire_format_why (QuireMessage *message)
{
  const QuireReply *reply = quire_message_get_reply (message);
  const qe_receipt *r = &reply->receipt;
  g_autofree char *at = quire_format_count ((guint64)MAX (r->first_mismatch, 0));

  if (r->mismatch != QE_MISMATCH_EDITED || r->first_mismatch < 0)
    return quire_format_mismatch (r);
  switch (reply->cause)
    {
    case QUIRE_CAUSE_REGENERATED:
      /* Translators: why tokens were read again, and from which token on. */
      return g_strdup_printf (_ ("the reply was written anew, from token %s on"), at);
    case QUIRE_CAUSE_EDITED:
      return g_strdup_printf (_ ("you edited message %u, from token %s on"), reply->cause_at, at);
    case QUIRE_CAUSE_FLIPPED:
      return g_strdup_printf (_ ("another version is shown, from token %s on"), at);
    case QUIRE_CAUSE_LEFT_OUT:
      return g_strdup_printf (_ ("turns were left out or taken in, from token %s on"), at);
    case QUIRE_CAUSE_SYSTEM:
      return g_strdup_printf (_ ("the system prompt was changed, from token %s on"), at);
    case QUIRE_CAUSE_NONE:
    default:
      return quire_format_mismatch (r);
    }
}

/* @format: with one %s for the number; added when @n is not 0. */
static void
add_figure (GStrvBuilder *figures, const char *format, guint n)
{
  g_autofree char *count = quire_format_count (n);
  g_autofree char *figure = NULL;
  g_auto (GStrv) parts = g_strsplit (format, "%s", 2);

  if (n == 0)
    return;
  figure = g_strjoinv (count, parts);
  g_strv_builder_add (figures, figure);
}

char **
quire_format_receipt_figures (QuireMessage *message)
{
  const QuireReply *reply = quire_message_get_reply (message);
  const qe_receipt *r = &reply->receipt;
  g_autoptr (GStrvBuilder) figures = g_strv_builder_new ();
  g_autofree char *ending = quire_format_ending (message);
  /* From the key to the screen where that was seen. */
  g_autofree char *first
      = quire_format_ms (reply->shown_ms > 0 ? reply->shown_ms : r->first_token_ms);
  g_autofree char *speed = quire_format_speed (r->decode_tokens_per_s);
  g_autofree char *n_new = quire_format_count (r->n_new);
  g_autofree char *n_reused = quire_format_count (r->n_reused);
  g_autofree char *mismatch = quire_format_why (message);

  if (ending != NULL)
    g_strv_builder_add (figures, ending);
  if (r->n_generated > 0)
    {
      /* Translators: the time until a reply's first token was there, "0.14 s to first token". Keep it short. */
      g_autofree char *a = g_strdup_printf (_ ("%s to first token"), first);

      g_strv_builder_add (figures, a);
    }
  if (r->decode_tokens_per_s > 0)
    g_strv_builder_add (figures, speed);
  if (r->n_prompt > 0)
    {
      /* Translators: tokens of the prompt that were computed for this reply. */
      g_autofree char *a = g_strdup_printf (ngettext ("%s new", "%s new", r->n_new), n_new);
      /* Translators: tokens of the prompt that were already in the cache. */
      g_autofree char *b
          = g_strdup_printf (ngettext ("%s reused", "%s reused", r->n_reused), n_reused);

      g_strv_builder_add (figures, a);
      g_strv_builder_add (figures, b);
    }
  /* Translators: tokens of the prompt brought back to the GPU from host memory. Keep it short, as those below. */
  add_figure (figures, _ ("%s from host"), r->n_restored_host);
  add_figure (figures, _ ("%s from disk"), r->n_restored_disk);
  add_figure (figures, _ ("%s read in host memory"), r->n_on_host);
  add_figure (figures, _ ("%s computed again"), r->n_recomputed);
  if (mismatch != NULL)
    g_strv_builder_add (figures, mismatch);

  return g_strv_builder_end (figures);
}

static const char *
ending_in_words (QuireReplyState state)
{
  switch (state)
    {
    case QUIRE_REPLY_DONE:
      return _ ("The model ended its turn");
    case QUIRE_REPLY_LENGTH:
      return _ ("Token limit");
    case QUIRE_REPLY_CONTEXT:
      return _ ("Context full");
    case QUIRE_REPLY_STOPPED:
      return _ ("Stopped by you");
    case QUIRE_REPLY_FAILED:
      return _ ("Error");
    case QUIRE_REPLY_WAITING:
    case QUIRE_REPLY_QUEUED:
    case QUIRE_REPLY_READING:
    case QUIRE_REPLY_WRITING:
    default:
      return _ ("Running");
    }
}

/* @value: taken. */
static void
add_row (GStrvBuilder *rows, const char *label, char *value)
{
  g_strv_builder_add (rows, label);
  g_strv_builder_add (rows, value);
  g_free (value);
}

/* The way to the first word, step by step. The engine's clock begins when it is asked, the screen's with the key. */
static void
add_first_token (GStrvBuilder *rows, const QuireReply *reply)
{
  const qe_receipt *r = &reply->receipt;
  double decode_ms = r->first_token_ms - r->queue_ms - r->restore_ms - r->prefill_ms;
  double paint_ms = reply->shown_ms - reply->saved_ms - r->first_token_ms;

  if (reply->shown_ms > 0)
    add_row (rows, _ ("First word on the screen, from the key"), quire_format_ms (reply->shown_ms));
  if (reply->saved_ms > 0)
    add_row (rows, _ ("Saving your message"), quire_format_ms (reply->saved_ms));
  add_row (rows, _ ("First token after"), quire_format_ms (r->first_token_ms));
  add_row (rows, _ ("Waited in the queue"), quire_format_ms (r->queue_ms));
  add_row (rows, _ ("Reading took"), quire_format_ms (r->prefill_ms));
  if (r->n_generated > 0 && decode_ms >= 0.5)
    add_row (rows, _ ("First word took"), quire_format_ms (decode_ms));
  if (reply->shown_ms > 0 && paint_ms >= 0)
    add_row (rows, _ ("Painting took"), quire_format_ms (paint_ms));
}

char **
quire_format_receipt_table (QuireMessage *message)
{
  const qe_receipt *r = &quire_message_get_reply (message)->receipt;
  g_autoptr (GStrvBuilder) rows = g_strv_builder_new ();
  g_autofree char *mismatch = quire_format_why (message);

  add_first_token (rows, quire_message_get_reply (message));
  if (r->mode != QE_CACHE_AUTO)
    add_row (rows, _ ("Cache mode"), g_strdup (quire_cache_mode_get_title (r->mode)));
  add_row (rows, _ ("Prompt tokens"), quire_format_count (r->n_prompt));
  add_row (rows, _ ("Reused from the cache"), quire_format_count (r->n_reused));
  if (r->n_shared > 0)
    add_row (rows, _ ("Of these, from other chats"), quire_format_count (r->n_shared));
  if (r->n_restored_host > 0)
    add_row (rows, _ ("Of these, brought back from host memory"),
             quire_format_count (r->n_restored_host));
  if (r->n_restored_disk > 0)
    add_row (rows, _ ("Of these, brought back from disk"), quire_format_count (r->n_restored_disk));
  if (r->n_on_host > 0)
    add_row (rows, _ ("Of these, read in host memory"), quire_format_count (r->n_on_host));
  if (r->restore_ms > 0 && r->n_restored_host + r->n_restored_disk > 0)
    add_row (rows, _ ("Bringing back took"), quire_format_ms (r->restore_ms));
  add_row (rows, _ ("Newly computed"), quire_format_count (r->n_new));
  if (r->n_recomputed > 0)
    add_row (rows, _ ("Of these, computed again"), quire_format_count (r->n_recomputed));
  if (r->skipped_share > 0)
    /* Translators: of the attention of a reply in the mode Selective; "62 %". */
    add_row (rows, _ ("Pages left out"), g_strdup_printf (_ ("%.0f %%"), 100 * r->skipped_share));
  if (r->first_mismatch >= 0)
    add_row (rows, _ ("Differs from token"), quire_format_count ((guint64)r->first_mismatch));
  if (mismatch != NULL)
    add_row (rows, _ ("Why not all was reused"), g_steal_pointer (&mismatch));
  if (r->prefill_tokens_per_s > 0)
    add_row (rows, _ ("Reading speed"), quire_format_speed (r->prefill_tokens_per_s));
  add_row (rows, _ ("Tokens written"), quire_format_count (r->n_generated));
  add_row (rows, _ ("Writing took"), quire_format_ms (r->decode_ms));
  if (r->decode_tokens_per_s > 0)
    add_row (rows, _ ("Writing speed"), quire_format_speed (r->decode_tokens_per_s));
  add_row (rows, _ ("Ended by"), g_strdup (ending_in_words (quire_message_get_state (message))));
  add_row (rows, _ ("Seed"), g_strdup_printf ("%" G_GUINT64_FORMAT, r->seed));

  return g_strv_builder_end (rows);
}
