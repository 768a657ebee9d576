/* qe-strings.c: the bytes of a JSON string, and what each token does inside one. See qe-strings.h. */
#include "engine/qe-strings.h"
#include <string.h>

static bool is_hex(uint8_t b)
{
    return (b >= '0' && b <= '9') || ((b | 0x20) >= 'a' && (b | 0x20) <= 'f');
}

static bool within(uint8_t b, uint8_t low, uint8_t high)
{
    return b >= low && b <= high;
}

static qe_string_place begin_char(uint8_t b)
{
    if (b < 0x20)
        return QE_STRING_REFUSED;
    if (b < 0x80)
        return QE_STRING_INSIDE;
    if (within(b, 0xc2, 0xdf))
        return QE_STRING_TAIL_1;
    if (b == 0xe0)
        return QE_STRING_TAIL_2_E0;
    if (b == 0xed)
        return QE_STRING_TAIL_2_ED;
    if (within(b, 0xe1, 0xef))
        return QE_STRING_TAIL_2;
    if (b == 0xf0)
        return QE_STRING_TAIL_3_F0;
    if (within(b, 0xf1, 0xf3))
        return QE_STRING_TAIL_3;
    return b == 0xf4 ? QE_STRING_TAIL_3_F4 : QE_STRING_REFUSED;
}

static qe_string_place if_tail(uint8_t b, uint8_t low, uint8_t high, qe_string_place next)
{
    return within(b, low, high) ? next : QE_STRING_REFUSED;
}

static qe_string_place if_hex(bool hex, qe_string_place next)
{
    return hex ? next : QE_STRING_REFUSED;
}

qe_string_place qe_string_step(qe_string_place place, uint8_t b)
{
    switch (place) {
    case QE_STRING_BEFORE:
        return b == '"' ? QE_STRING_INSIDE : QE_STRING_REFUSED;
    case QE_STRING_INSIDE:
        return b == '"' ? QE_STRING_CLOSED : b == '\\' ? QE_STRING_ESCAPE : begin_char(b);
    case QE_STRING_ESCAPE:
        if (b == 'u')
            return QE_STRING_HEX_1;
        return b == '/' ? QE_STRING_INSIDE : qe_string_step(QE_STRING_SHORT_ESCAPE, b);
    case QE_STRING_SHORT_ESCAPE:
        return b && strchr("\"\\bfnrt", b) ? QE_STRING_INSIDE : QE_STRING_REFUSED;
    case QE_STRING_HEX_1:
        return if_hex(is_hex(b), (b | 0x20) == 'd' ? QE_STRING_HEX_2_D : QE_STRING_HEX_2);
    case QE_STRING_HEX_2:
        return if_hex(is_hex(b), QE_STRING_HEX_3);
    case QE_STRING_HEX_2_D: /* D8 to DF would be surrogates */
        return if_hex(within(b, '0', '7'), QE_STRING_HEX_3);
    case QE_STRING_HEX_3:
        return if_hex(is_hex(b), QE_STRING_HEX_4);
    case QE_STRING_HEX_4:
        return if_hex(is_hex(b), QE_STRING_INSIDE);
    case QE_STRING_TAIL_1:
        return if_tail(b, 0x80, 0xbf, QE_STRING_INSIDE);
    case QE_STRING_TAIL_2:
        return if_tail(b, 0x80, 0xbf, QE_STRING_TAIL_1);
    case QE_STRING_TAIL_2_E0:
        return if_tail(b, 0xa0, 0xbf, QE_STRING_TAIL_1);
    case QE_STRING_TAIL_2_ED:
        return if_tail(b, 0x80, 0x9f, QE_STRING_TAIL_1);
    case QE_STRING_TAIL_3:
        return if_tail(b, 0x80, 0xbf, QE_STRING_TAIL_2);
    case QE_STRING_TAIL_3_F0:
        return if_tail(b, 0x90, 0xbf, QE_STRING_TAIL_2);
    case QE_STRING_TAIL_3_F4:
        return if_tail(b, 0x80, 0x8f, QE_STRING_TAIL_2);
    case QE_STRING_CLOSED:
    case QE_STRING_REFUSED:
        break;
    }
    return QE_STRING_REFUSED;
}

