/* quire-chat-view.c: see quire-chat-view.h.
 *
 * Invariants
 * 1. The reply is pumped at most once a frame while the view is drawn, and every PUMP_HIDDEN_MS otherwise (another tab,
 *    a minimised window: no frames come there).
 * 2. stick: the view follows the end of the text. Only the user's scrolling changes it, or sending.
 * 3. The adjustment changes while the viewport is being allocated; a value set then moves the viewport's child only in
 *    a later allocation, which follow_id asks for.
 * 4. The messages [first, end) have rows: at first the last ones, and those around what was gone to. More are made when the user
 *    comes near them, a view's height at a time. What is in sight stays where it is when some are made before it: its distance from
 *    the end does. stick implies that the last message has a row. */
#include "app/quire-chat-view.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-announcer.h"
#include "app/quire-chat-settings-window.h"
#include "app/quire-empty-page.h"
#include "app/quire-find-bar.h"
#include "app/quire-message-row.h"
#include "app/quire-room-window.h"
#include "app/quire-scroll-layout.h"
#include "app/quire-settings.h"
#include "app/quire-toast.h"
#include "app/quire-widget.h"

#define PUMP_HIDDEN_MS 250
#define DRAFT_MS 1000
#define COLUMN_PX 720
#define COLUMN_TIGHT_PX 560
/* Closer to the end than this counts as the end. */
#define STICK_PX 24
/* At first the last messages get rows, and each time that the user comes near the top of them those before: until they fill
 * about so many lines, or the view when that is more, and not more than so many. */
#define LINES_MIN 60
#define ROWS_MAX 16
/* Of the column's lines. */
#define LINE_PX_MIN 12
#define LINE_BYTES 100
/* So many before a message that was gone to. */
#define ROWS_BEFORE 2
/* A message that is gone to is so far from the top. */
#define SHOWN_PX 24
#define FLASH_MS 1000
/* New rows have found their height after so many frames. */
#define ANCHOR_FRAMES 12

struct _QuireChatView
{
  GtkBox parent_instance;

  QuireConversation *conversation;
  GSimpleActionGroup *actions;
  GtkWidget *stack;
  QuireModelBar *model_bar; /* another model wrote this chat */
  GtkWidget *status_page;
  AdwToastOverlay *toasts;
  GtkWidget *scrolled;
  GtkAdjustment *adjustment;
  GtkWidget *system; /* the system prompt, folded, above the messages */
  GtkLabel *system_label;
  GtkWidget *rows;
  GtkWidget *jump;
  QuireAnnouncer *announcer;
  QuireFindBar *find_bar;
  QuireComposer *composer;

  guint first, end; /* the messages that have rows */
  double
      from_end; /* where rows were put before what is in sight: its distance from the end; < 0: nowhere */
  guint tick_id, timer_id, follow_id, draft_id, more_id, anchor_id, anchor_frames;
  guint shown_id, shown_seq, shown_frames; /* a message that is gone to */
  gboolean stick;
  gboolean ask_again; /* once the model is there */
  gboolean growing;   /* the adjustment changes by itself */
};

G_DEFINE_FINAL_TYPE (QuireChatView, quire_chat_view, GTK_TYPE_BOX)

/* ---- Pumping ---- */

static void
cancel_pump (QuireChatView *self)
{
  if (self->tick_id != 0)
    gtk_widget_remove_tick_callback (GTK_WIDGET (self), self->tick_id);
  self->tick_id = 0;
  g_clear_handle_id (&self->timer_id, g_source_remove);
}

/* Takes what is new, and says it where this chat is what the user is at. */
static void
pump (QuireChatView *self)
{
  QuireMessage *reply;

  quire_conversation_pump (self->conversation);
  reply = quire_conversation_get_last_reply (self->conversation);
  if (reply != NULL && gtk_widget_get_mapped (GTK_WIDGET (self)))
    quire_announcer_follow (self->announcer, reply);
}

static gboolean
tick_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireChatView *self = QUIRE_CHAT_VIEW (widget);

  self->tick_id = 0;
  g_clear_handle_id (&self->timer_id, g_source_remove);
  pump (self);
  return G_SOURCE_REMOVE;
}

static gboolean
timer_cb (gpointer user_data)
{
  QuireChatView *self = user_data;

  self->timer_id = 0;
  cancel_pump (self);
  pump (self);
  return G_SOURCE_REMOVE;
}

static void
news_cb (QuireChatView *self)
{
  if (self->tick_id == 0 && gtk_widget_get_mapped (GTK_WIDGET (self)))
    self->tick_id = gtk_widget_add_tick_callback (GTK_WIDGET (self), tick_cb, NULL, NULL);
  if (self->timer_id == 0)
    self->timer_id = g_timeout_add (PUMP_HIDDEN_MS, timer_cb, self);
}

/* ---- Scrolling ---- */

static double
end_of (GtkAdjustment *adjustment)
{
  return gtk_adjustment_get_upper (adjustment) - gtk_adjustment_get_page_size (adjustment);
}

