/* qe-grammar.c: making grammars and finding out how deep each node must go. See qe-grammar.h. */
#include "engine/qe-grammar.h"
#include <string.h>

static uint32_t add_node(qe_grammar *self, qe_node node)
{
    g_array_append_val(self->nodes, node);
    return self->nodes->len - 1;
}

static uint32_t add_refs(qe_grammar *self, const uint32_t *nodes, gsize n)
{
    uint32_t begin = self->refs->len;
    if (n)
        g_array_append_vals(self->refs, nodes, (guint)n);
    return begin;
}

static uint32_t add_bytes(qe_grammar *self, const char *bytes, gsize n)
{
    uint32_t begin = self->bytes->len;
    g_byte_array_append(self->bytes, (const guint8 *)bytes, (guint)n);
    return begin;
}

/* ---- Sets of strings ---- */

static uint32_t add_branch(qe_grammar *self, uint8_t byte)
{
    qe_branch branch = {QE_GRAMMAR_NONE, QE_GRAMMAR_NONE, byte, false};
    g_array_append_val(self->branches, branch);
    return self->branches->len - 1;
}

static void add_to_set(qe_grammar *self, uint32_t root, const char *string)
{
    uint32_t at = root;
    for (const char *c = string; *c; c++) {
        uint32_t child = g_array_index(self->branches, qe_branch, at).child;
        while (
            child != QE_GRAMMAR_NONE && g_array_index(self->branches, qe_branch, child).byte != (uint8_t)*c)
            child = g_array_index(self->branches, qe_branch, child).sibling;
        if (child == QE_GRAMMAR_NONE) {
            child = add_branch(self, (uint8_t)*c);
            qe_branch *parent = &g_array_index(self->branches, qe_branch, at);
            g_array_index(self->branches, qe_branch, child).sibling = parent->child;
            parent->child = child;
        }
        at = child;
    }
    g_array_index(self->branches, qe_branch, at).final = true;
}

static uint32_t add_all_to_set(qe_grammar *self, const char *const *strings, gsize n)
{
    uint32_t root = add_branch(self, 0);
    for (gsize i = 0; i < n; i++)
        add_to_set(self, root, strings[i]);
    return root;
}

/* ---- Nodes ---- */

uint32_t qe_grammar_add_literal(qe_grammar *self, const char *bytes, gsize n)
{
    g_assert(n > 0);
    return add_node(
        self, (qe_node){.kind = QE_NODE_LITERAL, .begin = add_bytes(self, bytes, n), .n = (uint32_t)n});
}

uint32_t qe_grammar_add_token(qe_grammar *self, const char *content)
{
    gsize n = strlen(content);
    return add_node(
        self, (qe_node){.kind = QE_NODE_TOKEN, .begin = add_bytes(self, content, n + 1), .n = (uint32_t)n});
}

uint32_t qe_grammar_add_set(qe_grammar *self, const char *const *strings, gsize n)
{
    g_assert(n > 0);
    return add_node(self, (qe_node){.kind = QE_NODE_SET, .begin = add_all_to_set(self, strings, n)});
}

uint32_t qe_grammar_add_string(qe_grammar *self, uint32_t min, uint32_t max)
{
    g_assert(min <= max);
    return add_node(self, (qe_node){.kind = QE_NODE_STRING, .min = min, .max = max});
}

uint32_t qe_grammar_add_key(qe_grammar *self, const char *const *names, gsize n)
{
    return add_node(self, (qe_node){.kind = QE_NODE_KEY, .begin = add_all_to_set(self, names, n)});
}

uint32_t qe_grammar_add_sequence(qe_grammar *self, const uint32_t *nodes, gsize n)
{
    return add_node(
        self, (qe_node){.kind = QE_NODE_SEQUENCE, .begin = add_refs(self, nodes, n), .n = (uint32_t)n});
}

uint32_t qe_grammar_add_choice(qe_grammar *self, const uint32_t *nodes, gsize n)
{
    return add_node(
        self, (qe_node){.kind = QE_NODE_CHOICE, .begin = add_refs(self, nodes, n), .n = (uint32_t)n});
}

uint32_t qe_grammar_add_array(
    qe_grammar *self, const uint32_t *prefix, gsize n, uint32_t rest, uint32_t min, uint32_t max)
{
    if (rest == QE_GRAMMAR_NONE)
        max = MIN(max, (uint32_t)n);
    qe_node node = {
        .kind = QE_NODE_ARRAY,
        .begin = add_refs(self, prefix, n),
        .n = (uint32_t)n,
        .min = min,
        .max = max,
        .rest = rest,
    };
    return add_node(self, node);
}

