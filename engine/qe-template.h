/* qe-template.h: the Qwen3 family's chat template, as token ids. Internal; immutable after creation, any thread.
 *
 * Not a Jinja interpreter: the folder's template is recognised part by part (qe-template-form.h), and refused when it has
 * any part that this renderer is not known to reproduce. Known are the hybrid template (thinking on and off), the 2507
 * Instruct and
 * Thinking templates and the shipped model's, all of the form
 *
 *   <|im_start|>ROLE\nTEXT<|im_end|>\n ...  <|im_start|>assistant\n[<think>\n | <think>\n\n</think>\n\n]
 *
 * Control tokens are ids; all text is encoded plainly, so a message that spells a control token stays text. What lies
 * between two control tokens is encoded as one segment, which makes the ids equal to encoding the rendered text. The one
 * exception to plain text: <think> and </think> in an *assistant* message of a template that knows them are its control
 * tokens, since they are that model's own output form. The tags of tools are control tokens where the template puts them.
 *
 * A session never renders its history again. It keeps exact ids and appends:
 *
 *   turn 1   append_message(user), append_generation()          reply is generated: ids up to <|im_end|>
 *   turn 2   append_close()  -> "\n", or "<|im_end|>\n" after a cut reply
 *            when strips_reasoning and the reply has reasoning or was prompted with an empty think block:
 *                 rewind to reply.begin + n_reply_prefix, append strip_reply(ids of the reply), append_close()
 *            append_message(user), append_generation()
 *
 * which gives the ids of qe_template_render() over the whole conversation wherever the reply ended by itself. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-tokenizer.h"

G_BEGIN_DECLS

typedef struct qe_template qe_template;

/* The values of qe_role and qe_thinking in qe.h. */
typedef enum {
    QE_TEMPLATE_SYSTEM,
    QE_TEMPLATE_USER,
    QE_TEMPLATE_ASSISTANT,
    QE_TEMPLATE_TOOL
} qe_template_role;
typedef enum { QE_TEMPLATE_DEFAULT, QE_TEMPLATE_THINK, QE_TEMPLATE_NO_THINK } qe_template_thinking;

/* Reads chat_template.jinja, else "chat_template" of tokenizer_config.json in @dir. @tokenizer: a reference is taken.
 * QE_ERROR_FILE or _FORMAT: no template, or not readable; QE_ERROR_UNSUPPORTED: another family's. Returns: owned. */
qe_template *qe_template_new(
    const char *dir, qe_tokenizer *tokenizer, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void qe_template_free(qe_template *self); /* NULL is fine */

bool qe_template_has_thinking(const qe_template *self);     /* thinking on and off make a difference */
bool qe_template_forces_thinking(const qe_template *self);  /* every prompt ends inside a think block */
bool qe_template_strips_reasoning(const qe_template *self); /* replies before the last user turn lose it */
uint32_t qe_template_end_id(const qe_template *self);       /* <|im_end|> */
int64_t qe_template_eos_id(const qe_template *self);        /* tokenizer_config.json's eos_token; -1: none */
uint32_t qe_template_n_reply_prefix(const qe_template *self); /* ids of "<|im_start|>assistant\n" */

/* A whole closed message. @text may hold NUL and ill-formed bytes (they become U+FFFD). Appends to @ids (uint32_t). */
bool qe_template_append_message(const qe_template *self, qe_template_role role, const char *text,
    gsize n_bytes, GArray *ids, GError **error);
/* What stands before the reply. */
bool qe_template_append_generation(
    const qe_template *self, qe_template_thinking thinking, GArray *ids, GError **error);
/* The text of a reply that is not over, behind append_generation(): as it was generated, <think> and </think> as ids. A
 * "<think>\n" that the template has put already is not put again. */
bool qe_template_append_reply(
    const qe_template *self, const char *text, gsize n_bytes, GArray *ids, GError **error);
/* What stands between a generated reply and the next message. @ended: the reply's last id is qe_template_end_id(). */
bool qe_template_append_close(const qe_template *self, bool ended, GArray *ids, GError **error);

/* The ids of a reply (from its prefix on, its end token included when there is one) as later turns contain them.
 * Returns in *@changed whether anything was left out. Ids after the cut are kept as generated. */
bool qe_template_strip_reply(
    const qe_template *self, const uint32_t *ids, uint32_t n_ids, GArray *out, bool *changed, GError **error);

typedef struct {
    const char *name, *arguments; /* put as they are */
} qe_template_call;

typedef struct {
    qe_template_role role;
    const char *text;
    gsize n_bytes;
    /* Of an assistant message. */
    const char *reasoning; /* NULL: what the text has of it */
    const qe_template_call *calls;
    uint32_t n_calls;
} qe_template_message;

/* The whole conversation, as the Jinja template would. */
bool qe_template_render(const qe_template *self, const qe_template_message *messages, uint32_t n_messages,
    qe_template_thinking thinking, bool generation_prompt, GArray *ids, GError **error);
/* The same with tools: @tools is NULL, or NULL-terminated texts of qe_tools_spell(). Messages of tools stand in a user turn,
 * those in a row in one. The shipped model's template has no place for tools and gets Qwen3's. */
bool qe_template_render_tools(const qe_template *self, const char *const *tools,
    const qe_template_message *messages, uint32_t n_messages, qe_template_thinking thinking,
    bool generation_prompt, GArray *ids, GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_template, qe_template_free)
G_END_DECLS
