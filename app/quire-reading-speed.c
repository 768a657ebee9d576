/* quire-reading-speed.c: see quire-reading-speed.h. */
#include "app/quire-reading-speed.h"

#include <glib/gi18n.h>

#include "app/quire-conversation.h"
#include "app/quire-format.h"
#include "app/quire-settings.h"

/* Fewer tokens are read in one step, whose time is not theirs. */
#define TOKENS_MIN 64
/* A change smaller than this is not worth writing down. */
#define CHANGE_MIN 0.1

static char *
dup_key (QuireEngineClient *client, const qe_model_info *model)
{
  const qe_engine_status *status = quire_engine_client_get_status (client);
  g_autofree char *digest = NULL;

  if (model == NULL)
    model = status->model;
  if (model == NULL)
    return NULL;
  digest = quire_model_dup_digest (model);
  return g_strdup_printf ("%s %s", status->device != NULL ? status->device : "", digest);
}

void
quire_reading_speed_note (QuireEngineClient *client, const qe_receipt *receipt)
{
  GSettings *settings;
  g_autoptr (GVariant) before = NULL;
  g_autofree char *key = dup_key (client, NULL);
  double old = 0;

  if (key == NULL || receipt->n_new < TOKENS_MIN || receipt->prefill_tokens_per_s <= 0
      || !quire_settings_exist ())
    return;
  settings = quire_settings_get_default ();
  before = g_settings_get_value (settings, "reading-speeds");
  if (g_variant_lookup (before, key, "d", &old)
      && ABS (receipt->prefill_tokens_per_s - old) < CHANGE_MIN * old)
    return;
  {
    GVariantBuilder builder;
    GVariantIter iter;
    const char *name;
    double value;

    g_variant_builder_init (&builder, G_VARIANT_TYPE ("a{sd}"));
    g_variant_iter_init (&iter, before);
    while (g_variant_iter_next (&iter, "{&sd}", &name, &value))
      if (!g_str_equal (name, key))
        g_variant_builder_add (&builder, "{sd}", name, value);
    g_variant_builder_add (&builder, "{sd}", key, receipt->prefill_tokens_per_s);
    g_settings_set_value (settings, "reading-speeds", g_variant_builder_end (&builder));
  }
}

double
quire_reading_speed_get (QuireEngineClient *client, const qe_model_info *model)
{
  g_autofree char *key = dup_key (client, model);
  g_autoptr (GVariant) speeds = NULL;
  double speed = 0;

  if (key == NULL)
    return 0;
  speeds = g_settings_get_value (quire_settings_get_default (), "reading-speeds");
  g_variant_lookup (speeds, key, "d", &speed);
  return speed;
}

char *
quire_reading_speed_format (guint n_tokens, double tokens_per_s)
{
  g_autofree char *n = quire_format_count (n_tokens);
  g_autofree char *time = NULL;

  if (tokens_per_s <= 0)
    return g_strdup_printf (ngettext ("reads %s token", "reads %s tokens", n_tokens), n);
  time = quire_format_ms (1000.0 * n_tokens / tokens_per_s);
  /* Translators: what going on with a chat costs: "reads 16,512 tokens, about 4 s". */
  return g_strdup_printf (
      ngettext ("reads %s token, about %s", "reads %s tokens, about %s", n_tokens), n, time);
}
