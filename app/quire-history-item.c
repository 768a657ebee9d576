/* quire-history-item.c: a conversation in the list. See quire-history.h. */
#include "app/quire-history.h"

struct _QuireHistoryItem
{
  GObject parent_instance;

  QuireStoredChat chat;
  gboolean running, unread;
};

G_DEFINE_FINAL_TYPE (QuireHistoryItem, quire_history_item, G_TYPE_OBJECT)

static guint changed_signal;

const QuireStoredChat *
quire_history_item_get (QuireHistoryItem *self)
{
  return &self->chat;
}

QuireStoredChat *
quire_history_item_edit (QuireHistoryItem *self)
{
  return &self->chat;
}

void
quire_history_item_changed (QuireHistoryItem *self)
{
  g_signal_emit (self, changed_signal, 0);
}

gboolean
quire_history_item_set_title (QuireHistoryItem *self, const char *title, QuireTitleSource source)
{
  g_autofree char *stripped = title != NULL ? g_strstrip (g_strdup (title)) : NULL;

  if (source < self->chat.title_source)
    return FALSE;
  g_free (self->chat.title);
  self->chat.title = stripped != NULL && stripped[0] != '\0' ? g_steal_pointer (&stripped) : NULL;
  self->chat.title_source = self->chat.title != NULL ? source : QUIRE_TITLE_NONE;
  quire_history_item_changed (self);
  return TRUE;
}

gboolean
quire_history_item_is_running (QuireHistoryItem *self)
{
  return self->running;
}

void
quire_history_item_set_running (QuireHistoryItem *self, gboolean running)
{
  if (self->running == running)
    return;
  self->running = running;
  quire_history_item_changed (self);
}

gboolean
quire_history_item_is_unread (QuireHistoryItem *self)
{
  return self->unread;
}

void
quire_history_item_set_unread (QuireHistoryItem *self, gboolean unread)
{
  if (self->unread == unread)
    return;
  self->unread = unread;
  quire_history_item_changed (self);
}

static void
quire_history_item_finalize (GObject *object)
{
  quire_stored_chat_clear (&QUIRE_HISTORY_ITEM (object)->chat);
  G_OBJECT_CLASS (quire_history_item_parent_class)->finalize (object);
}

static void
quire_history_item_class_init (QuireHistoryItemClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = quire_history_item_finalize;
  changed_signal = g_signal_new ("changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                 NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_history_item_init (QuireHistoryItem *self)
{
  self->chat.id = g_uuid_string_random ();
  self->chat.created = self->chat.updated = g_get_real_time ();
  self->chat.tab = -1;
}

QuireHistoryItem *
quire_history_item_new (void)
{
  return g_object_new (QUIRE_TYPE_HISTORY_ITEM, NULL);
}
