/* qe-grammar.h: what a text may be, as a pushdown automaton over bytes. Internal. A grammar is filled by one thread, then
 * checked and immutable.
 *
 * A grammar is nodes that name other nodes. Terminals read bytes: a literal, one of a set of literals, a JSON string, a key
 * that is none of some names, a number, white space, a control token. The others only say what follows what. A text is
 * matched by a stack of (node, progress); qe-matcher.h keeps all stacks that are possible after the bytes so far.
 *
 * What the terminals read is JSON and a little stricter, so that a reply ends and every reader takes it:
 *   - strings are whole UTF-8 without raw control characters; \u escapes are not of surrogates (U+10000 and up stand raw)
 *   - numbers have at most 15 digits before the point, 17 behind it and 2 in the exponent; integers have neither
 *   - white space between two parts is nothing, one blank, or a line feed and at most QE_GRAMMAR_INDENT_MAX blanks for each
 *     object and array that is open
 *   - objects and arrays lie in one another at most QE_GRAMMAR_DEPTH_MAX deep
 * Every beginning that is accepted can be completed: qe_grammar_finish() refuses what would lead into a dead end. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"

G_BEGIN_DECLS

#define QE_GRAMMAR_NONE       UINT32_MAX
#define QE_GRAMMAR_UNBOUNDED  UINT32_MAX
#define QE_GRAMMAR_COUNT_MAX  (1u << 24) /* of characters and items, where there is a bound */
#define QE_GRAMMAR_DEPTH_MAX  64u
#define QE_GRAMMAR_INDENT_MAX 8u   /* a level */
#define QE_GRAMMAR_CHAIN_MAX  512u /* choices and references in one another without a byte between */

typedef enum {
    QE_NODE_EMPTY,
    /* Terminals. */
    QE_NODE_LITERAL, /* bytes [begin, begin + n) */
    QE_NODE_SET,     /* one of a set of literals; begin: the root in `branches` */
    QE_NODE_STRING,  /* a quoted string of min to max characters */
    QE_NODE_KEY,     /* a quoted string that is none of the names under `branches`[begin] */
    QE_NODE_NUMBER,  /* min 1: an integer */
    QE_NODE_SPACE,
    QE_NODE_TOKEN, /* the control token whose content is the bytes [begin, begin + n) */
    /* The others. */
    QE_NODE_SEQUENCE, /* refs [begin, begin + n) */
    QE_NODE_CHOICE,   /* one of refs [begin, begin + n) */
    QE_NODE_OBJECT, /* members [begin, begin + n), then any number of others with a key of `key` and a value of `rest` */
    QE_NODE_ARRAY, /* min to max items: refs [begin, begin + n), then `rest` */
} qe_node_kind;

typedef struct {
    uint8_t kind;
    uint8_t depth; /* containers that it needs at least; QE_GRAMMAR_DEPTH_MAX + 1: more than there may be */
    uint32_t begin, n;
    uint32_t min, max;
    uint32_t rest, key;
} qe_node;

typedef struct {
    uint32_t key; /* a literal: "name": with quotes and colon */
    uint32_t value;
    uint32_t required;
} qe_member;

/* A place in a set of byte strings. */
typedef struct {
    uint32_t child, sibling; /* QE_GRAMMAR_NONE: none */
    uint8_t byte;
    bool final; /* a string ends here */
} qe_branch;

typedef struct {
    GArray *nodes;    /* qe_node; the first ones are the same in every grammar */
    GArray *refs;     /* uint32_t */
    GArray *members;  /* qe_member */
    GArray *branches; /* qe_branch */
    GByteArray *bytes;
    uint32_t root;
    int n_refs; /* atomic */
} qe_grammar;

/* The nodes that every grammar has. */
enum {
    QE_NODE_NOTHING, /* the empty text */
    QE_NODE_OPEN_OBJECT,
    QE_NODE_CLOSE_OBJECT,
    QE_NODE_OPEN_ARRAY,
    QE_NODE_CLOSE_ARRAY,
    QE_NODE_COMMA,
    QE_NODE_COLON,
    QE_NODE_BLANK,      /* white space */
    QE_NODE_ANY_STRING, /* and what follows: any JSON of that type */
    QE_NODE_ANY_NUMBER,
    QE_NODE_ANY_INTEGER,
    QE_NODE_ANY_BOOL,
    QE_NODE_ANY_NULL,
    QE_NODE_ANY_VALUE,
    QE_NODE_ANY_ARRAY,
    QE_NODE_ANY_OBJECT,
    QE_NODE_ANY_KEY,
    QE_N_COMMON_NODES,
};

qe_grammar *qe_grammar_new(void);
qe_grammar *qe_grammar_ref(qe_grammar *self);
void qe_grammar_unref(qe_grammar *self); /* NULL is fine */

/* Each returns the new node. Nodes named may be made later, but before the check. */
uint32_t qe_grammar_add_literal(qe_grammar *self, const char *bytes, gsize n); /* n >= 1 */
uint32_t qe_grammar_add_token(qe_grammar *self, const char *content);
uint32_t qe_grammar_add_set(qe_grammar *self, const char *const *strings, gsize n); /* n >= 1, none empty */
uint32_t qe_grammar_add_string(qe_grammar *self, uint32_t min, uint32_t max);
/* @names: as they stand between the quotes in JSON, escaped the short way. */
uint32_t qe_grammar_add_key(qe_grammar *self, const char *const *names, gsize n);
uint32_t qe_grammar_add_sequence(qe_grammar *self, const uint32_t *nodes, gsize n);
uint32_t qe_grammar_add_choice(qe_grammar *self, const uint32_t *nodes, gsize n);
uint32_t qe_grammar_add_array(
    qe_grammar *self, const uint32_t *prefix, gsize n, uint32_t rest, uint32_t min, uint32_t max);
/* @rest, @key: QE_GRAMMAR_NONE when there are no others. */
uint32_t qe_grammar_add_object(
    qe_grammar *self, const qe_member *members, gsize n, uint32_t rest, uint32_t key);
/* A choice of one, to be set later: what a reference to something unfinished names. */
uint32_t qe_grammar_add_forward(qe_grammar *self);
void qe_grammar_set_forward(qe_grammar *self, uint32_t forward, uint32_t node);

/* Sets the root and works out depths. QE_ERROR_INVALID: nothing finite matches, or only what lies too deep. */
bool qe_grammar_finish(qe_grammar *self, uint32_t root, GError **error);

static inline const qe_node *qe_grammar_node(const qe_grammar *self, uint32_t i)
{
    return &g_array_index(self->nodes, qe_node, i);
}

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_grammar, qe_grammar_unref)
G_END_DECLS
