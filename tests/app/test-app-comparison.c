/* test-app-comparison.c: what a comparison makes of its figures: medians, where streams part, the table, CSV, the record in the
 * history. No display. */
#include <math.h>
#include <string.h>

#include "app/quire-comparison.h"

static void add_token(QuirePane *pane, guint32 id, const char *text, float first, float second)
{
    QuireToken token = {.id = id, .n_top = 2, .logprob = first};

    g_string_append(pane->text, text);
    token.end = (guint)pane->text->len;
    quire_piece_set(token.top[0].text, text, strlen(text));
    token.top[0].logprob = first;
    quire_piece_set(token.top[1].text, "other", 5);
    token.top[1].logprob = second;
    g_array_append_val(pane->tokens, token);
}

/* Rebuild and int8 say "A cache", then part: the margins there are @a and @b. */
static QuireComparison *sample(float a, float b)
{
    QuireComparison *c = quire_comparison_new();
    QuirePane *left = quire_comparison_add_pane(c, QUIRE_CACHE_REBUILD);
    QuirePane *right = quire_comparison_add_pane(c, QUIRE_CACHE_TIERED_INT8);

    c->title = g_strdup("A \"chat\"");
    c->prompt = g_strdup("What is a cache?");
    c->source = g_strdup("id");
    c->model_name = g_strdup("Model \"x\", 4B");
    c->device = g_strdup("CPU");
    c->greedy = TRUE;
    c->seed = G_MAXUINT64 - 1;
    c->n_timed = 256;
    c->n_turns = 2;
    c->base_bytes = 1000;
    add_token(left, 1, "A", -0.1f, -3);
    add_token(left, 2, " cache", -0.2f, -3);
    add_token(left, 3, " keeps", -0.5f, -0.5f - a);
    add_token(left, 4, " pages", -0.5f, -3);
    add_token(right, 1, "A", -0.1f, -3);
    add_token(right, 2, " cache", -0.2f, -3);
    add_token(right, 5, " hält", -0.5f, -0.5f - b);
    left->state = right->state = QUIRE_PANE_DONE;
    for (int i = 0; i < 3; i++) {
        QuireComparedTurn turn = {.n_prompt = 40, .n_reused = 0};

        quire_samples_add(&left->cold_ms, 200 + i);
        quire_samples_add(&left->warm_ms, 100 + i);
        quire_samples_add(&right->warm_ms, 25 + i);
        quire_samples_add(&turn.first_token_ms, 50);
        g_array_append_val(left->turns, turn);
    }
    left->peak[QE_TIER_HOST] = 3000;
    right->peak[QE_TIER_HOST] = 1000;
    return c;
}

static void test_samples(void)
{
    QuireSamples s = {0};

    g_assert_true(isnan(quire_samples_median(&s)));
    g_assert_true(isnan(quire_samples_min(&s)));
    quire_samples_add(&s, 7);
    g_assert_cmpfloat(quire_samples_median(&s), ==, 7);
    quire_samples_add(&s, 3);
    g_assert_cmpfloat(quire_samples_median(&s), ==, 5);
    quire_samples_add(&s, 100);
    g_assert_cmpfloat(quire_samples_median(&s), ==, 7);
    g_assert_cmpfloat(quire_samples_min(&s), ==, 3);
    g_assert_cmpfloat(quire_samples_max(&s), ==, 100);
    quire_samples_add(&s, 1);
    g_assert_cmpuint(s.n, ==, QUIRE_COMPARE_REPEATS);
    g_assert_cmpfloat(quire_samples_min(&s), ==, 3);
}

static void test_align(void)
{
    g_autoptr(QuireComparison) c = sample(0.02f, 0.03f);
    QuirePane *right = quire_comparison_get_pane(c, 1);
    g_autofree char *words = quire_comparison_dup_verdict(c), *stream = quire_comparison_dup_stream(c, 1);
    guint at;

    g_assert_cmpint(quire_comparison_align(c, 0, &at), ==, QUIRE_STREAM_BASELINE);
    g_assert_cmpint(quire_comparison_align(c, 1, &at), ==, QUIRE_STREAM_DIFFERS);
    g_assert_cmpuint(at, ==, 2);
    g_assert_true(quire_comparison_is_tie(c, 1, at));
    g_assert_cmpfloat_with_epsilon(quire_pane_get_margin(right, 2), 0.03, 1e-5);
    g_assert_cmpstr(words, ==,
        "Tiered int8 differs at token 3: “ hält” (top-2 margin 0.03) where Rebuild has “ keeps” (margin "
        "0.02). "
        "That is a tie: rounding decides.");
    g_assert_cmpstr(stream, ==, "differs at 3");
    g_assert_cmpuint(quire_pane_get_begin(right, 2), ==, 7);
    g_assert_cmpuint(quire_pane_find_token(right, 0), ==, 0);
    g_assert_cmpuint(quire_pane_find_token(right, 1), ==, 1);
    g_assert_cmpuint(quire_pane_find_token(right, 7), ==, 2);
    g_assert_cmpuint(quire_pane_find_token(right, 9999), ==, 3);

    /* What has ended before the other differs at its end; while it still runs it does not. */
    g_array_set_size(right->tokens, 2);
    g_assert_cmpint(quire_comparison_align(c, 1, &at), ==, QUIRE_STREAM_DIFFERS);
    g_assert_cmpuint(at, ==, 2);
    {
        g_autofree char *piece = quire_pane_dup_piece(right, 2);

        g_assert_cmpstr(piece, ==, "the end of the reply");
    }
    right->state = QUIRE_PANE_STREAMING;
    g_assert_cmpint(quire_comparison_align(c, 1, &at), ==, QUIRE_STREAM_SAME_SO_FAR);
    g_array_set_size(right->tokens, 0);
    g_assert_cmpint(quire_comparison_align(c, 1, &at), ==, QUIRE_STREAM_UNKNOWN);
}

