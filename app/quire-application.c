/* quire-application.c: see quire-application.h.
 *
 * The engine client is made at startup and freed at shutdown, after the windows: freeing it waits for the engine's
 * thread, which stops within one step. */
#include "app/quire-application.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-highlight.h"
#include "app/quire-inhibit.h"
#include "app/quire-keeper.h"
#include "app/quire-limits.h"
#include "app/quire-model-list.h"
#include "app/quire-models-window.h"
#include "app/quire-paths.h"
#include "app/quire-preferences-window.h"
#ifdef QUIRE_HAVE_SERVER
#include "app/quire-server-stay.h"
#endif
#include "app/quire-settings.h"
#include "app/quire-widget.h"
#include "app/quire-window.h"
#include "app/quire-words.h"

struct _QuireApplication
{
  AdwApplication parent_instance;

  QuireEngineClient *client;
  QuireHistory *history;
  QuireKeeper *keeper;
#ifdef QUIRE_HAVE_SERVER
  QuireLocalServer *server;
  QuireBackground *stay; /* the server's, without a window */
#endif
  char *applied; /* what the engine was started with, see dup_engine_settings() */
  char *model;   /* --model, or NULL */
  char *backend; /* --backend, or NULL */
  gboolean loaded;
  /* What is asked of the window before the history is there: an action of the application and its target, or NULL. */
  char *wanted, *wanted_target;
  gboolean restart; /* once it has ended, it starts again in its place */
};

G_DEFINE_FINAL_TYPE (QuireApplication, quire_application, ADW_TYPE_APPLICATION)

QuireEngineClient *
quire_application_get_client (QuireApplication *self)
{
  return self->client;
}

QuireHistory *
quire_application_get_history (QuireApplication *self)
{
  return self->history;
}

QuireKeeper *
quire_application_get_keeper (QuireApplication *self)
{
  return self->keeper;
}

#ifdef QUIRE_HAVE_SERVER
QuireLocalServer *
quire_application_get_server (QuireApplication *self)
{
  return self->server;
}

QuireBackground *
quire_application_get_stay (QuireApplication *self)
{
  return self->stay;
}
#endif

/* ---- Engine and model ---- */

static void
show_error (QuireApplication *self, const char *text)
{
  for (GList *l = gtk_application_get_windows (GTK_APPLICATION (self)); l != NULL; l = l->next)
    if (QUIRE_IS_WINDOW (l->data))
      quire_window_show_model_error (l->data, text);
}

static char *dup_engine_settings (void);

static void
start_engine (QuireApplication *self)
{
  QuireEngineSettings settings;
  g_autoptr (GError) error = NULL;

  g_free (self->applied);
  self->applied = dup_engine_settings ();
  quire_settings_get_engine (self->backend, &settings);
  if (!quire_engine_client_start (self->client, &settings.options, &error))
    show_error (self, quire_words (error->message));
  quire_engine_settings_clear (&settings);
}

static void
load_model (QuireApplication *self)
{
  g_autofree char *dir
      = self->model != NULL ? g_strdup (self->model) : quire_settings_dup_model_dir ();

  self->loaded = TRUE;
  show_error (self, NULL);
  quire_engine_client_load (self->client, dir);
}

void
quire_application_load_model (QuireApplication *self, const char *dir)
{
  g_clear_pointer (&self->model, g_free);
  quire_model_list_remember (dir);
  g_settings_set_string (quire_settings_get_default (), "model-folder", dir);
  load_model (self);
}

typedef struct
{
  QuireApplication *application;
  char *dir;
  GtkWindow *window;
  gboolean remember;
} Choice;

static void
chosen_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  Choice *choice = user_data;
  QuireApplication *self = choice->application;
  g_autoptr (GError) error = NULL;
  g_autoptr (qe_model_info) info = quire_model_info_read_finish (result, &error);

  if (info != NULL)
    {
      if (choice->remember)
        quire_application_load_model (self, choice->dir);
      else
        {
          g_free (self->model);
          self->model = g_strdup (choice->dir);
          load_model (self);
        }
    }
  else if (QUIRE_IS_WINDOW (choice->window)
           && gtk_widget_get_realized (GTK_WIDGET (choice->window)))
    quire_window_show_model_error (QUIRE_WINDOW (choice->window), quire_words (error->message));

  g_object_unref (choice->window);
  g_object_unref (choice->application);
  g_free (choice->dir);
  g_free (choice);
}

