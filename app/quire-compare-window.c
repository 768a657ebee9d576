/* quire-compare-window.c: see quire-compare-window.h. It shows what QuireCompare has; closing it stops the runs and
 * frees their sessions. CSS: .quire-compare. */
#include "app/quire-compare-window.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-markdown.h"
#include "app/quire-settings.h"
#include "app/quire-thinking.h"

#define WIDTH_PX 640
#define HEIGHT_PX 600

enum
{
  ROW_STATE,
  ROW_FIRST_TOKEN,
  ROW_SPEED,
  ROW_NEW,
  ROW_REUSED,
  ROW_PEAK,
  N_ROWS
};

struct _QuireCompareWindow
{
  AdwWindow parent_instance;

  QuireConversation *conversation;
  QuireCompare *compare;
  QuireCacheChoice choices[QUIRE_N_CACHE_CHOICES]; /* those that the drop-downs offer */
  guint n_choices;
  GtkDropDown *modes[QUIRE_COMPARE_RUNS];
  GtkLabel *values[QUIRE_COMPARE_RUNS][N_ROWS];
  GtkLabel *heads[QUIRE_COMPARE_RUNS], *answers[QUIRE_COMPARE_RUNS];
  GtkWidget *answer_box;
  GtkLabel *verdict;
  GtkWidget *start;
};

G_DEFINE_FINAL_TYPE (QuireCompareWindow, quire_compare_window, ADW_TYPE_WINDOW)

static const char *
state_in_words (const QuireCompareRun *run)
{
  switch (run->state)
    {
    case QUIRE_RUN_PREPARING:
      return _ ("Preparing");
    case QUIRE_RUN_READING:
      return _ ("Reading");
    case QUIRE_RUN_WRITING:
      return _ ("Writing");
    case QUIRE_RUN_DONE:
      return _ ("Done");
    case QUIRE_RUN_STOPPED:
      return _ ("Stopped");
    case QUIRE_RUN_FAILED:
      return _ ("Failed");
    case QUIRE_RUN_WAITING:
    default:
      return _ ("Waiting");
    }
}

/* @value: taken. */
static void
set_value (GtkLabel *label, char *value)
{
  if (g_strcmp0 (gtk_label_get_text (label), value) != 0)
    gtk_label_set_text (label, value);
  g_free (value);
}

static void
update_run (QuireCompareWindow *self, guint i)
{
  const QuireCompareRun *run = quire_compare_get_run (self->compare, i);
  const qe_receipt *r = &run->receipt;
  GtkLabel **values = self->values[i];
  gboolean measured = run->state >= QUIRE_RUN_WRITING && run->state != QUIRE_RUN_FAILED;
  gboolean done = run->state == QUIRE_RUN_DONE;

  set_value (values[ROW_STATE],
             g_strdup (run->text != NULL ? state_in_words (run) : C_ ("figure", "–")));
  set_value (values[ROW_FIRST_TOKEN], measured && r->first_token_ms > 0
                                          ? quire_format_ms (r->first_token_ms)
                                          : g_strdup (C_ ("figure", "–")));
  set_value (values[ROW_SPEED],
             done ? quire_format_speed (r->decode_tokens_per_s) : g_strdup (C_ ("figure", "–")));
  set_value (values[ROW_NEW],
             measured ? quire_format_count (r->n_new) : g_strdup (C_ ("figure", "–")));
  set_value (values[ROW_REUSED],
             measured ? quire_format_count (r->n_reused) : g_strdup (C_ ("figure", "–")));
  if (measured && run->n_peak_pages > 0)
    {
      g_autofree char *bytes = quire_format_bytes (run->peak_bytes);

      /* Translators: "12 pages, 768 KiB". */
      set_value (values[ROW_PEAK],
                 g_strdup_printf (ngettext ("%u page, %s", "%u pages, %s", run->n_peak_pages),
                                  run->n_peak_pages, bytes));
    }
  else
    set_value (values[ROW_PEAK], g_strdup (C_ ("figure", "–")));

  if (run->text == NULL)
    return;
  {
    g_autofree char *title = quire_cache_choice_dup_name (run->choice);
    QuireThinking parts = quire_thinking_split (run->text->str, run->text->len);

    set_value (self->heads[i], g_steal_pointer (&title));
    set_value (self->answers[i], run->error != NULL
                                     ? g_strdup (run->error)
                                     : quire_text_make_valid (parts.answer, parts.n_answer));
  }
  if (run->error != NULL)
    gtk_widget_add_css_class (GTK_WIDGET (self->answers[i]), "error");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (self->answers[i]), "error");
}

