/* quire-highlight.c: see quire-highlight.h.
 *
 * Measured with GtkSourceView 5.6: finding the languages 7 ms, the first view 5, the first language 4 and itself, C 6, Python 9,
 * JavaScript 38, TypeScript 80 (its schema is checked for each file that a language needs). */
#include "app/quire-highlight.h"

/* Fence words that are not GtkSourceView's own ids. */
static const struct
{
  const char *word, *id;
} aliases[] = {
  { "py", "python3" },     { "python", "python3" }, { "js", "js" },       { "javascript", "js" },
  { "ts", "typescript" },  { "bash", "sh" },        { "shell", "sh" },    { "zsh", "sh" },
  { "console", "sh" },     { "c++", "cpp" },        { "h", "c" },         { "rs", "rust" },
  { "golang", "go" },      { "yml", "yaml" },       { "md", "markdown" }, { "cs", "c-sharp" },
  { "csharp", "c-sharp" }, { "rb", "ruby" },        { "patch", "diff" },  { "tex", "latex" },
  { "cuda", "cuda" },      { "vue", "html" },       { "jsonc", "json" },  { "kt", "kotlin" },
  { "hs", "haskell" },
};

/* A buffer that waits for its language. */
typedef struct
{
  GWeakRef buffer, label;
  char *id;
} Wanted;

static GQueue queue = G_QUEUE_INIT; /* of Wanted, owned */
static guint source;
static GHashTable
    *languages; /* id -> GtkSourceBuffer: what was read goes with the last buffer that has it */

static const char *
find_id (const char *word)
{
  for (gsize i = 0; i < G_N_ELEMENTS (aliases); i++)
    if (strcmp (word, aliases[i].word) == 0)
      return aliases[i].id;
  return word;
}

static void
wanted_free (Wanted *wanted)
{
  g_weak_ref_clear (&wanted->buffer);
  g_weak_ref_clear (&wanted->label);
  g_free (wanted->id);
  g_free (wanted);
}

static gboolean
is_read (const char *id)
{
  return languages != NULL && g_hash_table_contains (languages, id);
}

/* Reads the language unless that was done. */
static void
apply (GtkSourceBuffer *buffer, GtkLabel *label, const char *id)
{
  GtkSourceLanguage *language
      = gtk_source_language_manager_get_language (gtk_source_language_manager_get_default (), id);

  if (language == NULL)
    return;
  if (!is_read (id))
    {
      GtkSourceBuffer *keep = gtk_source_buffer_new (NULL);

      gtk_source_buffer_set_language (keep, language);
      if (languages == NULL)
        languages = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_object_unref);
      g_hash_table_insert (languages, g_strdup (id), keep);
    }
  gtk_source_buffer_set_language (buffer, language);
  if (label != NULL)
    gtk_label_set_text (label, gtk_source_language_get_name (language));
}

static gboolean
next_cb (gpointer user_data)
{
  Wanted *wanted = g_queue_pop_head (&queue);
  g_autoptr (GtkSourceBuffer) buffer = g_weak_ref_get (&wanted->buffer);
  g_autoptr (GtkLabel) label = g_weak_ref_get (&wanted->label);

  if (buffer != NULL)
    apply (buffer, label, wanted->id);
  wanted_free (wanted);
  if (!g_queue_is_empty (&queue))
    return G_SOURCE_CONTINUE;
  source = 0;
  return G_SOURCE_REMOVE;
}

/* What @buffer waits for is no longer wanted. */
static void
forget (GtkSourceBuffer *buffer)
{
  for (GList *at = queue.head, *next; at != NULL; at = next)
    {
      Wanted *wanted = at->data;
      g_autoptr (GtkSourceBuffer) waits = g_weak_ref_get (&wanted->buffer);

      next = at->next;
      if (waits != NULL && waits != buffer)
        continue;
      g_queue_delete_link (&queue, at);
      wanted_free (wanted);
    }
  if (g_queue_is_empty (&queue))
    g_clear_handle_id (&source, g_source_remove);
}

void
quire_highlight_set_language (GtkSourceBuffer *buffer, GtkLabel *label, const char *word)
{
  const char *id = word != NULL ? find_id (word) : NULL;
  Wanted *wanted;

  g_return_if_fail (GTK_SOURCE_IS_BUFFER (buffer));

  forget (buffer);
  gtk_label_set_text (label, word != NULL ? word : "");
  if (id == NULL)
    {
      gtk_source_buffer_set_language (buffer, NULL);
      return;
    }
  if (is_read (id))
    {
      apply (buffer, label, id);
      return;
    }
  gtk_source_buffer_set_language (buffer, NULL);
  wanted = g_new0 (Wanted, 1);
  g_weak_ref_init (&wanted->buffer, buffer);
  g_weak_ref_init (&wanted->label, label);
  wanted->id = g_strdup (id);
  g_queue_push_tail (&queue, wanted);
  if (source == 0)
    source = g_idle_add (next_cb, NULL);
}

void
quire_highlight_set_dark (GtkSourceBuffer *buffer, gboolean dark)
{
  gtk_source_buffer_set_style_scheme (buffer, gtk_source_style_scheme_manager_get_scheme (
                                                  gtk_source_style_scheme_manager_get_default (),
                                                  dark ? "Adwaita-dark" : "Adwaita"));
}

guint
quire_highlight_get_n_read (void)
{
  return languages != NULL ? g_hash_table_size (languages) : 0;
}

/* ---- Reading ahead ---- */

static gboolean
prepare_cb (gpointer user_data)
{
  static guint step;

  switch (step++)
    {
    case 0:
      gtk_source_language_manager_get_language_ids (gtk_source_language_manager_get_default ());
      return G_SOURCE_CONTINUE;
    case 1:
      gtk_source_style_scheme_manager_get_scheme_ids (
          gtk_source_style_scheme_manager_get_default ());
      return G_SOURCE_CONTINUE;
    case 2:
      g_object_unref (g_object_ref_sink (gtk_source_view_new ()));
      return G_SOURCE_CONTINUE;
      default: {
        g_autoptr (GtkSourceBuffer) buffer = gtk_source_buffer_new (NULL);

        apply (buffer, NULL, "def"); /* what all others begin with, and the schema */
        return G_SOURCE_REMOVE;
      }
    }
}

void
quire_highlight_prepare (void)
{
  static gboolean begun;

  if (begun)
    return;
  begun = TRUE;
  g_idle_add_full (G_PRIORITY_LOW, prepare_cb, NULL, NULL);
}
