/* quire-model-files.c: see quire-model-files.h.
 *
 * The engine's own check is the judge of what can be loaded; what is done here first only finds better words for what
 * people really have on their disks: other formats, quantised weights, shards that a download cut, pointers of Git LFS. */
#include "app/quire-model-files.h"

#include <glib/gi18n.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

#include "app/quire-format.h"
#include "app/quire-settings.h"
#include "app/quire-words.h"

#define CONFIG_BYTES_MAX (1 << 20)
#define INDEX_BYTES_MAX (64 << 20)
#define HEADER_BYTES_MAX (100 << 20)
#define LFS_MAGIC "version https://git-lfs"

/* ---- Files ---- */

/* An object of a small JSON file; NULL when there is none. Returns: owned. */
static JsonNode *
read_json (const char *dir, const char *name, gsize n_bytes_max)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  g_autoptr (JsonParser) parser = NULL;
  GStatBuf info;

  if (g_stat (path, &info) != 0 || !S_ISREG (info.st_mode) || (guint64)info.st_size > n_bytes_max)
    return NULL;
  parser = json_parser_new_immutable ();
  if (!json_parser_load_from_file (parser, path, NULL)
      || !JSON_NODE_HOLDS_OBJECT (json_parser_get_root (parser)))
    return NULL;
  return json_parser_steal_root (parser);
}

static const char *
get_string (JsonObject *object, const char *member)
{
  JsonNode *node = json_object_get_member (object, member);

  return node != NULL && JSON_NODE_HOLDS_VALUE (node)
                 && json_node_get_value_type (node) == G_TYPE_STRING
             ? json_node_get_string (node)
             : NULL;
}

static JsonObject *
get_object (JsonObject *object, const char *member)
{
  JsonNode *node = json_object_get_member (object, member);

  return node != NULL && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
}

/* What lies in a folder, as far as it tells the format. */
typedef struct
{
  gboolean config, adapter, safetensors, bin;
  char *gguf; /* a file's name; owned */
  guint64 n_gguf_bytes;
  guint n_gguf;
} Listing;

static void
list_folder (const char *dir, Listing *out)
{
  g_autoptr (GDir) folder = g_dir_open (dir, 0, NULL);
  const char *name;

  *out = (Listing){ 0 };
  while (folder != NULL && (name = g_dir_read_name (folder)) != NULL)
    {
      g_autofree char *path = g_build_filename (dir, name, NULL);
      GStatBuf info;

      out->config |= g_str_equal (name, "config.json");
      out->adapter |= g_str_equal (name, "adapter_config.json");
      out->safetensors |= g_str_has_suffix (name, ".safetensors");
      out->bin |= g_str_has_suffix (name, ".bin") || g_str_has_suffix (name, ".pth");
      if (!g_str_has_suffix (name, ".gguf") || g_stat (path, &info) != 0)
        continue;
      if (out->gguf == NULL)
        out->gguf = g_strdup (name);
      out->n_gguf_bytes += (guint64)info.st_size;
      out->n_gguf++;
    }
}

static gboolean
is_model (const Listing *listing)
{
  return listing->config || listing->adapter || listing->gguf != NULL;
}

static void
find_in (const char *dir, guint depth, GPtrArray *found)
{
  g_autoptr (GDir) folder = NULL;
  g_autoptr (GPtrArray) below = NULL;
  const char *name;
  Listing listing;
  gboolean here;

  list_folder (dir, &listing);
  here = is_model (&listing);
  g_free (listing.gguf);
  if (here)
    {
      g_ptr_array_add (found, g_strdup (dir));
      return;
    }
  if (depth == 0)
    return;
  folder = g_dir_open (dir, 0, NULL);
  below = g_ptr_array_new_with_free_func (g_free);
  while (folder != NULL && (name = g_dir_read_name (folder)) != NULL)
    {
      g_autofree char *path = g_build_filename (dir, name, NULL);

      /* A link to a folder above would never end. */
      if (name[0] != '.' && g_file_test (path, G_FILE_TEST_IS_DIR)
          && !g_file_test (path, G_FILE_TEST_IS_SYMLINK))
        g_ptr_array_add (below, g_steal_pointer (&path));
    }
  g_ptr_array_sort (below, (GCompareFunc)(void (*) (void))strcmp);
  for (guint i = 0; i < below->len && found->len < QUIRE_MODELS_FOUND_MAX; i++)
    find_in (g_ptr_array_index (below, i), depth - 1, found);
}

GPtrArray *
quire_model_folders_find (const char *dir)
{
  GPtrArray *found = g_ptr_array_new_with_free_func (g_free);

  find_in (dir, QUIRE_MODEL_DEPTH_MAX, found);
  return found;
}