static void
update_jump (QuireChatView *self)
{
  gboolean away = end_of (self->adjustment) - gtk_adjustment_get_value (self->adjustment) > STICK_PX
                  || self->end < g_list_model_get_n_items (G_LIST_MODEL (self->conversation));

  gtk_revealer_set_reveal_child (GTK_REVEALER (self->jump), away && !self->stick);
  gtk_widget_set_can_target (self->jump, away && !self->stick);
}

static gboolean
follow_cb (gpointer user_data)
{
  QuireChatView *self = user_data;

  self->follow_id = 0;
  gtk_widget_queue_allocate (gtk_scrolled_window_get_child (GTK_SCROLLED_WINDOW (self->scrolled)));
  return G_SOURCE_REMOVE;
}

static void
set_value (QuireChatView *self, double value)
{
  self->growing = TRUE;
  gtk_adjustment_set_value (self->adjustment, value);
  self->growing = FALSE;
  if (self->follow_id == 0)
    self->follow_id = g_idle_add_full (G_PRIORITY_HIGH_IDLE, follow_cb, self, NULL);
}

static void
drop_anchor (QuireChatView *self)
{
  self->from_end = -1;
  if (self->anchor_id != 0)
    gtk_widget_remove_tick_callback (GTK_WIDGET (self), self->anchor_id);
  self->anchor_id = 0;
}

static gboolean
anchor_tick_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireChatView *self = QUIRE_CHAT_VIEW (widget);

  if (++self->anchor_frames < ANCHOR_FRAMES)
    return G_SOURCE_CONTINUE;
  self->anchor_id = 0;
  self->from_end = -1;
  return G_SOURCE_REMOVE;
}

/* How many of the messages before @at get rows, or of those from it @down: what fills the view and a little more, for the rest
 * would be laid out where nobody looks yet. */
static guint
count_rows (QuireChatView *self, guint at, gboolean down)
{
  GListModel *messages = G_LIST_MODEL (self->conversation);
  guint n_rows = 0, n_rows_max, n_lines = 0, n_lines_max;

  n_rows_max = MIN (down ? g_list_model_get_n_items (messages) - at : at, ROWS_MAX);
  n_lines_max = MAX (LINES_MIN, (guint)gtk_widget_get_height (self->scrolled) / LINE_PX_MIN);
  while (n_rows < n_rows_max && n_lines < n_lines_max)
    {
      g_autoptr (QuireMessage) message
          = g_list_model_get_item (messages, down ? at + n_rows : at - n_rows - 1);
      gsize n_bytes;
      const char *text = quire_message_get_text (message, &n_bytes);

      n_rows++;
      /* The status line or the bubble's margins are two more. */
      n_lines += 2;
      for (const char *line = text, *end = text + n_bytes; line < end && n_lines < n_lines_max;
           n_lines++)
        {
          const char *newline = memchr (line, '\n', (gsize)MIN (end - line, LINE_BYTES));

          line = newline != NULL ? newline + 1 : line + MIN (end - line, LINE_BYTES);
        }
    }
  return n_rows;
}

static void update_left_out (QuireChatView *self);

/* For the @n messages before those that have rows. */
static void
make_rows (QuireChatView *self, guint n)
{
  if (n == 0)
    return;
  drop_anchor (self);
  self->anchor_frames = 0;
  self->anchor_id = gtk_widget_add_tick_callback (GTK_WIDGET (self), anchor_tick_cb, NULL, NULL);
  self->from_end = end_of (self->adjustment) - gtk_adjustment_get_value (self->adjustment);
  for (; n > 0; n--)
    {
      g_autoptr (QuireMessage) message
          = g_list_model_get_item (G_LIST_MODEL (self->conversation), --self->first);

      gtk_box_prepend (GTK_BOX (self->rows), quire_message_row_new (message));
    }
  update_left_out (self);
}

/* Has the last message a row? */
static gboolean
is_at_last (QuireChatView *self)
{
  return self->end == g_list_model_get_n_items (G_LIST_MODEL (self->conversation));
}

/* For the @n messages after those that have rows. */
static void
append_rows (QuireChatView *self, guint n)
{
  drop_anchor (self);
  for (; n > 0; n--)
    {
      g_autoptr (QuireMessage) message
          = g_list_model_get_item (G_LIST_MODEL (self->conversation), self->end++);

      gtk_box_append (GTK_BOX (self->rows), quire_message_row_new (message));
    }
  if (is_at_last (self) && gtk_widget_get_last_child (self->rows) != NULL)
    quire_message_row_set_last (QUIRE_MESSAGE_ROW (gtk_widget_get_last_child (self->rows)), TRUE);
  update_left_out (self);
}

/* Those of [@first, @end) and no others. */
static void
remake_rows (QuireChatView *self, guint first, guint end)
{
  GtkWidget *row;

  while ((row = gtk_widget_get_first_child (self->rows)) != NULL)
    gtk_box_remove (GTK_BOX (self->rows), row);
  self->first = self->end = first;
  append_rows (self, end - first);
}

/* From here on the view follows the end. */
static void
stick_to_end (QuireChatView *self)
{
  guint n = g_list_model_get_n_items (G_LIST_MODEL (self->conversation));

  self->stick = TRUE;
  if (self->end < n)
    remake_rows (self, n - count_rows (self, n, FALSE), n);
}

