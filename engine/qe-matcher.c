/* qe-matcher.c: the stacks of a grammar that a text leaves possible. See qe-matcher.h.
 *
 * Invariants:
 *  1. A cell names only cells made before it. Cell 0 is the empty stack: the text is whole.
 *  2. The top of each stack in a state is a terminal that takes at least one more byte; what need not take any is there
 *     beside what follows it.
 *  3. Cells made while looking ahead are taken back in the reverse order of their making.
 * A state is never empty: what cannot be completed is not accepted (qe-grammar.h). */
#include "engine/qe-matcher.h"
#include <string.h>
#include "engine/qe-strings.h"

#define N_BUCKETS   1024u
#define CELLS_KEPT  8192u /* past it, cells that no stack has any more are dropped */
#define COUNT_SHIFT 5     /* of a string's, number's or key's progress: the place is below */
#define PHASE_SHIFT 4     /* of an object's or array's */
#define DIGITS_INT  15u
#define DIGITS_FRAC 17u
#define DIGITS_EXP  2u
#define END         0u

typedef struct {
    uint32_t node, progress, below;
    uint32_t depth; /* containers in the stack up to here */
    uint32_t chain; /* the next cell of its bucket */
} cell;

/* Some stacks, by their top cells: part of the matcher's `pool`. */
typedef struct {
    uint32_t begin, n;
    bool whole;
} state;

struct qe_matcher {
    qe_grammar *grammar;
    qe_vocab *vocab;
    cell *cells;
    uint32_t n_cells, cells_max;
    uint32_t buckets[N_BUCKETS]; /* 0: empty */
    uint32_t *pool;
    uint32_t n_pool, pool_max;
    state now;
    state *path;       /* [depth_max + 1] of the trie that is walked */
    uint32_t *scratch; /* [n_scratch] words of a mask */
    uint32_t n_scratch;
};

enum {
    NUMBER_BEGIN,
    NUMBER_MINUS,
    NUMBER_ZERO,
    NUMBER_INT,
    NUMBER_POINT,
    NUMBER_FRAC,
    NUMBER_E,
    NUMBER_SIGN,
    NUMBER_EXP
};
enum {
    OBJECT_BEGIN,
    OBJECT_OPEN,
    OBJECT_FIRST,
    OBJECT_MORE,
    OBJECT_NEXT,
    OBJECT_COMMA,
    OBJECT_KEY,
    OBJECT_COLON,
    OBJECT_VALUE,
    OBJECT_REST
};
enum { ARRAY_BEGIN, ARRAY_OPEN, ARRAY_FIRST, ARRAY_MORE, ARRAY_NEXT, ARRAY_COMMA, ARRAY_ITEM };

static void push(qe_matcher *m, state *s, uint32_t node, uint32_t progress, uint32_t below);

/* ---- Cells ---- */

static uint32_t bucket_of(uint32_t node, uint32_t progress, uint32_t below)
{
    uint32_t h = node * 0x9e3779b1u ^ progress * 0x85ebca6bu ^ below * 0xc2b2ae35u;
    return (h ^ h >> 15) % N_BUCKETS;
}

static bool is_container(const qe_matcher *m, uint32_t node)
{
    uint8_t kind = qe_grammar_node(m->grammar, node)->kind;
    return kind == QE_NODE_OBJECT || kind == QE_NODE_ARRAY;
}

static uint32_t intern(qe_matcher *m, uint32_t node, uint32_t progress, uint32_t below)
{
    uint32_t bucket = bucket_of(node, progress, below);
    for (uint32_t i = m->buckets[bucket]; i; i = m->cells[i].chain) {
        const cell *c = &m->cells[i];
        if (c->node == node && c->progress == progress && c->below == below)
            return i;
    }
    if (m->n_cells == m->cells_max) {
        m->cells_max *= 2;
        m->cells = g_renew(cell, m->cells, m->cells_max);
    }
    m->cells[m->n_cells] = (cell){
        .node = node,
        .progress = progress,
        .below = below,
        .depth = m->cells[below].depth + is_container(m, node),
        .chain = m->buckets[bucket],
    };
    m->buckets[bucket] = m->n_cells;
    return m->n_cells++;
}

