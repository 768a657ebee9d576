/* qe-pretok.c: see qe-pretok.h.
 *
 * 1. Every byte of the text is in exactly one piece, in order: encoding loses nothing.
 * 2. A match that fails for want of a resource (JIT stack, match limit) is tried again by the interpreter, which keeps
 *    its backtracking on the heap; if that fails too, encoding ends in an error. It is never taken for "no match".
 * 3. General categories are Unicode 16's, as in the reference, also where the installed PCRE2 has older tables.
 * 4. The compiled code never recurses on the thread's stack: the JIT gets a stack of its own. So 256 KiB are enough.
 * 5. Pieces of ASCII, which most are, need no compiled code where the expression is Qwen's: match_ascii() finds the same
 *    ones. Where a byte beyond ASCII could matter it leaves the piece to PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/qe-pretok.h"
#include <pcre2.h>
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-unicode16.h"

#define JIT_STACK_BYTES_MIN (32u << 10)
#define JIT_STACK_BYTES_MAX (64u << 20)
#define HEAP_KIB_MAX        (4u << 20) /* of the interpreter */

const char qe_pretok_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* White_Space of Unicode, which is Oniguruma's \s. PCRE2's has U+180E too, which stopped being a space in Unicode 6.3. */
#define SPACES                                                                                               \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"   \
    "\\x{3000}"

/* Qwen2's and Qwen3's: what match_ascii() does. */
const char qe_pretok_qwen_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct qe_pretok {
    guint n_splits;
    pcre2_code *splits[QE_TOKENIZER_SPLITS_MAX];
    bool jit[QE_TOKENIZER_SPLITS_MAX];
    bool is_qwen[QE_TOKENIZER_SPLITS_MAX];
};

/* What one walk needs; what PCRE2 needs of it, once something is left to it. */
typedef struct {
    const qe_pretok *pretok;
    qe_piece_fn fn;
    void *user;
    bool is_ready;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *matches[QE_TOKENIZER_SPLITS_MAX];
} walk;

/* ---- From Oniguruma's syntax to PCRE2's ---- */

static bool refuse(const char *label, const char *pattern, const char *at, const char *what, GError **error)
{
    g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
        "%s: %s at byte %zu of the regular expression is not supported", label, what, (size_t)(at - pattern));
    return false;
}

static bool pcre2_has_unicode16(void)
{
    char version[64] = "";
    int n = pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL);
    if (n > 0 && (gsize)n <= sizeof version)
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    return g_ascii_strtoull(version, NULL, 10) >= QE_UNICODE_MAJOR;
}

/* A general category ("L", "Lu") or, when @negated, all but it; the ranges are what PCRE2's tables lack (invariant 3). */
static void append_category(GString *out, const char *category, bool negated, bool in_class)
{
    if (!in_class)
        g_string_append(out, negated ? "[^" : "[");
    g_string_append_printf(out, "\\p{%s}", category);
    for (guint i = 0; !pcre2_has_unicode16() && i < G_N_ELEMENTS(qe_unicode16_added); i++)
        if (g_str_has_prefix(qe_unicode16_added[i].category, category))
            g_string_append_printf(
                out, "\\x{%x}-\\x{%x}", qe_unicode16_added[i].first, qe_unicode16_added[i].last);
    if (!in_class)
        g_string_append_c(out, ']');
}

