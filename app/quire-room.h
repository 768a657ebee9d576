/* quire-room.h: what can be done when a chat's context is full, with the tokens, seconds and bytes of each. No GTK. Main
 * thread only. Nothing here acts by itself: the user chooses. */
#pragma once
#include "app/quire-aside.h"
#include "app/quire-context.h"
#include "app/quire-conversation.h"

G_BEGIN_DECLS

typedef struct
{
  QuireContextLimit limit;
  QuireContextUse use;
  GArray *
      turns; /* (element-type guint) owned: tokens of each turn that the model sees, oldest first */
  QuireContextDrop drop;
  QuireContextSummary summary;
  guint
      raise_to; /* tokens that the context could have with more memory for pages; 0: it cannot grow */
  guint64 raise_bytes; /* what that takes beside what is taken */
  guint64 free_bytes;  /* of the machine or the card; 0: not known */
  double tokens_per_s; /* how fast the last prompt was read; 0: not known */
} QuireRoom;

void quire_room_free (QuireRoom *room); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireRoom, quire_room_free)

/* @draft: what is to be sent, or "". Counts all texts on a worker thread. */
void quire_room_read_async (QuireConversation *conversation, const char *draft,
                            GCancellable *cancellable, GAsyncReadyCallback callback,
                            gpointer user_data);
/* Returns: owned; NULL with @error. */
QuireRoom *quire_room_read_finish (GAsyncResult *result, GError **error);

/* Seconds to read @n tokens; 0 when not known. */
double quire_room_seconds (const QuireRoom *room, guint n);

/* The oldest turns leave the context. FALSE when a reply runs. */
gboolean quire_room_drop (QuireConversation *conversation, const QuireRoom *room);
/* Asks for the summary on a throw-away fork. Returns: owned. */
QuireAside *quire_room_sum_up (QuireConversation *conversation, const QuireRoom *room,
                               QuireAsideFn done, gpointer user_data);
/* A chat that begins with @summary (in its system prompt, after @conversation's own) and goes on with the turns that were not
 * summed up and with @draft. @n_summary: its tokens. @messages: taken by the caller (element-type QuireStoredMessage). Returns: owned. */
QuireHistoryItem *quire_room_new_chat (QuireConversation *conversation, const QuireRoom *room,
                                       const char *summary, guint n_summary, const char *draft,
                                       GPtrArray **messages);

G_END_DECLS