static char *
dup_verdict (QuireCompareWindow *self)
{
  guint first = 0, n = quire_compare_get_run (self->compare, 0)->ids != NULL
                           ? quire_compare_get_run (self->compare, 0)->ids->len
                           : 0;

  switch (quire_compare_get_answers (self->compare, &first))
    {
    case QUIRE_ANSWERS_EQUAL:
      return g_strdup_printf (ngettext ("The answers are the same: %u token.",
                                        "The answers are the same, token for token: %u tokens.", n),
                              n);
    case QUIRE_ANSWERS_DIFFER:
      return g_strdup_printf (_ ("The answers differ from their token %u on."), first);
    case QUIRE_ANSWERS_UNKNOWN:
    default:
      return g_strdup (quire_compare_is_running (self->compare) ? _ ("Running one after the other…")
                                                                : "");
    }
}

static void
update (QuireCompareWindow *self)
{
  gboolean running = quire_compare_is_running (self->compare);
  gboolean shown = quire_compare_get_run (self->compare, 0)->text != NULL;
  gboolean busy = quire_conversation_is_running (self->conversation);

  for (guint i = 0; i < QUIRE_COMPARE_RUNS; i++)
    {
      update_run (self, i);
      gtk_widget_set_sensitive (GTK_WIDGET (self->modes[i]), !running);
    }
  set_value (self->verdict, dup_verdict (self));
  gtk_widget_set_visible (GTK_WIDGET (self->verdict),
                          gtk_label_get_text (self->verdict)[0] != '\0');
  gtk_widget_set_visible (self->answer_box, shown);
  gtk_button_set_label (GTK_BUTTON (self->start), running ? _ ("_Stop")
                                                  : shown ? _ ("_Run Again")
                                                          : _ ("_Start"));
  gtk_widget_set_sensitive (self->start, running || !busy);
  gtk_widget_set_tooltip_text (
      self->start, !running && busy ? _ ("A reply of this chat is running: stop it first") : NULL);
  if (running)
    gtk_widget_remove_css_class (self->start, "suggested-action");
  else
    gtk_widget_add_css_class (self->start, "suggested-action");
}

static void
start_clicked_cb (QuireCompareWindow *self)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  g_autoptr (GArray) prompt = NULL;
  QuireCacheChoice choices[QUIRE_COMPARE_RUNS];
  QuireTurnSettings settings;

  if (quire_compare_is_running (self->compare))
    {
      quire_compare_stop (self->compare);
      return;
    }
  if (!quire_engine_client_is_ready (client))
    return;
  prompt = quire_conversation_dup_last_prompt (self->conversation);
  for (guint i = 0; i < QUIRE_COMPARE_RUNS; i++)
    choices[i] = self->choices[gtk_drop_down_get_selected (self->modes[i])];
  quire_settings_get_turn (quire_engine_client_get_status (client)->model, &settings);
  quire_compare_start (self->compare, prompt, choices, &settings);
  update (self);
}

/* ---- Building ---- */

static GtkLabel *
label_new (const char *text, const char *css_class)
{
  GtkWidget *label = gtk_label_new (text);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  if (css_class != NULL)
    gtk_widget_add_css_class (label, css_class);
  return GTK_LABEL (label);
}

static void
setup_item_cb (GtkSignalListItemFactory *factory, GtkListItem *item)
{
  GtkWidget *label = gtk_label_new (NULL);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_ellipsize (GTK_LABEL (label), PANGO_ELLIPSIZE_END);
  gtk_label_set_width_chars (GTK_LABEL (label), 6);
  gtk_list_item_set_child (item, label);
}

static void
bind_item_cb (GtkSignalListItemFactory *factory, GtkListItem *item)
{
  gtk_label_set_text (GTK_LABEL (gtk_list_item_get_child (item)),
                      gtk_string_object_get_string (gtk_list_item_get_item (item)));
}

static void
setup_wide_item_cb (GtkSignalListItemFactory *factory, GtkListItem *item)
{
  GtkWidget *label = gtk_label_new (NULL);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_list_item_set_child (item, label);
}

static GtkListItemFactory *
factory_new (GCallback setup)
{
  GtkListItemFactory *factory = gtk_signal_list_item_factory_new ();

  g_signal_connect (factory, "setup", setup, NULL);
  g_signal_connect (factory, "bind", G_CALLBACK (bind_item_cb), NULL);
  return factory;
}

