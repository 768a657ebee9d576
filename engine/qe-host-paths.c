/* qe-host-paths.c: choices of the way to host pages, on file.
 *
 * A key file with a group for each key; the group's name is the key's digest, and the key itself is in it. What is not
 * understood is as if it were not there: the default does, and a measurement writes it anew. The file is replaced whole. */
#include "engine/qe-host-paths.h"
#include <string.h>

static const char *const names[QE_N_HOST_PATHS] = {"auto", "read", "stream", "cpu"};

const char *qe_host_path_name(qe_host_path path)
{
    g_return_val_if_fail((guint)path < QE_N_HOST_PATHS, "");
    return names[path];
}

bool qe_host_path_parse(const char *name, qe_host_path *out)
{
    for (guint i = 0; i < QE_N_HOST_PATHS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (qe_host_path)i;
            return true;
        }
    return false;
}

char *qe_host_paths_key(const char *device, const qk_shape *shape, qk_dtype pages)
{
    static const char *const types[] = {[QK_F32] = "f32", [QK_BF16] = "bf16", [QK_I8] = "int8"};
    return g_strdup_printf(
        "%s; %u layers, %u and %u heads of %u, hidden %u, ffn %u, vocab %u; %s pages; %u threads", device,
        shape->n_layers, shape->n_heads, shape->n_kv_heads, shape->head_dim, shape->hidden, shape->ffn,
        shape->vocab, types[pages], g_get_num_processors());
}

static char *group_of(const char *key)
{
    return g_compute_checksum_for_string(G_CHECKSUM_SHA256, key, -1);
}

qe_host_path qe_host_paths_choose(const char *file, const char *key, qe_host_path wanted, char **why)
{
    qe_host_path path;
    if (wanted != QE_HOST_PATH_AUTO) {
        *why = g_strdup("as asked for");
        return wanted;
    }
    g_autoptr(GKeyFile) kept = g_key_file_new();
    g_autofree char *group = group_of(key);
    if (file && g_key_file_load_from_file(kept, file, G_KEY_FILE_NONE, NULL)) {
        g_autofree char *same = g_key_file_get_string(kept, group, "key", NULL);
        g_autofree char *name = g_key_file_get_string(kept, group, "path", NULL);
        g_autofree char *when = g_key_file_get_string(kept, group, "measured", NULL);
        if (g_strcmp0(same, key) == 0 && name && qe_host_path_parse(name, &path) &&
            path != QE_HOST_PATH_AUTO) {
            *why = g_strdup_printf("the fastest here when it was measured (%s)", when ? when : "no date");
            return path;
        }
    }
    *why = g_strdup("the default: not measured on this machine with this model");
    return QE_HOST_PATH_STREAM;
}

bool qe_host_paths_store(const char *file, const char *key, qe_host_path path, uint32_t n_tokens,
    const double ms[QE_N_HOST_PATHS], GError **error)
{
    g_return_val_if_fail(path != QE_HOST_PATH_AUTO, false);
    g_autoptr(GKeyFile) kept = g_key_file_new();
    g_autofree char *group = group_of(key);
    g_autoptr(GDateTime) now = g_date_time_new_now_utc();
    g_autofree char *when = g_date_time_format(now, "%Y-%m-%d");
    g_autofree char *dir = g_path_get_dirname(file);
    g_key_file_load_from_file(kept, file, G_KEY_FILE_KEEP_COMMENTS, NULL);
    g_key_file_set_string(kept, group, "key", key);
    g_key_file_set_string(kept, group, "path", names[path]);
    g_key_file_set_string(kept, group, "measured", when);
    g_key_file_set_uint64(kept, group, "tokens", n_tokens);
    for (guint i = QE_HOST_PATH_READ; i < QE_N_HOST_PATHS; i++) {
        g_autofree char *name = g_strdup_printf("%s_ms", names[i]);
        if (ms[i] > 0)
            g_key_file_set_double(kept, group, name, ms[i]);
        else
            g_key_file_remove_key(kept, group, name, NULL);
    }
    if (g_mkdir_with_parents(dir, 0700) != 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "Cannot make the folder %s", dir);
        return false;
    }
    return g_key_file_save_to_file(kept, file, error);
}
