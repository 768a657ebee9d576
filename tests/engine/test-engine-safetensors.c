/* test-engine-safetensors.c: the safetensors reader and the JSON scanner under it. */
#include "engine/qe-json.h"
#include "engine/qe-safetensors.h"
#include <glib/gstdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char *temp_dir;

static char *write_file(const char *name, const void *data, size_t n_bytes)
{
    char *path = g_build_filename(temp_dir, name, NULL);
    g_assert_true(g_file_set_contents(path, data, (gssize)n_bytes, NULL));
    return path;
}

/* A file image: length, header text (padded to @pad), data of @n_data bytes counting up. */
static GByteArray *image(const char *header, size_t n_data)
{
    GByteArray *bytes = g_byte_array_new();
    uint64_t n = GUINT64_TO_LE(strlen(header));
    g_byte_array_append(bytes, (const guint8 *)&n, 8);
    g_byte_array_append(bytes, (const guint8 *)header, (guint)strlen(header));
    for (size_t i = 0; i < n_data; i++) {
        guint8 b = (guint8)i;
        g_byte_array_append(bytes, &b, 1);
    }
    return bytes;
}

/* Opens @header + data both from memory and from a file; both must agree. NULL @want: must open. */
static void expect_header(const char *header, size_t n_data, qe_error_code code, const char *want)
{
    g_autoptr(GByteArray) bytes = image(header, n_data);
    g_autofree char *path = write_file("case.safetensors", bytes->data, bytes->len);
    for (int from_file = 0; from_file < 2; from_file++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(qe_safetensors) st =
            from_file ? qe_safetensors_open(path, &error)
                      : qe_safetensors_new_from_memory(path, bytes->data, bytes->len, &error);
        if (want == NULL) {
            g_assert_no_error(error);
            g_assert_nonnull(st);
            continue;
        }
        g_assert_null(st);
        g_assert_error(error, QE_ERROR, (int)code);
        if (strstr(error->message, want) == NULL || strstr(error->message, "case.safetensors") == NULL)
            g_error("header %s: message lacks \"%s\": %s", header, want, error->message);
    }
}

static const struct {
    const char *name, *base64, *want; /* want: in the message; NULL: opens */
} b46[] = {
    {"st-ok",
        "QAAAAAAAAAB7InQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzIsMl0sImRhdGFfb2Zmc2V0cyI6WzAsMTZdfX0gICAgICAgAACA"
        "PwAAAEAA"
        "AEBAAACAQA==",
        NULL},
    {"st-truncated",
        "QAAAAAAAAAB7InQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzIsMl0sImRhdGFfb2Zmc2V0cyI6WzAsMTZdfX0gICAgICAgAACA"
        "PwAAAEAA"
        "AEBA",
        "tensor t"},
    {"st-7bytes", "AgAAAAAAAA==", "8 bytes"},
    {"st-hdr-2^63", "AAAAAAAAAIB7fQ==", "9223372036854775808"},
    {"st-hdr-wrap", "+P////////97fSAgICAgIA==", "header"},
    {"st-overlap",
        "cAAAAAAAAAB7ImEiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzRdLCJkYXRhX29mZnNldHMiOlswLDE2XX0sImIiOnsiZHR5cGUi"
        "OiJGMzIi"
        "LCJzaGFwZSI6WzRdLCJkYXRhX29mZnNldHMiOls4LDI0XX19ICAgAACAPwAAAEAAAEBAAACAQAAAgD8AAABA",
        "tensor b: overlaps"},
    {"st-hole",
        "cAAAAAAAAAB7ImEiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzRdLCJkYXRhX29mZnNldHMiOlswLDE2XX0sImIiOnsiZHR5cGUi"
        "OiJGMzIi"
        "LCJzaGFwZSI6WzRdLCJkYXRhX29mZnNldHMiOlsyMCwzNl19fSAgAACAPwAAAEAAAEBAAACAQAAAAAAAAIA/"
        "AAAAQAAAQEAAAIBA",
        "tensor b: leaves a hole"},
    {"st-shape-lie",
        "QAAAAAAAAAB7InQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzkwMCw3MDBdLCJkYXRhX29mZnNldHMiOlswLDE2XX19ICAgAACA"
        "PwAAAEAA"
        "AEBAAACAQA==",
        "tensor t: shape [900, 700]"},
    {"st-shape-wrap",
        "UAAAAAAAAAB7InQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzQyOTQ5NjcyOTYsNDI5NDk2NzI5Nl0sImRhdGFfb2Zmc2V0cyI6"
        "WzAsMF19"
        "fSAgICAgIA==",
        "tensor t: shape [4294967296, 4294967296] F32 overflows"},
    {"st-begin>end",
        "OAAAAAAAAAB7InQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzBdLCJkYXRhX29mZnNldHMiOlsxNiwwXX19IAAAgD8AAABAAABA"
        "QAAAgEA=",
        "tensor t: data_offsets"},
    {"st-trailing",
        "QAAAAAAAAAB7InQiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzIsMl0sImRhdGFfb2Zmc2V0cyI6WzAsMTZdfX0gICAgICAgAACA"
        "PwAAAEAA"
        "AEBAAACAQAAAAAAAAAAA",
        "bytes after tensor t"},
};

