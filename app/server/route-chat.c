/* route-chat.c: /v1/chat/completions and /v1/completions.
 *
 * A job is one HTTP request. Its first choice prefills the prompt; when that is done the other choices fork its session
 * and share those pages. Nothing is written before the engine has taken the prompt, so that a prompt that does not fit is
 * still a 400; from then on a stream writes one piece at a time and takes news only when the last piece has left.
 *
 * Invariants:
 *  1. Every choice of a job that is not done is in choices[]; a job whose peer has gone abandons them all and is freed.
 *  2. A job ends once: finish_job() answers, closed_cb() does not. */
#include "app/server/server-reply.h"

#include <string.h>

#include "app/quire-receipt.h"
#include "app/quire-thinking.h"
#include "app/server/server-calls.h"

#define BUSY_WAIT_MS 1000
#define BUSY_LOOK_MS 20

typedef struct
{
  GString *text; /* the reply so far */
  gboolean split_done;
  gsize answer_at; /* once split_done: where the answer begins in text */
  gsize n_thinking_sent, n_answer_sent;
  gboolean is_open; /* the first event was written */
  gboolean is_done;
  GArray *logprobs; /* qe_token_logprobs: of all tokens so far */
  guint n_logprobs_sent;
  SrvCalls calls; /* of the answer, where the request may have some */
  qe_finish finish;
  qe_receipt receipt;
} Out;

typedef struct
{
  QuireServer *server;
  SrvExchange *x; /* NULL once the peer has gone */
  SrvRequest r;
  qe_tokenizer *tokenizer; /* owned; where log-probabilities are wanted */
  char *id, *model, *fingerprint;
  gint64 created;
  Out outs[SRV_CHOICES_MAX];
  SrvChoice *choices[SRV_CHOICES_MAX];
  guint n_done;
  gboolean is_started, is_forked, has_begun, is_encoding;
  guint keepalive;
  guint busy;         /* looks again whether the session is free */
  gint64 busy_end_us; /* and no longer than until then */
  SrvError failure;
  guint32 progress_done;
  gint64 progress_before;
} Job;

static void
job_free (Job *job)
{
  g_clear_handle_id (&job->keepalive, g_source_remove);
  g_clear_handle_id (&job->busy, g_source_remove);
  for (guint i = 0; i < SRV_CHOICES_MAX; i++)
    {
      if (job->outs[i].text != NULL)
        g_string_free (job->outs[i].text, TRUE);
      g_clear_pointer (&job->outs[i].logprobs, g_array_unref);
      srv_calls_clear (&job->outs[i].calls);
    }
  g_clear_pointer (&job->tokenizer, qe_tokenizer_unref);
  srv_request_clear (&job->r);
  srv_error_clear (&job->failure);
  g_free (job->id);
  g_free (job->model);
  g_free (job->fingerprint);
  g_free (job);
}

static gboolean
is_chat (const Job *job)
{
  return job->r.endpoint == SRV_CHAT;
}

/* ---- JSON of answers ---- */

static void
add_head (const Job *job, GString *out)
{
  const char *object = !is_chat (job)  ? "text_completion"
                       : job->r.stream ? "chat.completion.chunk"
                                       : "chat.completion";

  g_string_append_printf (out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" G_GINT64_FORMAT ",",
                          job->id, object, job->created);
  srv_json_add_member (out, "model", job->model);
  g_string_append_c (out, ',');
  srv_json_add_member (out, "system_fingerprint", job->fingerprint);
}

static void
add_usage (const Job *job, GString *out)
{
  guint64 generated = 0;
  const qe_receipt *first = &job->outs[0].receipt;

  for (guint i = 0; i < job->r.n; i++)
    generated += job->outs[i].receipt.n_generated;
  g_string_append (out, "\"usage\":");
  quire_receipt_add_usage (out, first->n_prompt, generated, first->n_reused);
}

