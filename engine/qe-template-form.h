/* qe-template-form.h: which chat template of the Qwen3 family a Jinja source is. Internal; any thread (no shared state). */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe-error.h"
G_BEGIN_DECLS

/* What differs between the known templates. */
typedef struct {
    bool thinking_switch; /* enable_thinking = false puts an empty think block before the reply */
    bool thinking_forced; /* "<think>\n" before every reply */
    bool strips;          /* replies before the last user turn lose their reasoning */
    bool
        rebuilds_think; /* replies after it get their think block rebuilt, the very last one even an empty one */
    bool tool_responses; /* user turns that are tool responses do not count as the last user turn */
} qe_template_form;

/* Finds out the form, or refuses with QE_ERROR_UNSUPPORTED: a source is accepted only when every part of it is known, so
 * what it renders is known too. Spaces between tags that render nothing, and comments, may differ. @file: for messages. */
bool qe_template_recognise(const char *file, const char *source, qe_template_form *form, GError **error);

G_END_DECLS
