/* qe-error.c: registers the engine's error domain. */
#include "engine/qe-error.h"

G_DEFINE_QUARK(qe-error-quark, qe_error)
