/* test-app-chat.c: titles, settings of a chat, attachments, the context and what is done when it is full. See
 * ui-harness.h. */
#include <string.h>

#include "app/quire-aside.h"
#include "app/quire-message-row.h"
#include "app/quire-settings.h"
#include "app/quire-title.h"
#include "tests/app/ui-harness.h"

static QuireEngineClient *client(void)
{
    return quire_application_get_client(application);
}

static const QuireStoredChat *stored(void)
{
    return quire_history_item_get(quire_conversation_get_item(conversation()));
}

/* ---- Titles ---- */

typedef struct {
    gboolean done;
    char *text;
    qe_receipt receipt;
} Answer;

static void answered_cb(const char *text, const qe_receipt *receipt, gpointer data)
{
    Answer *answer = data;

    answer->done = TRUE;
    answer->text = g_strdup(text);
    if (receipt != NULL)
        answer->receipt = *receipt;
}

static gboolean has_n_sessions(gpointer n)
{
    return quire_engine_client_get_snapshot(client())->n_sessions == GPOINTER_TO_UINT(n);
}

/* A question aside finds all that the chat has computed, and leaves it as it was. */
static void test_aside(void)
{
    Answer answer = {0};
    QuireAside *aside;
    guint n_tokens;

    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    n_tokens = receipt()->n_prompt + receipt()->n_generated;
    {
        const QuireAsideQuestion question = {.session = quire_conversation_get_session(conversation()),
            .keep_messages = QE_KEEP_ALL,
            .question = quire_title_question(),
            .max_tokens = QUIRE_TITLE_TOKENS_MAX,
            .yields = TRUE};

        aside = quire_aside_new(client(), &question, answered_cb, &answer);
    }
    wait_for("the answer", is_set, &answer.done);
    quire_aside_free(aside);
    g_assert_nonnull(answer.text);
    g_assert_cmpuint(answer.receipt.n_generated, >, 0);
    /* Full pages are shared, the open one was copied: nothing of the chat is read again, save its last token, whose keys
     * nobody has computed yet. */
    g_assert_cmpuint(answer.receipt.n_reused, >=, n_tokens - 1);
    g_assert_cmpuint(answer.receipt.n_recomputed, <=, 1);
    wait_for("one session", has_n_sessions, GUINT_TO_POINTER(1));
    g_free(answer.text);

    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >=, n_tokens - 1);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    close_window();
}

static void max_sessions_cb(guint *max)
{
    const qe_snapshot *snapshot = quire_engine_client_get_snapshot(client());

    *max = MAX(*max, snapshot->n_sessions);
}

static gboolean is_two(gpointer n)
{
    return *(guint *)n >= 2;
}

/* The model is asked once, after the first reply; a title of the user's is not touched; a turn comes first. */
static void test_title(void)
{
    guint max = 0;
    gulong id;

    g_settings_set_boolean(quire_settings_get_default(), "auto-title", TRUE);
    open_window(900, 600);
    id = g_signal_connect_swapped(client(), "snapshot-changed", G_CALLBACK(max_sessions_cb), &max);
    say("My name is Oda.", 2);
    wait_for("the fork", is_two, &max);
    wait_for("one session", has_n_sessions, GUINT_TO_POINTER(1));
    g_assert_true(is_idle(NULL));
    wait_ms(100);
    g_assert_cmpint(stored()->title_source, >=, QUIRE_TITLE_WORDS);
    g_assert_cmpstr(stored()->title, !=, "");
    max = 0;
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    wait_ms(300);
    g_assert_cmpuint(max, ==, 1);

    g_assert_true(quire_conversation_set_title(conversation(), "Mine", QUIRE_TITLE_USER));
    g_assert_false(quire_conversation_set_title(conversation(), "The model's", QUIRE_TITLE_MODEL));
    g_assert_cmpstr(stored()->title, ==, "Mine");

    /* The next turn does not wait for a title, and the tab may go at any time. */
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    max = 0;
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    say("Another one.", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpint(stored()->title_source, >=, QUIRE_TITLE_WORDS);
    g_signal_handler_disconnect(client(), id);
    close_window();
    g_settings_set_boolean(quire_settings_get_default(), "auto-title", FALSE);
}

static void add_tests(void)
{
    g_test_add_func("/app/chat/aside", test_aside);
    g_test_add_func("/app/chat/title", test_title);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