/* What the engine measured, and where the prompt's tokens came from. */
static void
add_receipt (GString *out, const qe_receipt *r)
{
  g_string_append (out, "\"timings\":");
  quire_receipt_add_timings (out, r);
  g_string_append (out, ",\"cache\":");
  quire_receipt_add_cache (out, r);
  g_string_append_printf (out, ",\"seed\":%" G_GUINT64_FORMAT, r->seed);
}

/* Bytes at the end of an open thought that may be the beginning of its closing tag. */
static gsize
held_back (const char *text, gsize n)
{
  static const char tag[] = "</think>";

  for (gsize k = MIN (n, sizeof tag - 2); k > 0; k--)
    if (memcmp (text + n - k, tag, k) == 0)
      return k;
  return 0;
}

/* The parts of a reply as they are known by now: a prefix of each final part, and longer with each call. */
static QuireThinking
split (Out *out, gboolean is_last)
{
  QuireThinking parts;
  gsize blank = 0;

  if (out->split_done)
    {
      parts = (QuireThinking){ .answer = out->text->str + out->answer_at,
                               .n_answer = out->text->len - out->answer_at };
      return parts;
    }
  parts = quire_thinking_split (out->text->str, out->text->len);
  while (blank < out->text->len && g_ascii_isspace (out->text->str[blank]))
    blank++;
  if (is_last)
    return parts;
  if (blank == out->text->len) /* a thought may follow, or not */
    parts.n_answer = 0;
  else if (parts.open)
    parts.n_thinking -= held_back (parts.thinking, parts.n_thinking);
  else if (parts.n_answer > 0)
    {
      out->split_done = parts.n_thinking == out->n_thinking_sent;
      out->answer_at = (gsize)(parts.answer - out->text->str);
    }
  return parts;
}

static void
add_token (const Job *job, guint32 id, float logprob, GString *out)
{
  gsize n = 0;
  const char *bytes = qe_tokenizer_token_bytes (job->tokenizer, id, &n);

  g_string_append (out, "\"token\":");
  srv_json_add_string (out, bytes != NULL ? bytes : "", (gssize)n);
  g_string_append (out, ",\"logprob\":");
  srv_json_add_number (out, logprob);
  g_string_append (out, ",\"bytes\":[");
  for (gsize i = 0; i < n; i++)
    g_string_append_printf (out, "%s%u", i > 0 ? "," : "", (guchar)bytes[i]);
  g_string_append_c (out, ']');
}

/* The log-probabilities of the tokens from @first on. A chat's have the form of OpenAI's chat; a completion's, too, since the
 * old form cannot hold tokens that are parts of characters. */
static void
add_logprobs (const Job *job, const Out *o, guint first, GString *out)
{
  g_string_append (out, ",\"logprobs\":");
  if (!job->r.logprobs)
    {
      g_string_append (out, "null");
      return;
    }
  g_string_append (out, "{\"content\":[");
  for (guint i = first; i < o->logprobs->len; i++)
    {
      const qe_token_logprobs *t = &g_array_index (o->logprobs, qe_token_logprobs, i);

      g_string_append (out, i > first ? ",{" : "{");
      add_token (job, t->id, t->logprob, out);
      g_string_append (out, ",\"top_logprobs\":[");
      for (guint k = 0; k < t->n_top; k++)
        {
          g_string_append (out, k > 0 ? ",{" : "{");
          add_token (job, t->top[k].id, t->top[k].logprob, out);
          g_string_append_c (out, '}');
        }
      g_string_append (out, "]}");
    }
  g_string_append (out, "],\"refusal\":null}");
}

static void
add_finish (GString *out, const Out *o)
{
  const char *reason
      = o->finish == QE_FINISH_STOP && o->calls.calls != NULL && srv_calls_are_whole (&o->calls)
            ? "tool_calls"
            : qe_finish_name (o->finish);

  if (o->is_done)
    g_string_append_printf (out, ",\"finish_reason\":\"%s\"}", reason);
  else
    g_string_append (out, ",\"finish_reason\":null}");
}