static void
choose_model (QuireApplication *self, const char *dir, GtkWindow *window, gboolean remember)
{
  Choice *choice = g_new (Choice, 1);

  choice->application = g_object_ref (self);
  choice->dir = g_strdup (dir);
  choice->window = g_object_ref (window);
  choice->remember = remember;
  quire_model_info_read_async (dir, NULL, chosen_cb, choice);
}

void
quire_application_choose_model (QuireApplication *self, const char *dir, GtkWindow *window)
{
  choose_model (self, dir, window, TRUE);
}

static GtkWindow *
find_window (QuireApplication *self)
{
  for (GList *l = gtk_application_get_windows (GTK_APPLICATION (self)); l != NULL; l = l->next)
    if (QUIRE_IS_WINDOW (l->data))
      return l->data;
  return NULL;
}

/* A model folder from the command line or the desktop, or a file in one: for this run, the settings stay. Where a model is
 * loaded it goes only once the folder is known to be good. What is wrong with it the window says. */
static void
open_model (QuireApplication *self, GFile *file)
{
  g_autofree char *path = g_file_get_path (file);
  g_autofree char *dir = path != NULL && g_file_test (path, G_FILE_TEST_IS_REGULAR)
                             ? g_path_get_dirname (path)
                             : g_strdup (path);

  if (dir != NULL && !self->loaded)
    {
      g_free (self->model);
      self->model = g_steal_pointer (&dir);
      g_application_activate (G_APPLICATION (self));
      return;
    }
  g_application_activate (G_APPLICATION (self));
  if (dir != NULL)
    choose_model (self, dir, find_window (self), FALSE);
  else
    show_error (self, _ ("A model can only be opened from a folder of this computer."));
}

/* ---- Actions ---- */

/* Each window saves its state and stops its replies as it closes; the last one ends the application, and where the server
 * held it without one, that ends. */
static void
quit_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  GList *windows = g_list_copy_deep (gtk_application_get_windows (GTK_APPLICATION (user_data)),
                                     (GCopyFunc)(void (*) (void))g_object_ref, NULL);

  /* Those above others first: they refer to the one below. */
  for (GList *l = windows; l != NULL; l = l->next)
    if (!QUIRE_IS_WINDOW (l->data))
      gtk_window_destroy (l->data);
  for (GList *l = windows; l != NULL; l = l->next)
    if (QUIRE_IS_WINDOW (l->data))
      quire_window_keep_tabs (l->data);
#ifdef QUIRE_HAVE_SERVER
  quire_background_release (QUIRE_APPLICATION (user_data)->stay);
#endif
  for (GList *l = windows; l != NULL; l = l->next)
    if (QUIRE_IS_WINDOW (l->data))
      gtk_window_close (l->data);
  g_list_free_full (windows, g_object_unref);
}

static void
restart_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QUIRE_APPLICATION (user_data)->restart = TRUE;
  quit_action (NULL, NULL, user_data);
  g_application_quit (user_data); /* whatever else would keep it running */
}

char **
quire_application_dup_restart_args (QuireApplication *self, const char *program)
{
  g_autoptr (GPtrArray) args = g_ptr_array_new_with_free_func (g_free);

  if (!self->restart)
    return NULL;
  g_ptr_array_add (args, g_strdup (program));
  if (self->backend != NULL)
    g_ptr_array_add (args, g_strconcat ("--backend=", self->backend, NULL));
  if (self->model != NULL)
    g_ptr_array_add (args, g_strconcat ("--model=", self->model, NULL));
  g_ptr_array_add (args, NULL);
  return (char **)g_ptr_array_free (g_steal_pointer (&args), FALSE);
}

static void
new_window_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *window = quire_window_new (user_data);

  quire_window_new_chat (window);
  gtk_window_present (GTK_WINDOW (window));
}

static void
about_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  GtkWindow *parent = gtk_application_get_active_window (user_data);
  const char *developers[] = { "The Quire developers", NULL };

  adw_show_about_window (
      parent, "application-name", _ ("Quire"), "application-icon", QUIRE_APP_ID, "version",
      qe_version (), "developer-name", _ ("The Quire developers"), "developers", developers,
      "license-type", GTK_LICENSE_APACHE_2_0, "comments",
      _ ("Chat with language models on your own computer, and see what their cache does."),
      /* Translators: put your names here, one a line. */
      "translator-credits", _ ("translator-credits"), NULL);
}

/* From notifications, the overview's search and the desktop entry: an action of the front window, once the history is
 * there. */
