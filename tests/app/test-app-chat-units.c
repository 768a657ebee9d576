/* test-app-chat-units.c: what the chat shows, without a window. */
#include <glib.h>
#include <string.h>

#include "app/quire-title.h"

/* ---- Titles ---- */

static void test_title_from_reply(void)
{
    static const char about[] =
        "How do I bake sourdough bread?\nYou need a starter. 数据库 的 索引 很 重要。\n";
    static const struct {
        const char *reply, *title;
    } cases[] = {
        {"Baking Sourdough Bread", "Baking Sourdough Bread"},
        {"\"Sourdough for Beginners.\"\n", "Sourdough for Beginners"},
        {"Title: **A Sourdough Starter**", "A Sourdough Starter"},
        {"“Brot: Bread at Home”", "Brot: Bread at Home"},
        {"数据库索引", "数据库索引"},
        /* A question, an exclamation, several lines, markup. */
        {"What is sourdough bread?", NULL},
        {"Bread!", NULL},
        {"Sourdough\nBread", NULL},
        {"<think> sourdough bread", NULL},
        /* Nothing, too much, again and again. */
        {"", NULL},
        {"  \"\" . ", NULL},
        {"Here is a fine title for your chat about the sourdough bread", NULL},
        {"Sourdoughsourdoughsourdoughsourdoughsourdoughsourdoughsourdoughbread", NULL},
        {"bread and bread and bread", NULL},
        /* Not about it. */
        {"The story of Ines", NULL},
        {"故事", NULL},
        {"\xff\xfe", NULL},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *title = quire_title_from_reply(cases[i].reply, about);

        g_assert_cmpstr(title, ==, cases[i].title);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/chat/title-from-reply", test_title_from_reply);
    return g_test_run();
}