static void take_back(qe_matcher *m, uint32_t n_cells)
{
    while (m->n_cells > n_cells) {
        const cell *c = &m->cells[--m->n_cells];
        m->buckets[bucket_of(c->node, c->progress, c->below)] = c->chain;
    }
}

/* Keeps what the present state needs. */
static void compact(qe_matcher *m)
{
    g_autofree uint32_t *moved = g_new0(uint32_t, m->n_cells);
    for (uint32_t i = 0; i < m->now.n; i++)
        moved[m->pool[m->now.begin + i]] = 1;
    for (uint32_t i = m->n_cells; i-- > 1;) {
        if (moved[i])
            moved[m->cells[i].below] = 1;
    }
    uint32_t n = m->n_cells;
    memset(m->buckets, 0, sizeof m->buckets);
    m->n_cells = 1;
    moved[END] = END;
    for (uint32_t i = 1; i < n; i++) {
        if (moved[i]) {
            cell c = m->cells[i];
            moved[i] = intern(m, c.node, c.progress, moved[c.below]);
        }
    }
    for (uint32_t i = 0; i < m->now.n; i++)
        m->pool[m->now.begin + i] = moved[m->pool[m->now.begin + i]];
}

/* ---- States ---- */

static state begin_state(const qe_matcher *m)
{
    return (state){.begin = m->n_pool};
}

/* Adds a stack to @s, which is the last of the pool. false: it has it already. */
static bool add(qe_matcher *m, state *s, uint32_t top)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (m->pool[s->begin + i] == top)
            return false;
    }
    if (m->n_pool == m->pool_max) {
        m->pool_max *= 2;
        m->pool = g_renew(uint32_t, m->pool, m->pool_max);
    }
    m->pool[m->n_pool++] = top;
    s->n++;
    return true;
}

/* What was on @below is done. */
static void pop(qe_matcher *m, state *s, uint32_t below)
{
    if (below == END) {
        s->whole = true;
        return;
    }
    cell c = m->cells[below];
    push(m, s, c.node, c.progress, c.below);
}

/* Whether @node fits above @below, with what it needs. */
static bool fits(const qe_matcher *m, uint32_t node, uint32_t below)
{
    return node != QE_GRAMMAR_NONE &&
           m->cells[below].depth + qe_grammar_node(m->grammar, node)->depth <= QE_GRAMMAR_DEPTH_MAX;
}

static uint32_t phase(qe_matcher *m, uint32_t node, uint32_t i, uint32_t phase, uint32_t below)
{
    return intern(m, node, i << PHASE_SHIFT | phase, below);
}

static const qe_member *member(const qe_matcher *m, const qe_node *node, uint32_t i)
{
    return &g_array_index(m->grammar->members, qe_member, node->begin + i);
}

/* Keys that may come from member @i on: all up to the first that must be there, then others. Returns whether the object may
 * end instead. With @look there is nothing pushed: returns whether any key may come. */
static bool push_keys(qe_matcher *m, state *s, uint32_t node, uint32_t i, uint32_t below, bool look)
{
    const qe_node *n = qe_grammar_node(m->grammar, node);
    uint32_t inside = phase(m, node, i, OBJECT_KEY, below);
    for (; i < n->n; i++) {
        const qe_member *k = member(m, n, i);
        if (fits(m, k->value, inside)) {
            if (look)
                return true;
            push(m, s, k->key, 0, phase(m, node, i, OBJECT_COLON, below));
        }
        if (k->required)
            return false;
    }
    if (n->rest != QE_GRAMMAR_NONE && fits(m, n->rest, inside)) {
        if (look)
            return true;
        push(m, s, n->key, 0, phase(m, node, n->n, OBJECT_REST, below));
    }
    return false;
}

static bool needs_more(const qe_matcher *m, const qe_node *n, uint32_t i)
{
    for (; i < n->n; i++) {
        if (member(m, n, i)->required)
            return true;
    }
    return false;
}