static double
above (QuireChatView *self)
{
  return gtk_adjustment_get_value (self->adjustment);
}

static double
below (QuireChatView *self)
{
  return end_of (self->adjustment) - gtk_adjustment_get_value (self->adjustment);
}

static gboolean
more_cb (gpointer user_data)
{
  QuireChatView *self = user_data;

  self->more_id = 0;
  if (!is_at_last (self) && below (self) < above (self))
    append_rows (self, count_rows (self, self->end, TRUE));
  else
    make_rows (self, count_rows (self, self->first, FALSE));
  return G_SOURCE_REMOVE;
}

/* Rows are made before the user gets to see that there are none. */
static void
make_rows_near (QuireChatView *self)
{
  double page = gtk_adjustment_get_page_size (self->adjustment);

  if (self->more_id == 0 && page > 0
      && ((self->first > 0 && above (self) < page) || (!is_at_last (self) && below (self) < page)))
    self->more_id = g_idle_add_full (G_PRIORITY_HIGH_IDLE + 30, more_cb, self, NULL);
}

static void
adjustment_changed_cb (QuireChatView *self)
{
  if (self->stick)
    set_value (self, end_of (self->adjustment));
  else if (self->from_end >= 0)
    set_value (self, end_of (self->adjustment) - self->from_end);
  update_jump (self);
  make_rows_near (self);
}

static void
value_changed_cb (QuireChatView *self)
{
  if (!self->growing)
    drop_anchor (self);
  if (!self->growing)
    self->stick = is_at_last (self) && below (self) <= STICK_PX;
  update_jump (self);
  make_rows_near (self);
}

static void
jump_to_end (QuireChatView *self)
{
  stick_to_end (self);
  adjustment_changed_cb (self);
}

/* ---- Rows ---- */

static void
update_actions (QuireChatView *self)
{
  gboolean running = quire_conversation_is_running (self->conversation);
  gboolean has_reply = quire_conversation_get_last_reply (self->conversation) != NULL;
  gboolean ready
      = quire_engine_client_is_ready (quire_conversation_get_client (self->conversation));
  const struct
  {
    const char *name;
    gboolean enabled;
  } states[] = {
    { "regenerate", has_reply && !running && ready },
    { "continue", has_reply && !running && ready },
    { "edit", !running && ready },
    { "send-edit", !running && ready },
    { "flip", !running },
    { "copy-reply", has_reply && !running },
    { "stop", running },
    { "cache-mode", !running },
    { "compare-modes", !running && ready },
    { "compare-reply", !running && ready },
    { "make-room", !running && ready },
    { "take-in", !running },
    { "settings", !running && quire_conversation_get_history (self->conversation) != NULL },
  };

  for (gsize i = 0; i < G_N_ELEMENTS (states); i++)
    g_simple_action_set_enabled (
        G_SIMPLE_ACTION (g_action_map_lookup_action (G_ACTION_MAP (self->actions), states[i].name)),
        states[i].enabled);
  if (self->ask_again && ready && !running)
    {
      self->ask_again = FALSE;
      g_action_group_activate_action (G_ACTION_GROUP (self->actions), "regenerate", NULL);
    }
}

/* What the model does not see is dimmed, and a line under it says so. */
static void
update_left_out (QuireChatView *self)
{
  guint left_out = quire_conversation_get_left_out (self->conversation);

  for (GtkWidget *row = gtk_widget_get_first_child (self->rows); row != NULL;
       row = gtk_widget_get_next_sibling (row))
    {
      GtkWidget *next = gtk_widget_get_next_sibling (row);
      guint seq = quire_message_get_seq (quire_message_row_get_message (QUIRE_MESSAGE_ROW (row)));
      gboolean out = seq <= left_out;
      gboolean last
          = out
            && (next == NULL
                || quire_message_get_seq (quire_message_row_get_message (QUIRE_MESSAGE_ROW (next)))
                       > left_out);

      quire_message_row_set_left_out (QUIRE_MESSAGE_ROW (row), out, last);
    }
}

static void
settings_changed_cb (QuireChatView *self)
{
  const char *system = quire_conversation_get_system (self->conversation);

  gtk_label_set_text (self->system_label, system != NULL ? system : "");
  gtk_widget_set_visible (self->system, system != NULL);
  update_left_out (self);
}

/* Messages come and go at the end alone, but for a chat that is read. */
static void
items_changed_cb (QuireChatView *self, guint position, guint removed, guint added)
{
  guint n = g_list_model_get_n_items (G_LIST_MODEL (self->conversation));
  GtkWidget *row = gtk_widget_get_last_child (self->rows);

  if (position < self->first || row == NULL || position + added < n)
    remake_rows (self, n - count_rows (self, n, FALSE), n);
  else if (position <= self->end)
    {
      for (; self->end > position; self->end--)
        gtk_box_remove (GTK_BOX (self->rows), gtk_widget_get_last_child (self->rows));
      row = gtk_widget_get_last_child (self->rows);
      if (row != NULL)
        quire_message_row_set_last (QUIRE_MESSAGE_ROW (row), FALSE);
      append_rows (self, added <= ROWS_MAX ? added : count_rows (self, position, TRUE));
    }
  if (self->stick)
    stick_to_end (self);
  row = gtk_widget_get_last_child (self->rows);
  update_left_out (self);
  /* What is still being read is not an empty chat. */
  gtk_stack_set_visible_child_name (
      GTK_STACK (self->stack),
      row != NULL || !quire_conversation_is_loaded (self->conversation) ? "transcript" : "empty");
  update_actions (self);
}

