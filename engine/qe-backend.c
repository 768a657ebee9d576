/* qe-backend.c: backends by name, statuses as errors. */
#include "engine/qe-backend.h"
#include "engine/qe.h"

#define PROBES_MAX  16
#define DEVICES_MAX 64

static void backend_desc_free(void *data)
{
    qe_backend_desc *desc = data;
    g_free(desc->name);
    g_free(desc->device);
    g_free(desc->reason);
    g_free(desc);
}

GPtrArray *qe_list_backends(void)
{
    GPtrArray *list = g_ptr_array_new_with_free_func(backend_desc_free);
    qk_probe probes[PROBES_MAX];
    size_t n = MIN(qk_probe_backends(probes, PROBES_MAX), PROBES_MAX);
    for (size_t i = 0; i < n; i++) {
        qe_backend_desc *desc = g_new0(qe_backend_desc, 1);
        desc->name = g_strdup(probes[i].name);
        desc->device = g_utf8_make_valid(probes[i].available ? probes[i].device : "", -1);
        desc->reason = probes[i].available ? NULL : g_utf8_make_valid(probes[i].reason, -1);
        g_ptr_array_add(list, desc);
    }
    return list;
}

static void device_desc_free(void *data)
{
    qe_device_desc *desc = data;
    g_free(desc->id);
    g_free(desc->name);
    g_free(desc->reason);
    g_free(desc);
}

GPtrArray *qe_list_devices(void)
{
    GPtrArray *list = g_ptr_array_new_with_free_func(device_desc_free);
    qk_device devices[DEVICES_MAX];
    size_t n = MIN(qk_list_devices("cuda", devices, DEVICES_MAX), DEVICES_MAX);
    for (size_t i = 0; i < n; i++) {
        qe_device_desc *desc = g_new0(qe_device_desc, 1);
        desc->id = g_utf8_make_valid(devices[i].id, -1);
        desc->name = g_utf8_make_valid(devices[i].name, -1);
        desc->memory_total = devices[i].memory_total;
        desc->memory_free = devices[i].memory_free;
        desc->reason = devices[i].usable ? NULL : g_utf8_make_valid(devices[i].reason, -1);
        g_ptr_array_add(list, desc);
    }
    return list;
}

static qe_error_code code_of(qk_status status)
{
    switch (status) {
    case QK_NO_MEMORY:
        return QE_ERROR_NO_MEMORY;
    case QK_UNSUPPORTED:
        return QE_ERROR_UNSUPPORTED;
    case QK_INVALID:
        return QE_ERROR_INVALID;
    case QK_DEVICE_LOST:
        return QE_ERROR_DEVICE_LOST;
    case QK_CANCELLED:
        return QE_ERROR_CANCELLED;
    case QK_OK:
    case QK_PENDING:
        break;
    }
    return QE_ERROR_FAILED;
}

void qe_backend_set_error(GError **error, qk_backend *backend, qk_status status, const char *what)
{
    const char *words = backend ? qk_backend_error(backend) : NULL;
    if (!words || !*words)
        words = qk_status_name(status);
    g_set_error(error, QE_ERROR, (gint)code_of(status), "%s: %s", what, words);
}

bool qe_backend_has_choice(const qe_backend_opener *opener)
{
    return !opener->open && !opener->name;
}

qk_backend *qe_backend_open(const qe_backend_opener *opener, bool last_resort, GError **error)
{
    qk_backend *backend = NULL;
    char words[256] = "";
    qk_status status;
    const char *name = opener->name;
    if (opener->open) {
        status = opener->open(opener->user, &backend, words, sizeof words);
        name = "the given backend";
    } else {
        qk_probe probes[PROBES_MAX];
        size_t n = MIN(qk_probe_backends(probes, PROBES_MAX), PROBES_MAX);
        for (size_t i = 0; i < n && (!name || (last_resort && !opener->name)); i++) {
            if (probes[i].available)
                name = probes[i].name;
        }
        if (!name) {
            g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "No backend can run on this machine%s%s",
                n ? ": " : "", n ? probes[0].reason : "");
            return NULL;
        }
        qk_backend_options options = {
            .n_threads = opener->n_threads, .isa = opener->isa, .device = opener->device};
        status = qk_backend_open(name, &options, &backend, words, sizeof words);
    }
    if (status == QK_OK)
        return backend;
    g_set_error(error, QE_ERROR, (gint)code_of(status), "Cannot open backend \"%s\": %s", name,
        *words ? words : qk_status_name(status));
    return NULL;
}
