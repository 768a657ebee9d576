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

/* The sorted list of kernels, owned by the caller; NULL when @n is 0. QE_ERROR_INVALID for too many, an id twice or a value
 * out of range. */
bool qe_sampler_bias_to_kernel(const qe_logit_bias *bias, uint32_t n, qk_bias **out, GError **error);

G_END_DECLS
