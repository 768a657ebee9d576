/* qe-error.c: registers the engine's error domain. */
#include "engine/qe-error.h"

GQuark qe_error_quark(void)
{
    return g_quark_from_static_string("qe-error-quark");
}
