/* quire-tree.h: the messages of a conversation as a tree, and the branch of it that is shown. No GTK. */
#pragma once
#include "app/quire-message.h"

G_BEGIN_DECLS

typedef struct _QuireTree QuireTree;

QuireTree *quire_tree_new (void);
void quire_tree_free (QuireTree *tree);
/* (element-type QuireMessage) Borrowed: all, by number; and the branch, from the first message to its last. */
GPtrArray *quire_tree_get_nodes (QuireTree *tree);
GPtrArray *quire_tree_get_path (QuireTree *tree);
guint quire_tree_next_seq (QuireTree *tree);

/* Adds @message (a reference is taken), whose place is set and whose number is the highest. */
void quire_tree_add (QuireTree *tree, QuireMessage *message);
/* As above, and at the end of the branch, whose last message is its parent. */
void quire_tree_push (QuireTree *tree, QuireMessage *message);
/* The branch ends before index @n; nothing is lost. */
void quire_tree_cut (QuireTree *tree, guint n);
/* @message takes the place of @old. */
void quire_tree_replace (QuireTree *tree, QuireMessage *old, QuireMessage *message);
/* The branch that ends with the message of number @leaf; the newest where there is none such. */
void quire_tree_set_leaf (QuireTree *tree, guint leaf);
/* The version of @message @by further and, after it, its newest followers. FALSE when there is none. @at: the index from
 * which on the branch is another one. */
gboolean quire_tree_flip (QuireTree *tree, QuireMessage *message, int by, guint *at);

G_END_DECLS
