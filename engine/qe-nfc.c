/* qe-nfc.c: see qe-nfc.h.
 *
 * Why not g_utf8_normalize(): it stops at a NUL, and its reordering of combining marks is quadratic in their number.
 * GLib's tables are used (g_unichar_fully_decompose, g_unichar_compose, g_unichar_combining_class).
 *
 * 1. An *inert* character (see is_inert) is a starter, is its own normal form, and composes with nothing before it.
 *    A boundary lies in front of it, so the text between two boundaries is normalised alone. Most text is all inert
 *    and is only looked at.
 * 2. is_inert may say no for an inert character (that costs time), never yes for another. */
#include "engine/qe-nfc.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    gunichar c;
    uint8_t ccc; /* canonical combining class; 0: starter */
} mark;

static bool is_inert(gunichar c)
{
    if (c < 0x300)
        return true;
    if (c < 0x2000)
        return (c >= 0x400 && c < 0x483) || (c >= 0x391 && c < 0x3d3) || (c >= 0x5d0 && c < 0x5eb);
    if (c < 0x3000)
        return (c >= 0x2002 && c < 0x20d0) || (c >= 0x2100 && c < 0x2126) || (c >= 0x212c && c < 0x2329) ||
               (c >= 0x232b && c < 0x2ad0);
    if (c < 0xa000)
        return (c < 0x302a || c > 0x302f) && c != 0x3099 && c != 0x309a;
    return (c >= 0xac00 && c < 0xd7a4) || (c >= 0xff00 && c < 0xfff0) || (c >= 0x1f000 && c < 0x1fb00);
}

/* Orders a run of marks by class, stably. Counting sort, since a run may be as long as the text. */
static void sort_marks(mark *run, gsize n)
{
    bool sorted = true;
    for (gsize i = 1; i < n && sorted; i++)
        sorted = run[i - 1].ccc <= run[i].ccc;
    if (sorted)
        return;
    gsize start[257] = {0};
    for (gsize i = 0; i < n; i++)
        start[run[i].ccc + 1]++;
    for (int k = 0; k < 256; k++)
        start[k + 1] += start[k];
    mark *copy = g_memdup2(run, n * sizeof *run);
    for (gsize i = 0; i < n; i++)
        run[start[copy[i].ccc]++] = copy[i];
    g_free(copy);
}

static void decompose(GArray *marks, const char *text, gsize n)
{
    g_array_set_size(marks, 0);
    for (const char *p = text, *end = text + n; p < end; p = g_utf8_next_char(p)) {
        gunichar parts[G_UNICHAR_MAX_DECOMPOSITION_LENGTH];
        gsize n_parts = g_unichar_fully_decompose(g_utf8_get_char(p), FALSE, parts, G_N_ELEMENTS(parts));
        for (gsize i = 0; i < n_parts; i++) {
            mark m = {parts[i], (uint8_t)g_unichar_combining_class(parts[i])};
            g_array_append_val(marks, m);
        }
    }
    mark *all = (mark *)(gpointer)marks->data;
    for (gsize i = 0; i < marks->len;) {
        gsize end = i;
        while (end < marks->len && all[end].ccc != 0)
            end++;
        if (end - i > 1)
            sort_marks(all + i, end - i);
        i = MAX(end, i + 1);
    }
}

/* Composes in place: a character joins the last starter unless something between them has its class or a higher one, or
 * is a starter. */
static void compose(GArray *marks)
{
    mark *all = (mark *)(gpointer)marks->data;
    gsize n = 0;
    gssize starter = -1;
    for (gsize i = 0; i < marks->len; i++) {
        mark m = all[i];
        bool adjacent = starter >= 0 && n == (gsize)starter + 1;
        bool blocked = starter < 0 || (!adjacent && all[n - 1].ccc >= m.ccc);
        gunichar joined;
        if (!blocked && g_unichar_compose(all[starter].c, m.c, &joined)) {
            all[starter].c = joined;
            continue;
        }
        if (m.ccc == 0)
            starter = (gssize)n;
        all[n++] = m;
    }
    g_array_set_size(marks, (guint)n);
}

char *qe_nfc_normalize(const char *text, gsize n, gsize *n_out)
{
    GString *out = NULL;
    GArray *marks = NULL;
    const char *end = text + n, *copied = text, *previous = NULL;
    const char *p = text;
    while (p < end) {
        if ((uint8_t)*p < 0xcc || is_inert(g_utf8_get_char(p))) {
            previous = p;
            p = g_utf8_next_char(p);
            continue;
        }
        /* From the inert character before, which may compose with this one, to the next boundary. */
        const char *begin = previous ? previous : p;
        while (p < end && !is_inert(g_utf8_get_char(p)))
            p = g_utf8_next_char(p);
        if (out == NULL) {
            out = g_string_sized_new(n + 16);
            marks = g_array_new(FALSE, FALSE, sizeof(mark));
        }
        g_string_append_len(out, copied, begin - copied);
        decompose(marks, begin, (gsize)(p - begin));
        compose(marks);
        for (guint i = 0; i < marks->len; i++)
            g_string_append_unichar(out, g_array_index(marks, mark, i).c);
        copied = p;
        previous = NULL;
    }
    if (out == NULL)
        return NULL;
    g_array_free(marks, TRUE);
    g_string_append_len(out, copied, end - copied);
    if (out->len == n && memcmp(out->str, text, n) == 0) {
        g_string_free(out, TRUE);
        return NULL;
    }
    *n_out = out->len;
    return g_string_free(out, FALSE);
}
