/* qe-turn.c: prompts become ids.
 *
 * A prompt is first worked out aside as an edit of the timeline: cut it at a position, append these ids, these turns. Only
 * when the edit is known to fit, it is applied; so a refused request leaves its session as it was.
 *
 *   new turn:   [kept turns, the last one closed][messages][generation prompt]
 *   closed:     a reply that ended by itself gets "\n", a cut one "<|im_end|>\n"
 *   stripped:   before a user message, replies lose their reasoning (when the template does that): the timeline is cut at
 *               the first such reply and its short form and what followed are appended again
 *
 * Replies are never tokenised from text here: what is kept is kept as ids. */
#include "engine/qe-turn.h"
#include <string.h>
#include "engine/qe-limits.h"

typedef struct {
    uint32_t cut;  /* ids before it stay */
    GArray *ids;   /* uint32_t: appended after the cut */
    GArray *turns; /* qe_turn: appended; the first may be the last one that stays, grown */
    uint32_t n_stripped;
} edit;

static void edit_clear(edit *e)
{
    g_array_unref(e->ids);
    g_array_unref(e->turns);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(edit, edit_clear)

static uint32_t edit_end(const edit *e)
{
    return e->cut + e->ids->len;
}

static void add_turn(edit *e, qe_role role, qe_turn_state state, uint32_t begin, uint32_t text_begin)
{
    qe_turn turn = {
        .role = role,
        .state = state,
        .begin = begin,
        .end = edit_end(e),
        .text_begin = MIN(text_begin, edit_end(e)),
    };
    g_array_append_val(e->turns, turn);
}

/* What an edit appends and the session has already at that place is not cut off. */
static void keep_common_prefix(const qe_session *session, edit *e)
{
    const uint32_t *ids = qe_session_ids(session) + e->cut;
    uint32_t n = MIN(qe_session_n_ids(session) - e->cut, e->ids->len), same = 0;
    while (same < n && ids[same] == g_array_index(e->ids, uint32_t, same))
        same++;
    e->cut += same;
    if (same)
        g_array_remove_range(e->ids, 0, same);
    /* Of a stripped reply, what equals the long form was not put again. */
    e->n_stripped = MIN(e->n_stripped, e->ids->len);
}

/* ---- Kept turns: closing, stripping ---- */

/* The ids of a generated reply after its "<|im_start|>assistant\n", without an end token that is not the template's. */
static const uint32_t *reply_ids(
    const qe_core *core, const qe_session *session, const qe_turn *turn, uint32_t *begin, uint32_t *n)
{
    const uint32_t *ids = qe_session_ids(session);
    uint32_t end = turn->end;
    *begin = MIN(turn->begin + qe_template_n_reply_prefix(core->tmpl), turn->text_begin);
    if (turn->state == QE_TURN_OPEN && end > turn->text_begin &&
        qe_eos_list_contains(&core->eos, ids[end - 1]) && ids[end - 1] != qe_template_end_id(core->tmpl))
        end--;
    *n = end - *begin;
    return ids + *begin;
}

static bool is_generated(const qe_turn *turn)
{
    return turn->state == QE_TURN_COMPLETE || turn->state == QE_TURN_OPEN;
}

/* A generated reply that ended by itself and was closed since has its "\n" behind the end token. */
static bool is_closed(const qe_core *core, const qe_session *session, const qe_turn *turn)
{
    if (!is_generated(turn))
        return true;
    return turn->state == QE_TURN_COMPLETE &&
           qe_session_ids(session)[turn->end - 1] != qe_template_end_id(core->tmpl);
}

/* Appends turn @i of @session as it will stand in the new timeline. @strip: a user message follows somewhere. */
static bool append_kept(
    const qe_core *core, const qe_session *session, uint32_t i, bool strip, edit *e, GError **error)
{
    const qe_turn *turn = qe_session_turn(session, i);
    const uint32_t *ids = qe_session_ids(session);
    uint32_t begin = edit_end(e);
    bool closed = is_closed(core, session, turn);
    bool changed = false;
    qe_turn_state state = turn->state;

    uint32_t reply_begin, n_reply;
    const uint32_t *reply = reply_ids(core, session, turn, &reply_begin, &n_reply);
    if (!is_generated(turn)) {
        g_array_append_vals(e->ids, ids + turn->begin, turn->end - turn->begin);
    } else {
        g_array_append_vals(e->ids, ids + turn->begin, reply_begin - turn->begin);
        guint before = e->ids->len;
        if (strip && !qe_template_strip_reply(core->tmpl, reply, n_reply, e->ids, &changed, error))
            return false;
        if (!strip)
            g_array_append_vals(e->ids, reply, n_reply);
        if (changed)
            e->n_stripped += e->ids->len - before;
        if (!closed && !qe_template_append_close(core->tmpl, state == QE_TURN_COMPLETE, e->ids, error))
            return false;
        state = changed ? QE_TURN_STRIPPED : QE_TURN_COMPLETE;
    }
    uint32_t text_begin =
        changed ? begin + (reply_begin - turn->begin) : begin + (turn->text_begin - turn->begin);
    add_turn(e, turn->role, state, begin, text_begin);
    qe_turn *added = &g_array_index(e->turns, qe_turn, e->turns->len - 1);
    added->text_hash = turn->text_hash;
    added->has_reasoning = changed || turn->has_reasoning;
    return true;
}

/* Whether stripping would change turn @i. */
static bool strip_changes(
    const qe_core *core, const qe_session *session, uint32_t i, bool *changes, GError **error)
{
    const qe_turn *turn = qe_session_turn(session, i);
    *changes = false;
    if (!is_generated(turn))
        return true;
    uint32_t begin, n;
    const uint32_t *reply = reply_ids(core, session, turn, &begin, &n);
    g_autoptr(GArray) out = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    return qe_template_strip_reply(core->tmpl, reply, n, out, changes, error);
}

/* The first @keep turns stay; what changes in them is appended again from the first change on. */
static bool edit_kept(
    const qe_core *core, const qe_session *session, uint32_t keep, bool strip, edit *e, GError **error)
{
    e->cut = keep ? qe_session_turn(session, keep - 1)->end : 0;
    for (uint32_t i = 0; i < keep; i++) {
        bool changes = false;
        if (strip && !strip_changes(core, session, i, &changes, error))
            return false;
        if (!changes && is_closed(core, session, qe_session_turn(session, i)))
            continue;
        e->cut = qe_session_turn(session, i)->begin;
        for (uint32_t k = i; k < keep; k++) {
            if (!append_kept(core, session, k, strip, e, error))
                return false;
        }
        break;
    }
    return true;
}

/* ---- The three forms of a prompt ---- */

static uint64_t hash_message(const qe_request_message *m)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)m->role; /* FNV-1a, 64 bits */
    for (gsize i = 0; i < m->n_bytes; i++)
        h = (h ^ (uint8_t)m->text[i]) * 0x100000001b3u;
    return h;
}