static void push_object(qe_matcher *m, state *s, uint32_t node, uint32_t progress, uint32_t below)
{
    const qe_node *n = qe_grammar_node(m->grammar, node);
    uint32_t i = progress >> PHASE_SHIFT;
    switch (progress & ((1u << PHASE_SHIFT) - 1)) {
    case OBJECT_BEGIN:
        push(m, s, QE_NODE_OPEN_OBJECT, 0, phase(m, node, 0, OBJECT_OPEN, below));
        break;
    case OBJECT_OPEN:
        push(m, s, QE_NODE_BLANK, 0, phase(m, node, i, OBJECT_FIRST, below));
        break;
    case OBJECT_FIRST:
        if (!needs_more(m, n, i))
            push(m, s, QE_NODE_CLOSE_OBJECT, 0, below);
        push_keys(m, s, node, i, below, false);
        break;
    case OBJECT_MORE:
        push(m, s, QE_NODE_BLANK, 0, phase(m, node, i, OBJECT_NEXT, below));
        break;
    case OBJECT_NEXT:
        if (!needs_more(m, n, i))
            push(m, s, QE_NODE_CLOSE_OBJECT, 0, below);
        if (push_keys(m, s, node, i, below, true))
            push(m, s, QE_NODE_COMMA, 0, phase(m, node, i, OBJECT_COMMA, below));
        break;
    case OBJECT_COMMA:
        push(m, s, QE_NODE_BLANK, 0, phase(m, node, i, OBJECT_KEY, below));
        break;
    case OBJECT_KEY:
        push_keys(m, s, node, i, below, false);
        break;
    case OBJECT_REST:
        push(m, s, QE_NODE_COLON, 0, phase(m, node, i, OBJECT_COLON, below));
        break;
    case OBJECT_COLON:
        push(m, s, QE_NODE_BLANK, 0, phase(m, node, i, OBJECT_VALUE, below));
        break;
    case OBJECT_VALUE:
        push(m, s, i < n->n ? member(m, n, i)->value : n->rest, 0,
            phase(m, node, MIN(i + 1, n->n), OBJECT_MORE, below));
        break;
    }
}

static uint32_t item(const qe_matcher *m, const qe_node *n, uint32_t i)
{
    return i < n->n ? g_array_index(m->grammar->refs, uint32_t, n->begin + i) : n->rest;
}

static void push_array(qe_matcher *m, state *s, uint32_t node, uint32_t progress, uint32_t below)
{
    const qe_node *n = qe_grammar_node(m->grammar, node);
    uint32_t i = progress >> PHASE_SHIFT;
    uint32_t inside = phase(m, node, i, ARRAY_ITEM, below);
    bool more = i < n->max && fits(m, item(m, n, i), inside);
    switch (progress & ((1u << PHASE_SHIFT) - 1)) {
    case ARRAY_BEGIN:
        push(m, s, QE_NODE_OPEN_ARRAY, 0, phase(m, node, 0, ARRAY_OPEN, below));
        break;
    case ARRAY_OPEN:
        push(m, s, QE_NODE_BLANK, 0, phase(m, node, i, ARRAY_FIRST, below));
        break;
    case ARRAY_FIRST:
    case ARRAY_NEXT:
        if (i >= n->min)
            push(m, s, QE_NODE_CLOSE_ARRAY, 0, below);
        if (more && i > 0)
            push(m, s, QE_NODE_COMMA, 0, phase(m, node, i, ARRAY_COMMA, below));
        else if (more)
            push_array(m, s, node, ARRAY_ITEM, below);
        break;
    case ARRAY_MORE:
        push(m, s, QE_NODE_BLANK, 0, phase(m, node, i, ARRAY_NEXT, below));
        break;
    case ARRAY_COMMA:
        push(m, s, QE_NODE_BLANK, 0, inside);
        break;
    case ARRAY_ITEM: {
        /* Without an upper bound counting ends where it makes no difference any more. */
        uint32_t next = i + 1;
        if (n->max == QE_GRAMMAR_UNBOUNDED)
            next = MIN(next, MAX(MAX(n->min, n->n), 1));
        push(m, s, item(m, n, i), 0, phase(m, node, next, ARRAY_MORE, below));
        break;
    }
    }
}

