/* quire-server-group.c: see quire-server-group.h. The rows are bound to the settings, which the local server follows; what it
 * says of itself comes back by its signal. */
#include "app/quire-server-group.h"

#include <glib/gi18n.h>

#include "app/quire-application.h"
#include "app/quire-local-server.h"
#include "app/quire-settings.h"

struct _QuireServerGroup
{
  AdwPreferencesGroup parent_instance;

  QuireLocalServer *server;
  QuireBackground *stay;
  AdwActionRow *switch_row, *stay_row, *address_row, *token_row;
  GtkWidget *show_button;
};

G_DEFINE_FINAL_TYPE (QuireServerGroup, quire_server_group, ADW_TYPE_PREFERENCES_GROUP)

/* ---- What it says ---- */

static gboolean
is_wanted (void)
{
  return g_settings_get_boolean (quire_settings_get_default (), "server");
}

/* A line of it may end anywhere, by zero-width spaces (U+200B): left to itself Pango puts hyphens at the ends of lines, which
 * are none of the token's. */
static char *
token_for_reading (const char *token)
{
  GString *out = g_string_new (NULL);

  for (const char *c = token; *c != '\0'; c++)
    {
      if (c > token)
        g_string_append (out, "\342\200\213");
      g_string_append_c (out, *c);
    }
  return g_string_free (out, FALSE);
}

static void
show_token (QuireServerGroup *self)
{
  const char *token = quire_local_server_get_token (self->server);
  const char *place = quire_local_server_get_token_place (self->server);
  gboolean shown = gtk_toggle_button_get_active (GTK_TOGGLE_BUTTON (self->show_button));

  g_autofree char *text = shown && token != NULL ? token_for_reading (token) : NULL;

  gtk_widget_set_visible (GTK_WIDGET (self->token_row), token != NULL);
  adw_action_row_set_subtitle (self->token_row, text != NULL ? text : place);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->show_button), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  shown ? _ ("Hide the token") : _ ("Show the token"), -1);
}

/* What happens when the last window is closed: what the desktop answered, not only what was asked for. */
static void
update_stay (QuireServerGroup *self)
{
  gboolean wanted = g_settings_get_boolean (quire_settings_get_default (), "server-background");
  QuireBackgroundState state;
  const char *text = _ ("Off. Quire and the server end with the last window.");

  if (self->stay == NULL)
    return;
  state = quire_background_get_state (self->stay);
  if (wanted && state == QUIRE_BACKGROUND_DENIED)
    text = _ ("The desktop does not allow it: the server ends with the last window. Once it is "
              "allowed in the "
              "desktop’s settings, switch this off and on.");
  else if (wanted && state == QUIRE_BACKGROUND_ASKING)
    text = _ ("The desktop is being asked…");
  else if (wanted)
    text
        = _ ("Quire stays while the server runs. To end it, quit: Ctrl+Q, or in its notification.");
  adw_action_row_set_subtitle (self->stay_row, text);
  if (wanted && state == QUIRE_BACKGROUND_DENIED)
    gtk_widget_add_css_class (GTK_WIDGET (self->stay_row), "error");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (self->stay_row), "error");
}

static void
update (QuireServerGroup *self)
{
  const char *uri, *problem;

  if (self->server == NULL)
    return;
  uri = quire_local_server_get_uri (self->server);
  problem = quire_local_server_get_problem (self->server);
  adw_action_row_set_subtitle (
      self->switch_row, problem != NULL ? problem
                        : uri != NULL   ? _ ("Running. Programs and browsers can use the model.")
                        : is_wanted ()  ? _ ("Starting…")
                                        : _ ("Off. OpenAI’s API, and a page to chat in."));
  if (problem != NULL)
    gtk_widget_add_css_class (GTK_WIDGET (self->switch_row), "error");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (self->switch_row), "error");
  gtk_widget_set_visible (GTK_WIDGET (self->address_row), uri != NULL);
  adw_action_row_set_subtitle (self->address_row, uri);
  show_token (self);
}

/* ---- Buttons ---- */

static void
copy (QuireServerGroup *self, const char *text)
{
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (self));

  gdk_clipboard_set_text (gtk_widget_get_clipboard (GTK_WIDGET (self)), text);
  if (ADW_IS_PREFERENCES_WINDOW (root))
    adw_preferences_window_add_toast (ADW_PREFERENCES_WINDOW (root), adw_toast_new (_ ("Copied")));
}

static void
copy_address_cb (QuireServerGroup *self)
{
  const char *uri = quire_local_server_get_uri (self->server);

  if (uri != NULL)
    copy (self, uri);
}

static void
copy_token_cb (QuireServerGroup *self)
{
  const char *token = quire_local_server_get_token (self->server);

  if (token != NULL)
    copy (self, token);
}

static void
open_cb (QuireServerGroup *self)
{
  const char *uri = quire_local_server_get_uri (self->server);

  if (uri != NULL)
    gtk_show_uri (GTK_WINDOW (gtk_widget_get_root (GTK_WIDGET (self))), uri, GDK_CURRENT_TIME);
}

