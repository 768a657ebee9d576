/* route-cache.c: /v1/cache, what the engine holds now, and /v1/cache/events, the same as it changes.
 *
 * Sessions are numbers here and say nothing of what was written in them. A watcher gets at most four pictures a second, and
 * none while the last has not left: a slow reader sees fewer. */
#include "app/server/server-private.h"

#define WATCH_MS 250
#define CELLS_MAX 4096u /* of a session; past it the picture has counts alone */

static void
add_tiers (const qe_snapshot *s, GString *out)
{
  static const char *const names[] = { "gpu", "host", "disk" };

  for (guint t = 0; t < QE_N_TIERS; t++)
    {
      const qe_tier_view *v = &s->tiers[t];

      g_string_append_printf (
          out,
          "%s\"%s\":{\"present\":%s,\"pages\":%u,\"pages_shared\":%u,\"pages_max\":%u,"
          "\"bytes\":%" G_GUINT64_FORMAT ",\"bytes_max\":%" G_GUINT64_FORMAT
          ",\"bytes_in\":%" G_GUINT64_FORMAT ",\"bytes_out\":%" G_GUINT64_FORMAT "}",
          t > 0 ? "," : "", names[t], v->present ? "true" : "false", v->n_pages_used,
          v->n_pages_shared, v->n_pages_max, v->bytes_used, v->bytes_max, v->bytes_in,
          v->bytes_out);
    }
}

static const char *
name_of (QuireServer *self, qe_session_id id)
{
  GHashTableIter iter;
  gpointer value;

  g_hash_table_iter_init (&iter, self->sessions);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    if (((SrvSession *)value)->id == id)
      return ((SrvSession *)value)->name;
  return NULL;
}

/* A page a character: '0' + its tier, or 'a' + the tier when it is shared, or 'A' + the tier while it has room. */
static void
add_session (QuireServer *self, const qe_session_view *v, guint page_tokens, GString *out)
{
  g_string_append_printf (out, "{\"number\":%" G_GUINT64_FORMAT ",", v->id);
  srv_json_add_member (out, "session_id", name_of (self, v->id));
  g_string_append_printf (
      out,
      ",\"tokens\":%u,\"pages\":%u,\"pages_shared\":%u,\"bytes\":%" G_GUINT64_FORMAT
      ",\"running\":%s,\"mode\":\"%s\",\"cells\":\"",
      v->n_tokens, v->n_pages, v->n_pages_shared, v->bytes, v->running ? "true" : "false",
      qe_cache_mode_name (v->mode));
  for (guint i = 0; i < MIN (v->n_pages, CELLS_MAX); i++)
    {
      guint8 flags = v->cells[i].flags;
      char base = flags & QE_CELL_SHARED ? 'a' : v->cells[i].n_tokens < page_tokens ? 'A' : '0';

      g_string_append_c (out, (char)(base + (flags & QE_CELL_TIER_MASK)));
    }
  g_string_append (out, "\"}");
}

static void
add_picture (QuireServer *self, const qe_snapshot *s, GString *out)
{
  g_string_append_printf (
      out,
      "{\"serial\":%" G_GUINT64_FORMAT ",\"page_tokens\":%u,\"page_bytes\":%" G_GUINT64_FORMAT
      ",\"running\":%u,\"queued\":%u,\"pages_cached\":%u,"
      "\"prefill_tokens_per_s\":",
      s->serial, s->page_tokens, s->page_bytes, s->n_running, s->n_queued, s->n_pages_cached);
  srv_json_add_number (out, (double)(gint64)(s->prefill_tokens_per_s * 10) / 10);
  g_string_append (out, ",\"decode_tokens_per_s\":");
  srv_json_add_number (out, (double)(gint64)(s->decode_tokens_per_s * 10) / 10);
  g_string_append (out, ",\"tiers\":{");
  add_tiers (s, out);
  g_string_append (out, "},\"sessions\":[");
  for (guint i = 0; i < s->n_sessions; i++)
    {
      if (i > 0)
        g_string_append_c (out, ',');
      add_session (self, &s->sessions[i], s->page_tokens, out);
    }
  g_string_append (out, "]}");
}

void
srv_route_cache (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  const qe_snapshot *snapshot;
  GString *out;

  if (!srv_require_engine (self, msg))
    return;
  snapshot = qe_engine_dup_snapshot (self->engine);
  out = g_string_new (NULL);
  add_picture (self, snapshot, out);
  qe_snapshot_unref (snapshot);
  srv_answer (msg, 200, "application/json", out);
}

/* ---- Watching ---- */

typedef struct
{
  SrvExchange *x;
  guint64 serial; /* of the picture that was sent last; 0: none */
  guint n_quiet;  /* looks since something was sent */
} Watcher;

static void
watch (QuireServer *self, Watcher *w, const qe_snapshot *snapshot)
{
  GString *event;

  if (!srv_exchange_is_drained (w->x))
    return;
  if (w->serial == snapshot->serial + 1)
    {
      if (++w->n_quiet * WATCH_MS < SRV_KEEPALIVE_SECONDS * 1000)
        return;
      event = g_string_new (": still here\n\n");
    }
  else
    {
      event = g_string_new ("event: cache\ndata: ");
      add_picture (self, snapshot, event);
      g_string_append (event, "\n\n");
    }
  w->n_quiet = 0;
  w->serial = snapshot->serial + 1;
  srv_exchange_write (w->x, event);
}

static gboolean
watch_cb (gpointer user)
{
  QuireServer *self = user;
  const qe_snapshot *snapshot;

  if (self->engine == NULL)
    return G_SOURCE_CONTINUE;
  snapshot = qe_engine_dup_snapshot (self->engine);
  for (guint i = 0; i < self->watchers->len; i++)
    watch (self, self->watchers->pdata[i], snapshot);
  qe_snapshot_unref (snapshot);
  return G_SOURCE_CONTINUE;
}

static void
closed_cb (SrvExchange *x, gpointer user)
{
  QuireServer *self = srv_exchange_get_server (x);

  g_ptr_array_remove_fast (self->watchers, user);
  g_free (user);
  if (self->watchers->len == 0)
    g_clear_handle_id (&self->watch_timer, g_source_remove);
}

void
srv_route_cache_events (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  Watcher *w;
  SrvError error = { 0 };

  if (!srv_require_engine (self, msg))
    return;
  if (self->watchers->len >= self->options.n_connections_max / 2)
    {
      srv_error_set (&error, 429, "too_many_watchers", NULL, "Too many are watching");
      srv_refuse (msg, &error);
      return;
    }
  w = g_new0 (Watcher, 1);
  w->x = srv_exchange_new (self, msg);
  srv_exchange_set_funcs (w->x, closed_cb, NULL, w);
  srv_exchange_begin_events (w->x);
  g_ptr_array_add (self->watchers, w);
  if (self->watch_timer == 0)
    self->watch_timer = g_timeout_add (WATCH_MS, watch_cb, self);
  watch_cb (self);
}