static void
act (QuireApplication *self, const char *action, const char *target)
{
  QuireWindow *window = QUIRE_WINDOW (find_window (self));

  if (g_str_equal (action, "new-chat"))
    g_action_group_activate_action (G_ACTION_GROUP (window), "new-tab", NULL);
  else if (g_str_equal (action, "search"))
    quire_window_search (window, target);
  else if (g_str_equal (action, "open-found"))
    quire_window_open_found (window, target);
  else
    {
      QuireHistoryItem *item = quire_history_find (self->history, target);

      if (item != NULL && quire_history_item_get (item)->deleted == 0)
        g_action_group_activate_action (G_ACTION_GROUP (window), "chat-open",
                                        g_variant_new_string (target));
    }
}

static void
desktop_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireApplication *self = user_data;
  const char *name = g_action_get_name (G_ACTION (action));
  const char *target = parameter != NULL ? g_variant_get_string (parameter, NULL) : NULL;

  if (quire_history_is_open (self->history))
    {
      g_application_activate (G_APPLICATION (self));
      act (self, name, target);
      return;
    }
  g_free (self->wanted);
  g_free (self->wanted_target);
  self->wanted = g_strdup (name);
  self->wanted_target = g_strdup (target);
  g_application_activate (G_APPLICATION (self));
}

/* What the engine was started with, to tell whether preferences changed it. The cache's size is not among it: a
 * running engine takes another one. Returns: owned. */
static char *
dup_engine_settings (void)
{
  GSettings *settings = quire_settings_get_default ();
  g_autofree char *backend = g_settings_get_string (settings, "backend");
  g_autofree char *device = g_settings_get_string (settings, "device");

  return g_strdup_printf (
      "%s %s %u %u %d %u %d %d %u", backend, device, g_settings_get_uint (settings, "threads"),
      g_settings_get_uint (settings, "reserve-mib"), g_settings_get_enum (settings, "host-memory"),
      g_settings_get_uint (settings, "host-mib"), g_settings_get_enum (settings, "host-path"),
      g_settings_get_boolean (settings, "disk-tier"), g_settings_get_uint (settings, "disk-mib"));
}

void
quire_application_restart_engine (QuireApplication *self)
{
  start_engine (self);
}

void
quire_application_apply_settings (QuireApplication *self)
{
  g_autofree char *now = dup_engine_settings ();
  g_autofree char *dir = quire_settings_dup_model_dir ();
  guint cache_mib = g_settings_get_uint (quire_settings_get_default (), "cache-mib");

  if (g_strcmp0 (self->applied, now) != 0)
    start_engine (self);
  else
    quire_engine_client_set_cache (self->client, (guint64)cache_mib * 1024 * 1024);
  if (self->model == NULL && g_strcmp0 (dir, quire_engine_client_get_model_dir (self->client)) != 0)
    load_model (self);
}

static void
preferences_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireApplication *self = user_data;
  GtkWindow *parent = gtk_application_get_active_window (GTK_APPLICATION (self));
  GtkWindow *window;

  if (QUIRE_IS_PREFERENCES_WINDOW (parent))
    return;
  window = quire_preferences_window_new (parent);
  g_signal_connect_object (window, "unrealize", G_CALLBACK (quire_application_apply_settings), self,
                           G_CONNECT_SWAPPED);
  gtk_window_present (window);
}

static void
models_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_models_window_present (user_data, gtk_application_get_active_window (user_data));
}

static void
limits_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  const char *tier = g_variant_get_string (parameter, NULL);

  quire_limits_present (gtk_application_get_active_window (user_data),
                        g_str_equal (tier, "disk")   ? QE_TIER_DISK
                        : g_str_equal (tier, "host") ? QE_TIER_HOST
                                                     : QE_TIER_GPU);
}

static void
release_memory_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  quire_keeper_release_now (QUIRE_APPLICATION (user_data)->keeper);
}

static void
status_changed_cb (QuireApplication *self)
{
  GAction *action = g_action_map_lookup_action (G_ACTION_MAP (self), "release-memory");
  gboolean ready = quire_engine_client_is_ready (self->client);

  g_simple_action_set_enabled (G_SIMPLE_ACTION (action), ready);
  /* The window stands and the model is there: now nothing waits for the main loop, as a reply with code will. */
  if (ready)
    quire_highlight_prepare ();
}

/* ---- Start ---- */