static bool edit_new_turn(
    const qe_core *core, const qe_session *session, const qe_request *request, edit *e, GError **error)
{
    uint32_t n_turns = qe_session_n_turns(session);
    uint32_t keep = request->keep_messages == QE_KEEP_ALL ? n_turns : request->keep_messages;
    if (keep > n_turns) {
        g_set_error(error, QE_ERROR, QE_ERROR_NOT_FOUND, "The session has %u messages, %u were to be kept",
            n_turns, keep);
        return false;
    }
    bool strip = false;
    for (uint32_t i = 0; i < request->n_messages; i++)
        strip |= request->messages[i].role == QE_ROLE_USER;
    if (!edit_kept(core, session, keep, strip && qe_template_strips_reasoning(core->tmpl), e, error))
        return false;
    for (uint32_t i = 0; i < request->n_messages; i++) {
        const qe_request_message *m = &request->messages[i];
        uint32_t begin = edit_end(e);
        if (!qe_template_append_message(
                core->tmpl, (qe_template_role)m->role, m->text, m->n_bytes, e->ids, error))
            return false;
        add_turn(e, m->role, QE_TURN_GIVEN, begin, begin + qe_template_n_reply_prefix(core->tmpl));
        g_array_index(e->turns, qe_turn, e->turns->len - 1).text_hash = hash_message(m);
    }
    uint32_t begin = edit_end(e);
    if (!qe_template_append_generation(core->tmpl, (qe_template_thinking)request->thinking, e->ids, error))
        return false;
    add_turn(e, QE_ROLE_ASSISTANT, QE_TURN_OPEN, begin, edit_end(e));
    keep_common_prefix(session, e);
    return true;
}

typedef struct {
    qe_role role;
    uint64_t hash;
} given_turn;

