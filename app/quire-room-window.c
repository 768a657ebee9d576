/* quire-room-window.c: see quire-room-window.h.
 *
 * Everything is counted first, on a worker. Each choice is a row with its cost and a button; one that cannot help says why
 * and has none. The summary is written here, so that it can be stopped by closing the window. */
#include "app/quire-room-window.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

struct _QuireRoomWindow
{
  AdwWindow parent_instance;

  QuireConversation *conversation;
  char *draft;
  QuireRoom *room;
  QuireAside *aside;
  GCancellable *cancellable;
  GtkWidget *page;
  AdwPreferencesGroup *group;
  AdwActionRow *summary_row;
  GtkWidget *summary_button, *spinner;
};

G_DEFINE_FINAL_TYPE (QuireRoomWindow, quire_room_window, ADW_TYPE_WINDOW)

static guint continued_signal;

/* ---- The choices ---- */

static void
summed_up_cb (const char *text, const qe_receipt *receipt, gpointer user_data)
{
  QuireRoomWindow *self = user_data;
  g_autofree char *stripped = text != NULL ? g_strstrip (g_strdup (text)) : NULL;
  g_autoptr (GPtrArray) messages = NULL;
  g_autoptr (QuireHistoryItem) item = NULL;

  g_clear_pointer (&self->aside, quire_aside_free);
  gtk_spinner_stop (GTK_SPINNER (self->spinner));
  gtk_widget_set_visible (self->spinner, FALSE);
  if (stripped == NULL || stripped[0] == '\0')
    {
      adw_action_row_set_subtitle (self->summary_row,
                                   _ ("The model wrote no summary. Nothing was changed."));
      gtk_widget_set_sensitive (self->summary_button, TRUE);
      return;
    }
  item = quire_room_new_chat (self->conversation, self->room, stripped, receipt->n_generated,
                              self->draft, &messages);
  g_signal_emit (self, continued_signal, 0, item, messages);
  gtk_window_close (GTK_WINDOW (self));
}

static void
progress_cb (const char *text, gpointer user_data)
{
  QuireRoomWindow *self = user_data;
  g_autofree char *n = quire_format_count ((guint64)g_utf8_strlen (text, -1));
  g_autofree char *subtitle = g_strdup_printf (_ ("Writing the summary: %s characters"), n);

  adw_action_row_set_subtitle (self->summary_row, subtitle);
}

static void
summary_clicked_cb (QuireRoomWindow *self)
{
  gtk_widget_set_sensitive (self->summary_button, FALSE);
  gtk_widget_set_visible (self->spinner, TRUE);
  gtk_spinner_start (GTK_SPINNER (self->spinner));
  adw_action_row_set_subtitle (self->summary_row, _ ("The model reads the chat…"));
  self->aside = quire_room_sum_up (self->conversation, self->room, summed_up_cb, self);
  quire_aside_set_progress (self->aside, progress_cb);
}

static void
drop_clicked_cb (QuireRoomWindow *self)
{
  quire_room_drop (self->conversation, self->room);
  gtk_window_close (GTK_WINDOW (self));
}

static void
raise_clicked_cb (QuireRoomWindow *self)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (client);
  guint64 have = snapshot->tiers[snapshot->tiers[QE_TIER_GPU].present ? QE_TIER_GPU : QE_TIER_HOST]
                     .bytes_max;
  guint64 mib = (have + self->room->raise_bytes) / (1024 * 1024) + 1;

  g_settings_set_uint (quire_settings_get_default (), "cache-mib", (guint)MIN (mib, G_MAXUINT));
  quire_engine_client_set_cache (client, mib * 1024 * 1024);
  gtk_window_close (GTK_WINDOW (self));
}

/* ---- Words ---- */

/* "1,204 tokens (86.0 MiB)". Returns: owned. */
static char *
dup_cost (const QuireRoom *room, guint n)
{
  g_autofree char *count = quire_format_count (n);
  g_autofree char *bytes = quire_format_bytes (n * room->limit.token_bytes);

  return g_strdup_printf (ngettext ("%s token (%s)", "%s tokens (%s)", n), count, bytes);
}

