/* quire-cache-modes.c: see quire-cache-modes.h. Pure functions. */
#include "app/quire-cache-modes.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"

void
quire_cache_choice_get_config (QuireCacheChoice choice, qe_cache_config *out)
{
  static const qe_cache_mode modes[QUIRE_N_CACHE_CHOICES] = {
    [QUIRE_CACHE_AUTO] = QE_CACHE_AUTO,
    [QUIRE_CACHE_REBUILD] = QE_CACHE_REBUILD,
    [QUIRE_CACHE_PAGED] = QE_CACHE_PAGED,
    [QUIRE_CACHE_SESSION] = QE_CACHE_SESSION,
    [QUIRE_CACHE_TIERED] = QE_CACHE_TIERED,
    [QUIRE_CACHE_ARTICLE] = QE_CACHE_TIERED,
    [QUIRE_CACHE_TIERED_INT8] = QE_CACHE_TIERED_INT8,
    [QUIRE_CACHE_SELECTIVE] = QE_CACHE_SELECTIVE,
  };

  if (choice == QUIRE_CACHE_ARTICLE)
    qe_cache_config_init_article (out);
  else
    qe_cache_config_init (out);
  if (choice < QUIRE_N_CACHE_CHOICES)
    out->mode = modes[choice];
}

const char *
quire_cache_choice_get_title (QuireCacheChoice choice)
{
  switch (choice)
    {
    case QUIRE_CACHE_REBUILD:
      return C_ ("cache mode", "Rebuild");
    case QUIRE_CACHE_PAGED:
      return C_ ("cache mode", "Paged");
    case QUIRE_CACHE_SESSION:
      return C_ ("cache mode", "Session");
    case QUIRE_CACHE_TIERED:
      return C_ ("cache mode", "Tiered");
    case QUIRE_CACHE_ARTICLE:
      /* Translators: a preset of the mode "Tiered", with the sizes of an article on the subject. */
      return C_ ("cache mode", "Article");
    case QUIRE_CACHE_TIERED_INT8:
      return C_ ("cache mode", "Tiered int8");
    case QUIRE_CACHE_SELECTIVE:
      return C_ ("cache mode", "Selective");
    case QUIRE_CACHE_AUTO:
    case QUIRE_N_CACHE_CHOICES:
    default:
      return C_ ("cache mode", "Automatic");
    }
}

const char *
quire_cache_choice_get_description (QuireCacheChoice choice)
{
  switch (choice)
    {
    case QUIRE_CACHE_REBUILD:
      return _ ("Contiguous; each turn reads the whole chat again");
    case QUIRE_CACHE_PAGED:
      return _ ("16-token pages; each turn reads the whole chat");
    case QUIRE_CACHE_SESSION:
      return _ ("Pages are kept; a turn reads only what is new");
    case QUIRE_CACHE_TIERED:
      return _ ("Session, with older pages in host memory; exact");
    case QUIRE_CACHE_ARTICLE:
      return _ ("Tiered, with 32 + 2,048 tokens on the GPU");
    case QUIRE_CACHE_TIERED_INT8:
      return _ ("Tiered, in 8 bits: about half the memory");
    case QUIRE_CACHE_SELECTIVE:
      return _ ("Tiered; in long chats, replies look at some pages only");
    case QUIRE_CACHE_AUTO:
    case QUIRE_N_CACHE_CHOICES:
    default:
      return _ ("Tiered where there is host memory, else Session");
    }
}

const char *
quire_cache_mode_get_title (qe_cache_mode mode)
{
  switch (mode)
    {
    case QE_CACHE_REBUILD:
      return quire_cache_choice_get_title (QUIRE_CACHE_REBUILD);
    case QE_CACHE_PAGED:
      return quire_cache_choice_get_title (QUIRE_CACHE_PAGED);
    case QE_CACHE_SESSION:
      return quire_cache_choice_get_title (QUIRE_CACHE_SESSION);
    case QE_CACHE_TIERED:
      return quire_cache_choice_get_title (QUIRE_CACHE_TIERED);
    case QE_CACHE_TIERED_INT8:
      return quire_cache_choice_get_title (QUIRE_CACHE_TIERED_INT8);
    case QE_CACHE_SELECTIVE:
      return quire_cache_choice_get_title (QUIRE_CACHE_SELECTIVE);
    case QE_CACHE_AUTO:
    case QE_N_CACHE_MODES:
    default:
      return quire_cache_choice_get_title (QUIRE_CACHE_AUTO);
    }
}

gboolean
quire_cache_choice_is_approximate (QuireCacheChoice choice)
{
  return choice == QUIRE_CACHE_TIERED_INT8 || choice == QUIRE_CACHE_SELECTIVE;
}

char *
quire_cache_choice_dup_name (QuireCacheChoice choice)
{
  const char *title = quire_cache_choice_get_title (choice);

  return quire_cache_choice_is_approximate (choice)
             /* Translators: name of a cache mode. */
             ? g_strdup_printf (_ ("%s · approximate"), title)
             : g_strdup (title);
}