/* Looks for calls in the answer; what is left of it is what stands before them. */
static void
find_calls (const Job *job, Out *o, QuireThinking *parts)
{
  if (!srv_request_may_call (&job->r))
    return;
  srv_calls_feed (&o->calls, parts->answer, parts->n_answer, o->is_done);
  parts->n_answer = o->calls.n_content;
}

/* All but the opening brace. */
static void
add_call (GString *out, const SrvCall *call, const char *arguments, gsize n)
{
  srv_json_add_member (out, "id", call->id);
  g_string_append (out, ",\"type\":\"function\",\"function\":{");
  srv_json_add_member (out, "name", call->name);
  g_string_append (out, ",\"arguments\":");
  srv_json_add_string (out, arguments, (gssize)n);
  g_string_append (out, "}}");
}

static void
add_message (Job *job, Out *o, GString *out)
{
  QuireThinking parts = split (o, TRUE);
  const char *answer = parts.answer;
  guint n_calls;

  find_calls (job, o, &parts);
  n_calls = o->calls.calls != NULL ? o->calls.calls->len : 0;
  g_string_append (out, "\"message\":{\"role\":\"assistant\",\"content\":");
  if (n_calls > 0 && parts.n_answer == 0)
    g_string_append (out, "null");
  else
    srv_json_add_string (out, parts.answer, (gssize)parts.n_answer);
  if (parts.n_thinking > 0)
    {
      g_string_append (out, ",\"reasoning_content\":");
      srv_json_add_string (out, parts.thinking, (gssize)parts.n_thinking);
    }
  for (guint i = 0; i < n_calls; i++)
    {
      const SrvCall *call = &g_array_index (o->calls.calls, SrvCall, i);

      g_string_append (out, i > 0 ? ",{" : ",\"tool_calls\":[{");
      add_call (out, call, answer + call->begin, call->end - call->begin);
    }
  g_string_append (out, n_calls > 0 ? "],\"refusal\":null}" : ",\"refusal\":null}");
}

static GString *
whole_answer (Job *job)
{
  GString *out = g_string_new (NULL);

  add_head (job, out);
  g_string_append (out, ",\"choices\":[");
  for (guint i = 0; i < job->r.n; i++)
    {
      Out *o = &job->outs[i];

      g_string_append_printf (out, "%s{\"index\":%u,", i > 0 ? "," : "", i);
      if (is_chat (job))
        add_message (job, o, out);
      else
        {
          g_string_append (out, "\"text\":");
          srv_json_add_string (out, o->text->str, (gssize)o->text->len);
        }
      add_logprobs (job, o, 0, out);
      add_finish (out, o);
    }
  g_string_append (out, "],");
  add_usage (job, out);
  g_string_append_c (out, ',');
  add_receipt (out, &job->outs[0].receipt);
  if (job->r.session != NULL)
    {
      g_string_append_c (out, ',');
      srv_json_add_member (out, "session_id", job->r.session);
    }
  g_string_append_c (out, '}');
  return out;
}

/* ---- Events ---- */

static void
begin_event (const Job *job, GString *out)
{
  g_string_append (out, "data: ");
  add_head (job, out);
}

static void
end_event (const Job *job, GString *out)
{
  if (job->r.include_usage)
    g_string_append (out, ",\"usage\":null");
  g_string_append (out, "}\n\n");
}

static void
begin_choice (Job *job, guint i, GString *out)
{
  begin_event (job, out);
  g_string_append_printf (out, ",\"choices\":[{\"index\":%u,", i);
}

static void
end_choice (Job *job, guint i, GString *out)
{
  Out *o = &job->outs[i];

  add_logprobs (job, o, o->n_logprobs_sent, out);
  o->n_logprobs_sent = o->logprobs->len;
  g_string_append (out, ",\"finish_reason\":null}]");
  end_event (job, out);
}