static uint64_t hash_text(uint64_t h, const char *text, gsize n)
{
    for (gsize i = 0; i < n; i++)
        h = (h ^ (uint8_t)text[i]) * 0x100000001b3u;
    return h;
}

/* The turns that a history's first @n messages are in the prompt: one each, but tools have a system turn, which takes the
 * system message in, and what tools gave in a row is one turn of the user. */
static GArray *turns_of(const qe_request *request, uint32_t n)
{
    GArray *turns = g_array_new(FALSE, FALSE, sizeof(given_turn));
    bool tools = request->tools && request->tools[0];
    if (tools) {
        given_turn system = {QE_ROLE_SYSTEM, 0x9ae16a3b2f90404fu};
        for (guint i = 0; request->tools[i]; i++)
            system.hash = hash_text(system.hash, request->tools[i], strlen(request->tools[i]));
        g_array_append_val(turns, system);
    }
    for (uint32_t i = 0; i < n; i++) {
        const qe_request_message *m = &request->messages[i];
        given_turn turn = {m->role == QE_ROLE_TOOL ? QE_ROLE_USER : m->role, hash_message(m)};
        bool joins = (tools && i == 0 && m->role == QE_ROLE_SYSTEM) ||
                     (i > 0 && m->role == QE_ROLE_TOOL && m[-1].role == QE_ROLE_TOOL);
        if (joins) {
            given_turn *last = &g_array_index(turns, given_turn, turns->len - 1);
            last->hash = hash_text(last->hash, m->text, m->n_bytes);
        } else {
            g_array_append_val(turns, turn);
        }
    }
    return turns;
}

static qe_template_message to_template(const qe_request_message *m)
{
    return (qe_template_message){
        .role = (qe_template_role)m->role,
        .text = m->text,
        .n_bytes = m->n_bytes,
        .reasoning = m->reasoning,
        .calls = (const qe_template_call *)m->calls,
        .n_calls = m->n_calls,
    };
}

/* A whole conversation: each turn begins at a message-begin token, which no text can spell. */
static bool edit_history(
    const qe_core *core, const qe_session *session, const qe_request *request, edit *e, GError **error)
{
    g_autofree qe_template_message *messages = g_new0(qe_template_message, request->n_messages);
    for (uint32_t i = 0; i < request->n_messages; i++)
        messages[i] = to_template(&request->messages[i]);
    /* A reply to go on with is the open end of the prompt, not a message of it. */
    uint32_t n_given = request->n_messages - (request->continue_reply ? 1 : 0);
    if (!qe_template_render_tools(core->tmpl, (const char *const *)request->tools, messages, n_given,
            (qe_template_thinking)request->thinking, true, e->ids, error))
        return false;
    g_autoptr(GArray) given = turns_of(request, n_given);
    uint32_t n_before_reply = e->ids->len;
    if (request->continue_reply && !qe_template_append_reply(core->tmpl, messages[n_given].text,
                                       messages[n_given].n_bytes, e->ids, error))
        return false;
    uint32_t n = e->ids->len, i = 0;
    uint32_t start_id = n ? g_array_index(e->ids, uint32_t, 0) : 0;
    for (uint32_t at = 0; at < n; i++) {
        uint32_t end = at + 1;
        while (end < n && g_array_index(e->ids, uint32_t, end) != start_id)
            end++;
        bool reply = i >= given->len;
        qe_turn turn = {
            .role = reply ? QE_ROLE_ASSISTANT : g_array_index(given, given_turn, i).role,
            .state = reply ? QE_TURN_OPEN : QE_TURN_GIVEN,
            .begin = at,
            .end = end,
            .text_begin = reply ? n_before_reply : MIN(at + qe_template_n_reply_prefix(core->tmpl), end),
            .text_hash = reply ? 0 : g_array_index(given, given_turn, i).hash,
        };
        g_array_append_val(e->turns, turn);
        at = end;
    }
    keep_common_prefix(session, e);
    return true;
}

/* Exact ids: the prompt counts as one message, the reply as the next. */
static void edit_ids(const qe_session *session, const qe_request *request, edit *e)
{
    g_array_append_vals(e->ids, request->ids, request->n_ids);
    if (!request->is_eval) {
        qe_turn prompt = {.role = QE_ROLE_USER, .state = QE_TURN_GIVEN, .end = request->n_ids};
        qe_turn reply = {
            .role = QE_ROLE_ASSISTANT,
            .state = QE_TURN_OPEN,
            .begin = request->n_ids,
            .end = request->n_ids,
            .text_begin = request->n_ids,
        };
        g_array_append_val(e->turns, prompt);
        g_array_append_val(e->turns, reply);
    }
    keep_common_prefix(session, e);
}