/* At a backslash. Returns the bytes used, 0 when refused. */
static gsize translate_escape(
    const char *label, const char *pattern, const char *at, bool in_class, GString *out, GError **error)
{
    char c = at[1];
    if (c == 's' || c == 'S') {
        if (c == 'S' && in_class) {
            refuse(label, pattern, at, "\\S in a character class", error);
            return 0;
        }
        g_string_append_printf(out, in_class ? "%s" : c == 's' ? "[%s]" : "[^%s]", SPACES);
        return 2;
    }
    if (c == 'p' || c == 'P') {
        /* General categories only: scripts and Oniguruma's own names could differ. */
        const char *end = at[2] == '{' ? strchr(at, '}') : NULL;
        gsize n = end ? (gsize)(end - at) + 1 : 0;
        if (n != 5 && n != 6) {
            refuse(label, pattern, at, "\\p with anything but a general category in braces", error);
            return 0;
        }
        bool major = strchr("LMNPSZC", at[3]) != NULL;
        bool minor = n == 5 || strchr("ultmoncdepsfik", at[4]) != NULL;
        if (!major || !minor) {
            refuse(label, pattern, at, "this \\p property", error);
            return 0;
        }
        if (c == 'P' && in_class) {
            refuse(label, pattern, at, "\\P in a character class", error);
            return 0;
        }
        char category[3] = {at[3], n == 6 ? at[4] : '\0', '\0'};
        append_category(out, category, c == 'P', in_class);
        return n;
    }
    if (c == 'd' || c == 'D') {
        if (c == 'D' && in_class) {
            refuse(label, pattern, at, "\\D in a character class", error);
            return 0;
        }
        append_category(out, "Nd", c == 'D', in_class);
        return 2;
    }
    bool control = c == 'r' || c == 'n' || c == 't' || c == 'f';
    if (control || g_ascii_ispunct(c)) {
        g_string_append_len(out, at, 2);
        return 2;
    }
    refuse(label, pattern, at, c == '\0' ? "a lone backslash" : "this escape", error);
    return 0;
}

/* At '['. Returns the bytes used, 0 when refused. */
static gsize translate_class(
    const char *label, const char *pattern, const char *at, GString *out, GError **error)
{
    const char *p = at + 1;
    g_string_append_c(out, '[');
    if (*p == '^')
        g_string_append_c(out, *p++);
    if (*p == ']') {
        refuse(label, pattern, p, "']' first in a character class", error);
        return 0;
    }
    for (; *p != ']';) {
        if (*p == '\0' || *p == '[' || (*p == '&' && p[1] == '&')) {
            refuse(
                label, pattern, p, *p ? "a set inside a character class" : "an open character class", error);
            return 0;
        }
        if (*p == '\\') {
            gsize n = translate_escape(label, pattern, p, true, out, error);
            if (n == 0)
                return 0;
            p += n;
        } else {
            g_string_append_c(out, *p++);
        }
    }
    g_string_append_c(out, ']');
    return (gsize)(p + 1 - at);
}