/* Adds what the stack with @node on top of @below may read next. */
static void push(qe_matcher *m, state *s, uint32_t node, uint32_t progress, uint32_t below)
{
    const qe_node *n = qe_grammar_node(m->grammar, node);
    switch ((qe_node_kind)n->kind) {
    case QE_NODE_EMPTY:
        pop(m, s, below);
        break;
    case QE_NODE_LITERAL:
    case QE_NODE_SET:
    case QE_NODE_STRING:
    case QE_NODE_KEY:
    case QE_NODE_NUMBER:
    case QE_NODE_TOKEN:
        add(m, s, intern(m, node, progress, below));
        break;
    case QE_NODE_SPACE:
        if (add(m, s, intern(m, node, progress, below)))
            pop(m, s, below);
        break;
    case QE_NODE_SEQUENCE:
        if (progress == n->n) {
            pop(m, s, below);
            break;
        }
        push(m, s, g_array_index(m->grammar->refs, uint32_t, n->begin + progress), 0,
            progress + 1 == n->n ? below : intern(m, node, progress + 1, below));
        break;
    case QE_NODE_CHOICE:
        for (uint32_t i = 0; i < n->n; i++) {
            uint32_t child = g_array_index(m->grammar->refs, uint32_t, n->begin + i);
            if (fits(m, child, below))
                push(m, s, child, 0, below);
        }
        break;
    case QE_NODE_OBJECT:
        push_object(m, s, node, progress, below);
        break;
    case QE_NODE_ARRAY:
        push_array(m, s, node, progress, below);
        break;
    }
}

/* ---- Reading a byte ---- */

static void step_literal(qe_matcher *m, state *s, const cell *c, const qe_node *n, uint8_t b)
{
    if (m->grammar->bytes->data[n->begin + c->progress] != b)
        return;
    if (c->progress + 1 == n->n)
        pop(m, s, c->below);
    else
        add(m, s, intern(m, c->node, c->progress + 1, c->below));
}

static uint32_t find_branch(const qe_matcher *m, uint32_t from, uint8_t b)
{
    uint32_t i = g_array_index(m->grammar->branches, qe_branch, from).child;
    while (i != QE_GRAMMAR_NONE && g_array_index(m->grammar->branches, qe_branch, i).byte != b)
        i = g_array_index(m->grammar->branches, qe_branch, i).sibling;
    return i;
}

/* Progress: the branch, less the root. */
static void step_set(qe_matcher *m, state *s, const cell *c, const qe_node *n, uint8_t b)
{
    uint32_t to = find_branch(m, n->begin + c->progress, b);
    if (to == QE_GRAMMAR_NONE)
        return;
    const qe_branch *branch = &g_array_index(m->grammar->branches, qe_branch, to);
    if (branch->final)
        pop(m, s, c->below);
    if (branch->child != QE_GRAMMAR_NONE)
        add(m, s, intern(m, c->node, to - n->begin, c->below));
}

static uint32_t place_of(const cell *c)
{
    return c->progress & ((1u << COUNT_SHIFT) - 1);
}

static uint32_t count_of(const cell *c)
{
    return c->progress >> COUNT_SHIFT;
}

/* Progress: the place, and the characters begun, as far as it matters. */
static void step_string(qe_matcher *m, state *s, const cell *c, const qe_node *n, uint8_t b)
{
    uint32_t count = count_of(c);
    qe_string_place place = qe_string_step((qe_string_place)place_of(c), b);
    if (place == QE_STRING_REFUSED || (place == QE_STRING_CLOSED && count < n->min))
        return;
    if (place == QE_STRING_CLOSED) {
        pop(m, s, c->below);
        return;
    }
    if (place_of(c) == QE_STRING_INSIDE) {
        if (n->max != QE_GRAMMAR_UNBOUNDED && count >= n->max)
            return;
        if (n->max != QE_GRAMMAR_UNBOUNDED || count < n->min)
            count++;
    }
    add(m, s, intern(m, c->node, count << COUNT_SHIFT | place, c->below));
}

/* Progress: BEFORE; or INSIDE, and the branch less the root, while the key may still become one of the names. As soon as it
 * cannot, it goes on as an ordinary string. */
