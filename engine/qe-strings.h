/* qe-strings.h: the bytes of a JSON string as a small automaton, and a table of what each token of a vocabulary does from
 * each of its places. Internal; the table is immutable. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-vocab.h"

G_BEGIN_DECLS

typedef enum {
    QE_STRING_BEFORE, /* the opening quote */
    QE_STRING_INSIDE, /* between two characters */
    QE_STRING_ESCAPE,
    QE_STRING_SHORT_ESCAPE, /* only those that are the one way to write their character */
    QE_STRING_HEX_1,
    QE_STRING_HEX_2,
    QE_STRING_HEX_2_D, /* behind a D: no surrogates */
    QE_STRING_HEX_3,
    QE_STRING_HEX_4,
    QE_STRING_TAIL_1, /* so many bytes of the character are to come; as the first byte restricts the next */
    QE_STRING_TAIL_2,
    QE_STRING_TAIL_2_E0,
    QE_STRING_TAIL_2_ED,
    QE_STRING_TAIL_3,
    QE_STRING_TAIL_3_F0,
    QE_STRING_TAIL_3_F4,
    QE_STRING_CLOSED,
    QE_STRING_REFUSED,
} qe_string_place;

/* The place behind @b. A character begins with each byte that is read at INSIDE and is not the closing quote. */
qe_string_place qe_string_step(qe_string_place place, uint8_t b);

/* A token with the closing quote in it. */
typedef struct {
    uint32_t id;
    uint32_t n_chars; /* that begin in it before the quote */
} qe_string_leaver;

/* What tokens do from one place. */
typedef struct {
    uint32_t *stays;   /* [n_words] bits: ids that end inside the string */
    uint16_t *n_chars; /* [n_words * 32]: characters that begin in those */
    GArray *closers;   /* qe_string_leaver: ids that end with the closing quote */
    GArray *leavers;   /* qe_string_leaver: what `suffixes` names */
    qe_vocab_trie
        suffixes; /* of the bytes behind the quote, where there are any; its ids are places in `leavers` */
} qe_string_uses;

typedef struct qe_string_table {
    uint32_t n_words;
    qe_string_uses uses[QE_STRING_CLOSED]; /* from INSIDE on */
} qe_string_table;

qe_string_table *qe_string_table_new(const qe_vocab *vocab);
void qe_string_table_free(qe_string_table *self); /* NULL is fine */

G_END_DECLS
