/* quire-tree.c: see quire-tree.h.
 *
 * Invariants: nodes are in the order of their numbers; a parent's number is smaller than its children's; each message of
 * the branch is the parent of the next; a message knows which of how many versions it is. */
#include "app/quire-tree.h"

struct _QuireTree
{
  GPtrArray *nodes; /* owned references */
  GPtrArray *path;  /* borrowed from nodes */
};

QuireTree *
quire_tree_new (void)
{
  QuireTree *tree = g_new0 (QuireTree, 1);

  tree->nodes = g_ptr_array_new_with_free_func (g_object_unref);
  tree->path = g_ptr_array_new ();
  return tree;
}

void
quire_tree_free (QuireTree *tree)
{
  g_ptr_array_unref (tree->path);
  g_ptr_array_unref (tree->nodes);
  g_free (tree);
}

GPtrArray *
quire_tree_get_nodes (QuireTree *tree)
{
  return tree->nodes;
}

GPtrArray *
quire_tree_get_path (QuireTree *tree)
{
  return tree->path;
}

guint
quire_tree_next_seq (QuireTree *tree)
{
  if (tree->nodes->len == 0)
    return 1;
  return quire_message_get_seq (g_ptr_array_index (tree->nodes, tree->nodes->len - 1)) + 1;
}

/* The versions with @parent before them, by number. */
static GPtrArray *
children (QuireTree *tree, guint parent)
{
  GPtrArray *found = g_ptr_array_new ();

  for (guint i = 0; i < tree->nodes->len; i++)
    if (quire_message_get_parent (g_ptr_array_index (tree->nodes, i)) == parent)
      g_ptr_array_add (found, g_ptr_array_index (tree->nodes, i));
  return found;
}

static void
number_versions (QuireTree *tree, guint parent)
{
  g_autoptr (GPtrArray) versions = children (tree, parent);

  for (guint i = 0; i < versions->len; i++)
    quire_message_set_version (g_ptr_array_index (versions, i), i + 1, versions->len);
}

void
quire_tree_add (QuireTree *tree, QuireMessage *message)
{
  g_return_if_fail (quire_message_get_seq (message) >= quire_tree_next_seq (tree));
  g_return_if_fail (quire_message_get_parent (message) < quire_message_get_seq (message));
  g_ptr_array_add (tree->nodes, g_object_ref (message));
  number_versions (tree, quire_message_get_parent (message));
}

void
quire_tree_push (QuireTree *tree, QuireMessage *message)
{
  quire_tree_add (tree, message);
  g_ptr_array_add (tree->path, message);
}

void
quire_tree_cut (QuireTree *tree, guint n)
{
  g_ptr_array_set_size (tree->path, (int)n);
}

void
quire_tree_replace (QuireTree *tree, QuireMessage *old, QuireMessage *message)
{
  guint i;

  if (g_ptr_array_find (tree->path, old, &i))
    tree->path->pdata[i] = message;
  if (g_ptr_array_find (tree->nodes, old, &i))
    {
      tree->nodes->pdata[i] = g_object_ref (message);
      number_versions (tree, quire_message_get_parent (message));
      g_object_unref (old);
    }
}

static QuireMessage *
find (QuireTree *tree, guint seq)
{
  for (guint i = tree->nodes->len; i-- > 0;)
    if (quire_message_get_seq (g_ptr_array_index (tree->nodes, i)) == seq)
      return g_ptr_array_index (tree->nodes, i);
  return NULL;
}

static QuireMessage *
newest_child (QuireTree *tree, guint parent)
{
  for (guint i = tree->nodes->len; i-- > 0;)
    if (quire_message_get_parent (g_ptr_array_index (tree->nodes, i)) == parent)
      return g_ptr_array_index (tree->nodes, i);
  return NULL;
}

/* Adds the newest followers of the branch's last message. */
static void
follow (QuireTree *tree)
{
  guint parent = 0;
  QuireMessage *child;

  if (tree->path->len > 0)
    parent = quire_message_get_seq (g_ptr_array_index (tree->path, tree->path->len - 1));
  while ((child = newest_child (tree, parent)) != NULL)
    {
      g_ptr_array_add (tree->path, child);
      parent = quire_message_get_seq (child);
    }
}

void
quire_tree_set_leaf (QuireTree *tree, guint leaf)
{
  g_ptr_array_set_size (tree->path, 0);
  for (QuireMessage *node = find (tree, leaf); node != NULL;
       node = find (tree, quire_message_get_parent (node)))
    g_ptr_array_insert (tree->path, 0, node);
  /* A leaf that is lost, or a message whose reply was: the newest goes on. */
  follow (tree);
}

gboolean
quire_tree_flip (QuireTree *tree, QuireMessage *message, int by, guint *at)
{
  g_autoptr (GPtrArray) versions = children (tree, quire_message_get_parent (message));
  guint i;
  gint64 wanted;

  if (!g_ptr_array_find (tree->path, message, at) || !g_ptr_array_find (versions, message, &i))
    return FALSE;
  wanted = (gint64)i + by;
  if (wanted < 0 || wanted >= versions->len)
    return FALSE;
  g_ptr_array_set_size (tree->path, (int)*at);
  g_ptr_array_add (tree->path, g_ptr_array_index (versions, wanted));
  follow (tree);
  return TRUE;
}
