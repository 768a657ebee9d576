/* qe-constraint.h: what is behind the public qe_constraint: a grammar. Internal. */
#pragma once
#include "engine/qe-grammar.h"
#include "engine/qe.h"

G_BEGIN_DECLS

struct qe_constraint {
    qe_grammar *grammar;
    int n_refs; /* atomic */
};

G_END_DECLS
