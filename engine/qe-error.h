/* qe-error.h: the engine's error domain. Part of the public API through qe.h. Messages are untranslated English. */
#pragma once
#include <glib.h>
G_BEGIN_DECLS

#define QE_ERROR (qe_error_quark())

typedef enum {
    QE_ERROR_FAILED,         /* none of the below */
    QE_ERROR_FILE,           /* a file is missing, unreadable or cut */
    QE_ERROR_FORMAT,         /* a file's content breaks its format */
    QE_ERROR_UNSUPPORTED,    /* well formed, but not something this build runs */
    QE_ERROR_INVALID,        /* a bad argument or setting */
    QE_ERROR_NO_MEMORY,      /* host or device memory, or no KV pages left */
    QE_ERROR_CONTEXT_LENGTH, /* prompt longer than the context */
    QE_ERROR_BUSY,           /* a limit of qe-limits.h is reached, or the session has a running request */
    QE_ERROR_CANCELLED,
    QE_ERROR_NUMERIC, /* NaN or Inf in the logits */
    QE_ERROR_DEVICE_LOST,
    QE_ERROR_REFUSED,   /* the device refused a copy or a fill, and goes on: nothing was lost */
    QE_ERROR_NOT_FOUND, /* no such session, request or message */
} qe_error_code;

GQuark qe_error_quark(void);

G_END_DECLS