/* Of message @index: with those up to it where it is near, else with what fills the view after it. */
static void
make_row (gpointer user_data, guint index)
{
  QuireChatView *self = user_data;

  if (index >= self->first && index < self->end)
    return;
  if (index < self->first && self->first - index <= ROWS_MAX)
    make_rows (self, self->first - index);
  else if (index >= self->end && index - self->end < ROWS_MAX)
    append_rows (self, index + 1 - self->end);
  else
    {
      self->stick = FALSE;
      remake_rows (self, index - MIN (index, ROWS_BEFORE), index + count_rows (self, index, TRUE));
    }
}

void
quire_chat_view_make_row (QuireChatView *self, guint seq)
{
  guint n = g_list_model_get_n_items (G_LIST_MODEL (self->conversation));

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (QuireMessage) message
          = g_list_model_get_item (G_LIST_MODEL (self->conversation), i);

      if (quire_message_get_seq (message) == seq)
        make_row (self, i);
    }
}

static GtkWidget *find_row (QuireChatView *self, guint seq);

static gboolean
flash_over_cb (gpointer user_data)
{
  gtk_widget_remove_css_class (user_data, "quire-flash");
  return G_SOURCE_REMOVE;
}

/* Rows around it are laid out in the next frames: it is kept in its place meanwhile. */
static gboolean
show_message_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireChatView *self = QUIRE_CHAT_VIEW (widget);
  GtkWidget *row = find_row (self, self->shown_seq);
  gboolean over = ++self->shown_frames >= ANCHOR_FRAMES;
  graphene_point_t at;

  if (row != NULL && gtk_widget_get_height (row) > 0
      && gtk_widget_compute_point (row, self->scrolled, &GRAPHENE_POINT_INIT (0, 0), &at))
    {
      double value = gtk_adjustment_get_value (self->adjustment) + at.y - SHOWN_PX;

      if (ABS (at.y - SHOWN_PX) > 1)
        gtk_adjustment_set_value (self->adjustment, CLAMP (value, 0, end_of (self->adjustment)));
      if (over)
        {
          gtk_widget_add_css_class (row, "quire-flash");
          g_timeout_add_full (G_PRIORITY_DEFAULT, FLASH_MS, flash_over_cb, g_object_ref (row),
                              g_object_unref);
        }
    }
  if (over)
    self->shown_id = 0;
  return over ? G_SOURCE_REMOVE : G_SOURCE_CONTINUE;
}

void
quire_chat_view_show_message (QuireChatView *self, guint seq)
{
  self->stick = FALSE;
  quire_chat_view_make_row (self, seq);
  self->shown_seq = seq;
  self->shown_frames = 0;
  if (self->shown_id == 0)
    self->shown_id = gtk_widget_add_tick_callback (GTK_WIDGET (self), show_message_cb, NULL, NULL);
}

/* ---- Turns ---- */

/* FALSE: no model can take a turn. Else the transcript will follow the reply. */
static gboolean
begin_turn (QuireChatView *self, QuireTurnSettings *settings)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  QuireChatSettings own;

  if (!quire_engine_client_is_ready (client))
    return FALSE;
  if (quire_model_bar_is_asking (self->model_bar))
    {
      quire_model_bar_insist (self->model_bar);
      quire_composer_show_hint (self->composer, _ ("Choose above which model goes on"));
      return FALSE;
    }
  quire_settings_get_turn (quire_engine_client_get_status (client)->model, settings);
  quire_conversation_get_settings (self->conversation, &own);
  quire_chat_settings_apply (&own, settings);
  settings->asked_us = quire_composer_get_asked_us (self->composer);
  stick_to_end (self);
  return TRUE;
}

/* A turn that was asked for at a message, not in the composer. */
static gboolean
begin_turn_at_message (QuireChatView *self, QuireTurnSettings *settings)
{
  if (!begin_turn (self, settings))
    return FALSE;
  quire_composer_grab_focus (self->composer);
  return TRUE;
}

void
quire_chat_view_send (QuireChatView *self, const char *text)
{
  QuireTurnSettings settings;

  if (begin_turn (self, &settings) && quire_conversation_send (self->conversation, text, &settings))
    quire_composer_clear (self->composer);
}

static void
regenerate_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  QuireTurnSettings settings;

  if (begin_turn_at_message (self, &settings))
    quire_conversation_regenerate (self->conversation, &settings);
}

/* After a lost device: the model comes back, then the turn that failed is asked for again. */
static void
recover_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);

  if (quire_engine_client_is_ready (client))
    g_action_group_activate_action (G_ACTION_GROUP (self->actions), "regenerate", NULL);
  else
    {
      self->ask_again = TRUE;
      quire_engine_client_recover (client);
    }
}