static void
renew_cb (QuireServerGroup *self)
{
  quire_local_server_renew_token (self->server);
}

/* ---- Rows ---- */

static AdwActionRow *
row_new (QuireServerGroup *self, const char *title)
{
  AdwActionRow *row = ADW_ACTION_ROW (adw_action_row_new ());

  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), title);
  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_action_row_set_subtitle_lines (row, 0);
  adw_preferences_group_add (ADW_PREFERENCES_GROUP (self), GTK_WIDGET (row));
  return row;
}

static AdwActionRow *
switch_row_new (QuireServerGroup *self, const char *title, const char *key)
{
  AdwActionRow *row = row_new (self, title);
  GtkWidget *toggle = gtk_switch_new ();

  gtk_widget_set_valign (toggle, GTK_ALIGN_CENTER);
  adw_action_row_add_suffix (row, toggle);
  adw_action_row_set_activatable_widget (row, toggle);
  g_settings_bind (quire_settings_get_default (), key, toggle, "active", G_SETTINGS_BIND_DEFAULT);
  return row;
}

static GtkWidget *
add_button (QuireServerGroup *self, AdwActionRow *row, const char *icon, const char *name,
            GCallback callback)
{
  GtkWidget *button = gtk_button_new_from_icon_name (icon);

  gtk_widget_set_valign (button, GTK_ALIGN_CENTER);
  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_tooltip_text (button, name);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, name, -1);
  g_signal_connect_swapped (button, "clicked", callback, self);
  adw_action_row_add_suffix (row, button);
  return button;
}

static void
add_port (QuireServerGroup *self)
{
  AdwActionRow *row = row_new (self, _ ("Port"));
  GtkWidget *spin = gtk_spin_button_new_with_range (1024, 65535, 1);

  gtk_widget_set_valign (spin, GTK_ALIGN_CENTER);
  adw_action_row_add_suffix (row, spin);
  adw_action_row_set_activatable_widget (row, spin);
  g_settings_bind (quire_settings_get_default (), "server-port", spin, "value",
                   G_SETTINGS_BIND_DEFAULT);
}

static void
add_token (QuireServerGroup *self)
{
  self->token_row = row_new (self, _ ("Token"));
  self->show_button = gtk_toggle_button_new ();
  gtk_button_set_icon_name (GTK_BUTTON (self->show_button), "view-reveal-symbolic");
  gtk_widget_set_valign (self->show_button, GTK_ALIGN_CENTER);
  gtk_widget_add_css_class (self->show_button, "flat");
  gtk_widget_set_tooltip_text (self->show_button, _ ("Show the token"));
  g_signal_connect_swapped (self->show_button, "toggled", G_CALLBACK (show_token), self);
  adw_action_row_add_suffix (self->token_row, self->show_button);
  add_button (self, self->token_row, "edit-copy-symbolic", _ ("Copy the token"),
              G_CALLBACK (copy_token_cb));
  add_button (self, self->token_row, "view-refresh-symbolic", _ ("Make a new token"),
              G_CALLBACK (renew_cb));
}

static void
quire_server_group_dispose (GObject *object)
{
  g_clear_object (&QUIRE_SERVER_GROUP (object)->stay);
  g_clear_object (&QUIRE_SERVER_GROUP (object)->server);
  G_OBJECT_CLASS (quire_server_group_parent_class)->dispose (object);
}

static void
quire_server_group_class_init (QuireServerGroupClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_server_group_dispose;
}

static void
quire_server_group_init (QuireServerGroup *self)
{
  QuireApplication *application = QUIRE_APPLICATION (g_application_get_default ());
  AdwActionRow *network;

  adw_preferences_group_set_title (ADW_PREFERENCES_GROUP (self), _ ("Local Server"));
  self->switch_row = switch_row_new (self, _ ("Answer other programs"), "server");
  self->stay_row
      = switch_row_new (self, _ ("Keep serving when the window is closed"), "server-background");
  self->address_row = row_new (self, _ ("Address"));
  add_button (self, self->address_row, "edit-copy-symbolic", _ ("Copy the address"),
              G_CALLBACK (copy_address_cb));
  add_button (self, self->address_row, "web-browser-symbolic", _ ("Open in the browser"),
              G_CALLBACK (open_cb));
  add_port (self);
  network = switch_row_new (self, _ ("Answer other devices"), "server-network");
  adw_action_row_set_subtitle (
      network, _ ("Those in your network, with a token. The connection is not encrypted."));
  add_token (self);
  self->server = g_object_ref (quire_application_get_server (application));
  g_signal_connect_object (self->server, "changed", G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (quire_settings_get_default (), "changed::server", G_CALLBACK (update),
                           self, G_CONNECT_SWAPPED);
  self->stay = g_object_ref (quire_application_get_stay (application));
  g_signal_connect_object (self->stay, "notify::state", G_CALLBACK (update_stay), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (quire_settings_get_default (), "changed::server-background",
                           G_CALLBACK (update_stay), self, G_CONNECT_SWAPPED);
  update_stay (self);
  update (self);
}
