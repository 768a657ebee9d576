/* qe-sampler.h: sampling parameters: defaults, checks, and their form for kernels. Internal. The drawing itself is the
 * backend's (kernels/qk.h, qk_sampling). Pure functions. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

/* @params passed qe_sampling_params_check(). Draws a seed when there is none. The position is set for each token. */
void qe_sampler_to_kernel(const qe_sampling_params *params, qk_sampling *out);

G_END_DECLS
