/* quire-window.c: see quire-window.h.
 *
 * Invariants
 * 1. apply_layout() alone sets the fold policies and which of the two flaps may be open, from the width; it runs in an
 *    idle after the surface's layout, and when a flap opens or closes.
 * 2. "Open" of the settings is the user's wish for a docked sidebar or panel; overlays start closed.

 * Tabs and conversations are in quire-window-chats.c. */
#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-layout.h"
#include "app/quire-markdown.h"
#include "app/quire-models-window.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar-row.h"
#include "app/quire-title.h"
#include "app/quire-why-gpu.h"
#include "app/quire-widget.h"
#include "app/quire-window-private.h"

G_DEFINE_FINAL_TYPE (QuireWindow, quire_window, ADW_TYPE_APPLICATION_WINDOW)

/* ---- Layout ---- */

static double
text_scale (QuireWindow *self)
{
  int dpi = -1;

  g_object_get (gtk_widget_get_settings (GTK_WIDGET (self)), "gtk-xft-dpi", &dpi, NULL);
  return dpi > 0 ? dpi / (96.0 * 1024) : 1;
}

/* What the chat needs without sidebar and panel. */
static int
narrowest (QuireWindow *self)
{
  GtkWidget *child = gtk_widget_get_first_child (adw_flap_get_content (self->sidebar_flap));
  int width = 0, minimum;

  for (; child != NULL; child = gtk_widget_get_next_sibling (child))
    {
      gboolean is_flap = child == GTK_WIDGET (self->panel_flap);

      gtk_widget_measure (is_flap ? GTK_WIDGET (self->tab_view) : child, GTK_ORIENTATION_HORIZONTAL,
                          -1, &minimum, NULL, NULL, NULL);
      width = MAX (width, minimum);
    }
  return width;
}

/* A docked sidebar or panel must not keep the window from being made narrower, or from half of a screen: the content
 * asks for the chat's width alone, and is cut off for the one frame until apply_layout() has folded them. */
static void
content_measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum,
                 int *natural, int *minimum_baseline, int *natural_baseline)
{
  GtkWidget *child = adw_bin_get_child (ADW_BIN (widget));
  int width;

  if (orientation == GTK_ORIENTATION_VERTICAL && for_size >= 0)
    {
      gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, &width, NULL, NULL, NULL);
      for_size = MAX (for_size, width);
    }
  gtk_widget_measure (child, orientation, orientation == GTK_ORIENTATION_VERTICAL ? for_size : -1,
                      minimum, natural, minimum_baseline, natural_baseline);
  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    *minimum = MIN (*minimum, narrowest (QUIRE_WINDOW (gtk_widget_get_root (widget))));
}

static void
content_allocate (GtkWidget *widget, int width, int height, int baseline)
{
  GtkWidget *child = adw_bin_get_child (ADW_BIN (widget));
  int minimum;

  gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
  gtk_widget_allocate (child, MAX (width, minimum), height, baseline, NULL);
}

static void
set_flap (AdwFlap *flap, gboolean docked, gboolean open)
{
  AdwFlapFoldPolicy policy = docked ? ADW_FLAP_FOLD_POLICY_NEVER : ADW_FLAP_FOLD_POLICY_ALWAYS;

  if (adw_flap_get_fold_policy (flap) != policy)
    adw_flap_set_fold_policy (flap, policy);
  adw_flap_set_modal (flap, !docked);
  if (adw_flap_get_reveal_flap (flap) != open)
    adw_flap_set_reveal_flap (flap, open);
}

/* Without the sidebar its menu would be out of reach. */
static void
extend_menu (QuireWindow *self, gboolean extended)
{
  GMenu *menu = G_MENU (self->chat_menu);

  if (self->menu_extended == extended)
    return;
  self->menu_extended = extended;
  if (extended)
    g_menu_append_section (menu, NULL, self->primary_menu);
  else
    g_menu_remove (menu, g_menu_model_get_n_items (self->chat_menu) - 1);
}