gboolean
quire_cache_choice_is_offered (QuireCacheChoice choice, const qe_memory_plan *plan)
{
  if (choice == QUIRE_CACHE_TIERED_INT8)
    return plan != NULL && plan->page_bytes_int8 > 0;
  return choice != QUIRE_CACHE_SELECTIVE || (plan != NULL && plan->has_selective);
}

/* The bound of 8 bits follows from the format: a row's largest value is 127 steps, and rounding is off by half a step. The
 * lengths are the engine's defaults, in which a test checks them. */
const char *
quire_cache_choice_get_error_note (QuireCacheChoice choice)
{
  if (choice == QUIRE_CACHE_SELECTIVE)
    return _ (
        "Exact up to 2,624 tokens. In longer chats each token of a reply looks at the first 64 "
        "and the newest 512 tokens, and at 2,048 between them that seem to matter most. Answers "
        "can differ from the exact modes; Compare Modes shows whether they do.");
  if (choice != QUIRE_CACHE_TIERED_INT8)
    return NULL;
  return _ (
      "Each value is rounded, by at most 0.4 percent of the largest in its row. Answers can differ "
      "from the exact modes; Compare Modes shows whether they do.");
}

static gboolean
keeps_nothing (qe_cache_mode mode)
{
  return mode == QE_CACHE_REBUILD || mode == QE_CACHE_PAGED;
}

guint
quire_cache_count_again (qe_cache_mode from, qe_cache_mode to, guint n_tokens)
{
  if (keeps_nothing (from) || keeps_nothing (to))
    return n_tokens;
  return (from == QE_CACHE_TIERED_INT8) != (to == QE_CACHE_TIERED_INT8)
                 || (from == QE_CACHE_SELECTIVE) != (to == QE_CACHE_SELECTIVE)
             ? n_tokens
             : 0;
}

qe_cache_mode
quire_cache_choice_resolve (QuireCacheChoice choice, const qe_memory_plan *plan)
{
  qe_cache_config config;

  quire_cache_choice_get_config (choice, &config);
  if (config.mode != QE_CACHE_AUTO)
    return config.mode;
  return plan != NULL && plan->host_kv > 0 ? QE_CACHE_TIERED : QE_CACHE_SESSION;
}

static char *
format_place (const qe_memory_plan *plan, const qe_cache_cost *cost)
{
  g_autofree char *device = quire_format_bytes (cost->device_bytes);
  g_autofree char *host = quire_format_bytes (cost->host_bytes);

  if (!plan->on_device && cost->host_bytes == 0)
    /* Translators: bytes of the cache, "12 MiB in memory". */
    return g_strdup_printf (_ ("%s in memory"), device);
  if (!plan->on_device)
    return g_strdup_printf (_ ("%s in memory and %s in the host tier"), device, host);
  if (cost->host_bytes == 0)
    return g_strdup_printf (_ ("%s on the GPU"), device);
  return g_strdup_printf (_ ("%s on the GPU and %s in host memory"), device, host);
}

char *
quire_cache_format_cost (const qe_memory_plan *plan, qe_cache_mode from, QuireCacheChoice present,
                         QuireCacheChoice to, guint n_tokens)
{
  GString *text = g_string_new (NULL);
  qe_cache_mode mode = quire_cache_choice_resolve (to, plan);
  guint n_again = quire_cache_count_again (from, mode, n_tokens);
  g_autofree char *again = quire_format_count (n_again);
  g_autofree char *n = quire_format_count (n_tokens);

  if (to == present)
    g_string_append (text, _ ("This mode is in use."));
  else if (n_tokens == 0)
    g_string_append (text, _ ("The chat is empty: the change costs nothing."));
  else if (n_again == 0)
    g_string_append (text, _ ("The next turn computes nothing again."));
  else if (keeps_nothing (mode))
    g_string_append_printf (text,
                            ngettext ("The next turn, and every one after it, computes %s token "
                                      "again.",
                                      "The next turn, and every one after it, computes %s tokens "
                                      "again.",
                                      n_again),
                            again);
  else
    g_string_append_printf (text,
                            ngettext ("The next turn computes %s token again, once.",
                                      "The next turn computes %s tokens again, once.", n_again),
                            again);
  if (plan != NULL && plan->page_bytes > 0 && n_tokens > 0)
    {
      qe_cache_config config;
      qe_cache_cost cost;

      quire_cache_choice_get_config (to, &config);
      config.mode = mode;
      qe_cache_cost_of (plan, &config, n_tokens, &cost);
      if (cost.fits)
        {
          g_autofree char *place = format_place (plan, &cost);

          g_string_append_c (text, '\n');
          /* Translators: number of tokens, then where they lie: "1,234 tokens: 12 MiB on the GPU". */
          g_string_append_printf (text, ngettext ("%s token: %s", "%s tokens: %s", n_tokens), n,
                                  place);
        }
      else
        {
          g_autofree char *bytes = quire_format_bytes (cost.bytes);

          g_string_append_c (text, '\n');
          g_string_append_printf (
              text, _ ("Its %s tokens need %s, more than this mode has: a turn will be refused."),
              n, bytes);
        }
    }
  return g_string_free (text, FALSE);
}
