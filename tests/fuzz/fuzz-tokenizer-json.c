/* fuzz-tokenizer-json.c: any bytes as tokenizer.json, as tokenizer_config.json and as a chat template. A file that is
 * accepted then encodes and decodes: text in normal form comes back as it was. */
#include <glib.h>
#include <stdint.h>
#include <string.h>
#include "engine/qe-error.h"
#include "engine/qe-nfc.h"
#include "engine/qe-template-form.h"
#include "engine/qe-tokenizer-file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_outcome(bool ok, const GError *error)
{
    g_assert(ok == (error == NULL));
    g_assert(ok || (error->domain == QE_ERROR && g_str_has_prefix(error->message, "input") &&
                       g_utf8_validate(error->message, -1, NULL)));
}

static void use(const qe_tokenizer *tokenizer, qe_encode_flags flags)
{
    static const char text[] = "ab abc <x> it's 12  \n\n caf\u00e9 \u4f60\u597d \U0001f600\0end";
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_autoptr(GError) error = NULL;
    if (!qe_tokenizer_encode(tokenizer, text, sizeof text - 1, flags, ids, &error)) {
        g_assert(error != NULL && ids->len == 0);
        return;
    }
    gsize n;
    g_autofree char *decoded =
        qe_tokenizer_decode(tokenizer, (const uint32_t *)(gpointer)ids->data, ids->len, false, &n);
    for (guint i = 0; i < ids->len; i++) {
        uint32_t id = g_array_index(ids, uint32_t, i);
        g_assert(id < qe_tokenizer_n_tokens(tokenizer) && qe_tokenizer_has_token(tokenizer, id));
    }
    if (flags == QE_ENCODE_PLAIN)
        g_assert(n == sizeof text - 1 && memcmp(decoded, text, n) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    g_autofree char *text = g_malloc(n_bytes + 1);
    if (n_bytes > 0)
        memcpy(text, data, n_bytes);
    text[n_bytes] = '\0';
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_tokenizer) tokenizer = qe_tokenizer_parse("input", text, n_bytes, &error);
    check_outcome(tokenizer != NULL, error);
    if (tokenizer != NULL) {
        use(tokenizer, QE_ENCODE_PLAIN);
        use(tokenizer, QE_ENCODE_ADDED_TOKENS);
    }
    g_clear_error(&error);
    g_autofree char *eos = NULL;
    bool ok = qe_tokenizer_config_parse("input", text, n_bytes, &eos, &error);
    check_outcome(ok, error);
    g_clear_error(&error);
    qe_template_form form;
    ok = qe_template_recognise("input", text, &form, &error);
    check_outcome(ok, error);
    return 0;
}
