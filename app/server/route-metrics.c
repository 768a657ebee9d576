/* route-metrics.c: /metrics, in Prometheus' text format 0.0.4. */
#include "app/server/server-private.h"

static void
head (GString *out, const char *name, const char *type, const char *help)
{
  g_string_append_printf (out, "# HELP quire_%s %s\n# TYPE quire_%s %s\n", name, help, name, type);
}

static void
add (GString *out, const char *name, const char *type, const char *help, guint64 value)
{
  head (out, name, type, help);
  g_string_append_printf (out, "quire_%s %" G_GUINT64_FORMAT "\n", name, value);
}

static void
add_number (GString *out, double value)
{
  char buffer[G_ASCII_DTOSTR_BUF_SIZE];

  g_string_append (out, g_ascii_formatd (buffer, sizeof buffer, "%.9g", value));
}

static void
add_histogram (GString *out, const char *name, const char *help, const SrvHistogram *h)
{
  guint64 n = 0;

  head (out, name, "histogram", help);
  for (guint i = 0; i < SRV_N_BUCKETS; i++)
    {
      n += h->counts[i];
      g_string_append_printf (out, "quire_%s_bucket{le=\"", name);
      add_number (out, srv_bucket_seconds[i]);
      g_string_append_printf (out, "\"} %" G_GUINT64_FORMAT "\n", n);
    }
  g_string_append_printf (out, "quire_%s_bucket{le=\"+Inf\"} %" G_GUINT64_FORMAT "\nquire_%s_sum ",
                          name, h->n, name);
  add_number (out, h->sum);
  g_string_append_printf (out, "\nquire_%s_count %" G_GUINT64_FORMAT "\n", name, h->n);
}

static void
add_by_tier (GString *out, const char *name, const char *type, const char *help,
             const guint64 values[QE_N_TIERS])
{
  static const char *const tiers[] = { "gpu", "host", "disk" };

  head (out, name, type, help);
  for (guint t = 0; t < QE_N_TIERS; t++)
    g_string_append_printf (out, "quire_%s{tier=\"%s\"} %" G_GUINT64_FORMAT "\n", name, tiers[t],
                            values[t]);
}

static void
add_tiers (GString *out, const qe_snapshot *s)
{
  const struct
  {
    const char *name, *type, *help;
    gsize offset;
    gboolean wide;
  } figures[] = {
    { "cache_pages", "gauge", "KV pages in the tier", G_STRUCT_OFFSET (qe_tier_view, n_pages_used),
      FALSE },
    { "cache_pages_shared", "gauge", "of them, pages of more than one conversation",
      G_STRUCT_OFFSET (qe_tier_view, n_pages_shared), FALSE },
    { "cache_pages_max", "gauge", "pages that the tier can hold",
      G_STRUCT_OFFSET (qe_tier_view, n_pages_max), FALSE },
    { "cache_bytes", "gauge", "bytes of KV pages in the tier",
      G_STRUCT_OFFSET (qe_tier_view, bytes_used), TRUE },
    { "cache_bytes_max", "gauge", "bytes that the tier can hold",
      G_STRUCT_OFFSET (qe_tier_view, bytes_max), TRUE },
    { "cache_bytes_in_total", "counter", "bytes moved into the tier from another",
      G_STRUCT_OFFSET (qe_tier_view, bytes_in), TRUE },
    { "cache_bytes_out_total", "counter", "bytes moved out of the tier to another",
      G_STRUCT_OFFSET (qe_tier_view, bytes_out), TRUE },
  };

  for (guint i = 0; i < G_N_ELEMENTS (figures); i++)
    {
      guint64 values[QE_N_TIERS];

      for (guint t = 0; t < QE_N_TIERS; t++)
        {
          gconstpointer at = G_STRUCT_MEMBER_P (&s->tiers[t], figures[i].offset);

          values[t] = figures[i].wide ? *(const uint64_t *)at : *(const uint32_t *)at;
        }
      add_by_tier (out, figures[i].name, figures[i].type, figures[i].help, values);
    }
}

static void
add_engine (GString *out, const qe_snapshot *s)
{
  add_tiers (out, s);
  add (out, "cache_pages_unowned", "gauge",
       "pages that no open conversation holds, kept to be found", s->n_pages_cached);
  add (out, "sessions", "gauge", "open conversations, the window's and the server's",
       s->n_sessions);
  add (out, "requests_running", "gauge", "requests that compute", s->n_running);
  add (out, "requests_queued", "gauge", "requests that wait", s->n_queued);
  head (out, "prefill_tokens_per_second", "gauge", "over the last second");
  g_string_append (out, "quire_prefill_tokens_per_second ");
  add_number (out, s->prefill_tokens_per_s);
  g_string_append_c (out, '\n');
  head (out, "decode_tokens_per_second", "gauge", "over the last second");
  g_string_append (out, "quire_decode_tokens_per_second ");
  add_number (out, s->decode_tokens_per_s);
  g_string_append_c (out, '\n');
}

static void
add_server (QuireServer *self, GString *out)
{
  const SrvFigures *f = &self->figures;

  head (out, "http_responses_total", "counter", "answers by class of status");
  for (guint i = 2; i < G_N_ELEMENTS (f->answers); i++)
    g_string_append_printf (out,
                            "quire_http_responses_total{class=\"%uxx\"} %" G_GUINT64_FORMAT "\n", i,
                            f->answers[i]);
  add (out, "http_connections_total", "counter", "connections accepted", f->connections);
  add (out, "http_connections_refused_total", "counter", "connections past the limit",
       f->refused_connections);
  add (out, "http_connections", "gauge", "connections open", g_hash_table_size (self->connections));
  add (out, "server_sessions", "gauge", "named sessions", g_hash_table_size (self->sessions));
  add (out, "prompt_tokens_total", "counter", "tokens of prompts answered by the server",
       f->prompt_tokens);
  add (out, "prompt_tokens_cached_total", "counter", "of them, tokens whose KV was there",
       f->cached_tokens);
  add (out, "prompt_tokens_shared_total", "counter",
       "of the cached, tokens that another conversation had computed", f->shared_tokens);
  add (out, "generated_tokens_total", "counter", "tokens generated", f->generated_tokens);
  head (out, "requests_finished_total", "counter", "choices by how they ended");
  {
    static const char *const names[] = { "stop", "length", "context", "cancelled", "error" };

    for (guint i = QE_FINISH_STOP; i <= QE_FINISH_ERROR; i++)
      g_string_append_printf (
          out, "quire_requests_finished_total{finish=\"%s\"} %" G_GUINT64_FORMAT "\n",
          names[i - QE_FINISH_STOP], f->finished[i]);
  }
  add_histogram (out, "queue_seconds", "from the call until the request computes", &f->queue);
  add_histogram (out, "first_token_seconds", "from the call until the first token",
                 &f->first_token);
  add_histogram (out, "request_seconds", "from the call until the end", &f->total);
}

void
srv_route_metrics (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  GString *out = g_string_new (NULL);

  if (self->engine != NULL)
    {
      const qe_snapshot *snapshot = qe_engine_dup_snapshot (self->engine);

      add_engine (out, snapshot);
      qe_snapshot_unref (snapshot);
    }
  add_server (self, out);
  srv_answer (msg, 200, "text/plain; version=0.0.4; charset=utf-8", out);
}
