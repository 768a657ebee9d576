/* pseudo.c: a language that has all words of English, longer by 40 percent and in brackets: what is not translated shows, and
 * what has no room. In the place of the C library's functions; texts of other libraries stay as they are. */
#include <string.h>

#include "tests/app/states/states.h"

static gboolean pseudo;

void pseudo_set(gboolean on)
{
    pseudo = on;
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

char *gettext(const char *id);
char *dgettext(const char *domain, const char *id);
char *dcgettext(const char *domain, const char *id, int category);
char *ngettext(const char *one, const char *many, unsigned long n);
char *dngettext(const char *domain, const char *one, const char *many, unsigned long n);

char *gettext(const char *id)
{
    return lengthen(NULL, id);
}

char *dgettext(const char *domain, const char *id)
{
    return lengthen(domain, id);
}

char *dcgettext(const char *domain, const char *id, int category)
{
    return lengthen(domain, id);
}

char *ngettext(const char *one, const char *many, unsigned long n)
{
    return lengthen(NULL, n == 1 ? one : many);
}

char *dngettext(const char *domain, const char *one, const char *many, unsigned long n)
{
    return lengthen(domain, n == 1 ? one : many);
}
