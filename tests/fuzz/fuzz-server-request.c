/* fuzz-server-request.c: any bytes as the body of a chat request and of a completion. */
#include <string.h>
#include "app/server/server-request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_request(const SrvRequest *r)
{
    g_assert(r->n >= 1 && r->n <= SRV_CHOICES_MAX);
    g_assert(r->stop->len >= 1 && r->stop->len <= SRV_STOP_MAX + 1);
    g_assert(r->stop->pdata[r->stop->len - 1] == NULL);
    g_assert(qe_sampling_params_check(&r->sampling, NULL));
    g_assert(r->session == NULL || srv_session_name_is_valid(r->session));
    g_assert((r->messages->len > 0) == (r->endpoint == SRV_CHAT));
    for (guint i = 0; i < r->messages->len; i++) {
        const qe_message *m = &g_array_index(r->messages, qe_message, i);
        g_assert(m->n_bytes >= 0 && m->text[m->n_bytes] == '\0');
        g_assert(m->role <= QE_ROLE_TOOL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    for (int e = 0; e < SRV_N_ENDPOINTS; e++) {
        SrvRequest r;
        SrvError error = {0};
        bool ok = srv_request_parse((SrvEndpoint)e, (const char *)data, n_bytes, NULL, &r, &error);
        g_assert(ok == (error.status == 0));
        if (ok) {
            check_request(&r);
        } else {
            g_autoptr(GString) out = g_string_new(NULL);
            srv_error_write(&error, out);
            g_assert(error.status == 400);
            /* What goes out is JSON, whatever came in; and reading it gives the message back. */
            g_autoptr(SrvJson) back = srv_json_read(out->str, out->len, NULL);
            g_assert(back != NULL);
            g_assert(strcmp(srv_json_get(srv_json_get(back, "error"), "message")->text, error.message) == 0);
            srv_error_clear(&error);
        }
        srv_request_clear(&r);
    }
    g_autoptr(SrvJson) json = srv_json_read((const char *)data, n_bytes, NULL);
    if (json != NULL) {
        g_autoptr(GString) once = g_string_new(NULL);
        g_autoptr(GString) twice = g_string_new(NULL);
        srv_json_write(once, json);
        g_autoptr(SrvJson) again = srv_json_read(once->str, once->len, NULL);
        g_assert(again != NULL);
        srv_json_write(twice, again);
        g_assert(g_string_equal(once, twice));
    }
    return 0;
}