static void
quire_application_startup (GApplication *application)
{
  QuireApplication *self = QUIRE_APPLICATION (application);
  const struct
  {
    const char *action;
    const char *accels[3];
  } keys[] = {
    { "app.quit", { "<Control>q", NULL } },
    { "app.preferences", { "<Control>comma", NULL } },
    { "win.new-tab", { "<Control>t", "<Control>n", NULL } },
    { "win.close-tab", { "<Control>w", NULL } },
    { "win.reopen-tab", { "<Control><Shift>t", NULL } },
    { "win.toggle-sidebar", { "F9", NULL } },
    { "win.toggle-panel", { "F12", NULL } },
    { "win.search", { "<Control><Shift>f", NULL } },
    { "win.next-pane", { "F6", NULL } },
    { "win.previous-pane", { "<Shift>F6", NULL } },
    { "chat.find", { "<Control>f", NULL } },
    { "chat.find-next", { "<Control>g", NULL } },
    { "chat.find-previous", { "<Control><Shift>g", NULL } },
    { "chat.attach", { "<Control><Shift>a", NULL } },
    { "win.focus-composer", { "<Control>l", NULL } },
    { "chat.regenerate", { "<Control>r", NULL } },
    { "chat.copy-reply", { "<Control><Shift>c", NULL } },
    { "chat.cache-mode", { "<Control>m", NULL } },
    { "chat.settings", { "<Alt>Return", NULL } },
    { "chat.compare-modes", { "<Control><Shift>m", NULL } },
  };

  G_APPLICATION_CLASS (quire_application_parent_class)->startup (application);
  for (gsize i = 0; i < G_N_ELEMENTS (keys); i++)
    gtk_application_set_accels_for_action (GTK_APPLICATION (self), keys[i].action, keys[i].accels);
  gtk_window_set_default_icon_name (QUIRE_APP_ID);
  quire_widget_name_windows ();
  self->client = quire_engine_client_new ();
  self->keeper = quire_keeper_new (self->client);
  g_signal_connect_object (self->client, "status-changed", G_CALLBACK (status_changed_cb), self,
                           G_CONNECT_SWAPPED);
  status_changed_cb (self);
  quire_inhibit_watch (GTK_APPLICATION (self), self->client);
#ifdef QUIRE_HAVE_SERVER
  self->server = quire_local_server_new (self->client);
  self->stay = quire_server_stay_new (GTK_APPLICATION (self), self->server);
#endif
  {
    g_autofree char *path = quire_dup_history_path ();

    self->history = quire_history_new (path);
  }
}

/* The first window shows the tabs of the last time, as soon as they are known: some milliseconds after it is there. */
static void
history_opened_cb (QuireHistory *history, QuireWindow *window)
{
  QuireApplication *self = QUIRE_APPLICATION (gtk_window_get_application (GTK_WINDOW (window)));

  g_signal_handlers_disconnect_by_func (history, history_opened_cb, window);
  quire_window_restore (window);
  if (self != NULL && self->wanted != NULL)
    act (self, self->wanted, self->wanted_target);
  if (self != NULL)
    {
      g_clear_pointer (&self->wanted, g_free);
      g_clear_pointer (&self->wanted_target, g_free);
    }
}

static void
quire_application_activate (GApplication *application)
{
  QuireApplication *self = QUIRE_APPLICATION (application);
  GtkWindow *window = gtk_application_get_active_window (GTK_APPLICATION (self));

  if (window == NULL)
    {
      window = GTK_WINDOW (quire_window_new (self));
      if (quire_history_is_open (self->history))
        quire_window_restore (QUIRE_WINDOW (window));
      else
        g_signal_connect_object (self->history, "opened", G_CALLBACK (history_opened_cb), window,
                                 0);
    }
  gtk_window_present (window);
  if (!self->loaded)
    {
      start_engine (self);
      load_model (self);
    }
}

static int
quire_application_command_line (GApplication *application, GApplicationCommandLine *line)
{
  QuireApplication *self = QUIRE_APPLICATION (application);
  GVariantDict *options = g_application_command_line_get_options_dict (line);
  const char *model = NULL, *backend = NULL;
  g_autofree const char **folders = NULL;

  if (g_variant_dict_lookup (options, "backend", "&s", &backend) && !self->loaded)
    {
      g_free (self->backend);
      self->backend = g_strdup (backend);
    }
  if (g_variant_dict_lookup (options, G_OPTION_REMAINING, "^a&ay", &folders) && folders[0] != NULL)
    model = folders[0];
  else
    g_variant_dict_lookup (options, "model", "^&ay", &model);
  if (model != NULL)
    {
      g_autoptr (GFile) file = g_application_command_line_create_file_for_arg (line, model);

      open_model (self, file);
    }
  else
    g_application_activate (application);
  if (g_variant_dict_contains (options, "new-chat"))
    g_action_group_activate_action (G_ACTION_GROUP (self), "new-chat", NULL);
  return 0;
}

