/* engine-test.h: what the engine's tests share: an engine with the shipped model, a request run to its end. */
#pragma once
#include "engine/qe-backend.h"
#include "engine/qe-engine.h"
#include "engine/qe.h"

/* One finished request. */
typedef struct {
    GString *text;
    GArray *ids; /* uint32_t: generated, end token included */
    qe_finish finish;
    GError *error;
    qe_receipt receipt;
    qe_top *top;
    uint32_t n_top;
    qe_message_range *ranges;
    uint32_t n_ranges;
    uint32_t n_takes; /* that brought text */
} et_result;

/* Where the model is: QUIRE_TEST_MODEL, else the shipped one. */
const char *et_model_dir(void);
/* A backend for every engine of the test program; NULL (the default): the real ones. */
void et_set_backend(qe_backend_open_fn open, void *user);
/* Ready, greedy options of the test on top of: checker on, two threads. */
qe_engine *et_engine_new(const qe_engine_options *options);
qe_engine *et_engine_new_for(const qe_engine_options *options, const char *dir); /* another model folder */

void et_result_clear(et_result *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(et_result, et_result_clear)

/* Greedy parameters with @session's next user message. @message: storage that outlives the call. */
qe_generate_params et_user(qe_session_id session, const char *text, qe_message *message);
/* Greedy parameters with the whole conversation as ids (borrowed). */
qe_generate_params et_ids(qe_session_id session, const uint32_t *ids, uint32_t n, uint32_t max_tokens);
GArray *et_some_ids(uint32_t n, uint32_t seed);         /* uint32_t: random ids of ordinary tokens */
void et_finish(qe_request *request, et_result *result); /* takes until DONE; frees @request */
void et_generate(qe_engine *engine, const qe_generate_params *params, et_result *result);
/* A user turn, greedy, of exactly @n_tokens. */
void et_ask_exactly(
    qe_engine *engine, qe_session_id session, const char *text, uint32_t n_tokens, et_result *result);
qe_session_id et_open_with(qe_engine *engine, const qe_session_options *options);
void et_wait_lost(qe_engine *engine); /* until the engine says that its device is lost */
void et_recover(qe_engine *engine);   /* then: until it is ready again */
/* A user turn, greedy, to its end. */
void et_ask(
    qe_engine *engine, qe_session_id session, const char *text, uint32_t max_tokens, et_result *result);
qe_session_id et_open(qe_engine *engine);
void et_assert_same(const et_result *a, const et_result *b); /* text, ids, finish */
/* Pages used once the engine has nothing left to do. */
uint32_t et_pages_used(qe_engine *engine);
/* A folder for the test's files: owned, given back with all that is in it by et_scratch_free(). */
char *et_scratch(void);
void et_scratch_free(char *dir);
void et_remove_all(const char *path); /* a file, or a folder with what is in it; nothing there is fine */
