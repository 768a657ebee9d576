/* qe-template-form.c: see qe-template-form.h.
 *
 * The source is read as Jinja's lexer would with the settings of the `transformers` library (trim_blocks,
 * lstrip_blocks): tags, and the text between them that is really rendered. That gives a canonical spelling without
 * comments and without the space that renders nothing. It is cut at top level into parts (a loop, a condition, an
 * assignment) and each part is looked up by its SHA-256.
 *
 * 1. A known part has no rendered text between its tags, so two sources with the same canonical spelling render the same,
 *    whatever their dashes and line breaks.
 * 2. Known parts make sense only in a known order, see orders[].
 *
 * To teach a new template: the error message has the digest of the first unknown part; make sure that qe-template.c
 * renders what it renders (tests/fixtures/template/make.py); add the digest to parts[]. */
#include "engine/qe-template-form.h"
#include <string.h>
#include "engine/qe-json.h"

/* Marks rendered text in the canonical spelling. */
#define TEXT_MARK '\1'

typedef struct {
    char letter; /* in orders[] */
    qe_template_form form;
    const char *digest;
} known_part;

#define REBUILDS                                                                                             \
    {                                                                                                        \
        .strips = true, .rebuilds_think = true                                                               \
    }
static const known_part parts[] = {
    /* all of Qwen's */
    {'h', {0}, "18a7a463dba75802b03c7f95affe0688ca074250e1b1cdd4115bd04255bdc8fe"},
    {'n', {0}, "14eab6c95ab969bfd200b766920a9781794a4868e94d07a3b1e1b3f64124dfd5"},
    /* Qwen3's first release */
    {'s', {.tool_responses = true}, "c64ac1e6793f9012747875559d15c01626ff18055884e81fcc86f19f7636b284"},
    {'m', REBUILDS, "c0dd571779e4d0909761d7b907f604bdabdc8614dd7166c31fa51b6801bd2be2"},
    /* its later revision, and Thinking-2507 */
    {'s', {.tool_responses = true}, "6af0dae2056f75016cff70e9e126b9cbee14b2d7fa1e2e920be3fcb271f7fd9a"},
    {'m', REBUILDS, "719460278fa122558e1f9df466eb6e68539d895099bf1b613d3d86d518242938"},
    /* Instruct-2507 */
    {'p', {0}, "95b354076164fdf16f6c0ddbfde2b91f2dee7b3869e5dd46dee879e8dbfccaf8"},
    /* hybrid, and the shipped model's */
    {'g', {.thinking_switch = true}, "cfdafffc6f8b8bfd5c8c154458ac83bd377a73e4da20e7f8df9b0d066bb69261"},
    /* Thinking-2507 */
    {'g', {.thinking_forced = true}, "38043b2c4ca2ceb9f8db4b6ae7a8329e12ec82d1748f38e8de03a3c967155901"},
    /* Instruct-2507 */
    {'g', {0}, "5a8722fc699cb33e6bf4dcde31cfa0c83ec0dda53e934a3f110fff863d686e10"},
    /* the shipped model's */
    {'N', {0}, "3e2dd08bb116d227d8a159ac78803bf7f9f3f640325fc56a3632162bf8a22def"},
    {'S', {0}, "acc8a9d15c224f1f4ff96f3a6427100de48824da0f18b34f5f55d26157f2f4dd"},
    {'M', {.strips = true}, "33c7611c27883cc7ea1fa7fe1387e1c3f29ab2c8eca678795436e5cfef734bc2"},
};

/* h tools or system message, n counter, s search for the last user turn, m messages, p messages without reasoning,
 * g generation prompt; capitals: the shipped model's. */
static const char *const orders[] = {"hnsmg", "hpg", "NSMg"};

/* ---- Lexing ---- */