static void
apply_layout (QuireWindow *self)
{
  double scale = text_scale (self);
  gboolean want_panel = g_settings_get_boolean (self->settings, "panel-open");
  gboolean want_sidebar = g_settings_get_boolean (self->settings, "sidebar-open");
  gboolean panel_shown = adw_flap_get_reveal_flap (self->panel_flap);
  gboolean sidebar_shown = adw_flap_get_reveal_flap (self->sidebar_flap);
  QuireLayout layout = quire_layout_for_width (self->width, scale, want_panel,
                                               quire_window_get_compare (self) != NULL);

  self->applying = TRUE;
  /* Docked follows the wish; a flap that has just become an overlay starts closed, one that is stays as it is. */
  set_flap (self->panel_flap, layout.panel_docked,
            layout.panel_docked ? want_panel : panel_shown && !self->panel_docked);
  set_flap (self->sidebar_flap, layout.sidebar_docked,
            layout.sidebar_docked ? want_sidebar : sidebar_shown && !self->sidebar_docked);
  self->panel_docked = layout.panel_docked;
  self->sidebar_docked = layout.sidebar_docked;
  gtk_widget_set_visible (self->panel_button, !quire_layout_is_narrow (self->width, scale));
  extend_menu (self, !adw_flap_get_reveal_flap (self->sidebar_flap) || !layout.sidebar_docked);
  self->applying = FALSE;
}

static gboolean
layout_idle_cb (gpointer user_data)
{
  QuireWindow *self = user_data;

  self->layout_id = 0;
  apply_layout (self);
  return G_SOURCE_REMOVE;
}

static void
layout_soon (QuireWindow *self)
{
  /* Its tabs go with the window. */
  if (self->layout_id == 0 && self->client != NULL)
    self->layout_id = g_idle_add_full (G_PRIORITY_HIGH_IDLE, layout_idle_cb, self, NULL);
}

static void
surface_layout_cb (QuireWindow *self, int width, int height)
{
  if (width == self->width)
    return;
  self->width = width;
  layout_soon (self);
}

static void
update_panel (QuireWindow *self)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);

  if (snapshot != NULL && adw_flap_get_reveal_flap (self->panel_flap))
    quire_cache_panel_set_snapshot (self->panel, snapshot);
}

static void
reveal_cb (QuireWindow *self, GParamSpec *pspec, AdwFlap *flap)
{
  gboolean open = adw_flap_get_reveal_flap (flap);
  gboolean is_panel = flap == self->panel_flap;
  GAction *action = g_action_map_lookup_action (G_ACTION_MAP (self),
                                                is_panel ? "toggle-panel" : "toggle-sidebar");

  g_simple_action_set_state (G_SIMPLE_ACTION (action), g_variant_new_boolean (open));
  if (is_panel)
    update_panel (self);
  if (self->applying)
    return;

  if (is_panel ? self->panel_docked : self->sidebar_docked)
    g_settings_set_boolean (self->settings, is_panel ? "panel-open" : "sidebar-open", open);
  /* Never two overlays. */
  else if (open && is_panel && !self->sidebar_docked)
    adw_flap_set_reveal_flap (self->sidebar_flap, FALSE);
  else if (open && !is_panel && !self->panel_docked)
    adw_flap_set_reveal_flap (self->panel_flap, FALSE);
  apply_layout (self);
}

/* ---- Tabs ---- */

QuireChatView *
quire_window_get_chat (QuireWindow *self)
{
  AdwTabPage *page = adw_tab_view_get_selected_page (self->tab_view);

  GtkWidget *child = page != NULL ? adw_tab_page_get_child (page) : NULL;

  return QUIRE_IS_CHAT_VIEW (child) ? QUIRE_CHAT_VIEW (child) : NULL;
}

AdwTabView *
quire_window_get_tab_view (QuireWindow *self)
{
  return self->tab_view;
}