/* @member: of the delta; NULL: an empty delta. */
static void
add_delta (Job *job, guint i, const char *member, const char *text, gsize n, GString *out)
{
  Out *o = &job->outs[i];

  begin_choice (job, i, out);
  if (is_chat (job))
    {
      g_string_append_printf (out, "\"delta\":{%s", o->is_open ? "" : "\"role\":\"assistant\"");
      if (member != NULL)
        {
          g_string_append_printf (out, "%s\"%s\":", o->is_open ? "" : ",", member);
          srv_json_add_string (out, text, (gssize)n);
        }
      g_string_append_c (out, '}');
    }
  else
    {
      g_string_append (out, "\"text\":");
      srv_json_add_string (out, text, (gssize)n);
    }
  end_choice (job, i, out);
}

/* What is new of the calls: first id and name, then pieces of the arguments. */
static void
add_call_deltas (Job *job, guint i, const char *answer, GString *out)
{
  Out *o = &job->outs[i];

  for (guint k = 0; o->calls.calls != NULL && k < o->calls.calls->len; k++)
    {
      SrvCall *call = &g_array_index (o->calls.calls, SrvCall, k);
      gsize n = call->end - call->begin;

      if (!call->was_opened)
        {
          begin_choice (job, i, out);
          g_string_append_printf (out, "\"delta\":{\"tool_calls\":[{\"index\":%u,", k);
          add_call (out, call, "", 0);
          g_string_append (out, "]}");
          end_choice (job, i, out);
          call->was_opened = TRUE;
        }
      if (n > call->n_sent)
        {
          begin_choice (job, i, out);
          g_string_append_printf (
              out, "\"delta\":{\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", k);
          srv_json_add_string (out, answer + call->begin + call->n_sent,
                               (gssize)(n - call->n_sent));
          g_string_append (out, "}}]}");
          end_choice (job, i, out);
          call->n_sent = n;
        }
    }
}

static void
add_last_delta (Job *job, guint i, GString *out)
{
  const Out *o = &job->outs[i];

  begin_event (job, out);
  g_string_append_printf (out, ",\"choices\":[{\"index\":%u,%s", i,
                          is_chat (job) ? "\"delta\":{}" : "\"text\":\"\"");
  add_logprobs (job, o, o->n_logprobs_sent, out);
  add_finish (out, o);
  g_string_append (out, "],");
  add_receipt (out, &o->receipt);
  end_event (job, out);
}

static void
add_news (Job *job, guint i, GString *out)
{
  Out *o = &job->outs[i];

  if (is_chat (job))
    {
      QuireThinking parts = split (o, o->is_done);
      const char *answer = parts.answer;

      find_calls (job, o, &parts);
      if (!o->is_open)
        add_delta (job, i, "content", "", 0, out);
      o->is_open = TRUE;
      if (!o->split_done && parts.n_thinking > o->n_thinking_sent)
        {
          add_delta (job, i, "reasoning_content", parts.thinking + o->n_thinking_sent,
                     parts.n_thinking - o->n_thinking_sent, out);
          o->n_thinking_sent = parts.n_thinking;
        }
      if (parts.n_answer > o->n_answer_sent)
        {
          add_delta (job, i, "content", parts.answer + o->n_answer_sent,
                     parts.n_answer - o->n_answer_sent, out);
          o->n_answer_sent = parts.n_answer;
        }
      add_call_deltas (job, i, answer, out);
    }
  else if (o->text->len > o->n_answer_sent)
    {
      add_delta (job, i, NULL, o->text->str + o->n_answer_sent, o->text->len - o->n_answer_sent,
                 out);
      o->n_answer_sent = o->text->len;
    }
  if (o->is_done)
    add_last_delta (job, i, out);
}

