/* qe-constraint.c: the public face of grammars. See qe.h. */
#include "engine/qe-constraint.h"
#include <string.h>
#include "engine/qe-schema.h"

static qe_constraint *take(qe_grammar *grammar)
{
    if (!grammar)
        return NULL;
    qe_constraint *self = g_new0(qe_constraint, 1);
    self->grammar = grammar;
    self->n_refs = 1;
    return self;
}

static gsize length(const char *text, gssize n_bytes)
{
    return n_bytes < 0 ? strlen(text) : (gsize)n_bytes;
}

qe_constraint *qe_constraint_new_json_object(void)
{
    qe_grammar *grammar = qe_grammar_new();
    bool ok = qe_grammar_finish(grammar, QE_NODE_ANY_OBJECT, NULL);
    g_assert(ok);
    return take(grammar);
}

qe_constraint *qe_constraint_new_json_schema(const char *schema, gssize n_bytes, GError **error)
{
    return take(qe_schema_to_grammar(schema, length(schema, n_bytes), error));
}

qe_constraint *qe_constraint_new_tool_call(
    const char *tools, gssize n_bytes, const char *name, bool parallel, GError **error)
{
    return take(qe_schema_tools_to_grammar(tools, length(tools, n_bytes), name, parallel, error));
}

qe_constraint *qe_constraint_new_tool_call_or_text(
    const char *tools, gssize n_bytes, bool parallel, GError **error)
{
    qe_constraint *self =
        take(qe_schema_tools_to_grammar(tools, length(tools, n_bytes), NULL, parallel, error));
    if (self)
        self->kind = QE_CONSTRAINT_CALLS;
    return self;
}

qe_constraint *qe_constraint_new_tool_call_or_json(
    const char *tools, gssize n_tools, bool parallel, const char *schema, gssize n_schema, GError **error)
{
    return take(qe_schema_tools_or_json_to_grammar(
        tools, length(tools, n_tools), parallel, schema, schema ? length(schema, n_schema) : 0, error));
}

qe_constraint *qe_constraint_new_no_tool_call(void)
{
    qe_constraint *self = g_new0(qe_constraint, 1);
    self->kind = QE_CONSTRAINT_NO_CALL;
    self->n_refs = 1;
    return self;
}

qe_constraint *qe_constraint_ref(qe_constraint *self)
{
    g_atomic_int_inc(&self->n_refs);
    return self;
}

void qe_constraint_unref(qe_constraint *self)
{
    if (!self || !g_atomic_int_dec_and_test(&self->n_refs))
        return;
    qe_grammar_unref(self->grammar);
    g_free(self);
}
