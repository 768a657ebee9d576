/* Tests of quire-markdown.c: blocks, escaping, and that every prefix of a text gives well-formed Pango markup. */
#include <pango/pango.h>
#include <string.h>

#include "app/quire-markdown.h"

static const char document[] =
    "# Title\nA **bold** and *italic* `code` ~~gone~~ [link](https://example.org/?a=1&b=\"2\") "
    "word.\n\n"
    "- one\n- two\n  - nested\n    1. deep\n- [x] done\n\n"
    "3. three\n4. four\n\n   more of four\n\n"
    "> quote\n> - in it\n>\n> ```py\n> x = 1\n> ```\n\n"
    "```c\nint x = a < b && c;\n```\n\n"
    "| a | b |\n|:-:|--:|\n| <1> | **2** |\n\n---\n"
    "<script>alert(1)</script> &amp; &#60; &#x1F600; &#0; &#27; &nbsp; &bogus; 你好 "
    "\xd7\xa9\xd7\x9c "
    "[bad](javascript:alert(1)) <https://a.b> www https://c.d/e_f_g x*y*z\n\n"
    "*unclosed **bold `code";

static QuireBlock *block_at(GPtrArray *blocks, guint i)
{
    g_assert_cmpuint(i, <, blocks->len);
    return g_ptr_array_index(blocks, i);
}

static GPtrArray *parse(const char *text)
{
    return quire_markdown_parse(text, strlen(text));
}

static void assert_markup(const char *markup)
{
    g_autoptr(GError) error = NULL;
    char *text = NULL;

    /* Links are GtkLabel's, not Pango's. */
    g_autoptr(GRegex) links = g_regex_new("</?a( href=\"[^\"]*\")?>", 0, 0, NULL);
    g_autofree char *without = g_regex_replace_literal(links, markup, -1, 0, "", 0, NULL);
    pango_parse_markup(without, -1, 0, NULL, &text, NULL, &error);
    g_assert_no_error(error);
    g_assert_true(g_utf8_validate(markup, -1, NULL));
    g_free(text);
}

static void assert_well_formed(GPtrArray *blocks)
{
    for (guint i = 0; i < blocks->len; i++) {
        const QuireBlock *b = block_at(blocks, i);

        if (b->markup != NULL)
            assert_markup(b->markup);
        for (guint c = 0; b->cells != NULL && c < b->cells->len; c++)
            assert_markup(g_ptr_array_index(b->cells, c));
        g_assert_cmpuint(b->list_depth, <=, QUIRE_MARKDOWN_DEPTH_MAX);
        g_assert_true((b->kind == QUIRE_BLOCK_CODE) == (b->text != NULL));
    }
}

static void test_blocks(void)
{
    g_autoptr(GPtrArray) blocks = parse(document);
    guint n_code = 0, n_table = 0, n_rule = 0;

    assert_well_formed(blocks);
    g_assert_cmpint(block_at(blocks, 0)->kind, ==, QUIRE_BLOCK_HEADING);
    g_assert_cmpstr(block_at(blocks, 0)->markup, ==, "Title");
    g_assert_cmpstr(block_at(blocks, 1)->markup, ==,
        "A <b>bold</b> and <i>italic</i> <tt>code</tt> <s>gone</s> "
        "<a href=\"https://example.org/?a=1&amp;b=&quot;2&quot;\">link</a> word.");
    g_assert_cmpstr(block_at(blocks, 2)->marker, ==, "•");
    g_assert_cmpstr(block_at(blocks, 4)->marker, ==, "◦");
    g_assert_cmpuint(block_at(blocks, 4)->list_depth, ==, 2);
    g_assert_cmpstr(block_at(blocks, 5)->marker, ==, "1.");
    g_assert_cmpstr(block_at(blocks, 6)->marker, ==, "☑");
    g_assert_cmpstr(block_at(blocks, 7)->marker, ==, "3.");
    g_assert_cmpstr(block_at(blocks, 8)->marker, ==, "4.");
    g_assert_null(block_at(blocks, 9)->marker);
    g_assert_cmpstr(block_at(blocks, 9)->markup, ==, "more of four");
    for (guint i = 0; i < blocks->len; i++) {
        const QuireBlock *b = block_at(blocks, i);

        n_code += b->kind == QUIRE_BLOCK_CODE;
        n_rule += b->kind == QUIRE_BLOCK_RULE;
        if (b->kind == QUIRE_BLOCK_CODE && g_strcmp0(b->language, "c") == 0)
            g_assert_cmpstr(b->text, ==, "int x = a < b && c;");
        if (b->kind == QUIRE_BLOCK_CODE && g_strcmp0(b->language, "py") == 0)
            g_assert_cmpuint(b->quote_depth, ==, 1);
        if (b->kind == QUIRE_BLOCK_TABLE) {
            n_table++;
            g_assert_cmpuint(b->n_columns, ==, 2);
            g_assert_cmpuint(b->cells->len, ==, 4);
            g_assert_cmpuint(b->aligns[0], ==, 1);
            g_assert_cmpuint(b->aligns[1], ==, 2);
            g_assert_cmpstr(g_ptr_array_index(b->cells, 2), ==, "&lt;1&gt;");
            g_assert_cmpstr(g_ptr_array_index(b->cells, 3), ==, "<b>2</b>");
        }
    }
    g_assert_cmpuint(n_code, ==, 2);
    g_assert_cmpuint(n_table, ==, 1);
    g_assert_cmpuint(n_rule, ==, 1);
}