/* How far the prompt is; the form is llama.cpp's. */
static void
add_progress (Job *job, const qe_update *u, GString *out)
{
  gint64 before = u->state == QE_REQUEST_QUEUED ? (gint64)u->n_before : 0;

  if (u->state > QE_REQUEST_PREFILL
      || (job->progress_before == before && job->progress_done == u->n_prompt_done))
    return;
  job->progress_before = before;
  job->progress_done = u->n_prompt_done;
  begin_event (job, out);
  g_string_append_printf (out,
                          ",\"choices\":[],\"prompt_progress\":{\"queued_before\":%" G_GINT64_FORMAT
                          ",\"total\":%u,\"cache\":%u,\"processed\":%u}",
                          before, u->n_prompt, u->receipt.n_reused, u->n_prompt_done);
  end_event (job, out);
}

static void
add_end (const Job *job, GString *out)
{
  if (job->r.include_usage)
    {
      begin_event (job, out);
      g_string_append (out, ",\"choices\":[],");
      add_usage (job, out);
      g_string_append (out, "}\n\n");
    }
  g_string_append (out, "data: [DONE]\n\n");
}

/* ---- The course of a job ---- */

static gboolean
keepalive_cb (gpointer user)
{
  Job *job = user;

  if (srv_exchange_is_drained (job->x))
    srv_exchange_write (job->x, g_string_new (": still here\n\n"));
  return G_SOURCE_CONTINUE;
}

static void
hold_all (Job *job, gboolean hold)
{
  for (guint i = 0; i < job->r.n; i++)
    if (job->choices[i] != NULL)
      srv_choice_hold (job->choices[i], hold);
}

static void
drained_cb (SrvExchange *x, gpointer user)
{
  hold_all (user, FALSE);
}

/* The peer has gone. */
static void
closed_cb (SrvExchange *x, gpointer user)
{
  Job *job = user;

  job->x = NULL;
  for (guint i = 0; i < job->r.n; i++)
    if (job->choices[i] != NULL)
      srv_choice_abandon (job->choices[i]);
  if (!job->is_encoding)
    job_free (job);
}

static void
write_events (Job *job, GString *events)
{
  if (!job->has_begun)
    {
      srv_exchange_begin_events (job->x);
      job->has_begun = TRUE;
      job->keepalive = g_timeout_add_seconds (SRV_KEEPALIVE_SECONDS, keepalive_cb, job);
    }
  if (events->len > 0)
    hold_all (job, TRUE);
  srv_exchange_write (job->x, events);
}

/* All choices are done, or one has failed. Frees @job. */
static void
finish_job (Job *job)
{
  SrvExchange *x = job->x;

  if (job->failure.status != 0)
    {
      for (guint i = 0; i < job->r.n; i++)
        if (job->choices[i] != NULL)
          srv_choice_abandon (g_steal_pointer (&job->choices[i]));
      if (job->has_begun)
        {
          GString *event = g_string_new ("data: ");

          srv_error_write (&job->failure, event);
          g_string_append (event, "\n\n");
          write_events (job, event);
          srv_exchange_end (x);
        }
      else
        srv_exchange_refuse (x, &job->failure);
    }
  else if (job->r.stream)
    {
      GString *events = g_string_new (NULL);

      add_end (job, events);
      write_events (job, events);
      srv_exchange_end (x);
    }
  else
    srv_exchange_answer (x, 200, "application/json", whole_answer (job));
  job_free (job);
}

static gboolean start_choice (Job *job, guint i, qe_session_id session, const char *named);

/* The prompt is computed: the other choices begin from its pages. */
static void
fork_choices (Job *job, qe_session_id parent)
{
  job->is_forked = TRUE;
  for (guint i = 1; i < job->r.n; i++)
    {
      g_autoptr (GError) cause = NULL;
      qe_session_id session
          = qe_engine_fork_session (job->server->engine, parent, QE_KEEP_PROMPT, &cause);

      if (session == 0)
        {
          srv_error_from_engine (&job->failure, cause);
          return;
        }
      if (!start_choice (job, i, session, NULL))
        return;
    }
}