/* The model's name, where it runs, and the speed while something is written. */
void
quire_window_update_title (QuireWindow *self)
{
  const qe_engine_status *status;
  const qe_snapshot *snapshot;
  QuireChatView *chat;
  GString *subtitle;

  /* The window goes, and a preferences window above it, which goes with it, changed the engine. */
  if (self->client == NULL)
    return;
  status = quire_engine_client_get_status (self->client);
  snapshot = quire_engine_client_get_snapshot (self->client);
  chat = quire_window_get_chat (self);
  subtitle = g_string_new (NULL);
  if (status->model != NULL)
    {
      g_autofree char *name = quire_model_dup_name (status->model);

      g_string_append (subtitle, name);
      if (status->backend != NULL)
        g_string_append_printf (subtitle, " · %s",
                                g_strcmp0 (status->backend, "cpu") == 0 ? _ ("CPU") : _ ("GPU"));
      if (snapshot != NULL && snapshot->decode_tokens_per_s > 0)
        {
          g_autofree char *speed = quire_format_speed (snapshot->decode_tokens_per_s);

          g_string_append_printf (subtitle, " · %s", speed);
        }
    }
  adw_window_title_set_subtitle (self->title, subtitle->str);
  if (chat != NULL)
    {
      const char *title = quire_title_or_new (
          quire_conversation_get_title (quire_chat_view_get_conversation (chat)));

      adw_window_title_set_title (self->title, title);
      gtk_window_set_title (GTK_WINDOW (self), title);
    }
  else if (quire_window_get_compare (self) != NULL)
    {
      const char *title = quire_compare_view_get_title (quire_window_get_compare (self));

      adw_window_title_set_title (self->title, title);
      gtk_window_set_title (GTK_WINDOW (self), title);
    }
  g_string_free (subtitle, TRUE);
}

static AdwTabView *
create_window_cb (QuireWindow *self)
{
  QuireApplication *application
      = QUIRE_APPLICATION (gtk_window_get_application (GTK_WINDOW (self)));
  QuireWindow *other = quire_window_new (application);

  gtk_window_present (GTK_WINDOW (other));
  return other->tab_view;
}

/* A tab was dragged into another window and this one is empty. */
static void
n_pages_cb (QuireWindow *self)
{
  if (adw_tab_view_get_n_pages (self->tab_view) == 0
      && adw_tab_view_get_is_transferring_page (self->tab_view))
    gtk_window_destroy (GTK_WINDOW (self));
}

/* ---- Cache panel ---- */

static AdwTabPage *
find_page (QuireWindow *self, qe_session_id session)
{
  for (int i = 0; i < adw_tab_view_get_n_pages (self->tab_view); i++)
    {
      AdwTabPage *page = adw_tab_view_get_nth_page (self->tab_view, i);
      GtkWidget *child = adw_tab_page_get_child (page);
      QuireChatView *chat = QUIRE_IS_CHAT_VIEW (child) ? QUIRE_CHAT_VIEW (child) : NULL;

      if (chat != NULL
          && quire_conversation_get_session (quire_chat_view_get_conversation (chat)) == session)
        return page;
    }
  return NULL;
}

static const char *
session_title (qe_session_id session, gpointer user_data)
{
  AdwTabPage *page = find_page (user_data, session);

  return page != NULL ? adw_tab_page_get_title (page) : NULL;
}

static void
session_activated_cb (QuireWindow *self, guint64 session)
{
  AdwTabPage *page = find_page (self, session);

  if (page != NULL)
    adw_tab_view_set_selected_page (self->tab_view, page);
}

static QuireMessage *
find_token (QuireWindow *self, qe_session_id session, guint token)
{
  AdwTabPage *page = find_page (self, session);

  return page != NULL ? quire_conversation_find_token (
             quire_chat_view_get_conversation (QUIRE_CHAT_VIEW (adw_tab_page_get_child (page))),
             token)
                      : NULL;
}