/* ---- Tables ---- */

typedef struct {
    const qe_vocab *vocab;
    qe_string_uses *uses;
    GArray *suffixes; /* qe_vocab_string: their ids are places in the leavers */
} builder;

static void add_leavers(builder *b, uint32_t i, uint32_t n_before, uint16_t n_chars)
{
    const qe_vocab_node *node = &b->vocab->trie.nodes[i];
    for (uint32_t k = node->id_begin; k < node->id_end; k++) {
        gsize n = 0;
        uint32_t id = b->vocab->trie.ids[k];
        const char *bytes = qe_tokenizer_token_bytes(b->vocab->tokenizer, id, &n);
        qe_string_leaver leaver = {id, n_chars};
        qe_vocab_string suffix = {
            (const uint8_t *)bytes + n_before, (uint32_t)n - n_before, b->uses->leavers->len};
        g_array_append_val(b->uses->leavers, leaver);
        if (suffix.n)
            g_array_append_val(b->suffixes, suffix);
        else
            g_array_append_val(b->uses->closers, leaver);
    }
}

/* Walks the trie from @place. Of a string that was closed the rest of the subtree are leavers. */
static void walk(builder *b, qe_string_place first)
{
    const qe_vocab_trie *v = &b->vocab->trie;
    g_autofree uint8_t *places = g_new0(uint8_t, v->depth_max + 1);
    g_autofree uint16_t *chars = g_new0(uint16_t, v->depth_max + 1);
    places[0] = (uint8_t)first;
    for (uint32_t i = 0; i < v->n_nodes;) {
        const qe_vocab_node *node = &v->nodes[i];
        qe_string_place before = places[node->depth - 1], place = qe_string_step(before, node->byte);
        uint16_t n_chars = chars[node->depth - 1];
        if (place == QE_STRING_CLOSED) {
            for (uint32_t k = i; k < node->end; k++)
                add_leavers(b, k, node->depth, n_chars);
        }
        if (place == QE_STRING_CLOSED || place == QE_STRING_REFUSED) {
            i = node->end;
            continue;
        }
        n_chars += before == QE_STRING_INSIDE;
        places[node->depth] = (uint8_t)place;
        chars[node->depth] = n_chars;
        for (uint32_t k = node->id_begin; k < node->id_end; k++) {
            uint32_t id = v->ids[k];
            b->uses->stays[id / 32] |= 1u << id % 32;
            b->uses->n_chars[id] = n_chars;
        }
        i++;
    }
}

qe_string_table *qe_string_table_new(const qe_vocab *vocab)
{
    qe_string_table *self = g_new0(qe_string_table, 1);
    uint32_t n_ids = qe_tokenizer_n_tokens(vocab->tokenizer);
    self->n_words = (n_ids + 31) / 32;
    for (uint32_t place = QE_STRING_INSIDE; place < QE_STRING_CLOSED; place++) {
        qe_string_uses *uses = &self->uses[place];
        uses->stays = g_new0(uint32_t, self->n_words);
        uses->n_chars = g_new0(uint16_t, self->n_words * 32u + 1);
        uses->closers = g_array_new(FALSE, FALSE, sizeof(qe_string_leaver));
        uses->leavers = g_array_new(FALSE, FALSE, sizeof(qe_string_leaver));
        builder b = {vocab, uses, g_array_new(FALSE, FALSE, sizeof(qe_vocab_string))};
        walk(&b, (qe_string_place)place);
        qe_vocab_build(&uses->suffixes, (qe_vocab_string *)(void *)b.suffixes->data, b.suffixes->len);
        g_array_unref(b.suffixes);
    }
    return self;
}

void qe_string_table_free(qe_string_table *self)
{
    if (!self)
        return;
    for (uint32_t place = QE_STRING_INSIDE; place < QE_STRING_CLOSED; place++) {
        qe_string_uses *uses = &self->uses[place];
        g_free(uses->stays);
        g_free(uses->n_chars);
        g_array_unref(uses->closers);
        g_array_unref(uses->leavers);
        qe_vocab_clear(&uses->suffixes);
    }
    g_free(self);
}