/* ---- Weights that are not whole ---- */

/* Bytes that a safetensors file should have, by its own header; 0 when that is not there to be read. */
static guint64
wanted_bytes (const char *path)
{
  guint8 prefix[8];
  guint64 n_header = 0, end = 0;
  int fd = g_open (path, O_RDONLY | O_CLOEXEC, 0);
  g_autofree char *header = NULL;
  g_autoptr (JsonParser) parser = NULL;
  JsonObjectIter iter;
  JsonNode *node;

  if (fd < 0)
    return 0;
  if (pread (fd, prefix, sizeof prefix, 0) == sizeof prefix)
    for (int i = 7; i >= 0; i--)
      n_header = n_header << 8 | prefix[i];
  if (n_header > 0 && n_header <= HEADER_BYTES_MAX)
    {
      header = g_try_malloc (n_header);
      if (header != NULL && pread (fd, header, n_header, 8) != (gssize)n_header)
        g_clear_pointer (&header, g_free);
    }
  close (fd);
  parser = json_parser_new_immutable ();
  if (header == NULL || !json_parser_load_from_data (parser, header, (gssize)n_header, NULL)
      || !JSON_NODE_HOLDS_OBJECT (json_parser_get_root (parser)))
    return 0;
  json_object_iter_init (&iter, json_node_get_object (json_parser_get_root (parser)));
  while (json_object_iter_next (&iter, NULL, &node))
    {
      JsonNode *offsets = JSON_NODE_HOLDS_OBJECT (node)
                              ? json_object_get_member (json_node_get_object (node), "data_offsets")
                              : NULL;

      if (offsets != NULL && JSON_NODE_HOLDS_ARRAY (offsets)
          && json_array_get_length (json_node_get_array (offsets)) == 2)
        {
          JsonNode *last = json_array_get_element (json_node_get_array (offsets), 1);

          if (JSON_NODE_HOLDS_VALUE (last) && json_node_get_value_type (last) == G_TYPE_INT64)
            end = MAX (end, (guint64)MAX (json_node_get_int (last), 0));
        }
    }
  return end > 0 ? 8 + n_header + end : 0;
}

static gboolean
is_lfs_pointer (const char *path)
{
  char start[sizeof LFS_MAGIC - 1];
  int fd = g_open (path, O_RDONLY | O_CLOEXEC, 0);
  gboolean is = fd >= 0 && pread (fd, start, sizeof start, 0) == (gssize)sizeof start
                && memcmp (start, LFS_MAGIC, sizeof start) == 0;

  if (fd >= 0)
    close (fd);
  return is;
}

static int
compare_names (gconstpointer a, gconstpointer b)
{
  return strcmp (*(const char *const *)a, *(const char *const *)b);
}

/* The files of the weights, in the order of their names. Returns: (element-type utf8) owned. */
static GPtrArray *
list_shards (const char *dir)
{
  GPtrArray *names = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);
  JsonNode *index = read_json (dir, "model.safetensors.index.json", INDEX_BYTES_MAX);
  JsonObject *map = index != NULL ? get_object (json_node_get_object (index), "weight_map") : NULL;
  JsonObjectIter iter;
  JsonNode *node;

  if (map == NULL)
    g_ptr_array_add (names, g_strdup ("model.safetensors"));
  else
    {
      json_object_iter_init (&iter, map);
      while (json_object_iter_next (&iter, NULL, &node))
        if (JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == G_TYPE_STRING
            && !g_hash_table_contains (seen, json_node_get_string (node)))
          {
            char *name = json_node_dup_string (node);

            g_hash_table_add (seen, name);
            g_ptr_array_add (names, name);
          }
      g_ptr_array_sort (names, compare_names);
    }
  g_clear_pointer (&index, json_node_unref);
  return names;
}

/* "Shard 2 of 3", or the file's name. Returns: owned. */
static char *
dup_shard_name (GPtrArray *shards, guint i)
{
  if (shards->len == 1)
    return g_strdup (g_ptr_array_index (shards, 0));
  /* Translators: one of the files that a model's weights are split into. */
  return g_strdup_printf (_ ("Shard %u of %u"), i + 1, shards->len);
}