static char *
dup_reading (const QuireRoom *room, guint n)
{
  g_autofree char *cost = dup_cost (room, n);
  g_autofree char *time = NULL;

  if (quire_room_seconds (room, n) <= 0)
    return g_steal_pointer (&cost);
  time = quire_format_ms (quire_room_seconds (room, n) * 1000);
  /* Translators: "1,204 tokens (86 MiB), about 2.10 s". */
  return g_strdup_printf (_ ("%s, about %s"), cost, time);
}

static char *
dup_summary_words (const QuireRoom *room)
{
  const QuireContextSummary *s = &room->summary;
  g_autofree char *fresh = dup_cost (room, s->n_new_tokens);

  if (s->n_summed == 0)
    return g_strdup (_ ("A summary would not make enough room here."));
  return g_strdup_printf (
      ngettext ("The model sums up %u turn on a copy that shares this chat’s pages. The new chat "
                "begins with at most %s. This chat stays as it is.",
                "The model sums up %u turns on a copy that shares this chat’s pages. The new chat "
                "begins with at most %s. This chat stays as it is.",
                s->n_summed),
      s->n_summed, fresh);
}

static char *
dup_drop_words (const QuireRoom *room)
{
  g_autofree char *gone = dup_cost (room, room->drop.n_tokens);
  g_autofree char *read = dup_reading (room, room->drop.n_read);

  if (room->drop.n_turns == 0)
    return g_strdup (_ ("It would not help: the draft alone is too long."));
  return g_strdup_printf (_ ("Frees %s. What stays is read again: %s. The messages remain in the "
                             "chat, and can be taken in again."),
                          gone, read);
}

static char *
dup_raise_words (const QuireRoom *room)
{
  g_autofree char *to = quire_format_count (room->limit.n_model);
  g_autofree char *bytes = quire_format_bytes (room->raise_bytes);
  g_autofree char *available = quire_format_bytes (room->free_bytes);

  if (room->raise_to == 0)
    return g_strdup_printf (_ ("The model itself ends at %s tokens."), to);
  if (room->free_bytes > 0 && room->raise_bytes > room->free_bytes)
    return g_strdup_printf (_ ("That takes %s more for pages, and %s are free."), bytes, available);
  return g_strdup_printf (_ ("Takes %s more for pages; %s are free. Nothing is read again."), bytes,
                          available);
}

/* ---- Building ---- */

/* @subtitle: taken. @label: NULL for a choice that cannot help. Returns: the button, or NULL. */
static GtkWidget *
add_choice (QuireRoomWindow *self, const char *title, char *subtitle, const char *label,
            GCallback clicked, AdwActionRow **out)
{
  GtkWidget *row = adw_action_row_new (), *button = NULL;

  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), title);
  adw_action_row_set_title_lines (ADW_ACTION_ROW (row), 0);
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (row), 0);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (row), subtitle);
  g_free (subtitle);
  if (label != NULL)
    {
      button = quire_mnemonic_button_new (label);
      gtk_widget_set_valign (button, GTK_ALIGN_CENTER);
      g_signal_connect_swapped (button, "clicked", clicked, self);
      adw_action_row_add_suffix (ADW_ACTION_ROW (row), button);
    }
  else
    gtk_widget_add_css_class (row, "dim-label");
  adw_preferences_group_add (self->group, row);
  if (out != NULL)
    *out = ADW_ACTION_ROW (row);
  return button;
}