static void
modes_build (QuireCompareWindow *self, GtkGrid *grid)
{
  const char *const names[] = { _ ("First mode"), _ ("Second mode") };
  QuireCacheChoice present = quire_conversation_get_cache (self->conversation);
  QuireCacheChoice selected[] = { QUIRE_CACHE_REBUILD, present };
  const qe_memory_plan *plan
      = quire_engine_client_get_plan (quire_conversation_get_client (self->conversation));

  if (present == QUIRE_CACHE_REBUILD)
    selected[1] = QUIRE_CACHE_SESSION;
  for (guint c = 0; c < QUIRE_N_CACHE_CHOICES; c++)
    if (quire_cache_choice_is_offered (c, plan))
      self->choices[self->n_choices++] = c;
  for (guint i = 0; i < QUIRE_COMPARE_RUNS; i++)
    {
      GtkStringList *list = gtk_string_list_new (NULL);
      g_autoptr (GtkListItemFactory) factory = factory_new (G_CALLBACK (setup_item_cb));
      g_autoptr (GtkListItemFactory) wide = factory_new (G_CALLBACK (setup_wide_item_cb));

      for (guint c = 0; c < self->n_choices; c++)
        gtk_string_list_append (list, quire_cache_choice_get_title (self->choices[c]));
      self->modes[i] = GTK_DROP_DOWN (gtk_drop_down_new (G_LIST_MODEL (list), NULL));
      gtk_drop_down_set_factory (self->modes[i], factory);
      gtk_drop_down_set_list_factory (self->modes[i], wide);
      for (guint c = 0; c < self->n_choices; c++)
        if (self->choices[c] == selected[i])
          gtk_drop_down_set_selected (self->modes[i], c);
      gtk_widget_set_tooltip_text (GTK_WIDGET (self->modes[i]), names[i]);
      gtk_accessible_update_property (GTK_ACCESSIBLE (self->modes[i]),
                                      GTK_ACCESSIBLE_PROPERTY_LABEL, names[i], -1);
      gtk_widget_set_hexpand (GTK_WIDGET (self->modes[i]), TRUE);
      gtk_grid_attach (grid, GTK_WIDGET (self->modes[i]), (int)i + 1, 0, 1, 1);
    }
}

static GtkWidget *
grid_build (QuireCompareWindow *self)
{
  const char *const names[N_ROWS]
      = { _ ("State"),          _ ("First token"), _ ("Speed"),
          _ ("Newly computed"), _ ("Reused"),      _ ("Most pages on the device") };
  GtkWidget *grid = gtk_grid_new ();

  gtk_grid_set_column_spacing (GTK_GRID (grid), 12);
  gtk_grid_set_row_spacing (GTK_GRID (grid), 6);
  modes_build (self, GTK_GRID (grid));
  for (int row = 0; row < N_ROWS; row++)
    {
      GtkLabel *name = label_new (names[row], "dim-label");

      gtk_widget_set_valign (GTK_WIDGET (name), GTK_ALIGN_START);
      gtk_label_set_width_chars (name, 8);
      gtk_label_set_max_width_chars (name, 24);
      gtk_grid_attach (GTK_GRID (grid), GTK_WIDGET (name), 0, row + 1, 1, 1);
      for (int i = 0; i < QUIRE_COMPARE_RUNS; i++)
        {
          self->values[i][row] = label_new ("", "numeric");
          gtk_widget_set_valign (GTK_WIDGET (self->values[i][row]), GTK_ALIGN_START);
          gtk_grid_attach (GTK_GRID (grid), GTK_WIDGET (self->values[i][row]), i + 1, row + 1, 1,
                           1);
        }
    }
  return grid;
}

static GtkWidget *
answers_build (QuireCompareWindow *self)
{
  GtkWidget *flow = gtk_flow_box_new ();

  gtk_flow_box_set_selection_mode (GTK_FLOW_BOX (flow), GTK_SELECTION_NONE);
  gtk_flow_box_set_homogeneous (GTK_FLOW_BOX (flow), TRUE);
  gtk_flow_box_set_max_children_per_line (GTK_FLOW_BOX (flow), QUIRE_COMPARE_RUNS);
  gtk_flow_box_set_column_spacing (GTK_FLOW_BOX (flow), 12);
  gtk_flow_box_set_row_spacing (GTK_FLOW_BOX (flow), 12);
  for (int i = 0; i < QUIRE_COMPARE_RUNS; i++)
    {
      GtkWidget *card = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
      GtkWidget *child = gtk_flow_box_child_new ();

      self->heads[i] = label_new ("", "heading");
      self->answers[i] = label_new ("", NULL);
      gtk_label_set_width_chars (self->answers[i], 26);
      gtk_label_set_max_width_chars (self->answers[i], 26);
      gtk_label_set_selectable (self->answers[i], TRUE);
      gtk_widget_set_focus_on_click (GTK_WIDGET (self->answers[i]), FALSE);
      gtk_box_append (GTK_BOX (card), GTK_WIDGET (self->heads[i]));
      gtk_box_append (GTK_BOX (card), GTK_WIDGET (self->answers[i]));
      gtk_widget_add_css_class (card, "quire-receipt");
      gtk_flow_box_child_set_child (GTK_FLOW_BOX_CHILD (child), card);
      gtk_widget_set_focusable (child, FALSE);
      gtk_flow_box_append (GTK_FLOW_BOX (flow), child);
    }
  self->answer_box = flow;
  return flow;
}