static char *
token_words (qe_session_id session, guint token, gpointer user_data)
{
  QuireMessage *message = find_token (user_data, session, token);
  const char *text;
  gsize n_bytes;
  g_autofree char *valid = NULL;

  if (message == NULL)
    return NULL;
  text = quire_message_get_text (message, &n_bytes);
  valid = quire_text_make_valid (text, n_bytes);
  return quire_title_from_text (valid);
}

/* Goes to the message that the page begins in, and shows which it is. */
static void
page_activated_cb (QuireWindow *self, guint64 session, guint token)
{
  QuireMessage *message = find_token (self, session, token);

  session_activated_cb (self, session);
  if (message != NULL)
    quire_chat_view_show_message (quire_window_get_chat (self), quire_message_get_seq (message));
}

void
quire_window_leave_sidebar (QuireWindow *self)
{
  if (!self->sidebar_docked)
    adw_flap_set_reveal_flap (self->sidebar_flap, FALSE);
}

static void
panel_close_cb (QuireWindow *self)
{
  adw_flap_set_reveal_flap (self->panel_flap, FALSE);
}

static void
snapshot_changed_cb (QuireWindow *self)
{
  QuireChatView *chat = quire_window_get_chat (self);

  if (chat != NULL)
    quire_cache_panel_set_active_session (
        self->panel, quire_conversation_get_session (quire_chat_view_get_conversation (chat)));
  update_panel (self);
  quire_window_update_title (self);
}

/* ---- Actions ---- */

static void
new_tab_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;

  quire_window_new_chat (self);
  quire_window_leave_sidebar (self);
}

static void
close_tab_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  AdwTabPage *page = adw_tab_view_get_selected_page (self->tab_view);

  if (page != NULL)
    adw_tab_view_close_page (self->tab_view, page);
}

static void
toggle_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  gboolean is_panel = g_str_equal (g_action_get_name (G_ACTION (action)), "toggle-panel");
  AdwFlap *flap = is_panel ? self->panel_flap : self->sidebar_flap;

  adw_flap_set_reveal_flap (flap, !adw_flap_get_reveal_flap (flap));
}

/* Escape acts wherever the focus is, once the focused widget has left the key alone: it may be an input
 * method's, or close a popover. */
static gboolean
key_pressed_cb (GtkEventControllerKey *controller, guint keyval, guint keycode,
                GdkModifierType state, gpointer user_data)
{
  return keyval == GDK_KEY_Escape ? quire_window_escape (user_data) : GDK_EVENT_PROPAGATE;
}

static void
focus_composer_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireChatView *chat = quire_window_get_chat (user_data);

  if (chat != NULL)
    gtk_widget_grab_focus (GTK_WIDGET (chat));
}

static void
search_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;

  adw_flap_set_reveal_flap (self->sidebar_flap, TRUE);
  quire_sidebar_focus_search (self->sidebar);
}

void
quire_window_search (QuireWindow *self, const char *query)
{
  adw_flap_set_reveal_flap (self->sidebar_flap, TRUE);
  quire_sidebar_search (self->sidebar, query);
}

static void
choose_model_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_models_window_present (QUIRE_APPLICATION (gtk_window_get_application (user_data)),
                               user_data);
}

static void
load_model_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;

  quire_application_choose_model (
      QUIRE_APPLICATION (gtk_window_get_application (GTK_WINDOW (self))),
      g_variant_get_string (parameter, NULL), GTK_WINDOW (self));
}

static void
why_gpu_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_why_gpu_present (user_data);
}

static void
engine_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  const char *name = g_action_get_name (G_ACTION (action));

  if (g_str_equal (name, "cancel-load"))
    quire_engine_client_unload (self->client);
  else if (g_str_equal (name, "recover"))
    quire_engine_client_recover (self->client);
  else
    {
      g_autofree char *dir = quire_settings_dup_model_dir ();
      const char *present = quire_engine_client_get_model_dir (self->client);

      quire_engine_client_load (self->client, present != NULL ? present : dir);
    }
}

void
quire_window_show_model_error (QuireWindow *self, const char *text)
{
  quire_engine_bar_set_error (self->engine_bar, text);
}

/* ---- Object ---- */