static void step_key(qe_matcher *m, state *s, const cell *c, const qe_node *n, uint8_t b)
{
    if (place_of(c) == QE_STRING_BEFORE) {
        if (b == '"')
            add(m, s, intern(m, c->node, QE_STRING_INSIDE, c->below));
        return;
    }
    uint32_t from = n->begin + count_of(c), to = find_branch(m, from, b);
    if (b == '"' && place_of(c) == QE_STRING_INSIDE) {
        if (!g_array_index(m->grammar->branches, qe_branch, from).final)
            pop(m, s, c->below);
        return;
    }
    qe_string_place place = qe_string_step((qe_string_place)place_of(c), b);
    if (place == QE_STRING_ESCAPE) /* names have the short escapes: \u could spell one in another way */
        place = QE_STRING_SHORT_ESCAPE;
    if (place == QE_STRING_REFUSED)
        return;
    if (to != QE_GRAMMAR_NONE)
        add(m, s, intern(m, c->node, (to - n->begin) << COUNT_SHIFT | place, c->below));
    else
        add(m, s, intern(m, QE_NODE_ANY_STRING, place, c->below));
}

static uint32_t step_number_place(uint32_t place, bool integer, uint8_t b)
{
    bool digit = b >= '0' && b <= '9';
    switch (place) {
    case NUMBER_BEGIN:
        if (b == '-')
            return NUMBER_MINUS;
        G_GNUC_FALLTHROUGH;
    case NUMBER_MINUS:
        return b == '0' ? NUMBER_ZERO : digit ? NUMBER_INT : UINT32_MAX;
    case NUMBER_INT:
        if (digit)
            return NUMBER_INT;
        G_GNUC_FALLTHROUGH;
    case NUMBER_ZERO:
        return integer ? UINT32_MAX : b == '.' ? NUMBER_POINT : (b | 0x20) == 'e' ? NUMBER_E : UINT32_MAX;
    case NUMBER_POINT:
        return digit ? NUMBER_FRAC : UINT32_MAX;
    case NUMBER_FRAC:
        return digit ? NUMBER_FRAC : (b | 0x20) == 'e' ? NUMBER_E : UINT32_MAX;
    case NUMBER_E:
        if (b == '+' || b == '-')
            return NUMBER_SIGN;
        G_GNUC_FALLTHROUGH;
    case NUMBER_SIGN:
    case NUMBER_EXP:
        return digit ? NUMBER_EXP : UINT32_MAX;
    }
    return UINT32_MAX;
}

/* Progress: the place, and how many digits of its kind there are. */
static void step_number(qe_matcher *m, state *s, const cell *c, const qe_node *n, uint8_t b)
{
    uint32_t place = step_number_place(place_of(c), n->min != 0, b);
    if (place == UINT32_MAX)
        return;
    uint32_t count = place == place_of(c) ? count_of(c) + 1 : 1;
    if ((place == NUMBER_INT && count > DIGITS_INT) || (place == NUMBER_FRAC && count > DIGITS_FRAC) ||
        (place == NUMBER_EXP && count > DIGITS_EXP))
        return;
    add(m, s, intern(m, c->node, count << COUNT_SHIFT | place, c->below));
    if (place == NUMBER_ZERO || place == NUMBER_INT || place == NUMBER_FRAC || place == NUMBER_EXP)
        pop(m, s, c->below);
}

/* Progress: 0, or one more than the blanks behind the line feed. */
static void step_space(qe_matcher *m, state *s, const cell *c, uint8_t b)
{
    if (c->progress == 0 && b == ' ')
        pop(m, s, c->below);
    else if (c->progress == 0 && b == '\n')
        push(m, s, c->node, 1, c->below);
    else if (c->progress > 0 && (b == ' ' || b == '\t') &&
             c->progress <= QE_GRAMMAR_INDENT_MAX * m->cells[c->below].depth)
        push(m, s, c->node, c->progress + 1, c->below);
}

static uint32_t find_token(const qe_matcher *m, const qe_node *n)
{
    uint32_t id;
    const char *content = (const char *)m->grammar->bytes->data + n->begin;
    return qe_tokenizer_find(m->vocab->tokenizer, content, &id) ? id : UINT32_MAX;
}