/* ---- Checking and applying ---- */

static bool check_edit(const qe_core *core, const qe_timeline *t, const edit *e, GError **error)
{
    uint32_t n = edit_end(e), vocab = qe_model_get_config(core->model)->vocab;
    if (n > core->context_max) {
        g_set_error(error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH,
            "The prompt has %u tokens, the context holds %u", n, core->context_max);
        return false;
    }
    if (n > qe_core_capacity(core, t)) {
        uint32_t n_pages = (n + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
        uint64_t page_bytes = qe_kv_pool_page_bytes(qe_session_pool(t->session));
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "The prompt's %u tokens need %u KV pages (%" G_GUINT64_FORMAT
            " bytes), the limit is %u (%" G_GUINT64_FORMAT " bytes)",
            n, n_pages, n_pages * page_bytes, qe_kv_pool_n_max(qe_session_pool(t->session)),
            qe_kv_pool_n_max(qe_session_pool(t->session)) * page_bytes);
        return false;
    }
    for (guint i = 0; i < e->ids->len; i++) {
        uint32_t id = g_array_index(e->ids, uint32_t, i);
        if (id >= vocab) {
            g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
                "Token %u of the prompt is id %u; the model has %u", e->cut + i, id, vocab);
            return false;
        }
    }
    return true;
}

static void apply_edit(qe_timeline *t, const edit *e)
{
    qe_session *session = t->session;
    if (e->cut < qe_session_n_ids(session))
        qe_session_rewind(session, e->cut);
    t->n_computed = MIN(t->n_computed, e->cut);
    qe_session_append_ids(session, (const uint32_t *)(const void *)e->ids->data, e->ids->len);
    /* Turns before the cut stay as they are, one that ends in the middle of a new one grows into it. */
    for (guint i = 0; i < e->turns->len; i++) {
        const qe_turn *turn = &g_array_index(e->turns, qe_turn, i);
        uint32_t n_turns = qe_session_n_turns(session);
        const qe_turn *last = n_turns ? qe_session_turn(session, n_turns - 1) : NULL;
        uint32_t last_end = last ? last->end : 0;
        if (last && turn->end <= last_end && turn->state != QE_TURN_OPEN)
            continue;
        if (last && turn->begin < last_end) {
            qe_session_extend_turn(session, turn->end, turn->state, turn->has_reasoning);
            continue;
        }
        qe_turn copy = *turn;
        copy.begin = last_end;
        qe_session_add_turn(session, &copy);
    }
}

bool qe_turn_prepare(qe_core *core, qe_timeline *t, qe_request *request, GError **error)
{
    g_auto(edit) e = {
        .ids = g_array_new(FALSE, FALSE, sizeof(uint32_t)),
        .turns = g_array_new(FALSE, FALSE, sizeof(qe_turn)),
    };
    uint32_t n_before = qe_session_n_ids(t->session);
    if (request->ids)
        edit_ids(t->session, request, &e);
    else if (request->whole_history ? !edit_history(core, t->session, request, &e, error)
                                    : !edit_new_turn(core, t->session, request, &e, error))
        return false;
    if (!check_edit(core, t, &e, error))
        return false;
    apply_edit(t, &e);

    request->n_prompt = qe_session_n_ids(t->session);
    request->n_stripped = e.n_stripped;
    request->receipt.n_prompt = request->n_prompt;
    request->receipt.first_mismatch = e.cut < n_before ? (int64_t)e.cut : -1;
    uint32_t room = qe_core_capacity(core, t) - request->n_prompt;
    request->max_is_context = request->max_tokens == 0 || request->max_tokens > room;
    request->n_generate_max = request->max_is_context ? room : request->max_tokens;
    return true;
}

void qe_turn_extend(qe_core *core, qe_timeline *t, qe_request *request, bool ended)
{
    uint32_t n = qe_session_n_ids(t->session);
    bool closed = ended && qe_session_ids(t->session)[n - 1] == qe_template_end_id(core->tmpl);
    qe_session_extend_turn(t->session, n, closed ? QE_TURN_COMPLETE : QE_TURN_OPEN, false);
}