/* What is wrong with the weights' files, when it is their being incomplete. Returns: owned; NULL: it is not that. */
static char *
find_cut (const char *dir)
{
  g_autoptr (GPtrArray) shards = list_shards (dir);

  for (guint i = 0; i < shards->len; i++)
    {
      const char *file = g_ptr_array_index (shards, i);
      g_autofree char *path = g_build_filename (dir, file, NULL);
      g_autofree char *name = dup_shard_name (shards, i);
      g_autofree char *have_text = NULL, *want_text = NULL;
      guint64 want;
      GStatBuf info;

      if (g_stat (path, &info) != 0)
        /* Translators: "Shard 2 of 3 is missing: model-00002-of-00003.safetensors." */
        return g_strdup_printf (_ ("%s is missing: %s. Copy it again."), name, file);
      have_text = quire_format_bytes ((guint64)info.st_size);
      if (is_lfs_pointer (path))
        return g_strdup_printf (
            _ ("%s is only a pointer of Git LFS. Run “git lfs pull” in the folder."), name);
      want = wanted_bytes (path);
      want_text = quire_format_bytes (want);
      if (want > (guint64)info.st_size)
        /* Translators: "Shard 2 of 3 is cut: 1.1 GiB of 4.9 GiB. Copy it again." */
        return g_strdup_printf (_ ("%s is cut: %s of %s. Copy it again."), name, have_text,
                                want_text);
      if (want == 0 && info.st_size < 1 << 20)
        return g_strdup_printf (_ ("%s is cut: only %s are there. Copy it again."), name,
                                have_text);
    }
  return NULL;
}

/* The engine's message without the folder, which the row names already. Returns: owned. */
static char *
strip_dir (const char *message, const char *dir)
{
  g_autofree char *prefix
      = g_str_has_suffix (dir, "/") ? g_strdup (dir) : g_strconcat (dir, "/", NULL);
  g_auto (GStrv) parts = g_strsplit (message, prefix, -1);
  g_autofree char *text = g_strjoinv ("", parts);

  /* Translators: words that are a sentence, and its full stop. */
  return g_str_has_suffix (text, ".")
             ? g_strdup (quire_words (text))
             : g_strdup_printf (C_ ("sentence", "%s."), quire_words (text));
}

/* ---- What Quire does not run ---- */

static QuireModelFacts *
unsupported (QuireModelFacts *facts, char *format, char *problem)
{
  facts->verdict = QUIRE_MODEL_UNSUPPORTED;
  g_free (facts->format);
  facts->format = format;
  facts->problem = problem;
  return facts;
}

/* "AWQ, 4 bits". Returns: owned. */
static char *
dup_quantization (JsonObject *config)
{
  JsonObject *q = get_object (config, "quantization_config");
  const char *method;
  g_autofree char *upper = NULL;
  JsonNode *bits;

  if (q == NULL)
    q = get_object (config, "compression_config");
  if (q == NULL)
    q = get_object (config, "quantization"); /* MLX */
  if (q == NULL)
    return NULL;
  method = get_string (q, "quant_method");
  upper = method != NULL ? g_ascii_strup (method, -1) : g_strdup (_ ("Quantised"));
  bits = json_object_get_member (q, json_object_has_member (q, "bits") ? "bits" : "w_bit");
  if (bits != NULL && JSON_NODE_HOLDS_VALUE (bits)
      && json_node_get_value_type (bits) == G_TYPE_INT64)
    return g_strdup_printf (
        ngettext ("%s, %d bit", "%s, %d bits", (gulong)json_node_get_int (bits)), upper,
        (int)json_node_get_int (bits));
  return g_steal_pointer (&upper);
}

static const char *
get_architecture (JsonObject *config)
{
  JsonNode *node = json_object_get_member (config, "architectures");
  JsonArray *names
      = node != NULL && JSON_NODE_HOLDS_ARRAY (node) ? json_node_get_array (node) : NULL;

  if (names == NULL || json_array_get_length (names) == 0)
    return get_string (config, "model_type");
  node = json_array_get_element (names, 0);
  return JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == G_TYPE_STRING
             ? json_node_get_string (node)
             : NULL;
}