static void
build (QuireCompareWindow *self)
{
  GtkWidget *outer = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 18);
  GtkWidget *header = adw_header_bar_new ();
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkWidget *clamp = adw_clamp_new ();
  GtkLabel *about = label_new (_ ("The last message is asked again in two modes, one after the "
                                  "other, in chats of their own with the same seed. This chat "
                                  "stays as it is."),
                               "dim-label");

  self->start = gtk_button_new_with_mnemonic (_ ("_Start"));
  gtk_button_set_use_underline (GTK_BUTTON (self->start), TRUE);
  g_signal_connect_swapped (self->start, "clicked", G_CALLBACK (start_clicked_cb), self);
  adw_header_bar_pack_start (ADW_HEADER_BAR (header), self->start);
  self->verdict
      = GTK_LABEL (g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS,
                                 "xalign", 0.0, "wrap", TRUE, NULL));
  gtk_widget_add_css_class (GTK_WIDGET (self->verdict), "heading");
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (about));
  gtk_box_append (GTK_BOX (box), grid_build (self));
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->verdict));
  gtk_box_append (GTK_BOX (box), answers_build (self));
  gtk_widget_add_css_class (box, "quire-compare");
  adw_clamp_set_maximum_size (ADW_CLAMP (clamp), 720);
  adw_clamp_set_child (ADW_CLAMP (clamp), box);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), clamp);
  gtk_widget_set_vexpand (scrolled, TRUE);
  gtk_box_append (GTK_BOX (outer), header);
  gtk_box_append (GTK_BOX (outer), scrolled);
  adw_window_set_content (ADW_WINDOW (self), outer);
  gtk_window_set_default_widget (GTK_WINDOW (self), self->start);
  gtk_window_set_focus (GTK_WINDOW (self), self->start);
}

static gboolean
close_cb (GtkWidget *widget, GVariant *args, gpointer user_data)
{
  gtk_window_close (GTK_WINDOW (widget));
  return TRUE;
}

static void
quire_compare_window_dispose (GObject *object)
{
  QuireCompareWindow *self = QUIRE_COMPARE_WINDOW (object);

  if (self->compare != NULL)
    g_signal_handlers_disconnect_by_data (self->compare, self);
  g_clear_object (&self->compare);
  g_clear_object (&self->conversation);
  G_OBJECT_CLASS (quire_compare_window_parent_class)->dispose (object);
}

static void
quire_compare_window_class_init (QuireCompareWindowClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_compare_window_dispose;
  gtk_widget_class_add_binding (GTK_WIDGET_CLASS (klass), GDK_KEY_Escape, 0, close_cb, NULL);
}

static void
quire_compare_window_init (QuireCompareWindow *self)
{
}

QuireCompare *
quire_compare_window_get_compare (QuireCompareWindow *self)
{
  return self->compare;
}

GtkWindow *
quire_compare_window_new (GtkWindow *parent, QuireConversation *conversation)
{
  /* Not larger than the window that it lies above. */
  int width
      = parent != NULL ? MIN (WIDTH_PX, gtk_widget_get_width (GTK_WIDGET (parent))) : WIDTH_PX;
  int height
      = parent != NULL ? MIN (HEIGHT_PX, gtk_widget_get_height (GTK_WIDGET (parent))) : HEIGHT_PX;
  QuireCompareWindow *self
      = g_object_new (QUIRE_TYPE_COMPARE_WINDOW, "transient-for", parent, "application",
                      parent != NULL ? gtk_window_get_application (parent) : NULL, "title",
                      _ ("Compare Modes"), "default-width", width, "default-height", height, NULL);

  self->conversation = g_object_ref (conversation);
  self->compare = quire_compare_new (quire_conversation_get_client (conversation));
  build (self);
  gtk_widget_set_size_request (GTK_WIDGET (self), 360, 294);
  g_signal_connect_swapped (self->compare, "changed", G_CALLBACK (update), self);
  g_signal_connect_object (conversation, "notify::running", G_CALLBACK (update), self,
                           G_CONNECT_SWAPPED);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (self, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  g_signal_connect_swapped (self, "unrealize", G_CALLBACK (quire_compare_stop), self->compare);
  update (self);
  return GTK_WINDOW (self);
}
