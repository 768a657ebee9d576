/* qe-constraint.h: what is behind the public qe_constraint: a grammar. Internal. */
#pragma once
#include "engine/qe-grammar.h"
#include "engine/qe.h"

G_BEGIN_DECLS

typedef enum {
    QE_CONSTRAINT_WHOLE,   /* the whole reply is a text of the grammar */
    QE_CONSTRAINT_CALLS,   /* free until "<tool_call>", from there on of the grammar */
    QE_CONSTRAINT_NO_CALL, /* free, without the control token "<tool_call>"; no grammar */
} qe_constraint_kind;

struct qe_constraint {
    qe_constraint_kind kind;
    qe_grammar *grammar; /* may be NULL, see above */
    int n_refs;          /* atomic */
};

G_END_DECLS