static void test_untrusted(void)
{
    g_autoptr(GPtrArray) blocks =
        parse("<b>x</b> <script> [a](javascript:x) [b](file:///etc/passwd) [c](HTTP://ok) &lt; &#27;");
    const char *markup = block_at(blocks, 0)->markup;

    g_assert_nonnull(strstr(markup, "&lt;b&gt;x&lt;/b&gt; &lt;script&gt;"));
    g_assert_null(strstr(markup, "javascript"));
    g_assert_null(strstr(markup, "passwd"));
    g_assert_nonnull(strstr(markup, "<a href=\"HTTP://ok\">"));
    assert_well_formed(blocks);
}

static void test_bytes(void)
{
    static const char nul[] = "a\0b", cut[] = "ab\xe4\xb8", bad[] = "x\xff\xfey";
    g_autoptr(GPtrArray) a = quire_markdown_parse(nul, 3);
    g_autoptr(GPtrArray) b = quire_markdown_parse(cut, 4);
    g_autoptr(GPtrArray) c = quire_markdown_parse(bad, 4);

    g_assert_cmpstr(block_at(a, 0)->markup, ==, "a␀b");
    g_assert_true(g_str_has_prefix(block_at(b, 0)->markup, "ab\xef\xbf\xbd"));
    g_assert_cmpstr(block_at(c, 0)->markup, ==, "x\xef\xbf\xbd\xef\xbf\xbdy");
}

/* What a stream shows on its way: well formed at each byte, and earlier blocks stay. */
static void test_prefixes(void)
{
    for (gsize n = 0; n <= strlen(document); n++) {
        g_autoptr(GPtrArray) blocks = quire_markdown_parse(document, n);

        assert_well_formed(blocks);
    }
    g_autoptr(GPtrArray) fence = parse("text\n\n```py\nx = 1");
    g_assert_cmpuint(fence->len, ==, 2);
    g_assert_cmpint(block_at(fence, 1)->kind, ==, QUIRE_BLOCK_CODE);
    g_assert_cmpstr(block_at(fence, 1)->text, ==, "x = 1");
}

static void test_random(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(7);
    static const char alphabet[] = "*_`~[]()<>&#|-+>!\n\n  ab1.:\\\"'\t\xc3\xa9\xff";
    char text[200];

    for (int round = 0; round < 3000; round++) {
        gsize n = (gsize)g_rand_int_range(rand, 0, sizeof text);

        for (gsize i = 0; i < n; i++)
            text[i] = alphabet[g_rand_int_range(rand, 0, sizeof alphabet)]; /* the NUL too */
        g_autoptr(GPtrArray) blocks = quire_markdown_parse(text, n);
        assert_well_formed(blocks);
    }
}

static void assert_same(GPtrArray *whole, guint at, GPtrArray *part)
{
    g_assert_cmpuint(at + part->len, <=, whole->len);
    for (guint i = 0; i < part->len; i++)
        g_assert_true(quire_block_equal(g_ptr_array_index(whole, at + i), g_ptr_array_index(part, i)));
}

/* What is settled in a beginning of a text gives the first blocks of the text, and the rest, parsed alone, the others. */
static void assert_settles(const char *text, gsize n, gsize n_seen)
{
    gsize settled = quire_markdown_find_settled(text, n_seen);
    g_autoptr(GPtrArray) whole = quire_markdown_parse(text, n);
    g_autoptr(GPtrArray) first = quire_markdown_parse(text, settled);
    g_autoptr(GPtrArray) rest = quire_markdown_parse(text + settled, n - settled);

    g_assert_cmpuint(settled, <=, n_seen);
    assert_same(whole, 0, first);
    assert_same(whole, first->len, rest);
    g_assert_cmpuint(first->len + rest->len, ==, whole->len);
}

