/* test-engine-logits.c: the engine's logits and greedy tokens against those of transformers in float32, for every model
 * of the fixtures, both page classes and every instruction set of this machine; and over a device that is late and
 * unreadable, the same bits.
 *
 * Tolerances, norm of the difference over norm, at every position: fx_tolerance(). Where the fixture has no full rows,
 * bf16 pages are measured against float32 pages of the same engine, after those were held to the fixture: the fixture's
 * estimate is good to 12 % only. A greedy token may differ only where the reference's two largest logits are closer than
 * twice the error measured on the prompts of this model, and then it must be the reference's second; the run goes on from
 * the reference's token. */
#include <math.h>
#include <string.h>
#include "engine/qe-engine.h"
#include "kernels/qk-mock.h"
#include "tests/engine/fixture.h"

#define LONG_PROMPT 256u /* longer ones run with the fastest instruction set alone */

static const char *const models[] = {"demo-model", "tiny-random", "tiny-yarn"};
static const char *const isas[] = {"reference", "avx2", "avx512"};

typedef struct {
    const char *model, *isa;
    qe_kv_class kv_class;
} config;

static bool isa_available(const char *isa)
{
    char error[256];
    qk_backend *backend = NULL;
    qk_status status = qk_backend_open(
        "cpu", &(qk_backend_options){.isa = isa, .n_threads = 1}, &backend, error, sizeof error);
    if (status == QK_OK)
        qk_backend_free(backend);
    else
        g_assert_cmpint(status, ==, QK_UNSUPPORTED);
    return status == QK_OK;
}

static const char *best_isa(void)
{
    const char *best = isas[0];
    for (guint i = 1; i < G_N_ELEMENTS(isas); i++)
        best = isa_available(isas[i]) ? isas[i] : best;
    return best;
}

static qe_engine *open_engine(
    const fx_file *fx, const qe_engine_options *options, qe_backend_open_fn open, void *user)
{
    g_autoptr(GError) error = NULL;
    qe_engine *engine = qe_engine_new_with_backend(options, open, user, &error);
    g_assert_no_error(error);
    qe_engine_load(engine, fx->model_dir);
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    return engine;
}

static float *eval_all(qe_engine *engine, const fx_file *fx, const fx_prompt *prompt)
{
    g_autoptr(GError) error = NULL;
    float *logits = g_new0(float, (gsize)prompt->n_ids * fx->vocab);
    qe_engine_eval(engine, 0, prompt->ids, prompt->n_ids, 0, logits, &error);
    g_assert_no_error(error);
    return logits;
}

/* Greedy ids after @ids, exactly @n_new of them. */
static void generate(qe_engine *engine, const uint32_t *ids, uint32_t n_ids, uint32_t *out, uint32_t n_new)
{
    g_autoptr(GError) error = NULL;
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = qe_engine_open_session(engine, &error);
    g_assert_no_error(error);
    params.ids = ids;
    params.n_ids = n_ids;
    params.max_tokens = n_new;
    params.ignore_eos = true;
    g_assert_cmpfloat(params.sampling.temperature, ==, 0);
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    uint32_t n = 0;
    for (bool done = false; !done;) {
        qe_update update;
        qe_request_wait(request, -1);
        qe_request_take(request, &update);
        g_assert_no_error(update.error);
        g_assert_cmpuint(n + update.n_ids, <=, n_new);
        if (update.n_ids)
            memcpy(out + n, update.ids, update.n_ids * sizeof *out);
        n += update.n_ids;
        done = update.state == QE_REQUEST_DONE;
        qe_update_clear(&update);
    }
    g_assert_cmpuint(n, ==, n_new);
    qe_request_unref(request);
    qe_engine_close_session(engine, params.session);
}

