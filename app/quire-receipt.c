/* quire-receipt.c: see quire-receipt.h. */
#include "app/quire-receipt.h"

#include "app/quire-json-text.h"

void
quire_receipt_add_usage (GString *out, guint n_prompt, guint64 n_generated, guint n_cached)
{
  g_string_append_printf (out,
                          "{\"prompt_tokens\": %u, \"completion_tokens\": %" G_GUINT64_FORMAT
                          ", \"total_tokens\": %" G_GUINT64_FORMAT
                          ", \"prompt_tokens_details\": {\"cached_tokens\": %u}}",
                          n_prompt, n_generated, n_prompt + n_generated, n_cached);
}

void
quire_receipt_add_timings (GString *out, const qe_receipt *r)
{
  const struct
  {
    const char *name;
    double value;
  } times[] = { { "queue_ms", r->queue_ms },
                { "first_token_ms", r->first_token_ms },
                { "prefill_ms", r->prefill_ms },
                { "decode_ms", r->decode_ms },
                { "restore_ms", r->restore_ms },
                { "restore_disk_ms", r->restore_disk_ms },
                { "prefill_tokens_per_s", r->prefill_tokens_per_s },
                { "decode_tokens_per_s", r->decode_tokens_per_s } };

  g_string_append_c (out, '{');
  for (gsize i = 0; i < G_N_ELEMENTS (times); i++)
    {
      g_string_append_printf (out, "%s\"%s\": ", i > 0 ? ", " : "", times[i].name);
      quire_json_add_number (out, times[i].value, 3);
    }
  g_string_append_c (out, '}');
}

void
quire_receipt_add_cache (GString *out, const qe_receipt *r)
{
  g_string_append_printf (
      out,
      "{\"mode\": \"%s\", \"prompt\": %u, \"new\": %u, \"reused\": %u, \"shared\": %u, "
      "\"restored_host\": %u, \"restored_disk\": %u, \"on_host\": %u, \"recomputed\": %u, "
      "\"first_mismatch\": %" G_GINT64_FORMAT ", \"mismatch\": \"%s\", \"skipped_share\": ",
      qe_cache_mode_name (r->mode), r->n_prompt, r->n_new, r->n_reused, r->n_shared,
      r->n_restored_host, r->n_restored_disk, r->n_on_host, r->n_recomputed, r->first_mismatch,
      qe_mismatch_name (r->mismatch));
  quire_json_add_number (out, r->skipped_share, 4);
  g_string_append_c (out, '}');
}