static void
continue_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  QuireTurnSettings settings;

  if (begin_turn_at_message (self, &settings))
    quire_conversation_continue (self->conversation, &settings);
}

static GtkWidget *
find_row (QuireChatView *self, guint seq)
{
  GtkWidget *row = gtk_widget_get_first_child (self->rows);

  while (row != NULL
         && quire_message_get_seq (quire_message_row_get_message (QUIRE_MESSAGE_ROW (row))) != seq)
    row = gtk_widget_get_next_sibling (row);
  return row;
}

static void
edit_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  GtkWidget *row = find_row (user_data, g_variant_get_uint32 (parameter));

  if (row != NULL)
    quire_message_row_edit (QUIRE_MESSAGE_ROW (row));
}

static void
send_edit_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  QuireTurnSettings settings;
  const char *text;
  GtkWidget *row;
  guint seq;

  g_variant_get (parameter, "(u&s)", &seq, &text);
  row = find_row (self, seq);
  if (row != NULL && begin_turn_at_message (self, &settings))
    quire_conversation_edit (self->conversation,
                             quire_message_row_get_message (QUIRE_MESSAGE_ROW (row)), text,
                             &settings);
}

/* The reading place stays: what was flipped is where it was. */
static void
flip_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  GtkWidget *row;
  guint seq;
  int by;

  g_variant_get (parameter, "(ui)", &seq, &by);
  row = find_row (self, seq);
  if (row == NULL)
    return;
  self->stick = FALSE;
  quire_composer_grab_focus (self->composer);
  quire_conversation_flip (self->conversation,
                           quire_message_row_get_message (QUIRE_MESSAGE_ROW (row)), by);
}

static void
copy_message_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  GtkWidget *row = find_row (self, g_variant_get_uint32 (parameter));

  if (row == NULL)
    return;
  quire_message_row_copy (QUIRE_MESSAGE_ROW (row));
  quire_chat_view_add_toast (self, adw_toast_new (_ ("Message copied")));
}

static void
stop_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_conversation_stop (QUIRE_CHAT_VIEW (user_data)->conversation);
}

static void
copy_reply_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  QuireMessage *reply = quire_conversation_get_last_reply (self->conversation);

  if (reply == NULL)
    return;
  quire_message_row_copy_of (reply, GTK_WIDGET (self));
  quire_chat_view_add_toast (self, adw_toast_new (_ ("Reply copied")));
}

static void
cache_mode_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_composer_choose_cache (QUIRE_CHAT_VIEW (user_data)->composer);
}

static void
compare_modes_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  gtk_widget_activate_action (GTK_WIDGET (user_data), "win.compare", NULL);
}

static void
compare_reply_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  gtk_widget_activate_action (GTK_WIDGET (user_data), "win.compare-reply", "u",
                              g_variant_get_uint32 (parameter));
}

/* The new chat is saved and opened; what was not sent goes with it. */
static void
continued_cb (QuireChatView *self, QuireHistoryItem *item, GPtrArray *messages)
{
  QuireHistory *history = quire_conversation_get_history (self->conversation);

  if (history == NULL)
    return;
  quire_history_save (history, item, g_ptr_array_ref (messages), NULL, NULL);
  quire_composer_clear (self->composer);
  gtk_widget_activate_action (GTK_WIDGET (self), "win.chat-open", "s",
                              quire_history_item_get (item)->id);
}

static void
make_room_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (self));
  g_autofree char *draft = quire_composer_dup_text (self->composer);
  GtkWindow *window;

  window = quire_room_window_new (GTK_IS_WINDOW (root) ? GTK_WINDOW (root) : NULL,
                                  self->conversation, draft);
  g_signal_connect_object (window, "continued", G_CALLBACK (continued_cb), self, G_CONNECT_SWAPPED);
  gtk_window_present (window);
}

static void
settings_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (self));

  gtk_window_present (quire_chat_settings_window_new (
      GTK_IS_WINDOW (root) ? GTK_WINDOW (root) : NULL, self->conversation));
}

static void
find_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_find_bar_open (QUIRE_CHAT_VIEW (user_data)->find_bar);
}

static void
find_next_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_find_bar_step (QUIRE_CHAT_VIEW (user_data)->find_bar, 1);
}

static void
find_previous_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_find_bar_step (QUIRE_CHAT_VIEW (user_data)->find_bar, -1);
}

static void
attach_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_composer_choose_files (QUIRE_CHAT_VIEW (user_data)->composer);
}

static void
take_in_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_conversation_leave_out (QUIRE_CHAT_VIEW (user_data)->conversation, 0, 0);
}

static void
suggest_cb (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *self = user_data;

  /* One that waits for its model goes by the composer, as what is typed does. */
  if (quire_engine_client_is_ready (quire_conversation_get_client (self->conversation)))
    quire_chat_view_send (self, g_variant_get_string (parameter, NULL));
  else
    {
      quire_composer_set_text (self->composer, g_variant_get_string (parameter, NULL));
      quire_composer_send (self->composer);
    }
}

/* ---- Engine ---- */