uint32_t qe_grammar_add_object(
    qe_grammar *self, const qe_member *members, gsize n, uint32_t rest, uint32_t key)
{
    qe_node node = {
        .kind = QE_NODE_OBJECT,
        .begin = self->members->len,
        .n = (uint32_t)n,
        .rest = rest,
        .key = key,
    };
    if (n)
        g_array_append_vals(self->members, members, (guint)n);
    return add_node(self, node);
}

uint32_t qe_grammar_add_forward(qe_grammar *self)
{
    uint32_t none = QE_GRAMMAR_NONE;
    return qe_grammar_add_choice(self, &none, 1);
}

void qe_grammar_set_forward(qe_grammar *self, uint32_t forward, uint32_t node)
{
    g_array_index(self->refs, uint32_t, qe_grammar_node(self, forward)->begin) = node;
}

/* ---- What every grammar has ---- */

static void add_common(qe_grammar *self)
{
    static const char *const punctuation[] = {"{", "}", "[", "]", ",", ":"};
    static const char *const bools[] = {"true", "false"}, *const nulls[] = {"null"};
    add_node(self, (qe_node){.kind = QE_NODE_EMPTY});
    for (gsize i = 0; i < G_N_ELEMENTS(punctuation); i++)
        qe_grammar_add_literal(self, punctuation[i], 1);
    add_node(self, (qe_node){.kind = QE_NODE_SPACE});
    qe_grammar_add_string(self, 0, QE_GRAMMAR_UNBOUNDED);
    add_node(self, (qe_node){.kind = QE_NODE_NUMBER});
    add_node(self, (qe_node){.kind = QE_NODE_NUMBER, .min = 1});
    qe_grammar_add_set(self, bools, G_N_ELEMENTS(bools));
    qe_grammar_add_set(self, nulls, G_N_ELEMENTS(nulls));
    static const uint32_t any[] = {QE_NODE_ANY_STRING, QE_NODE_ANY_NUMBER, QE_NODE_ANY_BOOL, QE_NODE_ANY_NULL,
        QE_NODE_ANY_ARRAY, QE_NODE_ANY_OBJECT};
    qe_grammar_add_choice(self, any, G_N_ELEMENTS(any));
    qe_grammar_add_array(self, NULL, 0, QE_NODE_ANY_VALUE, 0, QE_GRAMMAR_UNBOUNDED);
    qe_grammar_add_object(self, NULL, 0, QE_NODE_ANY_VALUE, QE_NODE_ANY_KEY);
    uint32_t last = qe_grammar_add_key(self, NULL, 0);
    g_assert(last == QE_NODE_ANY_KEY && self->nodes->len == QE_N_COMMON_NODES);
}

qe_grammar *qe_grammar_new(void)
{
    qe_grammar *self = g_new0(qe_grammar, 1);
    self->n_refs = 1;
    self->nodes = g_array_new(FALSE, FALSE, sizeof(qe_node));
    self->refs = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    self->members = g_array_new(FALSE, FALSE, sizeof(qe_member));
    self->branches = g_array_new(FALSE, FALSE, sizeof(qe_branch));
    self->bytes = g_byte_array_new();
    add_common(self);
    return self;
}

qe_grammar *qe_grammar_ref(qe_grammar *self)
{
    g_atomic_int_inc(&self->n_refs);
    return self;
}

void qe_grammar_unref(qe_grammar *self)
{
    if (!self || !g_atomic_int_dec_and_test(&self->n_refs))
        return;
    g_array_unref(self->nodes);
    g_array_unref(self->refs);
    g_array_unref(self->members);
    g_array_unref(self->branches);
    g_byte_array_unref(self->bytes);
    g_free(self);
}

/* ---- Depths ---- */

#define TOO_DEEP (QE_GRAMMAR_DEPTH_MAX + 1)

static uint32_t depth_of(const qe_grammar *self, uint32_t node)
{
    return node == QE_GRAMMAR_NONE ? TOO_DEEP : qe_grammar_node(self, node)->depth;
}

static uint32_t ref(const qe_grammar *self, const qe_node *node, uint32_t i)
{
    return g_array_index(self->refs, uint32_t, node->begin + i);
}