static void step_cell(qe_matcher *m, state *s, uint32_t top, uint8_t b)
{
    const cell c = m->cells[top];
    const qe_node *n = qe_grammar_node(m->grammar, c.node);
    switch ((qe_node_kind)n->kind) {
    case QE_NODE_LITERAL:
        step_literal(m, s, &c, n, b);
        break;
    case QE_NODE_SET:
        step_set(m, s, &c, n, b);
        break;
    case QE_NODE_STRING:
        step_string(m, s, &c, n, b);
        break;
    case QE_NODE_KEY:
        step_key(m, s, &c, n, b);
        break;
    case QE_NODE_NUMBER:
        step_number(m, s, &c, n, b);
        break;
    case QE_NODE_SPACE:
        step_space(m, s, &c, b);
        break;
    case QE_NODE_TOKEN:
        if (find_token(m, n) == UINT32_MAX) /* this vocabulary spells it */
            step_literal(m, s, &c, n, b);
        break;
    case QE_NODE_EMPTY:
    case QE_NODE_SEQUENCE:
    case QE_NODE_CHOICE:
    case QE_NODE_OBJECT:
    case QE_NODE_ARRAY:
        g_assert_not_reached();
    }
}

static state step(qe_matcher *m, state from, uint8_t b)
{
    state to = begin_state(m);
    for (uint32_t i = 0; i < from.n; i++)
        step_cell(m, &to, m->pool[from.begin + i], b);
    return to;
}

static bool is_dead(state s)
{
    return s.n == 0 && !s.whole;
}

/* ---- The text so far ---- */

qe_matcher *qe_matcher_new(qe_grammar *grammar, qe_vocab *vocab)
{
    qe_matcher *m = g_new0(qe_matcher, 1);
    m->grammar = qe_grammar_ref(grammar);
    m->vocab = qe_vocab_ref(vocab);
    m->cells_max = m->pool_max = 256;
    m->cells = g_new0(cell, m->cells_max);
    m->pool = g_new0(uint32_t, m->pool_max);
    m->n_cells = 1;
    m->path = g_new0(state, vocab->trie.depth_max + 1);
    m->now = begin_state(m);
    push(m, &m->now, grammar->root, 0, END);
    return m;
}

void qe_matcher_free(qe_matcher *self)
{
    if (!self)
        return;
    qe_grammar_unref(self->grammar);
    qe_vocab_unref(self->vocab);
    g_free(self->cells);
    g_free(self->pool);
    g_free(self->path);
    g_free(self->scratch);
    g_free(self);
}

bool qe_matcher_is_whole(const qe_matcher *self)
{
    return self->now.whole;
}

/* Makes @s, the last of the pool, the present state. */
static void settle(qe_matcher *m, state s)
{
    memmove(m->pool, m->pool + s.begin, s.n * sizeof *m->pool);
    s.begin = 0;
    m->now = s;
    m->n_pool = s.n;
    if (m->n_cells > CELLS_KEPT)
        compact(m);
}

bool qe_matcher_take_bytes(qe_matcher *self, const char *bytes, gsize n)
{
    uint32_t n_cells = self->n_cells, n_pool = self->n_pool;
    state s = self->now;
    for (gsize i = 0; i < n && !is_dead(s); i++)
        s = step(self, s, (uint8_t)bytes[i]);
    if (is_dead(s)) {
        take_back(self, n_cells);
        self->n_pool = n_pool;
    } else if (n) {
        settle(self, s);
    }
    return !is_dead(s);
}

bool qe_matcher_allows(qe_matcher *self, const char *bytes, gsize n)
{
    uint32_t n_cells = self->n_cells, n_pool = self->n_pool;
    state s = self->now;
    for (gsize i = 0; i < n && !is_dead(s); i++)
        s = step(self, s, (uint8_t)bytes[i]);
    take_back(self, n_cells);
    self->n_pool = n_pool;
    return !is_dead(s);
}