/* TRUE when the folder is known not to be one of ours, and @facts says so. */
static gboolean
find_other_format (const char *dir, const Listing *listing, QuireModelFacts *facts)
{
  JsonNode *node;
  JsonObject *config;
  const char *architecture;
  char *quantization;

  if (listing->gguf != NULL && !listing->safetensors)
    {
      facts->n_bytes = listing->n_gguf_bytes;
      unsupported (facts, g_strdup ("GGUF"),
                   g_strdup (_ ("Quire does not load GGUF files. Get the same model as a folder of "
                                "safetensors in bf16.")));
      return TRUE;
    }
  if (listing->adapter && !listing->config)
    {
      unsupported (
          facts, g_strdup ("LoRA"),
          g_strdup (_ ("This is an adapter, not a whole model. Merge it into its model first.")));
      return TRUE;
    }
  node = read_json (dir, "config.json", CONFIG_BYTES_MAX);
  if (node == NULL)
    return FALSE;
  config = json_node_get_object (node);
  architecture = get_architecture (config);
  quantization = dup_quantization (config);
  if (architecture != NULL && !g_str_equal (architecture, "Qwen3ForCausalLM")
      && !g_str_equal (architecture, "qwen3"))
    unsupported (
        facts, g_strdup (architecture),
        g_strdup (_ ("Quire runs dense Qwen3 models only; this is another architecture.")));
  else if (quantization != NULL)
    unsupported (
        facts, g_steal_pointer (&quantization),
        g_strdup (_ ("Quire does not load quantised weights. Get the same model in bf16.")));
  else if (!listing->safetensors && listing->bin)
    unsupported (
        facts, g_strdup ("PyTorch"),
        g_strdup (_ ("The weights are PyTorch files. Get the same model as safetensors.")));
  g_free (quantization);
  json_node_unref (node);
  return facts->verdict == QUIRE_MODEL_UNSUPPORTED;
}

/* ---- The whole ---- */

char *
quire_model_format_fit (const qe_memory_plan *plan)
{
  g_autofree char *tokens = quire_format_count (plan->kv_tokens);
  g_autofree char *host = quire_format_bytes (plan->host_kv);
  g_autofree char *all = quire_format_count (plan->kv_tokens + plan->host_kv_tokens);

  if (!plan->on_device)
    return g_strdup_printf (_ ("%s tokens on the CPU"), tokens);
  if (plan->host_kv == 0)
    return g_strdup_printf (_ ("%s tokens on the GPU"), tokens);
  /* Translators: "98,304 tokens on the GPU, 262,144 with 24.0 GiB of host memory". */
  return g_strdup_printf (_ ("%s tokens on the GPU, %s with %s of host memory"), tokens, all, host);
}

static char *
dup_dtype (const qe_model_info *info)
{
  if (info->weight_bytes == 2 * info->n_params)
    return g_strdup ("bf16");
  if (info->weight_bytes == 4 * info->n_params)
    return g_strdup ("f32");
  return g_strdup ("bf16, f32");
}

/* A folder that the engine refused. */
static void
explain (const char *dir, const GError *error, QuireModelFacts *facts)
{
  g_autofree char *text = g_utf8_make_valid (error->message, -1);

  facts->verdict = g_error_matches (error, QE_ERROR, QE_ERROR_UNSUPPORTED) ? QUIRE_MODEL_UNSUPPORTED
                                                                           : QUIRE_MODEL_BROKEN;
  if (facts->verdict == QUIRE_MODEL_BROKEN)
    facts->problem = find_cut (dir);
  if (facts->problem == NULL)
    facts->problem = strip_dir (text, dir);
  facts->detail = g_steal_pointer (&text);
}

QuireModelFacts *
quire_model_facts_read (const char *dir, const qe_engine_options *options)
{
  QuireModelFacts *facts = g_new0 (QuireModelFacts, 1);
  g_autofree char *base = g_path_get_basename (dir);
  g_autoptr (GError) error = NULL;
  Listing listing;

  facts->name = g_filename_display_name (base);
  if (!g_file_test (dir, G_FILE_TEST_IS_DIR))
    {
      facts->verdict = QUIRE_MODEL_GONE;
      facts->problem
          = g_strdup (_ ("The folder is not there. It was moved, or its disk is not connected."));
      return facts;
    }
  list_folder (dir, &listing);
  if (!find_other_format (dir, &listing, facts))
    {
      facts->info = qe_model_info_new (dir, &error);
      if (facts->info == NULL)
        explain (dir, error, facts);
    }
  g_free (listing.gguf);
  if (facts->info == NULL)
    return facts;
  g_free (facts->name);
  facts->name = quire_model_dup_name (facts->info);
  facts->format = dup_dtype (facts->info);
  facts->n_bytes = facts->info->weight_bytes;
  facts->plan = qe_plan_memory (options, dir, NULL);
  if (facts->plan != NULL && facts->plan->problem != NULL)
    {
      facts->verdict = QUIRE_MODEL_TOO_LARGE;
      facts->problem = g_strdup (quire_words (facts->plan->problem));
    }
  return facts;
}

void
quire_model_facts_free (QuireModelFacts *facts)
{
  if (facts == NULL)
    return;
  g_free (facts->name);
  g_free (facts->format);
  g_free (facts->problem);
  g_free (facts->detail);
  g_clear_pointer (&facts->info, qe_model_info_free);
  g_clear_pointer (&facts->plan, qe_memory_plan_free);
  g_free (facts);
}