/* Returns how many steps were ties. @error: the largest difference of one logit that was measured. */
static uint32_t check_greedy(qe_engine *engine, const fx_prompt *prompt, double error)
{
    uint32_t n_ties = 0;
    g_autofree uint32_t *ids = g_new(uint32_t, prompt->n_ids + FX_GREEDY);
    memcpy(ids, prompt->ids, prompt->n_ids * sizeof *ids);
    memcpy(ids + prompt->n_ids, prompt->greedy, FX_GREEDY * sizeof *ids);
    uint32_t got[FX_GREEDY];
    for (uint32_t done = 0; done < FX_GREEDY;) {
        generate(engine, ids, prompt->n_ids + done, got + done, FX_GREEDY - done);
        while (done < FX_GREEDY && got[done] == prompt->greedy[done])
            done++;
        if (done == FX_GREEDY)
            break;
        g_test_message("%s: step %u has token %u, not %u; the reference's second is %u, %g below; error %g",
            prompt->name, done, got[done], prompt->greedy[done], prompt->runner_up[done], prompt->gap[done],
            error);
        g_assert_cmpuint(got[done], ==, prompt->runner_up[done]);
        g_assert_cmpfloat(prompt->gap[done], <, 2 * error);
        n_ties++;
        done++;
    }
    return n_ties;
}

/* Rows of @logits against full rows of a reference. */
static double distance(const float *logits, const float *reference, uint32_t n)
{
    double difference = 0, norm = 0;
    for (uint32_t v = 0; v < n; v++) {
        difference += ((double)logits[v] - reference[v]) * ((double)logits[v] - reference[v]);
        norm += (double)reference[v] * reference[v];
    }
    return sqrt(difference / norm);
}

/* Holds every position to its tolerance. @exact: float32 pages, for bf16 ones; NULL when @logits are from them. */
static fx_error check_prompt(
    const fx_file *fx, const fx_prompt *prompt, const float *logits, const float *exact)
{
    fx_error all = {0};
    uint32_t n_over = 0, worst = 0;
    double closest = 0; /* of error / tolerance */
    for (uint32_t i = 0; i < prompt->n_ids; i++) {
        gsize at = (gsize)i * fx->vocab;
        fx_error e = fx_compare(fx, prompt, i, logits + at);
        if (exact && !prompt->full) {
            g_assert_cmpfloat(
                fx_compare(fx, prompt, i, exact + at).relative, <=, fx_tolerance(prompt, i, false));
            e.relative = distance(logits + at, exact + at, fx->vocab);
        }
        double tolerance = fx_tolerance(prompt, i, exact != NULL);
        if (!(e.relative <= tolerance))
            g_test_message("%s: position %u: error %g, tolerance %g", prompt->name, i, e.relative, tolerance);
        g_assert_cmpfloat(e.relative, <=, tolerance);
        closest = MAX(closest, e.relative / tolerance);
        n_over += e.relative > (exact ? 1e-2 : 1e-4);
        worst = e.relative > all.relative ? i : worst;
        all.relative = MAX(all.relative, e.relative);
        all.absolute = MAX(all.absolute, e.absolute);
    }
    g_test_message("%s: worst relative error %.3g at position %u of %u, at most %.2f of the tolerance, %u "
                   "over %g; largest "
                   "difference %.3g",
        prompt->name, all.relative, worst, prompt->n_ids, closest, n_over, exact ? 1e-2 : 1e-4, all.absolute);
    return all;
}

