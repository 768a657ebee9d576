/* cmd-bench-quality.c: `quire-cli bench quality`: what a cache mode that is not exact costs in answers.
 *
 * Teacher-forced: for each length L the ids of a text are computed up to L - P; then P tokens are put in one by one, as
 * in decoding, once in the exact mode and once in each mode asked for, with the same ids whatever would have been said.
 * With p the exact mode's next-token distribution and q the mode's: KL(p || q) = sum p ln(p / q) in nats, mean and
 * largest; how often both find the same token likeliest; and the largest |a - b| / |a| of the logit vectors a (exact), b.
 *
 * Recall: a fact ("My name is Mira."), filler up to a distance in tokens, then the question; a reply that has the fact
 * counts. Same prompts in every mode, greedy, no reasoning. For models that can do it, as the shipped one.
 *
 *  1. One engine for all modes; no session finds another's pages.
 *  2. An exact mode is a control: its KL is 0 and it agrees everywhere, on the CPU to the bit. */
#include "app/cli/cli-bench.h"

#include <math.h>
#include <string.h>

#include "app/cli/cli-json.h"

#define LENGTHS_DEFAULT "512,2048,4096"
#define DISTANCES_DEFAULT "256,1024,2048,3840"
#define LENGTH_MAX (1u << 24)
#define POSITIONS_MAX 65536
#define ITEMS_MAX 1000
#define REPLY_TOKENS 24
#define SEED 20250707u

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  char *modes, *lengths, *text, *distances;
  int positions, items;
  gboolean no_recall, json, csv;
} Options;

typedef struct
{
  uint32_t length;
  qe_cache_mode mode;
  guint n;
  double kl_mean, kl_max, agreement, error_max;
} Forced;

typedef struct
{
  uint32_t distance;
  qe_cache_mode mode;
  guint n, n_recalled;
  uint32_t n_prompt_max;
  double
      skipped; /* mean share of pages left out by the replies' steps; NaN: the mode reports none */
} Recall;

typedef struct
{
  const Options *options;
  qe_cache_config cache;
  qe_engine *engine;
  qe_model_info *info;
  qe_tokenizer *tokenizer;
  GArray *modes;        /* qe_cache_mode */
  GArray *lengths;      /* uint32_t */
  GArray *distances;    /* uint32_t */
  GArray *ids;          /* uint32_t: the text */
  GArray *forced;       /* Forced */
  GArray *recalls;      /* Recall */
  float *exact, *other; /* [vocab] */
} Quality;

/* Limits on the card are the tiered modes'. */
static qe_session_id
open_mode (const Quality *q, qe_cache_mode mode, GError **error)
{
  qe_cache_config config = q->cache;

  config.mode = mode;
  config.use_cache = false;
  if (mode < QE_CACHE_TIERED)
    config.gpu_max_length = config.hot_cache_length = 0;
  return cli_open_session (q->engine, &config, NULL, error);
}

/* ---- The text ---- */

static const struct
{
  const char *tell, *ask;
  const char *values[8];
} facts[] = {
  { "My name is %s.",
    "What is my name?",
    { "Mira", "Torben", "Anna", "Felix", "Clara", "Oscar", "Julia", "Simon" } },
  { "I live in %s.",
    "Where do I live?",
    { "Lisbon", "Oslo", "Rome", "Paris", "Vienna", "Berlin", "Madrid", "Dublin" } },
  { "My favourite colour is %s.",
    "What is my favourite colour?",
    { "teal", "green", "blue", "red", "orange", "purple", "yellow", "pink" } },
};

static const char *
fact_value (guint item)
{
  return facts[item % G_N_ELEMENTS (facts)].values[item / G_N_ELEMENTS (facts) % 8];
}