/* One clear margin is enough for a fault; drawn tokens say nothing of the kind. */
static void test_fault(void)
{
    g_autoptr(QuireComparison) c = sample(0.02f, 2);
    g_autofree char *approximate = quire_comparison_dup_verdict(c), *exact = NULL, *drawn = NULL;

    g_assert_false(quire_comparison_is_tie(c, 1, 2));
    g_assert_true(g_str_has_suffix(approximate, "No tie: the approximation changed the answer."));
    quire_comparison_get_pane(c, 1)->choice = QUIRE_CACHE_SESSION;
    exact = quire_comparison_dup_verdict(c);
    g_assert_true(g_str_has_suffix(exact, "No tie: exact modes should agree here."));
    c->greedy = FALSE;
    drawn = quire_comparison_dup_verdict(c);
    g_assert_nonnull(strstr(drawn, "Tokens were drawn"));
    g_assert_false(quire_comparison_is_tie(c, 1, 2));
    g_array_set_size(quire_comparison_get_pane(c, 1)->tokens, 0);
    g_assert_null(quire_comparison_dup_verdict(c));
}

static void test_table(void)
{
    g_autoptr(QuireComparison) c = sample(1, 1);
    const struct {
        guint pane;
        QuireColumn column;
        const char *value, *range, *change;
    } cases[] = {
        {0, QUIRE_COLUMN_WARM, "0.10 s", "0.10 s – 0.10 s", ""},
        {1, QUIRE_COLUMN_WARM, "26 ms", "25 ms – 27 ms", "−74 %"},
        {1, QUIRE_COLUMN_COLD, "–", "", ""},
        {0, QUIRE_COLUMN_PEAK, "3.9 KiB", "", ""},
        {1, QUIRE_COLUMN_PEAK, "2.0 KiB", "", "−50 %"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *value = NULL, *range = NULL, *change = NULL;

        quire_comparison_dup_cell(
            c, quire_comparison_get_pane(c, cases[i].pane), cases[i].column, &value, &range, &change);
        {
            /* GLib writes sizes with a no-break space. */
            g_auto(GStrv) parts = g_strsplit(value, "\xc2\xa0", -1);

            g_free(value);
            value = g_strjoinv(" ", parts);
        }
        g_assert_cmpstr(value, ==, cases[i].value);
        g_assert_cmpstr(range, ==, cases[i].range);
        g_assert_cmpstr(change, ==, cases[i].change);
    }
}

static void test_columns(void)
{
    const struct {
        int width;
        guint n, columns;
    } cases[] = {
        {0, 2, 1},
        {336, 4, 1},
        {539, 2, 1},
        {540, 2, 2},
        {540, 4, 2},
        {816, 3, 3},
        {816, 4, 2},
        {1091, 4, 2},
        {1092, 4, 4},
        {5000, 2, 2},
        {5000, 3, 3},
        {700, 1, 1},
        {700, 0, 1},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpuint(quire_compare_columns(cases[i].width, cases[i].n), ==, cases[i].columns);
}

static void test_need(void)
{
    qe_memory_plan plan = {
        .kv = 100 * 1600, .host_kv = 400 * 1600, .page_bytes = 1600, .page_bytes_int8 = 900};
    const QuireCacheChoice both[] = {QUIRE_CACHE_SESSION, QUIRE_CACHE_TIERED};
    guint64 device, host;
    gboolean fits;
    QuireNeed need;

    quire_compare_need(&plan, QUIRE_CACHE_SESSION, 1600, &need);
    g_assert_cmpuint(need.needed, ==, 100 * 1600);
    g_assert_true(need.fits);
    quire_compare_need(&plan, QUIRE_CACHE_SESSION, 1601, &need);
    g_assert_cmpuint(need.needed, ==, 101 * 1600);
    g_assert_cmpuint(need.allowed, ==, 100 * 1600);
    g_assert_false(need.fits);
    quire_compare_need(&plan, QUIRE_CACHE_TIERED, 1601, &need);
    g_assert_true(need.fits);
    g_assert_cmpuint(need.allowed, ==, 400 * 1600);

    /* One after another the largest counts, interleaved all. */
    quire_compare_need_all(&plan, both, 2, 960, FALSE, &device, &host, &fits);
    g_assert_cmpuint(device, ==, 60 * 1600);
    g_assert_true(fits);
    quire_compare_need_all(&plan, both, 2, 960, TRUE, &device, &host, &fits);
    g_assert_cmpuint(device, ==, 120 * 1600);
    g_assert_true(fits);
    plan.host_kv = 0;
    quire_compare_need_all(&plan, both, 2, 960, TRUE, &device, &host, &fits);
    g_assert_false(fits);
}

static void test_csv(void)
{
    g_autoptr(QuireComparison) c = sample(1, 1);
    g_autofree char *csv = quire_comparison_to_csv(c);
    g_auto(GStrv) lines = g_strsplit(csv, "\r\n", -1);

    g_assert_cmpstr(lines[0], ==,
        "model,device,mode,kind,figure,turn,unit,runs,median,min,max,change_against_rebuild_percent");
    g_assert_cmpstr(
        lines[1], ==, "\"Model \"\"x\"\", 4B\",\"CPU\",rebuild,exact,first_token_cold,,ms,3,201,200,202,0");
    g_assert_nonnull(
        strstr(csv, "\"Model \"\"x\"\", "
                    "4B\",\"CPU\",tiered-int8,approximate,first_token_warm,,ms,3,26,25,27,-74.2574\r\n"));
    g_assert_nonnull(strstr(csv, ",rebuild,exact,first_token_turn,3,ms,1,50,50,50,0\r\n"));
    g_assert_nonnull(strstr(csv, ",peak_kv_host,,bytes,1,1000,1000,1000,-66.6667\r\n"));
}

static void test_record(void)
{
    g_autoptr(QuireComparison) c = sample(0.5f, 0.25f);
    g_autoptr(GPtrArray) messages = quire_comparison_dup_messages(c);
    g_autoptr(QuireComparison) again = quire_comparison_from_messages(messages);
    g_autofree char *csv = quire_comparison_to_csv(c), *csv_again = NULL;
    g_autofree char *verdict = quire_comparison_dup_verdict(c), *verdict_again = NULL;
    QuireStoredMessage *first = g_ptr_array_index(messages, 0);

    g_assert_cmpuint(messages->len, ==, 3);
    g_assert_cmpstr(((QuireStoredMessage *)g_ptr_array_index(messages, 2))->text, ==, "A cache hält");
    g_assert_nonnull(again);
    csv_again = quire_comparison_to_csv(again);
    verdict_again = quire_comparison_dup_verdict(again);
    g_assert_cmpstr(csv_again, ==, csv);
    g_assert_cmpstr(verdict_again, ==, verdict);
    g_assert_cmpuint(again->seed, ==, c->seed);
    g_assert_cmpstr(again->title, ==, c->title);
    g_assert_cmpstr(again->source, ==, c->source);

    /* A chat is none, nor is what was damaged; a missing text costs its text alone. */
    g_ptr_array_set_size(messages, 1);
    {
        g_autoptr(QuireComparison) short_one = quire_comparison_from_messages(messages);

        g_assert_nonnull(short_one);
        g_assert_cmpuint(quire_comparison_get_pane(short_one, 1)->text->len, ==, 0);
        for (guint i = 0; i < quire_comparison_get_pane(short_one, 1)->tokens->len; i++)
            g_assert_cmpuint(quire_pane_get_begin(quire_comparison_get_pane(short_one, 1), i), ==, 0);
    }
    first->receipt[strlen(first->receipt) / 2] = '\0';
    g_assert_null(quire_comparison_from_messages(messages));
    g_free(first->receipt);
    first->receipt = g_strdup("{\"format\": \"quire-comparison\", \"panes\": [{\"choice\": 99}, 3, null]}");
    g_assert_null(quire_comparison_from_messages(messages));
    g_clear_pointer(&first->receipt, g_free);
    g_assert_null(quire_comparison_from_messages(messages));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/comparison/samples", test_samples);
    g_test_add_func("/app/comparison/align", test_align);
    g_test_add_func("/app/comparison/fault", test_fault);
    g_test_add_func("/app/comparison/table", test_table);
    g_test_add_func("/app/comparison/columns", test_columns);
    g_test_add_func("/app/comparison/need", test_need);
    g_test_add_func("/app/comparison/csv", test_csv);
    g_test_add_func("/app/comparison/record", test_record);
    return g_test_run();
}
