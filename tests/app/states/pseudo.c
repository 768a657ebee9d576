/* pseudo.c: a language that has all words of English, longer by 40 percent and in brackets: what is not translated shows, and
 * what has no room. In the place of the C library's functions; texts of other libraries stay as they are. */
#include <dlfcn.h>
#include <libintl.h>
#include <locale.h>
#include <string.h>

#include "tests/app/states/states.h"

/* Macros where the compiler optimizes. */
#undef gettext
#undef dgettext
#undef ngettext
#undef dngettext

static gboolean pseudo, real; /* real: there is a language that the pictures are in */

void pseudo_set(gboolean on)
{
    pseudo = on;
}

void pseudo_set_language(const char *language)
{
    if (language == NULL)
        return;
    real = TRUE;
    g_setenv("LANGUAGE", language, TRUE);
    bindtextdomain("quire", g_getenv("QUIRE_TEST_LOCALE_DIR"));
    bind_textdomain_codeset("quire", "UTF-8");
}

static char *lengthen(const char *domain, const char *id)
{
    static GHashTable *made;
    const char *text = strchr(id, '\004');
    char *out;

    if (!pseudo || (domain != NULL && strcmp(domain, "quire") != 0))
        return (char *)id;
    text = text != NULL ? text + 1 : id;
    if (made == NULL)
        made = g_hash_table_new(g_str_hash, g_str_equal);
    out = g_hash_table_lookup(made, text);
    if (out == NULL) {
        /* Words of a usual length, for a language has those. */
        g_autofree char *tail =
            g_strndup("ñöm lëtt ërsü fõrt hëgï vënä bülk øm", MIN(strlen(text) * 4 / 10 + 1, 34));
        const char *end;

        /* Whole characters. */
        g_utf8_validate(tail, -1, &end);
        tail[end - tail] = '\0';
        out = g_strdup_printf("[%s %s]", text, tail);
        g_hash_table_insert(made, g_strdup(text), out);
    }
    return out;
}

char *gettext(const char *id)
{
    return dcgettext(NULL, id, LC_MESSAGES);
}

char *dgettext(const char *domain, const char *id)
{
    return dcgettext(domain, id, LC_MESSAGES);
}

char *dcgettext(const char *domain, const char *id, int category)
{
    char *(*next)(const char *, const char *, int) = real ? dlsym(RTLD_NEXT, "dcgettext") : NULL;

    return next != NULL && !pseudo ? next(domain != NULL ? domain : "quire", id, category)
                                   : lengthen(domain, id);
}

char *ngettext(const char *one, const char *many, unsigned long n)
{
    return dngettext(NULL, one, many, n);
}

char *dngettext(const char *domain, const char *one, const char *many, unsigned long n)
{
    return dcngettext(domain, one, many, n, LC_MESSAGES);
}

char *dcngettext(const char *domain, const char *one, const char *many, unsigned long n, int category)
{
    char *(*next)(const char *, const char *, const char *, unsigned long, int) =
        real ? dlsym(RTLD_NEXT, "dcngettext") : NULL;

    return next != NULL && !pseudo ? next(domain != NULL ? domain : "quire", one, many, n, category)
                                   : lengthen(domain, n == 1 ? one : many);
}