/* From the depths that its parts are known to have. */
static uint32_t work_out_depth(const qe_grammar *self, const qe_node *node)
{
    uint32_t depth = 0;
    switch ((qe_node_kind)node->kind) {
    case QE_NODE_EMPTY:
    case QE_NODE_LITERAL:
    case QE_NODE_SET:
    case QE_NODE_STRING:
    case QE_NODE_KEY:
    case QE_NODE_NUMBER:
    case QE_NODE_SPACE:
    case QE_NODE_TOKEN:
        return 0;
    case QE_NODE_SEQUENCE:
        for (uint32_t i = 0; i < node->n; i++)
            depth = MAX(depth, depth_of(self, ref(self, node, i)));
        return depth;
    case QE_NODE_CHOICE:
        depth = TOO_DEEP;
        for (uint32_t i = 0; i < node->n; i++)
            depth = MIN(depth, depth_of(self, ref(self, node, i)));
        return depth;
    case QE_NODE_OBJECT:
        for (uint32_t i = 0; i < node->n; i++) {
            const qe_member *m = &g_array_index(self->members, qe_member, node->begin + i);
            if (m->required)
                depth = MAX(depth, depth_of(self, m->value));
        }
        return MIN(depth + 1, TOO_DEEP);
    case QE_NODE_ARRAY:
        for (uint32_t i = 0; i < node->min && i < node->n; i++)
            depth = MAX(depth, depth_of(self, ref(self, node, i)));
        if (node->min > node->n)
            depth = MAX(depth, depth_of(self, node->rest));
        return node->min > node->max ? TOO_DEEP : MIN(depth + 1, TOO_DEEP);
    }
    g_assert_not_reached();
}

/* The longest way from @node through nodes that read nothing themselves. @known: [n nodes] 0, or one more than that, or
 * UINT32_MAX while it is being worked out. Returns UINT32_MAX when it leads back to itself or is too long. */
static uint32_t chain_length(const qe_grammar *self, uint32_t at, uint32_t n_before, uint32_t *known)
{
    const qe_node *node = qe_grammar_node(self, at);
    if (node->kind != QE_NODE_CHOICE && node->kind != QE_NODE_SEQUENCE)
        return 0;
    if (known[at] == UINT32_MAX || n_before > QE_GRAMMAR_CHAIN_MAX)
        return UINT32_MAX;
    if (known[at] > 0)
        return known[at] - 1;
    known[at] = UINT32_MAX;
    uint32_t longest = 0, n = node->kind == QE_NODE_SEQUENCE ? MIN(node->n, 1) : node->n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length = chain_length(self, ref(self, node, i), n_before + 1, known);
        if (length == UINT32_MAX)
            return UINT32_MAX;
        longest = MAX(longest, length + 1);
    }
    known[at] = longest + 1;
    return longest;
}

static bool check_chains(const qe_grammar *self, GError **error)
{
    g_autofree uint32_t *known = g_new0(uint32_t, self->nodes->len);
    for (guint i = 0; i < self->nodes->len; i++) {
        uint32_t length = chain_length(self, i, 0, known);
        if (length <= QE_GRAMMAR_CHAIN_MAX)
            continue;
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
            "The schema refers to itself without anything between, or by more than %u references",
            QE_GRAMMAR_CHAIN_MAX);
        return false;
    }
    return true;
}

bool qe_grammar_finish(qe_grammar *self, uint32_t root, GError **error)
{
    self->root = root;
    if (!check_chains(self, error))
        return false;
    for (guint i = 0; i < self->nodes->len; i++)
        g_array_index(self->nodes, qe_node, i).depth = TOO_DEEP;
    /* Depths only shrink, from "too deep" down to what they are.. */
    bool backwards = false;
    for (bool changed = true; changed; backwards = !backwards) {
        changed = false;
        for (guint k = 0; k < self->nodes->len; k++) {
            guint i = backwards ? self->nodes->len - 1 - k : k;
            qe_node *node = &g_array_index(self->nodes, qe_node, i);
            uint32_t depth = work_out_depth(self, node);
            changed |= depth != node->depth;
            node->depth = (uint8_t)depth;
        }
    }
    if (qe_grammar_node(self, root)->depth <= QE_GRAMMAR_DEPTH_MAX)
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "No finite JSON of at most %u levels matches the schema",
        QE_GRAMMAR_DEPTH_MAX);
    return false;
}