static void
fill (QuireRoomWindow *self)
{
  const QuireRoom *room = self->room;
  guint used = quire_context_used (&room->use),
        excess = quire_context_excess (&room->use, room->limit.n_max);
  g_autofree char *n = quire_format_count (excess);
  g_autofree char *have = quire_format_count (used);
  g_autofree char *max = quire_format_count (room->limit.n_max);
  g_autofree char *drop_title = NULL;
  g_autofree char *text
      = excess > 0
            ? g_strdup_printf (ngettext ("With the draft this chat has %s token too many. Nothing "
                                         "is cut unless you choose to.",
                                         "With the draft this chat has %s tokens too many. Nothing "
                                         "is cut unless you choose to.",
                                         excess),
                               n)
            : g_strdup_printf (_ ("This chat takes %s of %s tokens. Nothing is cut unless you "
                                  "choose to."),
                               have, max);
  gboolean can_raise
      = room->raise_to > 0 && (room->free_bytes == 0 || room->raise_bytes <= room->free_bytes);

  self->group = ADW_PREFERENCES_GROUP (adw_preferences_group_new ());
  adw_preferences_group_set_description (self->group, text);
  self->summary_button
      = add_choice (self, _ ("Go On in a New Chat With a Summary"), dup_summary_words (room),
                    room->summary.n_summed > 0 ? _ ("_Sum Up") : NULL,
                    G_CALLBACK (summary_clicked_cb), &self->summary_row);
  self->spinner = gtk_spinner_new ();
  gtk_widget_set_visible (self->spinner, FALSE);
  adw_action_row_add_suffix (self->summary_row, self->spinner);
  drop_title
      = room->drop.n_turns > 0
            ? g_strdup_printf (ngettext ("Leave Out the Oldest Turn",
                                         "Leave Out the Oldest %u Turns", room->drop.n_turns),
                               room->drop.n_turns)
            : g_strdup (_ ("Leave Out the Oldest Turns"));
  add_choice (self, drop_title, dup_drop_words (room),
              room->drop.n_turns > 0 ? _ ("_Leave Out") : NULL, G_CALLBACK (drop_clicked_cb), NULL);
  add_choice (self, _ ("Raise the Limit"), dup_raise_words (room), can_raise ? _ ("_Raise") : NULL,
              G_CALLBACK (raise_clicked_cb), NULL);
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (self->page), self->group);
}

static void
read_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireRoomWindow) self = user_data;
  g_autoptr (GError) error = NULL;

  if (self->conversation == NULL)
    {
      g_autoptr (QuireRoom) late = quire_room_read_finish (result, NULL);

      return;
    }
  self->room = quire_room_read_finish (result, &error);
  if (self->room != NULL)
    fill (self);
  else if (!g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED))
    {
      self->group = ADW_PREFERENCES_GROUP (adw_preferences_group_new ());
      adw_preferences_group_set_description (self->group, quire_words (error->message));
      adw_preferences_page_add (ADW_PREFERENCES_PAGE (self->page), self->group);
    }
}

static void
quire_room_window_dispose (GObject *object)
{
  QuireRoomWindow *self = QUIRE_ROOM_WINDOW (object);

  g_cancellable_cancel (self->cancellable);
  g_clear_pointer (&self->aside, quire_aside_free);
  g_clear_object (&self->conversation);
  G_OBJECT_CLASS (quire_room_window_parent_class)->dispose (object);
}

static void
quire_room_window_finalize (GObject *object)
{
  QuireRoomWindow *self = QUIRE_ROOM_WINDOW (object);

  g_clear_object (&self->cancellable);
  g_clear_pointer (&self->room, quire_room_free);
  g_free (self->draft);
  G_OBJECT_CLASS (quire_room_window_parent_class)->finalize (object);
}

static void
quire_room_window_class_init (QuireRoomWindowClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_room_window_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_room_window_finalize;
  gtk_widget_class_add_binding_action (GTK_WIDGET_CLASS (klass), GDK_KEY_Escape, 0, "window.close",
                                       NULL);
  continued_signal
      = g_signal_new ("continued", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                      NULL, G_TYPE_NONE, 2, QUIRE_TYPE_HISTORY_ITEM, G_TYPE_PTR_ARRAY);
}

static void
quire_room_window_init (QuireRoomWindow *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0), *bar = adw_header_bar_new ();

  self->cancellable = g_cancellable_new ();
  self->page = adw_preferences_page_new ();
  gtk_widget_set_vexpand (self->page, TRUE);
  gtk_widget_add_css_class (bar, "flat");
  gtk_box_append (GTK_BOX (box), bar);
  gtk_box_append (GTK_BOX (box), self->page);
  adw_window_set_content (ADW_WINDOW (self), box);
  gtk_window_set_title (GTK_WINDOW (self), _ ("Make Room in the Context"));
  gtk_window_set_modal (GTK_WINDOW (self), TRUE);
  gtk_window_set_default_size (GTK_WINDOW (self), 560, 440);
}

GtkWindow *
quire_room_window_new (GtkWindow *parent, QuireConversation *conversation, const char *draft)
{
  QuireRoomWindow *self = g_object_new (QUIRE_TYPE_ROOM_WINDOW, "transient-for", parent, NULL);

  self->conversation = g_object_ref (conversation);
  self->draft = g_strdup (draft);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (self, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  quire_room_read_async (conversation, draft, self->cancellable, read_cb, g_object_ref (self));
  return GTK_WINDOW (self);
}