static guint
index_of (Job *job, SrvChoice *choice)
{
  for (guint i = 0; i < job->r.n; i++)
    if (job->choices[i] == choice)
      return i;
  g_assert_not_reached ();
}

static void
note_end (Job *job, guint i, const qe_update *u)
{
  Out *o = &job->outs[i];

  job->choices[i] = NULL;
  if (u->finish == QE_FINISH_ERROR)
    srv_error_from_engine (&job->failure, u->error);
  else if (u->finish == QE_FINISH_CANCELLED) /* not by us: the model or the server goes */
    srv_error_set (&job->failure, 503, "cancelled", NULL,
                   "The request was cancelled: the model was unloaded or the server stops");
  if (job->failure.status == 400 && !is_chat (job))
    {
      g_free (job->failure.param);
      job->failure.param = g_strdup ("prompt");
    }
  o->is_done = TRUE;
  o->finish = u->finish;
  job->n_done++;
}

static void
news_cb (SrvChoice *choice, const qe_update *u, gpointer user)
{
  Job *job = user;
  guint i = index_of (job, choice);
  GString *events;

  g_string_append_len (job->outs[i].text, u->text, (gssize)u->n_text);
  if (u->logprobs != NULL)
    g_array_append_vals (job->outs[i].logprobs, u->logprobs, u->n_ids);
  job->outs[i].receipt = u->receipt;
  if (u->state == QE_REQUEST_DONE && job->failure.status == 0)
    note_end (job, i, u);
  else if (u->state == QE_REQUEST_DONE)
    job->choices[i] = NULL;
  if (job->failure.status == 0 && !job->is_forked && u->state >= QE_REQUEST_DECODE)
    fork_choices (job, srv_choice_get_session (choice));
  if (job->failure.status == 0 && job->r.stream)
    {
      events = g_string_new (NULL);
      if (i == 0 && job->r.progress)
        add_progress (job, u, events);
      if (u->state >= QE_REQUEST_DECODE)
        add_news (job, i, events);
      write_events (job, events);
    }
  if (job->failure.status != 0 || job->n_done == job->r.n)
    finish_job (job);
}

/* FALSE with job->failure. */
static gboolean
start_choice (Job *job, guint i, qe_session_id session, const char *named)
{
  qe_generate_params params;

  qe_generate_params_init (&params, NULL);
  params.session = session;
  params.sampling = job->r.sampling;
  params.sampling.seed += i;
  params.thinking = job->r.thinking;
  params.max_tokens = job->r.max_tokens;
  params.stop = (const char *const *)job->r.stop->pdata;
  params.logit_bias = (const qe_logit_bias *)(gpointer)job->r.logit_bias->data;
  params.n_logit_bias = job->r.logit_bias->len;
  params.logprobs = job->r.logprobs;
  params.n_top_logprobs = job->r.n_top_logprobs;
  params.constraint = job->r.constraint;
  params.no_reuse = !job->r.use_cache && i == 0;
  if (is_chat (job))
    {
      params.messages = (const qe_message *)(gpointer)job->r.messages->data;
      params.n_messages = job->r.messages->len;
      params.whole_history = true;
      params.tools = job->r.tools;
      params.n_tools_bytes = -1;
    }
  else
    {
      params.ids = (const uint32_t *)(gpointer)job->r.ids->data;
      params.n_ids = job->r.ids->len;
    }
  job->choices[i] = srv_choice_start (job->server, &params, named, i == 0 && job->r.use_cache,
                                      news_cb, job, &job->failure);
  return job->choices[i] != NULL;
}