static bool take_control_token(qe_matcher *m, uint32_t id)
{
    state to = begin_state(m);
    for (uint32_t i = 0; i < m->now.n; i++) {
        const cell c = m->cells[m->pool[m->now.begin + i]];
        const qe_node *n = qe_grammar_node(m->grammar, c.node);
        if (n->kind == QE_NODE_TOKEN && find_token(m, n) == id)
            pop(m, &to, c.below);
    }
    if (is_dead(to))
        return false;
    settle(m, to);
    return true;
}

bool qe_matcher_take_token(qe_matcher *self, uint32_t id)
{
    gsize n = 0;
    const char *bytes = qe_tokenizer_token_bytes(self->vocab->tokenizer, id, &n);
    if (!bytes || n == 0)
        return false;
    if (qe_tokenizer_is_added(self->vocab->tokenizer, id))
        return take_control_token(self, id);
    return qe_matcher_take_bytes(self, bytes, n);
}

/* ---- Masks ---- */

static void set_bit(uint32_t *words, uint32_t n_words, uint32_t id)
{
    if (id / 32 < n_words)
        words[id / 32] |= 1u << id % 32;
}

/* Calls @found with each node of [begin, end), whole subtrees from depth 1, at which a string ends that @from takes. */
typedef void (*found_fn)(void *user, const qe_vocab_node *node);
static void walk(qe_matcher *m, const qe_vocab_node *nodes, uint32_t begin, uint32_t end, state from,
    found_fn found, void *user)
{
    uint32_t n_pool = m->n_pool;
    m->path[0] = from;
    for (uint32_t i = begin; i < end;) {
        const qe_vocab_node *node = &nodes[i];
        const state *parent = &m->path[node->depth - 1];
        m->n_pool = node->depth == 1 ? n_pool : parent->begin + parent->n;
        state s = step(m, *parent, node->byte);
        m->path[node->depth] = s;
        if (!is_dead(s) && node->id_begin < node->id_end)
            found(user, node);
        i = s.n ? i + 1 : node->end;
    }
    m->n_pool = n_pool;
}

typedef struct {
    const qe_vocab_trie *trie;
    uint32_t *words, n_words;
    /* Of leavers. */
    const qe_string_uses *uses;
    uint32_t least, most; /* characters that may begin in the token */
} mask;

static void allow_node(void *user, const qe_vocab_node *node)
{
    mask *k = user;
    for (uint32_t i = node->id_begin; i < node->id_end; i++)
        set_bit(k->words, k->n_words, k->trie->ids[i]);
}

static void allow_leaver(const mask *k, const qe_string_leaver *leaver)
{
    if (leaver->n_chars >= k->least && leaver->n_chars <= k->most)
        set_bit(k->words, k->n_words, leaver->id);
}

static void allow_leavers(void *user, const qe_vocab_node *node)
{
    mask *k = user;
    for (uint32_t i = node->id_begin; i < node->id_end; i++)
        allow_leaver(k, &g_array_index(k->uses->leavers, qe_string_leaver, k->uses->suffixes.ids[i]));
}

/* Ids that stay inside, of at most @most characters. */
static void allow_inside(const mask *k, const qe_string_table *table)
{
    uint32_t n = MIN(k->n_words, table->n_words);
    if (k->most >= UINT16_MAX) {
        for (uint32_t i = 0; i < n; i++)
            k->words[i] |= k->uses->stays[i];
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = k->uses->stays[i], fit = 0;
        if (bits == 0)
            continue;
        const uint16_t *n_chars = k->uses->n_chars + (gsize)i * 32;
        for (uint32_t j = 0; j < 32; j++)
            fit |= (uint32_t)(n_chars[j] <= k->most) << j;
        k->words[i] |= bits & fit;
    }
}