/* A question and its answer that say nothing of the facts. */
static void
fill_exchange (guint64 *random, GString *user, GString *reply)
{
  guint a = 1 + (guint)(cli_bench_random (random) % 50);
  guint b = 1 + (guint)(cli_bench_random (random) % 50);

  g_string_printf (user, "What is %u + %u?", a, b);
  g_string_printf (reply, "%u + %u = %u.", a, b, a + b);
}

/* The filler as one conversation, as a Qwen3 model is given it: at least @n ids. */
static gboolean
default_text (Quality *q, uint32_t n, GError **error)
{
  g_autoptr (GString) user = g_string_new (NULL), reply = g_string_new (NULL);
  guint64 random = SEED;

  while (q->ids->len < n)
    {
      g_autofree char *text = NULL;

      fill_exchange (&random, user, reply);
      text = g_strdup_printf (
          "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n", user->str,
          reply->str);
      if (!qe_tokenizer_encode (q->tokenizer, text, strlen (text), QE_ENCODE_ADDED_TOKENS, q->ids,
                                error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
read_text (Quality *q, uint32_t n, GError **error)
{
  g_autofree char *text = NULL;
  gsize n_text;

  if (q->options->text == NULL)
    return default_text (q, n, error);
  if (!cli_read_input (q->options->text, &text, &n_text, error)
      || !qe_tokenizer_encode (q->tokenizer, text, n_text, QE_ENCODE_ADDED_TOKENS, q->ids, error))
    return FALSE;
  if (q->ids->len >= n)
    return TRUE;
  g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
               "--text: expected %u tokens, for the longest of --lengths, found %u in %s", n,
               q->ids->len, q->options->text);
  return FALSE;
}

/* ---- Teacher-forced ---- */

/* ln of the sum of exp. */
static double
log_sum (const float *logits, uint32_t n)
{
  double max = -INFINITY, sum = 0;

  for (uint32_t i = 0; i < n; i++)
    max = MAX (max, logits[i]);
  for (uint32_t i = 0; i < n; i++)
    sum += exp (logits[i] - max);
  return max + log (sum);
}

static uint32_t
likeliest (const float *logits, uint32_t n)
{
  uint32_t best = 0;

  for (uint32_t i = 1; i < n; i++)
    if (logits[i] > logits[best])
      best = i;
  return best;
}

/* One position into @f: sums, until finish. */
static void
compare (const Quality *q, Forced *f)
{
  uint32_t vocab = q->info->vocab;
  double a = log_sum (q->exact, vocab), b = log_sum (q->other, vocab);
  double kl = 0, difference = 0, size = 0;

  for (uint32_t i = 0; i < vocab; i++)
    {
      double x = q->exact[i], y = q->other[i];

      kl += exp (x - a) * ((x - a) - (y - b));
      difference += (x - y) * (x - y);
      size += x * x;
    }
  kl = MAX (kl, 0); /* rounding */
  f->n++;
  f->kl_mean += kl;
  f->kl_max = MAX (f->kl_max, kl);
  f->agreement += likeliest (q->exact, vocab) == likeliest (q->other, vocab);
  f->error_max = MAX (f->error_max, sqrt (difference / size));
}

/* Logits after the first @n ids, of which all but the last are in the session already. */
static gboolean
eval_at (const Quality *q, qe_session_id session, uint32_t n, float *out, GError **error)
{
  return qe_engine_eval (q->engine, session, (const uint32_t *)(gpointer)q->ids->data, n, n - 1,
                         out, error);
}

static gboolean
run_forced (Quality *q, uint32_t length, qe_cache_mode mode, GError **error)
{
  Forced f = { .length = length, .mode = mode };
  uint32_t n_steps = MIN ((uint32_t)q->options->positions, length - 1);
  qe_session_id exact = open_mode (q, QE_CACHE_SESSION, error);
  qe_session_id other = exact != 0 ? open_mode (q, mode, error) : 0;
  gboolean ok = other != 0 && eval_at (q, exact, length - n_steps, q->exact, error)
                && eval_at (q, other, length - n_steps, q->other, error);

  for (uint32_t n = length - n_steps + 1; n <= length && ok; n++)
    {
      ok = eval_at (q, exact, n, q->exact, error) && eval_at (q, other, n, q->other, error);
      if (ok)
        compare (q, &f);
    }
  if (exact != 0)
    qe_engine_close_session (q->engine, exact);
  if (other != 0)
    qe_engine_close_session (q->engine, other);
  if (!ok)
    return FALSE;
  f.kl_mean /= f.n;
  f.agreement /= f.n;
  g_array_append_val (q->forced, f);
  return TRUE;
}

/* ---- Recall ---- */

static void
add_message (GPtrArray *texts, GArray *messages, qe_role role, char *text /* taken */)
{
  qe_message message = { role, text, -1 };

  g_ptr_array_add (texts, text);
  g_array_append_val (messages, message);
}

static guint
count_tokens (const Quality *q, const char *text)
{
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  qe_tokenizer_encode (q->tokenizer, text, strlen (text), QE_ENCODE_PLAIN, ids, NULL);
  return ids->len + 5; /* what the template puts around it */
}

/* Item @item: the fact, at least @distance tokens of filler, the question. */
static void
write_item (const Quality *q, guint item, uint32_t distance, GPtrArray *texts, GArray *messages)
{
  guint kind = item % G_N_ELEMENTS (facts);
  g_autoptr (GString) user = g_string_new (NULL), reply = g_string_new (NULL);
  g_auto (GStrv) tell = g_strsplit (facts[kind].tell, "%s", 2);
  guint64 random = SEED + item;

  add_message (texts, messages, QE_ROLE_USER,
               g_strconcat (tell[0], fact_value (item), tell[1], NULL));
  add_message (texts, messages, QE_ROLE_ASSISTANT, g_strdup ("I will remember that."));
  for (guint n = 0; n < distance;)
    {
      fill_exchange (&random, user, reply);
      n += count_tokens (q, user->str) + count_tokens (q, reply->str);
      add_message (texts, messages, QE_ROLE_USER, g_strdup (user->str));
      add_message (texts, messages, QE_ROLE_ASSISTANT, g_strdup (reply->str));
    }
  add_message (texts, messages, QE_ROLE_USER, g_strdup (facts[kind].ask));
}

/* NaN: the mode leaves none out. */
static double
skipped_share (const qe_receipt *receipt)
{
  return receipt->mode == QE_CACHE_SELECTIVE ? receipt->skipped_share : NAN;
}

static gboolean
run_item (Quality *q, Recall *r, guint item, GError **error)
{
  g_autoptr (GPtrArray) texts = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GArray) messages = g_array_new (FALSE, FALSE, sizeof (qe_message));
  g_autoptr (qe_request) request = NULL;
  qe_session_id session = open_mode (q, r->mode, error);
  qe_generate_params params;
  CliReply reply = { 0 };
  gboolean ok;

  if (session == 0)
    return FALSE;
  write_item (q, item, r->distance, texts, messages);
  qe_generate_params_init (&params, q->info);
  params.session = session;
  params.messages = (const qe_message *)(gpointer)messages->data;
  params.n_messages = messages->len;
  params.whole_history = true;
  params.thinking = q->info->has_thinking ? QE_THINKING_OFF : QE_THINKING_DEFAULT;
  params.sampling = (qe_sampling_params){ .top_p = 1, .repetition_penalty = 1 };
  params.max_tokens = REPLY_TOKENS;
  request = qe_engine_generate (q->engine, &params, error);
  if (request != NULL)
    cli_reply_run (&reply, request, NULL);
  qe_engine_close_session (q->engine, session);
  ok = request != NULL && reply.error == NULL;
  if (ok)
    {
      r->n++;
      r->n_recalled += strstr (reply.text->str, fact_value (item)) != NULL;
      r->n_prompt_max = MAX (r->n_prompt_max, reply.receipt.n_prompt);
      r->skipped += skipped_share (&reply.receipt);
    }
  else if (reply.error != NULL)
    g_propagate_error (error, g_steal_pointer (&reply.error));
  cli_reply_clear (&reply);
  return ok;
}

static gboolean
run_recall (Quality *q, uint32_t distance, qe_cache_mode mode, GError **error)
{
  Recall r = { .distance = distance, .mode = mode };

  for (guint i = 0; i < (guint)q->options->items; i++)
    if (!run_item (q, &r, i, error))
      return FALSE;
  r.skipped /= r.n;
  g_array_append_val (q->recalls, r);
  return TRUE;
}

/* ---- Report ---- */

static void
append_number (GString *line, const char *name, double value, int n_decimals, gboolean json)
{
  if (json)
    g_string_append_printf (line, ", \"%s\": ", name);
  else
    g_string_append_c (line, ',');
  if (json || !isnan (value))
    quire_json_add_number (line, value, n_decimals);
}

static void
print_json (const Quality *q)
{
  g_autoptr (GString) json = g_string_new ("{\"model\": ");

  quire_json_add_string (json, q->info->name, -1);
  g_string_append_printf (json, ", \"positions\": %d, \"forced\": [", q->options->positions);
  for (guint i = 0; i < q->forced->len; i++)
    {
      const Forced *f = &g_array_index (q->forced, Forced, i);

      g_string_append_printf (json, "%s{\"tokens\": %u, \"mode\": \"%s\", \"positions\": %u",
                              i > 0 ? ",\n " : "\n ", f->length, qe_cache_mode_name (f->mode),
                              f->n);
      append_number (json, "kl_mean", f->kl_mean, 9, TRUE);
      append_number (json, "kl_max", f->kl_max, 9, TRUE);
      append_number (json, "top1_agreement", f->agreement, 6, TRUE);
      append_number (json, "logits_error_max", f->error_max, 9, TRUE);
      g_string_append_c (json, '}');
    }
  g_string_append (json, "],\n\"recall\": [");
  for (guint i = 0; i < q->recalls->len; i++)
    {
      const Recall *r = &g_array_index (q->recalls, Recall, i);

      g_string_append_printf (json,
                              "%s{\"distance\": %u, \"mode\": \"%s\", \"items\": %u, "
                              "\"recalled\": %u, \"prompt_max\": %u",
                              i > 0 ? ",\n " : "\n ", r->distance, qe_cache_mode_name (r->mode),
                              r->n, r->n_recalled, r->n_prompt_max);
      append_number (json, "skipped_share", r->skipped, 6, TRUE);
      g_string_append_c (json, '}');
    }
  g_string_append (json, "]}");
  puts (json->str);
}

static void
print_csv (const Quality *q)
{
  puts ("what,tokens,mode,n,kl_mean,kl_max,top1_agreement,logits_error_max,recalled,skipped_share");
  for (guint i = 0; i < q->forced->len; i++)
    {
      const Forced *f = &g_array_index (q->forced, Forced, i);
      g_autoptr (GString) line = g_string_new (NULL);

      g_string_printf (line, "forced,%u,%s,%u", f->length, qe_cache_mode_name (f->mode), f->n);
      append_number (line, NULL, f->kl_mean, 9, FALSE);
      append_number (line, NULL, f->kl_max, 9, FALSE);
      append_number (line, NULL, f->agreement, 6, FALSE);
      append_number (line, NULL, f->error_max, 9, FALSE);
      g_string_append (line, ",,");
      puts (line->str);
    }
  for (guint i = 0; i < q->recalls->len; i++)
    {
      const Recall *r = &g_array_index (q->recalls, Recall, i);
      g_autoptr (GString) line = g_string_new (NULL);

      g_string_printf (line, "recall,%u,%s,%u,,,,,%u", r->distance, qe_cache_mode_name (r->mode),
                       r->n, r->n_recalled);
      append_number (line, NULL, r->skipped, 6, FALSE);
      puts (line->str);
    }
}

static void
print_text (const Quality *q)
{
  printf (
      "%s: the last %d tokens of each length put in one by one, against the exact mode session; "
      "KL in nats\n%8s  %-12s %11s %11s %9s %12s\n",
      q->info->name, q->options->positions, "tokens", "mode", "KL mean", "KL max", "same top",
      "logits error");
  for (guint i = 0; i < q->forced->len; i++)
    {
      const Forced *f = &g_array_index (q->forced, Forced, i);

      printf ("%8u  %-12s %11.3g %11.3g %8.2f%% %12.3g\n", f->length, qe_cache_mode_name (f->mode),
              f->kl_mean, f->kl_max, 100 * f->agreement, f->error_max);
    }
  if (q->recalls->len == 0)
    return;
  printf ("\nRecall of a fact so many tokens back\n%8s  %-12s %9s %14s\n", "distance", "mode",
          "recalled", "pages skipped");
  for (guint i = 0; i < q->recalls->len; i++)
    {
      const Recall *r = &g_array_index (q->recalls, Recall, i);

      printf ("%8u  %-12s %4u/%-4u", r->distance, qe_cache_mode_name (r->mode), r->n_recalled,
              r->n);
      if (isnan (r->skipped))
        printf (" %14s\n", "-");
      else
        printf (" %13.1f%%\n", 100 * r->skipped);
    }
}

/* ---- Options ---- */

/* All modes that can lie in several tiers, or those named. */
static gboolean
parse_modes (const char *text, GArray *out, GError **error)
{
  g_auto (GStrv) fields = NULL;

  if (text == NULL)
    {
      for (int mode = QE_CACHE_TIERED; mode < QE_N_CACHE_MODES; mode++)
        g_array_append_val (out, mode);
      return TRUE;
    }
  fields = g_strsplit (text, ",", -1);
  for (char **field = fields; *field != NULL; field++)
    {
      qe_cache_mode mode;
      g_autoptr (GError) local = NULL;

      if (!qe_cache_mode_parse (*field, &mode, &local) || mode == QE_CACHE_AUTO)
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--modes: expected cache modes, found “%s”", text);
          return FALSE;
        }
      g_array_append_val (out, mode);
    }
  return TRUE;
}

static gboolean
check_options (Quality *q, GError **error)
{
  const Options *o = q->options;
  CliCacheOptions cache = o->cache;

  cache.mode = (char *)"selective"; /* what every limit may be given for */
  if (o->positions < 1 || o->positions > POSITIONS_MAX)
    g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "--positions: expected 1 to %d, found “%d”",
                 POSITIONS_MAX, o->positions);
  else if (o->items < 1 || o->items > ITEMS_MAX)
    g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "--items: expected 1 to %d, found “%d”",
                 ITEMS_MAX, o->items);
  else if (o->json && o->csv)
    g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "expected one of --json and --csv, found both");
  else if (o->cache.mode != NULL)
    g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                 "--cache-mode: expected --modes, which runs several, found “%s”", o->cache.mode);
  else
    return cli_cache_options_apply (&cache, &q->cache, error)
           && parse_modes (o->modes, q->modes, error)
           && cli_bench_parse_list ("--lengths", o->lengths != NULL ? o->lengths : LENGTHS_DEFAULT,
                                    2, LENGTH_MAX, q->lengths, error)
           && (o->no_recall
               || cli_bench_parse_list ("--distances",
                                        o->distances != NULL ? o->distances : DISTANCES_DEFAULT, 1,
                                        LENGTH_MAX, q->distances, error));
  return FALSE;
}