static void
snapshot_changed_cb (QuireChatView *self)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  QuireContextLimit limit;

  quire_context_get_limit (quire_engine_client_get_status (client)->model,
                           quire_engine_client_get_snapshot (client),
                           quire_conversation_get_cache_mode (self->conversation), &limit);
  quire_composer_set_context (self->composer, quire_conversation_get_n_context (self->conversation),
                              &limit);
}

/* ---- The draft ---- */

static GtkTextBuffer *
get_buffer (QuireChatView *self)
{
  return gtk_text_view_get_buffer (quire_composer_get_text_view (self->composer));
}

void
quire_chat_view_save_draft (QuireChatView *self)
{
  g_autofree char *text = quire_composer_dup_text (self->composer);

  g_clear_handle_id (&self->draft_id, g_source_remove);
  quire_conversation_set_draft (self->conversation, text);
}

static gboolean
draft_cb (gpointer user_data)
{
  QuireChatView *self = user_data;

  self->draft_id = 0;
  quire_chat_view_save_draft (self);
  return G_SOURCE_REMOVE;
}

static void
draft_changed_cb (QuireChatView *self)
{
  if (self->draft_id == 0)
    self->draft_id = g_timeout_add (DRAFT_MS, draft_cb, self);
}

gboolean
quire_chat_view_is_untouched (QuireChatView *self)
{
  return g_list_model_get_n_items (G_LIST_MODEL (self->conversation)) == 0
         && gtk_text_buffer_get_char_count (get_buffer (self)) == 0
         && quire_composer_get_attachments (self->composer)->len == 0;
}

/* ---- Building ---- */

static GtkWidget *
clamp_new (GtkWidget *child)
{
  GtkWidget *clamp = adw_clamp_new ();

  adw_clamp_set_maximum_size (ADW_CLAMP (clamp), COLUMN_PX);
  adw_clamp_set_tightening_threshold (ADW_CLAMP (clamp), COLUMN_TIGHT_PX);
  adw_clamp_set_child (ADW_CLAMP (clamp), child);
  return clamp;
}

static GtkWidget *
jump_new (QuireChatView *self)
{
  GtkWidget *button = gtk_button_new ();
  GtkWidget *content = adw_button_content_new ();

  adw_button_content_set_icon_name (ADW_BUTTON_CONTENT (content), "go-bottom-symbolic");
  adw_button_content_set_label (ADW_BUTTON_CONTENT (content), _ ("Latest"));
  gtk_button_set_child (GTK_BUTTON (button), content);
  gtk_widget_add_css_class (button, "osd");
  gtk_widget_add_css_class (button, "pill");
  gtk_widget_set_tooltip_text (button, _ ("Jump to the latest message"));
  g_signal_connect_swapped (button, "clicked", G_CALLBACK (jump_to_end), self);
  self->jump = gtk_revealer_new ();
  gtk_revealer_set_transition_type (GTK_REVEALER (self->jump),
                                    GTK_REVEALER_TRANSITION_TYPE_CROSSFADE);
  gtk_revealer_set_child (GTK_REVEALER (self->jump), button);
  gtk_widget_add_css_class (self->jump, "quire-jump");
  gtk_widget_set_halign (self->jump, GTK_ALIGN_CENTER);
  gtk_widget_set_valign (self->jump, GTK_ALIGN_END);
  gtk_widget_set_can_target (self->jump, FALSE);
  return self->jump;
}

static GtkWidget *
system_new (QuireChatView *self)
{
  GtkWidget *label = gtk_label_new (NULL);

  self->system_label = GTK_LABEL (label);
  gtk_label_set_wrap (self->system_label, TRUE);
  gtk_label_set_wrap_mode (self->system_label, PANGO_WRAP_WORD_CHAR);
  gtk_label_set_selectable (self->system_label, TRUE);
  gtk_label_set_xalign (self->system_label, 0);
  gtk_widget_set_focus_on_click (label, FALSE);
  gtk_widget_set_margin_top (label, 6);
  gtk_widget_add_css_class (label, "dim-label");
  self->system = gtk_expander_new (_ ("System Prompt"));
  gtk_expander_set_child (GTK_EXPANDER (self->system), label);
  gtk_widget_add_css_class (self->system, "quire-thinking");
  gtk_widget_add_css_class (self->system, "quire-system");
  gtk_widget_set_visible (self->system, FALSE);
  return self->system;
}

