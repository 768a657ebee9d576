/* quire-composer.h: where the user writes: text, model, token count, context meter, and Send or Stop. */
#pragma once
#include "app/quire-context-ring.h"
#include "app/quire-conversation.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPOSER (quire_composer_get_type ())
G_DECLARE_FINAL_TYPE (QuireComposer, quire_composer, QUIRE, COMPOSER, GtkBox)

/* Signals:
 *   send (string)     the user sends; the text stays until quire_composer_clear()
 *   stop              the user stops the reply
 *   attached          the draft's files have changed
 *   refused (string)  a file cannot be attached, and why */
GtkWidget *quire_composer_new (QuireConversation *conversation);
GtkTextView *quire_composer_get_text_view (QuireComposer *self);
/* Opens the choice of cache modes. */
void quire_composer_choose_cache (QuireComposer *self);
/* What Send would send: see quire-attachment.h. Returns: owned. */
char *quire_composer_dup_text (QuireComposer *self);
void quire_composer_set_text (QuireComposer *self, const char *text);
/* Reads and checks files; each becomes a chip, or is refused. */
void quire_composer_attach (QuireComposer *self, GFile *file);
void quire_composer_attach_list (QuireComposer *self, GdkFileList *list);
void quire_composer_choose_files (QuireComposer *self);
/* (element-type QuireAttachment) Borrowed. */
GPtrArray *quire_composer_get_attachments (QuireComposer *self);
/* Shows @hint for some seconds. */
void quire_composer_show_hint (QuireComposer *self, const char *hint);
void quire_composer_clear (QuireComposer *self);
void quire_composer_grab_focus (QuireComposer *self);
/* As the Send key does. FALSE when there is nothing to send, or it cannot be sent now; then the hint says why. */
gboolean quire_composer_send (QuireComposer *self);
/* The input method holds text: keys are its own. */
gboolean quire_composer_is_composing (QuireComposer *self);
/* g_get_monotonic_time() of the key or click that sends, while it does; else 0. */
gint64 quire_composer_get_asked_us (QuireComposer *self);
/* How much of the context is used: tokens of the session, and what there can be. */
void quire_composer_set_context (QuireComposer *self, guint n_used, const QuireContextLimit *limit);
QuireContextRing *quire_composer_get_ring (QuireComposer *self);

G_END_DECLS