static void test_settled(void)
{
    static const char *const pieces[] = {"\n", "\n", "\n\n", "\n\n", "word ", "- item", "* item", "12. item",
        "1) a", "```", "```c", "~~~", "````", "  ```", "    ```", "> quote", "> ```", "- ```", "# Head",
        "|a|b|", "|-|-|", "---", "===", "    deep", "  two", "\t", "**b**", "`x`", "1", "-",
        "long text that goes on", "<b>", "$$", "$", "$$\\frac{a}{b}$$", "$a_1$", "\\[", "\\]", "\\(", "\\)"};
    g_autoptr(GRand) rand = g_rand_new_with_seed(11);
    guint n_settled = 0;

    for (int round = 0; round < 20000; round++) {
        g_autoptr(GString) text = g_string_new(NULL);
        gsize seen;

        for (int i = g_rand_int_range(rand, 1, 24); i > 0; i--) {
            const char *piece = pieces[g_rand_int_range(rand, 0, G_N_ELEMENTS(pieces))];

            /* Formulas and fences within one line name formulas by number where a language stands: not both. */
            if (strpbrk(piece, round % 2 == 0 ? "$\\" : "`~") == NULL)
                g_string_append(text, piece);
        }
        seen = (gsize)g_rand_int_range(rand, 0, (gint32)text->len + 1);
        n_settled += quire_markdown_find_settled(text->str, seen) > 0;
        assert_settles(text->str, text->len, seen);
    }
    g_assert_cmpuint(n_settled, >, 1000);
    for (gsize n = 0; n <= strlen(document); n++)
        assert_settles(document, strlen(document), n);
    /* A fence hides blank lines; a list goes on after one; links by reference reach back. */
    g_assert_cmpuint(quire_markdown_find_settled("```\na\n\nbut this is code", 22), ==, 0);
    g_assert_cmpuint(quire_markdown_find_settled("- a\n\n- b and so on", 18), ==, 0);
    g_assert_cmpuint(quire_markdown_find_settled("one\n\ntwo and three more", 23), ==, 5);
    g_assert_cmpuint(quire_markdown_find_settled("[one]\n\n[one]: http://a", 22), ==, 0);
}

/* What looks like a formula where none can be stays as it was written. */
static void test_no_formula(void)
{
    g_autoptr(GPtrArray) blocks =
        parse("[a](https://x.org/?q=$a$) and ``b `$c$` ``\n\n- ```$d$\n  price \\(e\\) $f$\n  ```");

    g_assert_cmpstr(
        block_at(blocks, 0)->markup, ==, "<a href=\"https://x.org/?q=$a$\">a</a> and <tt>b `$c$` </tt>");
    g_assert_cmpstr(block_at(blocks, blocks->len - 1)->text, ==, "price \\(e\\) $f$");
    g_assert_cmpstr(block_at(blocks, blocks->len - 1)->language, ==, "$d$");
}

static void test_equal(void)
{
    g_autoptr(GPtrArray) a = parse(document);
    g_autoptr(GPtrArray) b = parse(document);

    g_assert_cmpuint(a->len, ==, b->len);
    for (guint i = 0; i < a->len; i++)
        for (guint j = 0; j < b->len; j++)
            if (i == j)
                g_assert_true(quire_block_equal(block_at(a, i), block_at(b, j)));
            else if (i == 0)
                g_assert_false(quire_block_equal(block_at(a, i), block_at(b, j)));
}

static void test_deep(void)
{
    GString *text = g_string_new(NULL);

    for (int i = 0; i < 200; i++)
        g_string_append(text, "> - ");
    g_string_append(text, "x\n");
    for (int i = 0; i < 50000; i++)
        g_string_append(text, "[");
    g_autoptr(GPtrArray) blocks = quire_markdown_parse(text->str, text->len);
    assert_well_formed(blocks);
    g_string_free(text, TRUE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/markdown/blocks", test_blocks);
    g_test_add_func("/app/markdown/untrusted", test_untrusted);
    g_test_add_func("/app/markdown/bytes", test_bytes);
    g_test_add_func("/app/markdown/prefixes", test_prefixes);
    g_test_add_func("/app/markdown/random", test_random);
    g_test_add_func("/app/markdown/settled", test_settled);
    g_test_add_func("/app/markdown/no-formula", test_no_formula);
    g_test_add_func("/app/markdown/equal", test_equal);
    g_test_add_func("/app/markdown/deep", test_deep);
    return g_test_run();
}