static GtkWidget *
transcript_new (QuireChatView *self)
{
  GtkWidget *overlay = gtk_overlay_new (), *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  GtkWidget *bin = adw_bin_new ();

  self->rows = g_object_new (GTK_TYPE_BOX, "orientation", GTK_ORIENTATION_VERTICAL, "spacing", 18,
                             "accessible-role", GTK_ACCESSIBLE_ROLE_LOG, NULL);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->rows), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Conversation"), -1);
  gtk_widget_add_css_class (self->rows, "quire-transcript");
  self->scrolled = gtk_scrolled_window_new ();
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (self->scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_box_append (GTK_BOX (box), system_new (self));
  gtk_box_append (GTK_BOX (box), self->rows);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (self->scrolled), clamp_new (box));
  self->adjustment = gtk_scrolled_window_get_vadjustment (GTK_SCROLLED_WINDOW (self->scrolled));
  g_signal_connect_object (self->adjustment, "changed", G_CALLBACK (adjustment_changed_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->adjustment, "value-changed", G_CALLBACK (value_changed_cb), self,
                           G_CONNECT_SWAPPED);
  gtk_widget_set_layout_manager (bin, quire_scroll_layout_new ());
  adw_bin_set_child (ADW_BIN (bin), self->scrolled);
  gtk_overlay_set_child (GTK_OVERLAY (overlay), bin);
  gtk_overlay_add_overlay (GTK_OVERLAY (overlay), jump_new (self));
  self->announcer = QUIRE_ANNOUNCER (quire_announcer_new ());
  gtk_widget_set_halign (GTK_WIDGET (self->announcer), GTK_ALIGN_START);
  gtk_widget_set_valign (GTK_WIDGET (self->announcer), GTK_ALIGN_END);
  gtk_overlay_add_overlay (GTK_OVERLAY (overlay), GTK_WIDGET (self->announcer));
  return overlay;
}

static void
refused_cb (QuireChatView *self, const char *why)
{
  quire_chat_view_add_toast (self, quire_toast_new (GTK_WIDGET (self), why));
}

/* Files may be dropped anywhere on the chat. */
static gboolean
drop_cb (GtkDropTarget *target, const GValue *value, double x, double y, gpointer user_data)
{
  quire_composer_attach_list (QUIRE_CHAT_VIEW (user_data)->composer, g_value_get_boxed (value));
  return TRUE;
}