/* At '('. Returns the bytes used, 0 when refused. */
static gsize translate_group(
    const char *label, const char *pattern, const char *at, GString *out, GError **error)
{
    static const char *const openings[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (at[1] != '?') {
        if (at[1] == '*') {
            refuse(label, pattern, at, "a (*VERB)", error);
            return 0;
        }
        g_string_append(out, "(?:");
        return 1;
    }
    for (guint i = 0; i < G_N_ELEMENTS(openings); i++)
        if (g_str_has_prefix(at, openings[i])) {
            g_string_append(out, openings[i]);
            return strlen(openings[i]);
        }
    refuse(label, pattern, at, "this kind of group", error);
    return 0;
}

char *qe_regex_translate(const char *label, const char *pattern, GError **error)
{
    GString *out = g_string_new(NULL);
    const char *p = pattern;
    if (strlen(pattern) > QE_TOKENIZER_REGEX_BYTES_MAX) {
        refuse(label, pattern, pattern + QE_TOKENIZER_REGEX_BYTES_MAX, "so much", error);
        goto fail;
    }
    while (*p) {
        gsize n = 1;
        if (*p == '\\')
            n = translate_escape(label, pattern, p, false, out, error);
        else if (*p == '[')
            n = translate_class(label, pattern, p, out, error);
        else if (*p == '(')
            n = translate_group(label, pattern, p, out, error);
        else if (*p == '^' || *p == '$' || *p == '#')
            n = refuse(label, pattern, p, "this character", error);
        else if (*p == '}' && p[1] == '+')
            n = refuse(label, pattern, p + 1, "'+' after '}'", error);
        else
            g_string_append_c(out, *p);
        if (n == 0)
            goto fail;
        p += n;
    }
    return g_string_free(out, FALSE);
fail:
    g_string_free(out, TRUE);
    return NULL;
}

/* ---- The steps ---- */

qe_pretok *qe_pretok_new(void)
{
    return g_new0(qe_pretok, 1);
}

void qe_pretok_free(qe_pretok *self)
{
    if (self == NULL)
        return;
    for (guint i = 0; i < self->n_splits; i++)
        pcre2_code_free(self->splits[i]);
    g_free(self);
}

bool qe_pretok_add_split(qe_pretok *self, const char *label, const char *pattern, GError **error)
{
    if (self->n_splits == QE_TOKENIZER_SPLITS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "%s: expected at most %d regular expressions",
            label, QE_TOKENIZER_SPLITS_MAX);
        return false;
    }
    g_autofree char *translated = qe_regex_translate(label, pattern, error);
    if (translated == NULL)
        return false;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    pcre2_code *split = pcre2_compile(
        (PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (split == NULL) {
        char message[160] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        g_set_error(
            error, QE_ERROR, QE_ERROR_FORMAT, "%s: expected a regular expression: %s", label, message);
        return false;
    }
    self->jit[self->n_splits] = pcre2_jit_compile(split, PCRE2_JIT_COMPLETE) == 0;
    self->is_qwen[self->n_splits] = strcmp(pattern, qe_pretok_qwen_pattern) == 0;
    self->splits[self->n_splits++] = split;
    return true;
}

/* ---- Qwen's expression in ASCII ---- */

typedef enum {
    LETTER,
    NUMBER,
    NEWLINE, /* a space, too */
    SPACE,
    OTHER,
    FOREIGN, /* beyond ASCII: may be anything */
    END,     /* of the text */
} byte_kind;

static byte_kind kind_at(const char *text, gsize n, gsize at)
{
    if (at >= n)
        return END;
    uint8_t c = (uint8_t)text[at];
    if (c >= 0x80)
        return FOREIGN;
    if (g_ascii_isalpha(c))
        return LETTER;
    if (g_ascii_isdigit(c))
        return NUMBER;
    if (c == '\r' || c == '\n')
        return NEWLINE;
    return c == ' ' || (c >= '\t' && c <= '\r') ? SPACE : OTHER;
}

/* Behind the bytes of @kind from @at on; 0: what follows them may be more of it. */
static gsize end_of_run(const char *text, gsize n, gsize at, byte_kind kind)
{
    byte_kind k = kind_at(text, n, at);
    while (k == kind)
        k = kind_at(text, n, ++at);
    return k == FOREIGN ? 0 : at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d) at an apostrophe: the bytes of it, or 0. */
static gsize match_suffix(const char *text, gsize n, gsize at)
{
    char a = at + 1 < n ? g_ascii_tolower(text[at + 1]) : 0,
         b = at + 2 < n ? g_ascii_tolower(text[at + 2]) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ where neither a letter nor, behind " ", another sign can take the space in: the end, or 0. */
static gsize match_spaces(const char *text, gsize n, gsize at)
{
    gsize end = at, newline_end = 0;
    byte_kind k = kind_at(text, n, end);
    for (; k == SPACE || k == NEWLINE; k = kind_at(text, n, ++end)) {
        if (k == NEWLINE)
            newline_end = end + 1;
    }
    if (k == FOREIGN)
        return 0;
    if (newline_end)
        return newline_end;
    return k == END || end == at + 1 ? end : end - 1;
}

/* The end of the piece that begins at @at < @n; 0: PCRE2 has to say. */
static gsize match_ascii(const char *text, gsize n, gsize at)
{
    byte_kind kind = kind_at(text, n, at), next = kind_at(text, n, at + 1);
    if (kind == LETTER)
        return end_of_run(text, n, at, LETTER);
    if (kind == NUMBER)
        return at + 1;
    if (kind == FOREIGN || next == FOREIGN)
        return 0;
    if (text[at] == '\'') {
        gsize n_suffix = match_suffix(text, n, at);
        if (n_suffix)
            return at + n_suffix;
    }
    if (next == LETTER && kind != NEWLINE)
        return end_of_run(text, n, at + 1, LETTER);
    if (kind == OTHER || (text[at] == ' ' && next == OTHER)) {
        gsize end = end_of_run(text, n, kind == OTHER ? at : at + 1, OTHER);
        while (end && kind_at(text, n, end) == NEWLINE)
            end++;
        return end;
    }
    return match_spaces(text, n, at);
}

/* ---- The walk ---- */

static bool make_ready(walk *w, GError **error)
{
    bool ok = true;
    w->is_ready = true;
    w->context = pcre2_match_context_create(NULL);
    w->stack = pcre2_jit_stack_create(JIT_STACK_BYTES_MIN, JIT_STACK_BYTES_MAX, NULL);
    ok = w->context != NULL;
    if (ok) {
        pcre2_set_match_limit(w->context, UINT32_MAX);
        pcre2_set_depth_limit(w->context, UINT32_MAX);
        pcre2_set_heap_limit(w->context, HEAP_KIB_MAX);
        if (w->stack != NULL) /* NULL: 32 KiB of the thread's own stack */
            pcre2_jit_stack_assign(w->context, NULL, w->stack);
    }
    for (guint i = 0; i < w->pretok->n_splits && ok; i++) {
        w->matches[i] = pcre2_match_data_create(1, NULL);
        ok = w->matches[i] != NULL;
    }
    if (!ok)
        g_set_error_literal(
            error, QE_ERROR, QE_ERROR_NO_MEMORY, "no memory to match the pre-tokenizer's expression");
    return ok;
}

/* The next match at or after @at; its bounds in *@begin and *@end. Returns 1, 0 for none, -1 with @error set. */
static int match(
    walk *w, guint level, const char *text, gsize n, gsize at, gsize *begin, gsize *end, GError **error)
{
    if (w->pretok->is_qwen[level]) {
        *begin = at;
        *end = match_ascii(text, n, at);
        if (*end)
            return 1;
    }
    if (!w->is_ready && !make_ready(w, error))
        return -1;
    const pcre2_code *code = w->pretok->splits[level];
    pcre2_match_data *data = w->matches[level];
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (w->pretok->jit[level])
        rc = pcre2_jit_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, data, w->context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, w->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char message[160] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
        g_set_error(error, QE_ERROR, rc == PCRE2_ERROR_NOMEMORY ? QE_ERROR_NO_MEMORY : QE_ERROR_FAILED,
            "the pre-tokenizer's regular expression failed at byte %zu of %zu: %s", (size_t)at, (size_t)n,
            message);
        return -1;
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(data);
    *begin = bounds[0];
    *end = bounds[1];
    return 1;
}

static bool split(walk *w, guint level, const char *text, gsize n, GError **error)
{
    if (n == 0)
        return true;
    if (level == w->pretok->n_splits)
        return w->fn(w->user, text, n, error);
    gsize done = 0; /* text before is in pieces */
    for (gsize at = 0; at < n;) {
        gsize begin, end;
        int found = match(w, level, text, n, at, &begin, &end, error);
        if (found < 0)
            return false;
        if (found == 0)
            break;
        if (end <= begin) {
            /* An empty match cuts nothing off; go on behind the next character. */
            at = MAX(begin, at);
            at = at < n ? (gsize)(g_utf8_next_char(text + at) - text) : n;
            continue;
        }
        if (!split(w, level + 1, text + done, begin - done, error) ||
            !split(w, level + 1, text + begin, end - begin, error))
            return false;
        at = done = end;
    }
    return split(w, level + 1, text + done, n - done, error);
}

bool qe_pretok_run(
    const qe_pretok *self, const char *text, gsize n, qe_piece_fn fn, void *user, GError **error)
{
    walk w = {.pretok = self, .fn = fn, .user = user};
    bool ok = split(&w, 0, text, n, error);
    for (guint i = 0; i < self->n_splits; i++)
        pcre2_match_data_free(w.matches[i]);
    pcre2_jit_stack_free(w.stack);
    pcre2_match_context_free(w.context);
    return ok;
}
