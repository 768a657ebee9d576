/* qe-utf8.c: see qe-utf8.h.
 *
 * 1. What a filter holds is always a proper prefix of some well-formed character: qe_utf8_scan() of it is 0.
 * 2. Everything appended to an out string is well formed by itself. */
#include "engine/qe-utf8.h"
#include <string.h>

/* Length and the range of the second byte, by the first byte (Unicode table 3-7). */
static int lead(uint8_t byte, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (byte < 0x80)
        return 1;
    if (byte < 0xc2 || byte > 0xf4)
        return 0;
    if (byte < 0xe0)
        return 2;
    if (byte < 0xf0) {
        if (byte == 0xe0)
            *low = 0xa0; /* shorter forms exist */
        if (byte == 0xed)
            *high = 0x9f; /* surrogates */
        return 3;
    }
    if (byte == 0xf0)
        *low = 0x90;
    if (byte == 0xf4)
        *high = 0x8f; /* past U+10FFFF */
    return 4;
}

int qe_utf8_scan(const char *p, gsize n)
{
    uint8_t low, high;
    int length = lead((uint8_t)p[0], &low, &high);
    if (length <= 1)
        return length == 1 ? 1 : -1;
    for (int i = 1; i < length; i++) {
        if ((gsize)i >= n)
            return 0;
        uint8_t byte = (uint8_t)p[i];
        if (byte < low || byte > high)
            return -i;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

gsize qe_utf8_valid_prefix(const char *text, gsize n)
{
    gsize at = 0;
    while (at < n) {
        uint64_t word;
        if (n - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                at += sizeof word;
                continue;
            }
        }
        int length = qe_utf8_scan(text + at, n - at);
        if (length <= 0)
            return at;
        at += (gsize)length;
    }
    return n;
}

void qe_utf8_append_repaired(GString *out, const char *text, gsize n)
{
    while (n > 0) {
        gsize good = qe_utf8_valid_prefix(text, n);
        g_string_append_len(out, text, (gssize)good);
        text += good;
        n -= good;
        if (n == 0)
            return;
        int length = qe_utf8_scan(text, n);
        gsize bad = length < 0 ? (gsize)-length : n;
        g_string_append(out, QE_UTF8_REPLACEMENT);
        text += bad;
        n -= bad;
    }
}

void qe_utf8_filter_init(qe_utf8_filter *self)
{
    memset(self, 0, sizeof *self);
}

void qe_utf8_filter_push(qe_utf8_filter *self, const char *bytes, gsize n, GString *out)
{
    /* First settle the held part, byte by byte. */
    while (self->n > 0 && n > 0) {
        char joined[4];
        memcpy(joined, self->part, self->n);
        joined[self->n] = *bytes;
        int length = qe_utf8_scan(joined, (gsize)self->n + 1);
        if (length < 0) {
            /* The held bytes are the ill-formed part; the new byte starts afresh. */
            g_string_append(out, QE_UTF8_REPLACEMENT);
            self->n = 0;
            break;
        }
        bytes++;
        n--;
        if (length == 0) {
            self->part[self->n] = joined[self->n];
            self->n++;
        } else {
            g_string_append_len(out, joined, length);
            self->n = 0;
        }
    }
    while (n > 0) {
        gsize good = qe_utf8_valid_prefix(bytes, n);
        g_string_append_len(out, bytes, (gssize)good);
        bytes += good;
        n -= good;
        if (n == 0)
            return;
        int length = qe_utf8_scan(bytes, n);
        if (length == 0) {
            memcpy(self->part, bytes, n); /* n <= 3: it is a proper prefix */
            self->n = (uint8_t)n;
            return;
        }
        g_string_append(out, QE_UTF8_REPLACEMENT);
        bytes += -length;
        n -= (gsize)-length;
    }
}

void qe_utf8_filter_flush(qe_utf8_filter *self, GString *out)
{
    if (self->n > 0)
        g_string_append(out, QE_UTF8_REPLACEMENT);
    self->n = 0;
}
