/* server-request.h: the bodies of POST requests, checked. No GTK; any thread.
 *
 * The rule for members: each is in the table of its endpoint, or the request is refused (400, unknown_parameter). Members
 * of OpenAI's API that change no answer (user, metadata, store, ...) are accepted and do nothing. Members that would
 * change the answer and are not offered are refused (unsupported_parameter) unless they have the value that changes
 * nothing. null is the same as leaving a member out. So nothing that the caller asked for is dropped in silence. */
#pragma once
#include "app/server/server-error.h"
#include "app/server/server-json.h"
#include "engine/qe.h"

G_BEGIN_DECLS

#define SRV_STOP_MAX 4u
#define SRV_LOGIT_BIAS_MAX 1024u
#define SRV_CHOICES_MAX 16u
#define SRV_SESSION_NAME_MAX 64u

typedef enum
{
  SRV_CHAT,
  SRV_COMPLETION,
  SRV_N_ENDPOINTS
} SrvEndpoint;

typedef enum
{
  SRV_TOOLS_AUTO,
  SRV_TOOLS_NONE,
  SRV_TOOLS_REQUIRED
} SrvToolChoice;

typedef struct
{
  SrvEndpoint endpoint;
  /* The prompt: messages (chat), or text or ids (completion). */
  GArray *messages; /* qe_message; what it points to belongs to texts */
  GPtrArray *texts;
  char *prompt;
  gsize n_prompt;
  GArray *ids; /* uint32_t */

  char *model;   /* NULL: not named */
  char *session; /* session_id; NULL: none */
  qe_sampling_params sampling;
  qe_thinking thinking;
  guint32 max_tokens; /* 0: until the context is full */
  GPtrArray *stop;    /* char *, NULL behind them */
  GArray *logit_bias; /* qe_logit_bias */
  gboolean logprobs;
  guint n_top_logprobs;
  qe_constraint *constraint; /* of response_format or the tools; NULL: none */
  char *tools;               /* the array's JSON; NULL: none */
  SrvToolChoice tool_choice;
  char *tool_name; /* with SRV_TOOLS_REQUIRED: of this one; NULL: of any */
  gboolean parallel_tool_calls;
  gboolean formats; /* response_format demands JSON */
  char *schema;     /* of this schema; NULL: any object */
  guint n;
  gboolean stream, include_usage, progress;
  gboolean use_cache;
  qe_cache_mode mode;
  gboolean has_mode;
} SrvRequest;

/* @info: the model's defaults; NULL: the neutral ones. FALSE with @error. @out is cleared by srv_request_clear() in either
 * case. */
gboolean srv_request_parse (SrvEndpoint endpoint, const char *body, gsize n,
                            const qe_model_info *info, SrvRequest *out, SrvError *error);
void srv_request_clear (SrvRequest *request);
/* Whether calls are looked for in the reply. */
gboolean srv_request_may_call (const SrvRequest *request);

/* The members that srv_request_parse() takes at @endpoint. NULL behind the last. Returns: owned array of static strings. */
const char **srv_request_members (SrvEndpoint endpoint);

/* A name that a session may have: 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot. */
gboolean srv_session_name_is_valid (const char *name);

/* Reads the body as an object, which is what every POST has. NULL with @error. */
SrvJson *srv_request_read_object (const char *body, gsize n, SrvError *error);

G_END_DECLS