static gboolean
quire_window_close_request (GtkWindow *window)
{
  QuireWindow *self = QUIRE_WINDOW (window);
  int width, height;

  gtk_window_get_default_size (window, &width, &height);
  g_settings_set_int (self->settings, "window-width", width);
  g_settings_set_int (self->settings, "window-height", height);
  g_settings_set_boolean (self->settings, "window-maximized", gtk_window_is_maximized (window));
  quire_window_close_chats (self);
  return GTK_WINDOW_CLASS (quire_window_parent_class)->close_request (window);
}

static void
quire_window_realize (GtkWidget *widget)
{
  QuireWindow *self = QUIRE_WINDOW (widget);

  GTK_WIDGET_CLASS (quire_window_parent_class)->realize (widget);
  self->layout_handler = g_signal_connect_swapped (gtk_native_get_surface (GTK_NATIVE (self)),
                                                   "layout", G_CALLBACK (surface_layout_cb), self);
}

static void
quire_window_unrealize (GtkWidget *widget)
{
  QuireWindow *self = QUIRE_WINDOW (widget);

  g_clear_signal_handler (&self->layout_handler, gtk_native_get_surface (GTK_NATIVE (self)));
  GTK_WIDGET_CLASS (quire_window_parent_class)->unrealize (widget);
}

static void
quire_window_dispose (GObject *object)
{
  QuireWindow *self = QUIRE_WINDOW (object);

  g_clear_handle_id (&self->layout_id, g_source_remove);
  if (self->panel != NULL)
    {
      quire_cache_panel_set_title_func (self->panel, NULL, NULL);
      quire_cache_panel_set_words_func (self->panel, NULL, NULL);
    }
  g_clear_handle_id (&self->tabs_id, g_source_remove);
  g_queue_clear_full (&self->parked, g_object_unref);
  g_clear_object (&self->history);
  /* A window above this one goes with it, and may change the engine as it does. */
  if (self->client != NULL)
    g_signal_handlers_disconnect_by_data (self->client, self);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_window_parent_class)->dispose (object);
}

static void
quire_window_class_init (QuireWindowClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_window_dispose;
  widget_class->realize = quire_window_realize;
  widget_class->unrealize = quire_window_unrealize;
  GTK_WINDOW_CLASS (klass)->close_request = quire_window_close_request;
  g_type_ensure (QUIRE_TYPE_CACHE_PANEL);
  g_type_ensure (QUIRE_TYPE_ENGINE_BAR);
  g_type_ensure (QUIRE_TYPE_SIDEBAR);
  gtk_widget_class_set_template_from_resource (widget_class,
                                               "/io/github/quire_chat/Quire/quire-window.ui");
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, content);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, sidebar_flap);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, panel_flap);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, tab_view);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, tab_bar);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, title);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, sidebar);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, history_bar);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, history_label);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, panel);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, engine_bar);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, panel_button);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, primary_menu);
  gtk_widget_class_bind_template_child (widget_class, QuireWindow, chat_menu);
}

