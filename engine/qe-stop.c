/* qe-stop.c: see qe-stop.h.
 *
 * One Knuth-Morris-Pratt automaton a stop string; all advance with each byte, so a byte costs O(strings) amortised.
 * 1. state[i] is the length of the longest prefix of stop string i that is a suffix of the text so far.
 * 2. The held text is the suffix of length max(state): all before it can no longer be part of a match. */
#include "engine/qe-stop.h"
#include <stdint.h>
#include <string.h>
#include "engine/qe-limits.h"

typedef struct {
    char *text;
    uint32_t n;
    uint32_t state;
    uint32_t *failure; /* [n]: failure[k]: longest proper border of text[0..k] */
} stop_string;

struct qe_stop_matcher {
    stop_string *stops;
    guint n_stops;
    GString *held;
    int found;
};

static void build_failure(stop_string *stop)
{
    stop->failure = g_new0(uint32_t, stop->n);
    for (uint32_t i = 1, k = 0; i < stop->n; i++) {
        while (k > 0 && stop->text[i] != stop->text[k])
            k = stop->failure[k - 1];
        if (stop->text[i] == stop->text[k])
            k++;
        stop->failure[i] = k;
    }
}

qe_stop_matcher *qe_stop_matcher_new(const char *const *stops, GError **error)
{
    guint n_stops = stops ? g_strv_length((char **)stops) : 0;
    if (n_stops > QE_STOP_STRINGS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "stop: expected at most %u strings, found %u",
            QE_STOP_STRINGS_MAX, n_stops);
        return NULL;
    }
    for (guint i = 0; i < n_stops; i++) {
        gsize n = strlen(stops[i]);
        if (n == 0 || n > QE_STOP_BYTES_MAX) {
            g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
                "stop: expected strings of 1 to %u bytes, found %zu in string %u", QE_STOP_BYTES_MAX,
                (size_t)n, i);
            return NULL;
        }
    }
    qe_stop_matcher *self = g_new0(qe_stop_matcher, 1);
    self->found = -1;
    self->held = g_string_new(NULL);
    self->n_stops = n_stops;
    self->stops = g_new0(stop_string, n_stops);
    for (guint i = 0; i < n_stops; i++) {
        self->stops[i].text = g_strdup(stops[i]);
        self->stops[i].n = (uint32_t)strlen(stops[i]);
        build_failure(&self->stops[i]);
    }
    return self;
}

void qe_stop_matcher_free(qe_stop_matcher *self)
{
    if (self == NULL)
        return;
    for (guint i = 0; i < self->n_stops; i++) {
        g_free(self->stops[i].text);
        g_free(self->stops[i].failure);
    }
    g_free(self->stops);
    g_string_free(self->held, TRUE);
    g_free(self);
}

/* Advances all automata by one byte. Returns the longest stop string that ends here, or -1; *@longest: invariant 2. */
static int advance(qe_stop_matcher *self, char byte, uint32_t *longest)
{
    int found = -1;
    *longest = 0;
    for (guint i = 0; i < self->n_stops; i++) {
        stop_string *stop = &self->stops[i];
        uint32_t k = stop->state;
        while (k > 0 && stop->text[k] != byte)
            k = stop->failure[k - 1];
        if (stop->text[k] == byte)
            k++;
        stop->state = k;
        *longest = MAX(*longest, k);
        if (k == stop->n && (found < 0 || stop->n > self->stops[found].n))
            found = (int)i;
    }
    return found;
}

bool qe_stop_matcher_push(qe_stop_matcher *self, const char *text, gsize n, GString *out)
{
    if (self->found >= 0)
        return true;
    if (self->n_stops == 0) {
        g_string_append_len(out, text, (gssize)n);
        return false;
    }
    uint32_t longest = (uint32_t)self->held->len;
    for (gsize i = 0; i < n; i++) {
        self->found = advance(self, text[i], &longest);
        if (self->found >= 0) {
            g_string_append_len(self->held, text, (gssize)(i + 1));
            g_string_append_len(out, self->held->str, (gssize)(self->held->len - self->stops[self->found].n));
            g_string_truncate(self->held, 0);
            return true;
        }
    }
    g_string_append_len(self->held, text, (gssize)n);
    g_string_append_len(out, self->held->str, (gssize)(self->held->len - longest));
    g_string_erase(self->held, 0, (gssize)(self->held->len - longest));
    return false;
}

void qe_stop_matcher_flush(qe_stop_matcher *self, GString *out)
{
    g_string_append_len(out, self->held->str, (gssize)self->held->len);
    g_string_truncate(self->held, 0);
    for (guint i = 0; i < self->n_stops; i++)
        self->stops[i].state = 0;
    self->found = -1;
}

int qe_stop_matcher_get_found(const qe_stop_matcher *self)
{
    return self->found;
}