typedef struct {
    const char *p, *end;
    GString *out;      /* canonical spelling of the open part */
    bool line_start;   /* nothing but what was removed stands before p in its line */
    bool strip_before; /* the last tag ended with a dash */
} lexer;

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Where the next tag begins, or the end. */
static const char *find_tag(const lexer *l)
{
    for (const char *p = l->p; p + 1 < l->end; p++)
        if (p[0] == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#'))
            return p;
    return l->end;
}

/* The text up to @tag: appends what of it is rendered. */
static void take_text(lexer *l, const char *tag)
{
    const char *begin = l->p, *stop = tag;
    char mark = tag + 2 < l->end ? tag[2] : '\0';
    if (l->strip_before)
        while (begin < stop && is_space(*begin))
            begin++;
    if (tag < l->end && mark == '-') {
        while (stop > begin && is_space(stop[-1]))
            stop--;
    } else if (tag < l->end && tag[1] != '{' && mark != '+') {
        /* lstrip_blocks: the indentation of a block that begins its line. */
        const char *line = stop;
        while (line > begin && (line[-1] == ' ' || line[-1] == '\t'))
            line--;
        if ((line == begin && l->line_start) || (line > begin && line[-1] == '\n'))
            stop = line;
    }
    if (stop > begin) {
        g_string_append_c(l->out, TEXT_MARK);
        g_string_append_len(l->out, begin, stop - begin);
        g_string_append_c(l->out, TEXT_MARK);
    }
    l->p = tag;
}

/* Behind the closing characters of a tag. */
static void end_tag(lexer *l, bool is_block, char mark)
{
    l->strip_before = mark == '-';
    l->line_start = false;
    if (is_block && mark != '+' && mark != '-' && l->p < l->end && *l->p == '\n') {
        l->p++; /* trim_blocks */
        l->line_start = true;
    }
}

/* At "{#". False when it does not end. */
static bool take_comment(lexer *l)
{
    const char *close = g_strstr_len(l->p + 2, l->end - l->p - 2, "#}");
    if (close == NULL)
        return false;
    char mark = close > l->p + 2 ? close[-1] : '\0';
    l->p = close + 2;
    end_tag(l, true, mark);
    return true;
}

/* At "{%" or "{{": appends the tag with single spaces outside strings. *@word gets a copy of its first word. False when
 * it does not end. */
static bool take_tag(lexer *l, char **word)
{
    bool is_block = l->p[1] == '%';
    const char *close = is_block ? "%}" : "}}";
    char mark = '\0';
    gsize begin = l->out->len + 2;
    g_string_append_len(l->out, l->p, 2);
    l->p += 2;
    if (l->p < l->end && (*l->p == '-' || *l->p == '+'))
        l->p++;
    for (bool gap = false;;) {
        if (l->p + 1 >= l->end)
            return false;
        bool dashed = (*l->p == '-' || *l->p == '+') && l->p + 2 < l->end && memcmp(l->p + 1, close, 2) == 0;
        if (dashed || memcmp(l->p, close, 2) == 0) {
            mark = dashed ? *l->p : '\0';
            l->p += dashed ? 3 : 2;
            break;
        }
        if (is_space(*l->p)) {
            gap = true;
            l->p++;
            continue;
        }
        if (gap && l->out->len > begin)
            g_string_append_c(l->out, ' ');
        gap = false;
        if (*l->p == '\'' || *l->p == '"') {
            const char *from = l->p++;
            while (l->p < l->end && *l->p != *from)
                l->p += *l->p == '\\' ? 2 : 1;
            if (l->p >= l->end)
                return false;
            l->p++;
            g_string_append_len(l->out, from, l->p - from);
        } else {
            g_string_append_c(l->out, *l->p++);
        }
    }
    gsize n = strspn(l->out->str + begin, "abcdefghijklmnopqrstuvwxyz");
    *word = g_strndup(l->out->str + begin, is_block ? n : 0);
    g_string_append(l->out, close);
    end_tag(l, is_block, mark);
    return true;
}

/* ---- Parts ---- */

static const known_part *find_part(const char *digest)
{
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if (g_str_equal(parts[i].digest, digest))
            return &parts[i];
    return NULL;
}

static bool refuse(const char *file, const char *problem, const char *spelling, GError **error)
{
    g_autofree char *valid = g_utf8_make_valid(spelling, -1);
    g_autofree char *shown = qe_json_excerpt(valid);
    g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
        "%s: chat_template: expected a chat template that Quire knows (Qwen3, Qwen3-Instruct-2507, "
        "Qwen3-Thinking-2507, or "
        "the shipped model's), found %s%s%s%s; use the folder's original template, or a model of that family",
        file, problem, *shown ? " that begins \"" : "", shown, *shown ? "\"" : "");
    return false;
}

/* Looks up the open part and starts the next one. */
static bool close_part(lexer *l, const char *file, GString *order, qe_template_form *form, GError **error)
{
    g_autofree char *digest =
        g_compute_checksum_for_string(G_CHECKSUM_SHA256, l->out->str, (gssize)l->out->len);
    const known_part *part = find_part(digest);
    if (part == NULL) {
        g_autofree char *spelling = g_strdelimit(g_strdup(l->out->str), "\1", ' ');
        g_autofree char *problem = g_strconcat("a part with SHA-256 ", digest, NULL);
        return refuse(file, problem, spelling, error);
    }
    g_string_append_c(order, part->letter);
    form->thinking_switch |= part->form.thinking_switch;
    form->thinking_forced |= part->form.thinking_forced;
    form->strips |= part->form.strips;
    form->rebuilds_think |= part->form.rebuilds_think;
    form->tool_responses |= part->form.tool_responses;
    g_string_truncate(l->out, 0);
    return true;
}

bool qe_template_recognise(const char *file, const char *source, qe_template_form *form, GError **error)
{
    static const char *const openers[] = {
        "if", "for", "macro", "call", "filter", "with", "block", "raw", "autoescape", "generation"};
    gsize n = strlen(source);
    g_autoptr(GString) spelling = g_string_new(NULL);
    g_autoptr(GString) order = g_string_new(NULL);
    lexer l = {source, source + n - (n > 0 && source[n - 1] == '\n'), spelling, true, false};
    guint depth = 0;
    memset(form, 0, sizeof *form);
    while (l.p < l.end) {
        take_text(&l, find_tag(&l));
        if (l.p == l.end)
            break;
        if (l.p[1] == '#') {
            if (!take_comment(&l))
                return refuse(file, "a comment without an end", "", error);
            continue;
        }
        g_autofree char *word = NULL;
        if (!take_tag(&l, &word))
            return refuse(file, "a tag without an end", "", error);
        for (guint i = 0; i < G_N_ELEMENTS(openers); i++)
            depth += g_str_equal(word, openers[i]);
        if (g_str_has_prefix(word, "end") && depth > 0)
            depth--;
        if (depth == 0 && !close_part(&l, file, order, form, error))
            return false;
    }
    if (spelling->len > 0)
        return close_part(&l, file, order, form, error) &&
               refuse(file, "text behind the last part", "", error);
    for (guint i = 0; i < G_N_ELEMENTS(orders); i++)
        if (g_str_equal(order->str, orders[i]))
            return true;
    return refuse(file, order->len ? "its parts in another order" : "an empty one", "", error);
}