static gboolean
measure (Quality *q, GError **error)
{
  uint32_t longest = 0;

  for (guint i = 0; i < q->lengths->len; i++)
    longest = MAX (longest, g_array_index (q->lengths, uint32_t, i));
  if (longest > q->info->context_max)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH,
                   "--lengths: expected %u at most, the model's context, found “%u”",
                   q->info->context_max, longest);
      return FALSE;
    }
  if (!read_text (q, longest, error))
    return FALSE;
  for (guint i = 0; i < q->lengths->len; i++)
    for (guint k = 0; k < q->modes->len; k++)
      if (!run_forced (q, g_array_index (q->lengths, uint32_t, i),
                       g_array_index (q->modes, qe_cache_mode, k), error))
        return FALSE;
  for (guint i = 0; i < q->distances->len; i++)
    {
      uint32_t distance = g_array_index (q->distances, uint32_t, i);

      if (!run_recall (q, distance, QE_CACHE_SESSION, error))
        return FALSE;
      for (guint k = 0; k < q->modes->len; k++)
        if (!run_recall (q, distance, g_array_index (q->modes, qe_cache_mode, k), error))
          return FALSE;
    }
  return TRUE;
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  Quality q = { .options = o };
  int status = CLI_OK;

  q.modes = g_array_new (FALSE, FALSE, sizeof (qe_cache_mode));
  q.lengths = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  q.distances = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  q.ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  q.forced = g_array_new (FALSE, FALSE, sizeof (Forced));
  q.recalls = g_array_new (FALSE, FALSE, sizeof (Recall));
  if (!check_options (&q, &error))
    status = cli_fail (CLI_USAGE, "%s", error->message);
  else if ((q.engine = cli_engine_start (&o->engine, 0, &q.info, &status)) != NULL)
    {
      q.tokenizer = qe_engine_dup_tokenizer (q.engine);
      q.exact = g_new (float, q.info->vocab);
      q.other = g_new (float, q.info->vocab);
      if (!measure (&q, &error))
        status = cli_fail (CLI_FAILED, "%s", error->message);
      else if (o->json)
        print_json (&q);
      else if (o->csv)
        print_csv (&q);
      else
        print_text (&q);
    }
  g_free (q.exact);
  g_free (q.other);
  qe_tokenizer_unref (q.tokenizer);
  qe_engine_free (q.engine);
  qe_model_info_free (q.info);
  g_array_unref (q.modes);
  g_array_unref (q.lengths);
  g_array_unref (q.distances);
  g_array_unref (q.ids);
  g_array_unref (q.forced);
  g_array_unref (q.recalls);
  return status;
}