static void
build (QuireChatView *self)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  GtkDropTarget *drop;

  self->status_page = quire_empty_page_new (client);
  self->stack = gtk_stack_new ();
  gtk_stack_add_named (GTK_STACK (self->stack), self->status_page, "empty");
  gtk_stack_add_named (GTK_STACK (self->stack), transcript_new (self), "transcript");
  self->toasts = ADW_TOAST_OVERLAY (adw_toast_overlay_new ());
  quire_widget_name_toasts (self->toasts);
  adw_toast_overlay_set_child (self->toasts, self->stack);
  gtk_widget_set_vexpand (GTK_WIDGET (self->toasts), TRUE);
  self->model_bar = QUIRE_MODEL_BAR (quire_model_bar_new (self->conversation));
  g_signal_connect_swapped (self->model_bar, "chosen", G_CALLBACK (gtk_widget_grab_focus), self);
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->model_bar));
  self->find_bar
      = QUIRE_FIND_BAR (quire_find_bar_new (G_LIST_MODEL (self->conversation), self->rows,
                                            GTK_SCROLLED_WINDOW (self->scrolled), make_row, self));
  g_signal_connect_swapped (self->find_bar, "closed", G_CALLBACK (gtk_widget_grab_focus), self);
  gtk_box_append (GTK_BOX (self), clamp_new (GTK_WIDGET (self->find_bar)));
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->toasts));

  self->composer = QUIRE_COMPOSER (quire_composer_new (self->conversation));
  g_signal_connect_swapped (self->composer, "send", G_CALLBACK (quire_chat_view_send), self);
  g_signal_connect_swapped (self->composer, "stop", G_CALLBACK (quire_conversation_stop),
                            self->conversation);
  g_signal_connect_swapped (self->composer, "refused", G_CALLBACK (refused_cb), self);
  gtk_box_append (GTK_BOX (self), clamp_new (GTK_WIDGET (self->composer)));
  drop = gtk_drop_target_new (GDK_TYPE_FILE_LIST, GDK_ACTION_COPY);
  g_signal_connect (drop, "drop", G_CALLBACK (drop_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), GTK_EVENT_CONTROLLER (drop));

  g_signal_connect_object (self->conversation, "items-changed", G_CALLBACK (items_changed_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "notify::running", G_CALLBACK (update_actions), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "notify::loaded", G_CALLBACK (snapshot_changed_cb),
                           self, G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "settings-changed", G_CALLBACK (settings_changed_cb),
                           self, G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "settings-changed", G_CALLBACK (snapshot_changed_cb),
                           self, G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "news", G_CALLBACK (news_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (update_actions), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "snapshot-changed", G_CALLBACK (snapshot_changed_cb), self,
                           G_CONNECT_SWAPPED);
  items_changed_cb (self, 0, 0, g_list_model_get_n_items (G_LIST_MODEL (self->conversation)));
  {
    const char *draft
        = quire_history_item_get (quire_conversation_get_item (self->conversation))->draft;

    if (draft != NULL)
      quire_composer_set_text (self->composer, draft);
    g_signal_connect_object (get_buffer (self), "changed", G_CALLBACK (draft_changed_cb), self,
                             G_CONNECT_SWAPPED);
    g_signal_connect_object (self->composer, "attached", G_CALLBACK (draft_changed_cb), self,
                             G_CONNECT_SWAPPED);
  }
  settings_changed_cb (self);
  update_actions (self);
  snapshot_changed_cb (self);
}

QuireConversation *
quire_chat_view_get_conversation (QuireChatView *self)
{
  return self->conversation;
}

QuireComposer *
quire_chat_view_get_composer (QuireChatView *self)
{
  return self->composer;
}

GActionGroup *
quire_chat_view_get_actions (QuireChatView *self)
{
  return G_ACTION_GROUP (self->actions);
}

QuireFindBar *
quire_chat_view_get_find_bar (QuireChatView *self)
{
  return self->find_bar;
}

QuireModelBar *
quire_chat_view_get_model_bar (QuireChatView *self)
{
  return self->model_bar;
}

gboolean
quire_chat_view_close_find (QuireChatView *self)
{
  if (!quire_find_bar_is_open (self->find_bar))
    return FALSE;
  quire_find_bar_close (self->find_bar);
  return TRUE;
}

GtkWidget *
quire_chat_view_get_transcript (QuireChatView *self)
{
  return self->scrolled;
}

gboolean
quire_chat_view_focus_transcript (QuireChatView *self)
{
  GtkWidget *last = gtk_widget_get_last_child (self->rows);

  return last != NULL && gtk_widget_child_focus (last, GTK_DIR_TAB_FORWARD);
}

QuireAnnouncer *
quire_chat_view_get_announcer (QuireChatView *self)
{
  return self->announcer;
}

guint
quire_chat_view_get_n_rows (QuireChatView *self)
{
  return self->end - self->first;
}

GtkAdjustment *
quire_chat_view_get_adjustment (QuireChatView *self)
{
  return self->adjustment;
}

void
quire_chat_view_add_toast (QuireChatView *self, AdwToast *toast)
{
  adw_toast_overlay_add_toast (self->toasts, toast);
}

static gboolean
quire_chat_view_grab_focus (GtkWidget *widget)
{
  quire_composer_grab_focus (QUIRE_CHAT_VIEW (widget)->composer);
  return TRUE;
}

static void
quire_chat_view_dispose (GObject *object)
{
  QuireChatView *self = QUIRE_CHAT_VIEW (object);

  cancel_pump (self);
  g_clear_handle_id (&self->draft_id, g_source_remove);
  g_clear_handle_id (&self->follow_id, g_source_remove);
  g_clear_handle_id (&self->more_id, g_source_remove);
  drop_anchor (self);
  if (self->shown_id != 0)
    gtk_widget_remove_tick_callback (GTK_WIDGET (self), self->shown_id);
  self->shown_id = 0;
  g_clear_object (&self->conversation);
  g_clear_object (&self->actions);
  G_OBJECT_CLASS (quire_chat_view_parent_class)->dispose (object);
}

static void
quire_chat_view_class_init (QuireChatViewClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_chat_view_dispose;
  GTK_WIDGET_CLASS (klass)->grab_focus = quire_chat_view_grab_focus;
}

static void
quire_chat_view_init (QuireChatView *self)
{
  const GActionEntry entries[] = {
    { "regenerate", regenerate_cb, NULL, NULL, NULL, { 0 } },
    { "recover", recover_cb, NULL, NULL, NULL, { 0 } },
    { "continue", continue_cb, NULL, NULL, NULL, { 0 } },
    { "edit", edit_cb, "u", NULL, NULL, { 0 } },
    { "send-edit", send_edit_cb, "(us)", NULL, NULL, { 0 } },
    { "flip", flip_cb, "(ui)", NULL, NULL, { 0 } },
    { "copy-message", copy_message_cb, "u", NULL, NULL, { 0 } },
    { "stop", stop_cb, NULL, NULL, NULL, { 0 } },
    { "copy-reply", copy_reply_cb, NULL, NULL, NULL, { 0 } },
    { "suggest", suggest_cb, "s", NULL, NULL, { 0 } },
    { "cache-mode", cache_mode_cb, NULL, NULL, NULL, { 0 } },
    { "compare-modes", compare_modes_cb, NULL, NULL, NULL, { 0 } },
    { "compare-reply", compare_reply_cb, "u", NULL, NULL, { 0 } },
    { "make-room", make_room_cb, NULL, NULL, NULL, { 0 } },
    { "take-in", take_in_cb, NULL, NULL, NULL, { 0 } },
    { "find", find_cb, NULL, NULL, NULL, { 0 } },
    { "find-next", find_next_cb, NULL, NULL, NULL, { 0 } },
    { "find-previous", find_previous_cb, NULL, NULL, NULL, { 0 } },
    { "attach", attach_cb, NULL, NULL, NULL, { 0 } },
    { "settings", settings_cb, NULL, NULL, NULL, { 0 } },
  };

  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  self->stick = TRUE;
  self->from_end = -1;
  self->actions = g_simple_action_group_new ();
  g_action_map_add_action_entries (G_ACTION_MAP (self->actions), entries, G_N_ELEMENTS (entries),
                                   self);
  gtk_widget_insert_action_group (GTK_WIDGET (self), "chat", G_ACTION_GROUP (self->actions));
}

GtkWidget *
quire_chat_view_new (QuireConversation *conversation)
{
  QuireChatView *self = g_object_new (QUIRE_TYPE_CHAT_VIEW, NULL);

  self->conversation = g_object_ref (conversation);
  build (self);
  return GTK_WIDGET (self);
}
