/* quire-sidebar-entry.c: see quire-sidebar-entry.h. */
#include "app/quire-sidebar-entry.h"

#include <glib/gi18n.h>

struct _QuireSidebarEntry
{
  GObject parent_instance;

  QuireHistoryItem *item;
  char *heading;
};

G_DEFINE_FINAL_TYPE (QuireSidebarEntry, quire_sidebar_entry, G_TYPE_OBJECT)

QuireHistoryItem *
quire_sidebar_entry_get_item (QuireSidebarEntry *self)
{
  return self->item;
}

const char *
quire_sidebar_entry_get_heading (QuireSidebarEntry *self)
{
  return self->heading;
}

static void
quire_sidebar_entry_finalize (GObject *object)
{
  QuireSidebarEntry *self = QUIRE_SIDEBAR_ENTRY (object);

  g_clear_object (&self->item);
  g_free (self->heading);
  G_OBJECT_CLASS (quire_sidebar_entry_parent_class)->finalize (object);
}

static void
quire_sidebar_entry_class_init (QuireSidebarEntryClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = quire_sidebar_entry_finalize;
}

static void
quire_sidebar_entry_init (QuireSidebarEntry *self)
{
}

/* ---- Groups ---- */

static int
by_time (gconstpointer a, gconstpointer b, gpointer user_data)
{
  const QuireStoredChat *left = quire_history_item_get (*(QuireHistoryItem *const *)a);
  const QuireStoredChat *right = quire_history_item_get (*(QuireHistoryItem *const *)b);
  gboolean trash = GPOINTER_TO_INT (user_data);
  gint64 l = trash ? left->deleted : left->updated, r = trash ? right->deleted : right->updated;

  if (!trash && left->pinned != right->pinned)
    return left->pinned ? -1 : 1;
  if (l != r)
    return l > r ? -1 : 1;
  return g_strcmp0 (left->id, right->id);
}

/* Days from the one of @then to the one of @now, in local time. */
static int
days_between (GDateTime *then, GDateTime *now)
{
  GDate a, b;

  g_date_clear (&a, 1);
  g_date_clear (&b, 1);
  g_date_set_dmy (&a, (GDateDay)g_date_time_get_day_of_month (then),
                  (GDateMonth)g_date_time_get_month (then), (GDateYear)g_date_time_get_year (then));
  g_date_set_dmy (&b, (GDateDay)g_date_time_get_day_of_month (now),
                  (GDateMonth)g_date_time_get_month (now), (GDateYear)g_date_time_get_year (now));
  return g_date_days_between (&a, &b);
}

static char *
dup_heading (const QuireStoredChat *chat, GDateTime *now, gboolean trash)
{
  g_autoptr (GDateTime) utc = g_date_time_new_from_unix_utc (chat->updated / G_USEC_PER_SEC);
  g_autoptr (GDateTime) then = utc != NULL ? g_date_time_to_local (utc) : NULL;
  int days;

  if (trash)
    return g_strdup (_ ("Trash"));
  if (chat->pinned)
    return g_strdup (_ ("Pinned"));
  if (then == NULL)
    return g_strdup (_ ("Earlier"));
  days = days_between (then, now);
  if (days <= 0)
    return g_strdup (_ ("Today"));
  if (days == 1)
    return g_strdup (_ ("Yesterday"));
  if (days <= 7)
    return g_strdup (_ ("Previous 7 Days"));
  if (days <= 30)
    return g_strdup (_ ("Previous 30 Days"));
  /* Translators: a month of this year, and one of another: see strftime(3). */
  return g_date_time_format (
      then, g_date_time_get_year (then) == g_date_time_get_year (now) ? _ ("%OB") : _ ("%OB %Y"));
}

static QuireSidebarEntry *
entry_for (GHashTable *known, gconstpointer key, QuireHistoryItem *item, const char *heading)
{
  QuireSidebarEntry *entry = g_hash_table_lookup (known, key);

  if (entry != NULL)
    return g_object_ref (entry);
  entry = g_object_new (QUIRE_TYPE_SIDEBAR_ENTRY, NULL);
  entry->item = item != NULL ? g_object_ref (item) : NULL;
  entry->heading = g_strdup (heading);
  return entry;
}

GPtrArray *
quire_sidebar_entries_new (GPtrArray *items, GListModel *before, GDateTime *now, gboolean trash)
{
  g_autoptr (GHashTable) items_known = g_hash_table_new (NULL, NULL);
  g_autoptr (GHashTable) headings_known = g_hash_table_new (g_str_hash, g_str_equal);
  GPtrArray *entries = g_ptr_array_new_with_free_func (g_object_unref);
  g_autofree char *group = NULL;

  for (guint i = 0; i < g_list_model_get_n_items (before); i++)
    {
      g_autoptr (QuireSidebarEntry) entry = g_list_model_get_item (before, i);

      if (entry->item != NULL)
        g_hash_table_insert (items_known, entry->item, entry);
      else
        g_hash_table_insert (headings_known, entry->heading, entry);
    }

  g_ptr_array_sort_with_data (items, by_time, GINT_TO_POINTER (trash));
  for (guint i = 0; i < items->len; i++)
    {
      QuireHistoryItem *item = g_ptr_array_index (items, i);
      g_autofree char *heading = dup_heading (quire_history_item_get (item), now, trash);

      if (g_strcmp0 (heading, group) != 0)
        {
          g_ptr_array_add (entries, entry_for (headings_known, heading, NULL, heading));
          g_free (group);
          group = g_steal_pointer (&heading);
        }
      g_ptr_array_add (entries, entry_for (items_known, item, item, NULL));
    }
  return entries;
}