static void test_whole_files(void)
{
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (size_t i = 0; i < G_N_ELEMENTS(b46); i++) {
        gsize n_bytes = 0;
        g_autofree guchar *data = g_base64_decode(b46[i].base64, &n_bytes);
        g_autofree char *path = write_file("whole.safetensors", data, n_bytes);
        g_autoptr(GError) error = NULL;
        g_autoptr(qe_safetensors) st = qe_safetensors_open(path, &error);
        if (b46[i].want != NULL) {
            g_assert_null(st);
            g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
            if (strstr(error->message, b46[i].want) == NULL ||
                strstr(error->message, "whole.safetensors") == NULL)
                g_error("%s: message lacks \"%s\": %s", b46[i].name, b46[i].want, error->message);
            continue;
        }
        static const float want[4] = {1, 2, 3, 4};
        g_assert_no_error(error);
        g_assert_cmpuint(qe_safetensors_get_n_tensors(st), ==, 1);
        const qe_safetensor *t = qe_safetensors_find(st, "t");
        g_assert_nonnull(t);
        g_assert_cmpint(t->dtype, ==, QE_DTYPE_F32);
        g_assert_cmpuint(t->n_dims, ==, 2);
        g_assert_cmpuint(t->dims[0], ==, 2);
        g_assert_cmpuint(t->dims[1], ==, 2);
        g_assert_cmpmem(t->data, t->n_bytes, want, sizeof want);
        g_assert_false(t->unaligned);
    }
    /* Every case together, peak above the start: one lying length believed would show. */
    getrusage(RUSAGE_SELF, &after);
    g_assert_cmpint(after.ru_maxrss - before.ru_maxrss, <, 16 * 1024);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_headers(void)
{
    static const struct {
        const char *header;
        size_t n_data;
        qe_error_code code;
        const char *want;
    } cases[] = {
        {"{}", 0, 0, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, 0, NULL},
        {"{\"s\":" T("F32", "[]", "[0,4]") "}", 4, 0, NULL}, /* a scalar */
        {"{\"z\":" T("F32", "[0,7]", "[0,0]") ",\"a\":" T("I8", "[3]", "[0,3]") "}", 3, 0, NULL},
        {"{\"a\":{\"dtype\":\"I8\",\"note\":[{\"x\":[1]}],\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0,
            NULL},
        {"", 0, QE_ERROR_FORMAT, "'{'"},
        {" {}", 0, QE_ERROR_FORMAT, "'{'"},
        {"[]", 0, QE_ERROR_FORMAT, "'{'"},
        {"{", 0, QE_ERROR_FORMAT, "JSON"},
        {"{}x", 0, QE_ERROR_FORMAT, "the end"},
        {"{\"a\":1}", 0, QE_ERROR_FORMAT, "tensor a: value"},
        {"{\"a\":{}}", 0, QE_ERROR_FORMAT, "tensor a: dtype"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1]}}", 1, QE_ERROR_FORMAT, "tensor a: data_offsets"},
        {"{\"a\":{\"dtype\":\"I8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
            QE_ERROR_FORMAT, "tensor a: dtype: expected one value"},
        {"{\"a\":" T("I8", "[1]", "[0,1]") ",\"a\":" T("I8", "[1]", "[1,2]") "}", 2, QE_ERROR_FORMAT,
            "tensor a is there twice"},
        {"{\"a\":" T("I8", "[1]", "[0,1]") ",\"\\u0061\":" T("I8", "[1]", "[1,2]") "}", 2, QE_ERROR_FORMAT,
            "tensor a is there twice"},
        {"{\"a\":" T("Q4", "[1]", "[0,1]") "}", 1, QE_ERROR_UNSUPPORTED, "\"Q4\""},
        {"{\"a\":" T("I8", "[1]", "[0]") "}", 1, QE_ERROR_FORMAT, "two integers"},
        {"{\"a\":" T("I8", "[1]", "[0,1,2]") "}", 1, QE_ERROR_UNSUPPORTED, "at most 2"},
        {"{\"a\":" T("I8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, QE_ERROR_UNSUPPORTED, "at most 8"},
        {"{\"a\":" T("I8", "[-1]", "[0,1]") "}", 1, QE_ERROR_FORMAT, "negative"},
        {"{\"a\":" T("I8", "[1.0]", "[0,1]") "}", 1, QE_ERROR_FORMAT, "a number"},
        {"{\"a\":" T("I8", "[1e0]", "[0,1]") "}", 1, QE_ERROR_FORMAT, "a number"},
        {"{\"a\":" T("I8", "[1]", "[0,18446744073709551617]") "}", 1, QE_ERROR_FORMAT, "a number"},
        {"{\"a\":" T("I8", "[1]", "[0,9223372036854775807]") "}", 1, QE_ERROR_FORMAT, "data_offsets"},
        {"{\"a\":" T("F64", "[9223372036854775807]", "[0,1]") "}", 1, QE_ERROR_FORMAT, "overflows"},
        {"{\"a\":" T("I8", "\"1\"", "[0,1]") "}", 1, QE_ERROR_FORMAT, "tensor a: shape: expected a list"},
        {"{\"a\":" T("I8", "[1]", "[1,2]") "}", 2, QE_ERROR_FORMAT, "tensor a: leaves a hole"},
        {"{\"a\":" T("I8", "[2]", "[0,2]") ",\"b\":" T("I8", "[2]", "[0,2]") "}", 2, QE_ERROR_FORMAT,
            "overlaps"},
        {"{}", 1, QE_ERROR_FORMAT, "bytes of data"},
        {"{\"__metadata__\":{\"a\":1}}", 0, QE_ERROR_FORMAT, "__metadata__"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, QE_ERROR_FORMAT, "twice"},
        {"{\"a\xff\":1}", 0, QE_ERROR_FORMAT, "not UTF-8"},
        {"{\"a\\u0000\":1}", 0, QE_ERROR_FORMAT, "\\u0000"},
        {"{\"a\":\"\\ud800\"}", 0, QE_ERROR_FORMAT, "surrogate"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        expect_header(cases[i].header, cases[i].n_data, cases[i].code, cases[i].want);
    g_autofree char *name = g_strnfill(QE_SAFETENSORS_NAME_BYTES_MAX + 1, 'n');
    g_autofree char *header = g_strdup_printf("{\"%s\":" T("I8", "[1]", "[0,1]") "}", name);
    expect_header(header, 1, QE_ERROR_FORMAT, "names of at most");
}

static void test_names_and_order(void)
{
    g_autoptr(GByteArray) bytes = image("{\"b\":" T("BF16", "[2]", "[0,4]") ",\"a\\u00e9\":" T(
                                            "U8", "[1]", "[8,9]") ",\"a\":" T("F32", "[1]", "[4,8]") "} ",
        9);
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_safetensors) st = qe_safetensors_new_from_memory("mem", bytes->data, bytes->len, &error);
    g_assert_no_error(error);
    const char *const want[] = {"a", "a\303\251", "b"};
    g_assert_cmpuint(qe_safetensors_get_n_tensors(st), ==, 3);
    for (size_t i = 0; i < 3; i++) {
        const qe_safetensor *t = qe_safetensors_get_tensor(st, i);
        g_assert_cmpstr(t->name, ==, want[i]);
        g_assert_true(qe_safetensors_find(st, want[i]) == t);
        g_assert_cmpuint(*(const guint8 *)t->data, ==, t->begin); /* data counts up */
    }
    g_assert_null(qe_safetensors_find(st, "c"));
    g_assert_null(qe_safetensors_find(st, ""));
}

static void test_unaligned_is_said(void)
{
    g_autoptr(GByteArray) bytes =
        image("{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("F32", "[1]", "[1,5]") "}", 5);
    g_autofree char *path = write_file("odd.safetensors", bytes->data, bytes->len);
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_safetensors) st = qe_safetensors_open(path, &error);
    g_assert_no_error(error);
    const qe_safetensor *a = qe_safetensors_find(st, "a"), *b = qe_safetensors_find(st, "b");
    g_assert_false(a->unaligned);
    g_assert_cmpint(b->unaligned, ==, (uintptr_t)b->data % 4 != 0);
    g_assert_true(((uintptr_t)b->data - (uintptr_t)a->data) == 1);
}

/* Opening anything but a regular file fails at once. A FIFO without a writer would block a careless open for ever. */
static void test_not_a_file(void)
{
    g_autofree char *fifo = g_build_filename(temp_dir, "fifo.safetensors", NULL);
    g_autofree char *absent = g_build_filename(temp_dir, "absent.safetensors", NULL);
    g_assert_cmpint(mkfifo(fifo, 0600), ==, 0);
    const struct {
        const char *path, *want;
    } cases[] = {
        {temp_dir, "a folder"}, {fifo, "a FIFO"}, {"/dev/zero", "a device"}, {absent, "cannot open"}};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(qe_safetensors_open(cases[i].path, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_FILE);
        g_assert_nonnull(strstr(error->message, cases[i].want));
        g_assert_nonnull(strstr(error->message, cases[i].path));
    }
    g_unlink(fifo);
}

/* Each prefix of a good file is refused, and so is each single changed header byte that changes a number or a name of
 * the layout; none crashes (the sanitizer run is what proves the latter). */
static void test_cut_and_flipped(void)
{
    const char *header = "{\"a\":" T("F32", "[2,2]", "[0,16]") ",\"b\":" T("BF16", "[2]", "[16,20]") "}";
    g_autoptr(GByteArray) good = image(header, 20);
    for (guint n = 0; n < good->len; n++) {
        g_autofree guint8 *copy = g_memdup2(good->data, MAX(n, 1)); /* exact size: a read past it is seen */
        g_autoptr(GError) error = NULL;
        g_assert_null(qe_safetensors_new_from_memory("cut", copy, n, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
    }
    guint n_opened = 0, n_header = 8 + (guint)strlen(header);
    for (guint at = 0; at < n_header; at++) {
        for (guint bit = 0; bit < 8; bit++) {
            g_autofree guint8 *copy = g_memdup2(good->data, good->len);
            copy[at] ^= (guint8)(1u << bit);
            g_autoptr(GError) error = NULL;
            g_autoptr(qe_safetensors) st = qe_safetensors_new_from_memory("flip", copy, good->len, &error);
            g_assert_true((st == NULL) == (error != NULL));
            n_opened += st != NULL;
            if (at < 8)
                g_assert_null(st); /* any other length leaves the text incomplete or eats data */
        }
    }
    /* What may still open: another letter in a name, or another dtype of the same size. */
    g_assert_cmpuint(n_opened, <, 8 * 2 + 8);
}

static void test_depth(void)
{
    GString *deep = g_string_new("{\"a\":");
    for (int i = 0; i < 20000; i++)
        g_string_append_c(deep, '[');
    for (int i = 0; i < 20000; i++)
        g_string_append_c(deep, ']');
    g_string_append_c(deep, '}');
    for (int kind = 0; kind < 2; kind++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(qe_json_parse("deep.json", deep->str, deep->len, QE_JSON_DEFAULT, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
        g_assert_nonnull(strstr(error->message, "nested too deeply"));
        g_string_truncate(deep, 0);
        for (int i = 0; i < 20000; i++)
            g_string_append(deep, "{\"a\":");
    }
    /* 128 levels are fine, 129 are not. */
    for (int levels = QE_JSON_DEPTH_MAX; levels <= QE_JSON_DEPTH_MAX + 1; levels++) {
        g_autoptr(GError) error = NULL;
        g_string_assign(deep, "{\"a\":");
        for (int i = 1; i < levels; i++)
            g_string_append_c(deep, '[');
        for (int i = 1; i < levels; i++)
            g_string_append_c(deep, ']');
        g_string_append_c(deep, '}');
        g_autoptr(JsonObject) object =
            qe_json_parse("deep.json", deep->str, deep->len, QE_JSON_DEFAULT, &error);
        g_assert_cmpint(object != NULL, ==, levels == QE_JSON_DEPTH_MAX);
    }
    g_string_free(deep, TRUE);
}

static void test_json_grammar(void)
{
    static const char *const good[] = {"{}", " {\t\"a\" : [ 1 , -0.5e+3 , true , null ] }\n",
        "{\"a\":{\"a\":{}}}", "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\ud83d\\ude00\"}"};
    static const char *const bad[] = {"", "[]", "null", "7", "{\"a\":1,}", "{\"a\" 1}", "{a:1}", "{'a':1}",
        "{\"a\":01}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":+1}", "{\"a\":-}", "{\"a\":1e}", "{\"a\":NaN}",
        "{\"a\":Infinity}", "{\"a\":tru}", "{\"a\":[1,]}", "{\"a\":[1}", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12\"}", "{\"a\":\"", "{\"a\":1}/**/", "/**/{\"a\":1}", "{\"a\":1,\"a\":2}",
        "{\"a\":[{\"b\":1,\"b\":1}]}", "{\"a\":9223372036854775808}", "\xef\xbb\xbf{}"};
    for (size_t i = 0; i < G_N_ELEMENTS(good); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(JsonObject) object =
            qe_json_parse("x.json", good[i], strlen(good[i]), QE_JSON_DEFAULT, &error);
        g_assert_no_error(error);
        g_assert_nonnull(object);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        if (qe_json_parse("x.json", bad[i], strlen(bad[i]), QE_JSON_DEFAULT, &error) != NULL)
            g_error("accepted: %s", bad[i]);
        g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
        g_assert_nonnull(strstr(error->message, "x.json"));
    }
    static const char big[] = "{\"model_max_length\":1000000000000000019884624838656}";
    g_autoptr(JsonObject) object = qe_json_parse("x.json", big, strlen(big), QE_JSON_BIG_INTEGERS, NULL);
    g_assert_nonnull(object);
}

/* Messages quote at most 60 characters of foreign text, and never half of one. */
static void test_excerpts(void)
{
    GString *text = g_string_new("{");
    for (int copy = 0; copy < 2; copy++) {
        g_string_append(text, copy == 0 ? "\"" : ",\"");
        for (int i = 0; i < 100; i++)
            g_string_append(text, "\xe4\xb8\xad");
        g_string_append(text, "\":1");
    }
    g_string_append_c(text, '}');
    g_autoptr(GError) error = NULL;
    g_assert_null(qe_json_parse("x.json", text->str, text->len, QE_JSON_DEFAULT, &error));
    g_assert_true(g_utf8_validate(error->message, -1, NULL));
    g_assert_cmpint(g_utf8_strlen(error->message, -1), <, 100);
    g_string_free(text, TRUE);
    g_autofree char *all = qe_json_excerpt("short");
    g_assert_cmpstr(all, ==, "short");
}

static void test_file_bounds(void)
{
    g_autofree char *path = write_file("twelve.json", "{\"a\":12345}\n", 12);
    char *data = NULL;
    size_t n = 0;
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_file_read(path, 11, &data, &n, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
    g_assert_nonnull(strstr(error->message, "at most 11 bytes, found 12"));
    g_clear_error(&error);
    g_assert_true(qe_file_read(path, 12, &data, &n, &error));
    g_assert_cmpuint(n, ==, 12);
    g_assert_cmpstr(data, ==, "{\"a\":12345}\n");
    g_free(data);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    temp_dir = g_dir_make_tmp("quire-safetensors-XXXXXX", NULL);
    g_test_add_func("/engine/safetensors/whole-files", test_whole_files);
    g_test_add_func("/engine/safetensors/headers", test_headers);
    g_test_add_func("/engine/safetensors/names-and-order", test_names_and_order);
    g_test_add_func("/engine/safetensors/unaligned-is-said", test_unaligned_is_said);
    g_test_add_func("/engine/safetensors/not-a-file", test_not_a_file);
    g_test_add_func("/engine/safetensors/cut-and-flipped", test_cut_and_flipped);
    g_test_add_func("/engine/json/depth", test_depth);
    g_test_add_func("/engine/json/grammar", test_json_grammar);
    g_test_add_func("/engine/json/excerpts", test_excerpts);
    g_test_add_func("/engine/json/file-bounds", test_file_bounds);
    int rc = g_test_run();
    static const char *const files[] = {
        "case.safetensors", "whole.safetensors", "odd.safetensors", "twelve.json"};
    for (size_t i = 0; i < G_N_ELEMENTS(files); i++) {
        g_autofree char *path = g_build_filename(temp_dir, files[i], NULL);
        g_unlink(path);
    }
    g_rmdir(temp_dir);
    g_free(temp_dir);
    return rc;
}