/* The session of the request: the named one, made when there is none, or one of its own. 0 with job->failure. */
static qe_session_id
find_session (Job *job)
{
  QuireServer *self = job->server;
  g_autoptr (GError) cause = NULL;
  SrvSession *session = job->r.session != NULL ? srv_session_find (self, job->r.session) : NULL;
  qe_session_options options = { .cache = session != NULL ? session->cache : self->options.cache };
  qe_session_id id;

  if (job->r.has_mode)
    options.cache.mode = job->r.mode;
  options.cache.use_cache = self->options.cache.use_cache && job->r.use_cache;
  if (session != NULL && session->n_running > 0)
    {
      srv_error_set (&job->failure, 409, "session_busy", "session_id",
                     "The session has a request that is running");
      return 0;
    }
  if (job->r.session != NULL && session == NULL)
    {
      session = srv_session_add (self, job->r.session, &options.cache, 0, &job->failure);
      return session != NULL ? session->id : 0;
    }
  if (session != NULL)
    {
      if (session->cache.mode != options.cache.mode
          || session->cache.use_cache != options.cache.use_cache)
        {
          if (!qe_engine_set_cache (self->engine, session->id, &options.cache, &cause))
            {
              srv_error_from_engine (&job->failure, cause);
              return 0;
            }
          session->cache = options.cache;
        }
      return session->id;
    }
  id = srv_session_open (self, &options, &cause);
  if (id == 0)
    srv_error_from_engine (&job->failure, cause);
  return id;
}

static void start_job (Job *job);

static gboolean
busy_cb (gpointer user)
{
  Job *job = user;

  job->busy = 0;
  start_job (job);
  return G_SOURCE_REMOVE;
}

/* A reply whose reader has gone ends a moment later: whoever stops one and asks again at once need not know. */
static gboolean
waits_for_session (Job *job)
{
  const SrvSession *session
      = job->r.session != NULL ? srv_session_find (job->server, job->r.session) : NULL;
  gint64 now = g_get_monotonic_time ();

  if (session == NULL || session->n_running == 0)
    return FALSE;
  if (job->busy_end_us == 0)
    job->busy_end_us = now + BUSY_WAIT_MS * 1000;
  if (now >= job->busy_end_us)
    return FALSE;
  job->busy = g_timeout_add (BUSY_LOOK_MS, busy_cb, job);
  return TRUE;
}

/* Everything is known: the engine gets its request. May end the job. */
static void
start_job (Job *job)
{
  qe_session_id session = 0;

  if (waits_for_session (job))
    return;
  if (job->server->engine == NULL)
    srv_error_no_model (&job->failure);
  else if (srv_n_choices () + job->r.n > job->server->options.n_requests_max)
    srv_error_set (&job->failure, 429, "queue_full", NULL,
                   "%u requests compute or wait already, at most %u can", srv_n_choices (),
                   job->server->options.n_requests_max);
  else
    session = find_session (job);
  if (session == 0 || !start_choice (job, 0, session, job->r.session))
    finish_job (job);
}

/* ---- Text to ids, on a worker thread: a long prompt takes a while ---- */

static void
encode_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  Job *job = data;
  g_autoptr (GError) error = NULL;
  GArray *ids = g_array_new (FALSE, FALSE, sizeof (guint32));
  qe_tokenizer *tokenizer = g_object_get_data (G_OBJECT (task), "tokenizer");

  if (!qe_tokenizer_encode (tokenizer, job->r.prompt, job->r.n_prompt, QE_ENCODE_ADDED_TOKENS, ids,
                            &error))
    g_array_set_size (ids, 0);
  g_task_return_pointer (task, ids, (GDestroyNotify)g_array_unref);
}

static void
encoded_cb (GObject *source, GAsyncResult *result, gpointer user)
{
  Job *job = user;

  job->is_encoding = FALSE;
  job->r.ids = g_task_propagate_pointer (G_TASK (result), NULL);
  if (job->x == NULL) /* the peer has gone in the meantime */
    {
      job_free (job);
      return;
    }
  if (job->r.ids->len == 0)
    {
      srv_error_set (&job->failure, 400, "invalid_value", "prompt", "prompt: has no tokens");
      finish_job (job);
      return;
    }
  start_job (job);
}