static void test_reference(gconstpointer data)
{
    const config *c = data;
    if (!isa_available(c->isa)) {
        g_test_skip("this machine or build lacks the instruction set");
        return;
    }
    bool best = g_str_equal(c->isa, best_isa());
    g_autoptr(fx_file) fx = fx_open(c->model);
    qe_engine_options options = {
        .isa = c->isa, .n_threads = 2, .kv_class = c->kv_class, .check_invariants = true};
    qe_engine *whole = open_engine(fx, &options, NULL, NULL);
    options.kv_class = QE_KV_F32;
    qe_engine *exact = c->kv_class == QE_KV_F32 ? NULL : open_engine(fx, &options, NULL, NULL);
    options.kv_class = c->kv_class;
    options.step_rows_max = g_str_equal(c->model, "demo-model") ? 64 : 23;
    qe_engine *chunks = open_engine(fx, &options, NULL, NULL);

    fx_error all = {0};
    uint32_t n_rows = 0, n_ties = 0, n_prompts = 0, n_greedy = 0;
    for (uint32_t i = 0; i < fx->n_prompts; i++) {
        const fx_prompt *prompt = &fx->prompts[i];
        if (prompt->n_ids > LONG_PROMPT && !best)
            continue;
        if (exact && !prompt->rounding) {
            g_test_message("%s: not compared: no figure for what the rounding alone does", prompt->name);
            continue;
        }
        g_autofree float *logits = eval_all(whole, fx, prompt);
        g_autofree float *float_pages = exact ? eval_all(exact, fx, prompt) : NULL;
        fx_error e = check_prompt(fx, prompt, logits, float_pages);
        g_autofree float *same = eval_all(chunks, fx, prompt);
        gsize n_bytes = (gsize)prompt->n_ids * fx->vocab * sizeof(float);
        g_assert_true(memcmp(logits, same, n_bytes) == 0);
        all.relative = MAX(all.relative, e.relative);
        all.absolute = MAX(all.absolute, e.absolute);
        n_rows += prompt->n_ids;
        n_prompts++;
    }
    for (uint32_t i = 0; i < fx->n_prompts; i++) {
        const fx_prompt *prompt = &fx->prompts[i];
        if (prompt->n_ids > LONG_PROMPT && !best)
            continue;
        n_ties += check_greedy(chunks, prompt, all.absolute);
        n_greedy += FX_GREEDY;
    }
    g_test_message("%s, %s pages, %s: %u prompts, %u positions: worst relative error %.3g, largest "
                   "difference %.3g; %u greedy tokens, %u ties",
        c->model, c->kv_class == QE_KV_F32 ? "float32" : "bf16", c->isa, n_prompts, n_rows, all.relative,
        all.absolute, n_greedy, n_ties);
    qe_engine_free(whole);
    qe_engine_free(exact);
    qe_engine_free(chunks);
}

/* ---- The mock device ---- */

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    const qk_mock_options options = {.seed = 7, .delay_us_max = 200, .n_threads = 2, .isa = user};
    return qk_mock_open(&options, out, error, error_size);
}

static void test_mock(gconstpointer data)
{
    const config *c = data;
    const char *isa = best_isa();
    g_autoptr(fx_file) fx = fx_open(c->model);
    qe_engine_options options = {.isa = isa,
        .n_threads = 2,
        .kv_class = c->kv_class,
        .check_invariants = true,
        .kv_bytes_max = 64u << 20};
    qe_engine *cpu = open_engine(fx, &options, NULL, NULL);
    options.step_rows_max = 48;
    qe_engine *mock = open_engine(fx, &options, open_mock, (void *)isa);
    for (uint32_t i = 0; i < fx->n_prompts; i++) {
        const fx_prompt *prompt = &fx->prompts[i];
        if (prompt->n_ids > LONG_PROMPT)
            continue;
        g_autofree float *want = eval_all(cpu, fx, prompt);
        g_autofree float *got = eval_all(mock, fx, prompt);
        g_assert_true(memcmp(want, got, (gsize)prompt->n_ids * fx->vocab * sizeof(float)) == 0);
        uint32_t ids[2][FX_GREEDY];
        generate(cpu, prompt->ids, prompt->n_ids, ids[0], FX_GREEDY);
        generate(mock, prompt->ids, prompt->n_ids, ids[1], FX_GREEDY);
        g_assert_cmpmem(ids[0], sizeof ids[0], ids[1], sizeof ids[1]);
    }
    qe_engine_free(cpu);
    qe_engine_free(mock);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    for (guint m = 0; m < G_N_ELEMENTS(models); m++) {
        for (int kv = 0; kv < 2; kv++) {
            const char *kv_name = kv == QE_KV_F32 ? "f32" : "bf16";
            for (guint i = 0; i < G_N_ELEMENTS(isas); i++) {
                config *c = g_memdup2(&(config){models[m], isas[i], kv}, sizeof *c);
                g_autofree char *path =
                    g_strdup_printf("/engine/logits/%s/%s/%s", models[m], kv_name, isas[i]);
                g_test_add_data_func_full(path, c, test_reference, g_free);
            }
            config *c = g_memdup2(&(config){.model = models[m], .kv_class = kv}, sizeof *c);
            g_autofree char *path = g_strdup_printf("/engine/logits/%s/%s/mock", models[m], kv_name);
            g_test_add_data_func_full(path, c, test_mock, g_free);
        }
    }
    return g_test_run();
}