static void
quire_window_init (QuireWindow *self)
{
  const GActionEntry entries[] = {
    { "new-tab", new_tab_action, NULL, NULL, NULL, { 0 } },
    { "close-tab", close_tab_action, NULL, NULL, NULL, { 0 } },
    { "search", search_action, NULL, NULL, NULL, { 0 } },
    { "toggle-sidebar", toggle_action, NULL, "true", NULL, { 0 } },
    { "toggle-panel", toggle_action, NULL, "true", NULL, { 0 } },
    { "focus-composer", focus_composer_action, NULL, NULL, NULL, { 0 } },
    { "choose-model", choose_model_action, NULL, NULL, NULL, { 0 } },
    { "load-model", load_model_action, "s", NULL, NULL, { 0 } },
    { "why-gpu", why_gpu_action, NULL, NULL, NULL, { 0 } },
    { "cancel-load", engine_action, NULL, NULL, NULL, { 0 } },
    { "recover", engine_action, NULL, NULL, NULL, { 0 } },
    { "reload", engine_action, NULL, NULL, NULL, { 0 } },
  };

  GtkEventController *keys = gtk_event_controller_key_new ();

  g_signal_connect (keys, "key-pressed", G_CALLBACK (key_pressed_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), keys);
  g_action_map_add_action_entries (G_ACTION_MAP (self), entries, G_N_ELEMENTS (entries), self);
  gtk_widget_init_template (GTK_WIDGET (self));
  gtk_widget_set_layout_manager (GTK_WIDGET (self->content),
                                 gtk_custom_layout_new (NULL, content_measure, content_allocate));
  quire_widget_name_tabs (self->tab_bar);
  quire_window_init_chats (self);
  quire_window_init_files (self);
  quire_window_init_panes (self);
  quire_window_init_compare (self);
  self->settings = quire_settings_get_default ();
  self->sidebar_docked = self->panel_docked = TRUE;
  /* The composer's Home and End are for its text. */
  adw_tab_view_remove_shortcuts (self->tab_view, ADW_TAB_VIEW_SHORTCUT_CONTROL_HOME
                                                     | ADW_TAB_VIEW_SHORTCUT_CONTROL_END
                                                     | ADW_TAB_VIEW_SHORTCUT_CONTROL_SHIFT_HOME
                                                     | ADW_TAB_VIEW_SHORTCUT_CONTROL_SHIFT_END);
}

static void
connect_signals (QuireWindow *self)
{
  g_signal_connect_swapped (self->sidebar_flap, "notify::reveal-flap", G_CALLBACK (reveal_cb),
                            self);
  g_signal_connect_swapped (self->panel_flap, "notify::reveal-flap", G_CALLBACK (reveal_cb), self);
  g_signal_connect (self, "notify::is-active", G_CALLBACK (quire_window_update_seen), NULL);
  g_signal_connect_swapped (self->tab_view, "create-window", G_CALLBACK (create_window_cb), self);
  g_signal_connect_swapped (self->tab_view, "notify::n-pages", G_CALLBACK (n_pages_cb), self);
  g_signal_connect_swapped (self->tab_view, "notify::selected-page", G_CALLBACK (layout_soon),
                            self);
  g_signal_connect_swapped (self->panel, "session-activated", G_CALLBACK (session_activated_cb),
                            self);
  g_signal_connect_swapped (self->panel, "page-activated", G_CALLBACK (page_activated_cb), self);
  g_signal_connect_swapped (self->panel, "close-clicked", G_CALLBACK (panel_close_cb), self);
  g_signal_connect_object (self->client, "status-changed", G_CALLBACK (quire_window_update_title),
                           self, G_CONNECT_SWAPPED);
  g_signal_connect_object (self->client, "snapshot-changed", G_CALLBACK (snapshot_changed_cb), self,
                           G_CONNECT_SWAPPED);
}

QuireWindow *
quire_window_new (QuireApplication *application)
{
  QuireWindow *self = g_object_new (QUIRE_TYPE_WINDOW, "application", application, NULL);
  int height;

  self->client = g_object_ref (quire_application_get_client (application));
  self->history = g_object_ref (quire_application_get_history (application));
  gtk_window_set_default_size (GTK_WINDOW (self),
                               g_settings_get_int (self->settings, "window-width"),
                               g_settings_get_int (self->settings, "window-height"));
  if (g_settings_get_boolean (self->settings, "window-maximized"))
    gtk_window_maximize (GTK_WINDOW (self));

  connect_signals (self);
  quire_window_connect_chats (self);
  quire_cache_panel_set_title_func (self->panel, session_title, self);
  quire_cache_panel_set_words_func (self->panel, token_words, self);
  quire_window_connect_bars (self);
  quire_engine_bar_set_client (self->engine_bar, self->client);
  gtk_window_get_default_size (GTK_WINDOW (self), &self->width, &height);
  apply_layout (self);
  update_panel (self);
  quire_window_update_title (self);
  return self;
}
