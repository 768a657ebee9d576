/* qe-reply.c: token bytes -> whole characters -> text free of stop strings. See qe-reply.h. */
#include "engine/qe-reply.h"

#include "engine/qe-stop.h"
#include "engine/qe-utf8.h"

struct qe_reply {
    qe_tokenizer *tokenizer;
    qe_utf8_filter filter;
    qe_stop_matcher *stops;
    GString *whole; /* scratch: whole characters of this push */
    bool stopped;
};

qe_reply *qe_reply_new(qe_tokenizer *tokenizer, const char *const *stop)
{
    qe_reply *self = g_new0(qe_reply, 1);
    GError *error = NULL;

    self->tokenizer = qe_tokenizer_ref(tokenizer);
    qe_utf8_filter_init(&self->filter);
    self->stops = qe_stop_matcher_new(stop, &error);
    if (self->stops == NULL) /* the request's strings were checked when it was made */
        g_error("stop strings: %s", error->message);
    self->whole = g_string_new(NULL);
    return self;
}

void qe_reply_free(qe_reply *self)
{
    if (self == NULL)
        return;
    qe_tokenizer_unref(self->tokenizer);
    qe_stop_matcher_free(self->stops);
    g_string_free(self->whole, TRUE);
    g_free(self);
}

bool qe_reply_push(qe_reply *self, uint32_t id, GString *out)
{
    gsize n = 0;
    const char *bytes = qe_tokenizer_token_bytes(self->tokenizer, id, &n);

    if (self->stopped || bytes == NULL || qe_tokenizer_is_special(self->tokenizer, id))
        return self->stopped;
    g_string_truncate(self->whole, 0);
    qe_utf8_filter_push(&self->filter, bytes, n, self->whole);
    self->stopped = qe_stop_matcher_push(self->stops, self->whole->str, self->whole->len, out);
    return self->stopped;
}

void qe_reply_flush(qe_reply *self, GString *out)
{
    if (self->stopped)
        return;
    g_string_truncate(self->whole, 0);
    qe_utf8_filter_flush(&self->filter, self->whole);
    self->stopped = qe_stop_matcher_push(self->stops, self->whole->str, self->whole->len, out);
    if (!self->stopped)
        qe_stop_matcher_flush(self->stops, out);
}
