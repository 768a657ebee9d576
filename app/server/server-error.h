/* server-error.h: why a request was refused, in the shape of OpenAI's API. No GTK; any thread. */
#pragma once
#include <glib.h>
#include "engine/qe.h"

G_BEGIN_DECLS

typedef struct
{
  guint status;     /* HTTP; 0: no error */
  char *message;    /* owned; a sentence for the caller, never a path of this machine's disk */
  char *param;      /* owned; the member at fault, or NULL */
  const char *code; /* static; or NULL */
} SrvError;

void srv_error_clear (SrvError *error);
/* Sets @error, which is clear. Returns FALSE. @param, @code: NULL is fine. */
gboolean srv_error_set (SrvError *error, guint status, const char *code, const char *param,
                        const char *format, ...) G_GNUC_PRINTF (5, 6);
gboolean srv_error_no_model (SrvError *error); /* 503: there is nothing to answer with. FALSE */
/* 503: why not, by the engine's state. FALSE */
gboolean srv_error_for_state (SrvError *error, qe_engine_state state);
/* As the engine said it, with the status that its code stands for. What might name a file is said in general. */
gboolean srv_error_from_engine (SrvError *error, const GError *cause);
/* {"error":{"message","type","param","code"}} */
void srv_error_write (const SrvError *error, GString *out);
/* "invalid_request_error", ...: follows from the status. */
const char *srv_error_type (guint status);

G_END_DECLS