/* A string that is open at @place, with @count of its characters. */
static void fill_string(qe_matcher *m, const cell *c, uint32_t place, uint32_t count, uint32_t min,
    uint32_t max, uint32_t *words, uint32_t n_words)
{
    const qe_string_table *table = m->vocab->strings;
    mask k = {
        .words = words,
        .n_words = n_words,
        .uses = &table->uses[place],
        .least = count < min ? min - count : 0,
        .most = max == QE_GRAMMAR_UNBOUNDED ? UINT32_MAX : max - count,
    };
    allow_inside(&k, table);
    for (guint i = 0; i < k.uses->closers->len; i++)
        allow_leaver(&k, &g_array_index(k.uses->closers, qe_string_leaver, i));
    uint32_t n_pool = m->n_pool;
    state behind = begin_state(m);
    pop(m, &behind, c->below);
    walk(m, k.uses->suffixes.nodes, 0, k.uses->suffixes.n_nodes, behind, allow_leavers, &k);
    m->n_pool = n_pool;
}

/* A key that may still become a name: as any string, but for the tokens that begin as the names go on, end or escape. */
static void fill_key(qe_matcher *m, uint32_t top, uint32_t *words, uint32_t n_words)
{
    const cell c = m->cells[top];
    const qe_node *n = qe_grammar_node(m->grammar, c.node);
    const qe_vocab_trie *trie = &m->vocab->trie;
    memset(m->scratch, 0, n_words * sizeof *m->scratch);
    fill_string(m, &c, place_of(&c), 0, 0, QE_GRAMMAR_UNBOUNDED, m->scratch, n_words);
    mask k = {.trie = trie, .words = m->scratch, .n_words = n_words};
    uint32_t n_pool = m->n_pool;
    state from = begin_state(m);
    add(m, &from, top);
    for (uint32_t i = 0; i < trie->n_nodes; i = trie->nodes[i].end) {
        uint8_t b = trie->nodes[i].byte;
        if (b != '"' && b != '\\' && find_branch(m, n->begin + count_of(&c), b) == QE_GRAMMAR_NONE)
            continue;
        uint32_t end = trie->nodes[i].end;
        for (uint32_t j = trie->nodes[i].id_begin; j < trie->nodes[end - 1].id_end; j++) {
            if (trie->ids[j] / 32 < n_words)
                m->scratch[trie->ids[j] / 32] &= ~(1u << trie->ids[j] % 32);
        }
        walk(m, trie->nodes, i, end, from, allow_node, &k);
    }
    m->n_pool = n_pool;
    for (uint32_t i = 0; i < n_words; i++)
        words[i] |= m->scratch[i];
}

/* What one stack allows in a way of its own; the others go into @rest, to be walked together. */
static void fill_top(qe_matcher *m, uint32_t top, state *rest, uint32_t *words, uint32_t n_words)
{
    const cell c = m->cells[top];
    const qe_node *n = qe_grammar_node(m->grammar, c.node);
    uint32_t id;
    if (n->kind == QE_NODE_STRING && place_of(&c) != QE_STRING_BEFORE)
        fill_string(m, &c, place_of(&c), count_of(&c), n->min, n->max, words, n_words);
    else if (n->kind == QE_NODE_KEY && place_of(&c) != QE_STRING_BEFORE)
        fill_key(m, top, words, n_words);
    else if (n->kind == QE_NODE_TOKEN && (id = find_token(m, n)) != UINT32_MAX)
        set_bit(words, n_words, id);
    else
        add(m, rest, top);
}

bool qe_matcher_fill(qe_matcher *self, uint32_t *words, uint32_t n_words)
{
    uint32_t n_cells = self->n_cells, n_pool = self->n_pool;
    if (self->n_scratch < n_words) {
        self->scratch = g_renew(uint32_t, self->scratch, n_words);
        self->n_scratch = n_words;
    }
    memset(words, 0, n_words * sizeof *words);
    state rest = begin_state(self);
    for (uint32_t i = 0; i < self->now.n; i++) {
        state before = rest;
        fill_top(self, self->pool[self->now.begin + i], &rest, words, n_words);
        g_assert(rest.begin == before.begin && self->n_pool == rest.begin + rest.n);
    }
    mask k = {.trie = &self->vocab->trie, .words = words, .n_words = n_words};
    if (rest.n)
        walk(self, k.trie->nodes, 0, k.trie->n_nodes, rest, allow_node, &k);
    take_back(self, n_cells);
    self->n_pool = n_pool;
    for (uint32_t i = 0; i < n_words; i++) {
        if (words[i])
            return true;
    }
    return false;
}