static void
encode (Job *job)
{
  qe_tokenizer *tokenizer
      = job->server->engine != NULL ? qe_engine_dup_tokenizer (job->server->engine) : NULL;
  g_autoptr (GTask) task = NULL;

  if (tokenizer == NULL)
    {
      srv_error_no_model (&job->failure);
      finish_job (job);
      return;
    }
  job->is_encoding = TRUE;
  task = g_task_new (NULL, NULL, encoded_cb, job);
  g_object_set_data_full (G_OBJECT (task), "tokenizer", tokenizer,
                          (GDestroyNotify)qe_tokenizer_unref);
  g_task_set_task_data (task, job, NULL);
  g_task_run_in_thread (task, encode_thread);
}

/* ---- The routes ---- */

static char *
new_id (SrvEndpoint endpoint)
{
  return g_strdup_printf ("%s-%08x%08x%08x", endpoint == SRV_CHAT ? "chatcmpl" : "cmpl",
                          g_random_int (), g_random_int (), g_random_int ());
}

static gboolean
check_model (const SrvRequest *r, const qe_engine_status *status, SrvError *error)
{
  g_autofree char *id = srv_dup_model_id (status);

  if (id == NULL || status->state != QE_ENGINE_READY)
    return srv_error_for_state (error, status->state);
  if (r->model == NULL || strcmp (r->model, id) == 0 || strcmp (r->model, status->model->name) == 0)
    return TRUE;
  return srv_error_set (error, 404, "model_not_found", "model",
                        "The model that answers here is “%s”", id);
}

static void
route (QuireServer *self, SoupServerMessage *msg, SrvEndpoint endpoint)
{
  g_autoptr (GBytes) body = soup_message_body_flatten (soup_server_message_get_request_body (msg));
  qe_engine_status status;
  SrvError error = { 0 };
  Job *job = g_new0 (Job, 1);
  gsize n;
  const char *text = g_bytes_get_data (body, &n);

  srv_get_status (self, &status);
  /* Who asks wants the model: it comes back as it does for a message that is typed. */
  if (status.state == QE_ENGINE_RELEASED && self->engine != NULL)
    qe_engine_recover (self->engine);
  if (!srv_request_parse (endpoint, text != NULL ? text : "", n, status.model, &job->r, &error)
      || !check_model (&job->r, &status, &error))
    {
      qe_engine_status_clear (&status);
      job_free (job);
      srv_refuse (msg, &error);
      return;
    }
  job->server = self;
  job->id = new_id (endpoint);
  job->model = srv_dup_model_id (&status);
  job->fingerprint = g_strdup_printf ("quire-%s-%s", qe_version (), status.backend);
  job->created = g_get_real_time () / G_USEC_PER_SEC;
  job->progress_before = -1;
  qe_engine_status_clear (&status);
  if (!job->r.sampling.has_seed)
    {
      /* Of 53 bits, so that every client can read it from the answer and send it again. */
      job->r.sampling.seed
          = ((guint64)g_random_int () << 21 | g_random_int () >> 11) & ((1ull << 53) - 1);
      job->r.sampling.has_seed = true;
    }
  for (guint i = 0; i < job->r.n; i++)
    {
      job->outs[i].text = g_string_new (NULL);
      if (srv_request_may_call (&job->r))
        srv_calls_init (&job->outs[i].calls);
      job->outs[i].logprobs = g_array_new (FALSE, FALSE, sizeof (qe_token_logprobs));
    }
  if (job->r.logprobs)
    job->tokenizer
        = qe_engine_dup_tokenizer (self->engine); /* there is a model: its id was checked */
  job->is_forked = job->r.n == 1;
  job->x = srv_exchange_new (self, msg);
  srv_exchange_set_funcs (job->x, closed_cb, drained_cb, job);
  if (endpoint == SRV_COMPLETION && job->r.ids == NULL)
    encode (job);
  else
    start_job (job);
}

void
srv_route_chat (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  route (self, msg, SRV_CHAT);
}

void
srv_route_completion (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  route (self, msg, SRV_COMPLETION);
}