int
cli_bench_quality (int argc, char **argv)
{
  Options o = { .positions = 64, .items = 12 };
  GOptionEntry entries[] = {
    { "modes", 0, 0, G_OPTION_ARG_STRING, &o.modes,
      "Cache modes to compare with the exact mode session (default: tiered and all after it)",
      "LIST" },
    { "lengths", 0, 0, G_OPTION_ARG_STRING, &o.lengths,
      "Tokens of the text (default: " LENGTHS_DEFAULT ")", "LIST" },
    { "positions", 0, 0, G_OPTION_ARG_INT, &o.positions,
      "Tokens at each length's end that are compared (default: 64)", "N" },
    { "text", 0, 0, G_OPTION_ARG_FILENAME, &o.text,
      "The text, “-” for stdin; added tokens in it count (default: a made-up conversation)",
      "FILE" },
    { "distances", 0, 0, G_OPTION_ARG_STRING, &o.distances,
      "Tokens between a fact and the question (default: " DISTANCES_DEFAULT ")", "LIST" },
    { "items", 0, 0, G_OPTION_ARG_INT, &o.items, "Facts at each distance (default: 12)", "N" },
    { "no-recall", 0, 0, G_OPTION_ARG_NONE, &o.no_recall, "Ask for no facts", NULL },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { "csv", 0, 0, G_OPTION_ARG_NONE, &o.csv, "Print one line a figure", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- what cache modes that are not exact cost");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse_options (context, argc, argv, "bench quality", &status))
    status = run (&o);
  g_free (o.modes);
  g_free (o.lengths);
  g_free (o.text);
  g_free (o.distances);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  return status;
}