/* The bus hands folders over without a command line. */
static void
quire_application_open (GApplication *application, GFile **files, int n_files, const char *hint)
{
  open_model (QUIRE_APPLICATION (application), files[0]);
}

static int
quire_application_handle_local_options (GApplication *application, GVariantDict *options)
{
  if (g_variant_dict_contains (options, "version"))
    {
      g_print ("quire %s\n", qe_version ());
      return 0;
    }
  if (!quire_settings_exist ())
    {
      g_printerr (_ ("quire: the settings schema %s is not installed\n"), QUIRE_SETTINGS_ID);
      return 1;
    }
  if (!gtk_init_check ())
    {
      g_printerr (_ ("quire: no display found; quire-cli chats in the terminal\n"));
      return 1;
    }
  return -1;
}

static void
quire_application_shutdown (GApplication *application)
{
  QuireApplication *self = QUIRE_APPLICATION (application);

  G_APPLICATION_CLASS (quire_application_parent_class)->shutdown (application);
#ifdef QUIRE_HAVE_SERVER
  quire_background_release (self->stay);
  g_clear_object (&self->stay);
  g_clear_object (&self->server);
#endif
  g_clear_object (&self->keeper);
  g_clear_object (&self->client);
  quire_history_close (self->history);
  g_settings_sync ();
}

static void
quire_application_finalize (GObject *object)
{
  QuireApplication *self = QUIRE_APPLICATION (object);

#ifdef QUIRE_HAVE_SERVER
  g_clear_object (&self->stay);
  g_clear_object (&self->server);
#endif
  g_clear_object (&self->keeper);
  g_clear_object (&self->client);
  g_clear_object (&self->history);
  g_free (self->applied);
  g_free (self->model);
  g_free (self->backend);
  g_free (self->wanted);
  g_free (self->wanted_target);
  G_OBJECT_CLASS (quire_application_parent_class)->finalize (object);
}

static void
quire_application_class_init (QuireApplicationClass *klass)
{
  GApplicationClass *application_class = G_APPLICATION_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = quire_application_finalize;
  application_class->startup = quire_application_startup;
  application_class->activate = quire_application_activate;
  application_class->open = quire_application_open;
  application_class->command_line = quire_application_command_line;
  application_class->handle_local_options = quire_application_handle_local_options;
  application_class->shutdown = quire_application_shutdown;
}

static void
quire_application_init (QuireApplication *self)
{
  const GOptionEntry options[] = {
    { "model", 'm', 0, G_OPTION_ARG_FILENAME, NULL, N_ ("Model folder to load"), N_ ("DIR") },
    { "backend", 'b', 0, G_OPTION_ARG_STRING, NULL, N_ ("Where to compute: cpu, cuda"),
      N_ ("NAME") },
    { "new-chat", 'n', 0, G_OPTION_ARG_NONE, NULL, N_ ("Begin a new chat"), NULL },
    { "version", 0, 0, G_OPTION_ARG_NONE, NULL, N_ ("Print the version and exit"), NULL },
    { G_OPTION_REMAINING, 0, 0, G_OPTION_ARG_FILENAME_ARRAY, NULL, NULL, N_ ("[MODEL FOLDER]") },
    { NULL },
  };
  const GActionEntry actions[] = {
    { "quit", quit_action, NULL, NULL, NULL, { 0 } },
    { "restart", restart_action, NULL, NULL, NULL, { 0 } },
    { "new-window", new_window_action, NULL, NULL, NULL, { 0 } },
    { "new-chat", desktop_action, NULL, NULL, NULL, { 0 } },
    { "open-chat", desktop_action, "s", NULL, NULL, { 0 } },
    { "open-found", desktop_action, "s", NULL, NULL, { 0 } },
    { "search", desktop_action, "s", NULL, NULL, { 0 } },
    { "about", about_action, NULL, NULL, NULL, { 0 } },
    { "preferences", preferences_action, NULL, NULL, NULL, { 0 } },
    { "models", models_action, NULL, NULL, NULL, { 0 } },
    { "limits", limits_action, "s", NULL, NULL, { 0 } },
    { "release-memory", release_memory_action, NULL, NULL, NULL, { 0 } },
  };

  g_application_add_main_option_entries (G_APPLICATION (self), options);
  g_action_map_add_action_entries (G_ACTION_MAP (self), actions, G_N_ELEMENTS (actions), self);
}

QuireApplication *
quire_application_new (void)
{
  return g_object_new (QUIRE_TYPE_APPLICATION, "application-id", QUIRE_APP_ID, "flags",
                       G_APPLICATION_HANDLES_COMMAND_LINE | G_APPLICATION_HANDLES_OPEN, NULL);
}
