/* fixture.c: reads the reference fixtures with json-glib and measures logits against them. */
#include "tests/engine/fixture.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

static char *read_file(const char *folder, const char *name, gsize *n_bytes)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(folder, name, NULL);
    char *data = NULL;
    g_file_get_contents(path, &data, n_bytes, &error);
    g_assert_no_error(error);
    return data;
}

/* A section of the data file as words; NULL when the prompt has none of that name. */
static const void *section(
    const fx_file *self, JsonObject *logits, const char *name, const char *type, uint32_t rows, uint32_t cols)
{
    if (!json_object_has_member(logits, name))
        return NULL;
    JsonObject *s = json_object_get_object_member(logits, name);
    g_assert_cmpstr(json_object_get_string_member(s, "type"), ==, type);
    JsonArray *shape = json_object_get_array_member(s, "shape");
    g_assert_cmpint(json_array_get_int_element(shape, 0), ==, rows);
    g_assert_cmpint(json_array_get_length(shape) > 1 ? json_array_get_int_element(shape, 1) : 1, ==, cols);
    gint64 offset = json_object_get_int_member(s, "offset");
    g_assert_cmpint(offset, >=, 0);
    g_assert_cmpuint((gsize)offset + (gsize)rows * cols, <=, self->n_words);
    return self->words + offset;
}

static uint32_t *read_ids(const fx_file *self, JsonArray *array, uint32_t *n_ids)
{
    *n_ids = json_array_get_length(array);
    uint32_t *ids = g_new(uint32_t, *n_ids);
    for (uint32_t i = 0; i < *n_ids; i++) {
        gint64 id = json_array_get_int_element(array, i);
        g_assert_true(id >= 0 && id < self->vocab);
        ids[i] = (uint32_t)id;
    }
    return ids;
}

static void read_greedy(const fx_file *self, JsonObject *greedy, fx_prompt *prompt)
{
    const char *const names[] = {"ids", "runner_up"};
    uint32_t *const to[] = {prompt->greedy, prompt->runner_up};
    for (int i = 0; i < 2; i++) {
        uint32_t n;
        g_autofree uint32_t *ids = read_ids(self, json_object_get_array_member(greedy, names[i]), &n);
        g_assert_cmpuint(n, ==, FX_GREEDY);
        memcpy(to[i], ids, n * sizeof *ids);
    }
    JsonArray *gap = json_object_get_array_member(greedy, "gap");
    g_assert_cmpuint(json_array_get_length(gap), ==, FX_GREEDY);
    for (uint32_t i = 0; i < FX_GREEDY; i++)
        prompt->gap[i] = json_array_get_double_element(gap, i);
}

static void read_prompt(const fx_file *self, JsonObject *object, fx_prompt *prompt)
{
    prompt->name = json_object_get_string_member(object, "name");
    prompt->ids = read_ids(self, json_object_get_array_member(object, "ids"), &prompt->n_ids);
    JsonObject *logits = json_object_get_object_member(object, "logits");
    uint32_t n = prompt->n_ids;
    prompt->norm = section(self, logits, "norm", "f32", n, 1);
    prompt->top_ids = section(self, logits, "top_ids", "i32", n, FX_TOP);
    prompt->top_values = section(self, logits, "top_values", "f32", n, FX_TOP);
    prompt->probes = section(self, logits, "probes", "f32", n, self->n_probes);
    prompt->signs = section(self, logits, "signs", "f32", n, FX_SIGNS);
    prompt->full = section(self, logits, "full", "f32", n, self->vocab);
    g_assert_true(prompt->full ||
                  (prompt->norm && prompt->top_ids && prompt->top_values && prompt->probes && prompt->signs));
    for (uint32_t i = 0; prompt->top_ids && i < n * FX_TOP; i++)
        g_assert_true(prompt->top_ids[i] >= 0 && (uint32_t)prompt->top_ids[i] < self->vocab);
    read_greedy(self, json_object_get_object_member(object, "greedy"), prompt);
}

static void read_rounding(fx_file *self, const char *folder)
{
    gsize n_bytes;
    g_autofree char *json = read_file(folder, "bf16-pages.json", &n_bytes);
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonParser) parser = json_parser_new();
    json_parser_load_from_data(parser, json, (gssize)n_bytes, &error);
    g_assert_no_error(error);
    JsonObject *root = json_node_get_object(json_parser_get_root(parser));
    JsonObject *model = json_object_get_object_member(root, self->name);
    for (uint32_t i = 0; i < self->n_prompts; i++) {
        fx_prompt *prompt = &self->prompts[i];
        if (!json_object_has_member(model, prompt->name))
            continue;
        JsonArray *array = json_object_get_array_member(model, prompt->name);
        g_assert_cmpuint(json_array_get_length(array), ==, prompt->n_ids);
        prompt->rounding = g_new(float, prompt->n_ids);
        for (uint32_t k = 0; k < prompt->n_ids; k++)
            prompt->rounding[k] = (float)json_array_get_double_element(array, k);
    }
}

static uint64_t mix(uint64_t v)
{
    uint64_t z = (v + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

fx_file *fx_open(const char *name)
{
    const char *fixtures = g_getenv("QUIRE_TEST_FIXTURES");
    const char *model = g_getenv("QUIRE_TEST_MODEL");
    fixtures = fixtures ? fixtures : "tests/fixtures";
    fx_file *self = g_new0(fx_file, 1);
    bool shipped = g_str_equal(name, "demo-model");
    self->model_dir =
        shipped ? g_strdup(model ? model : "data/demo-model") : g_build_filename(fixtures, name, NULL);

    g_autofree char *folder = g_build_filename(fixtures, "logits", NULL);
    g_autofree char *json_name = g_strconcat(name, ".json", NULL);
    gsize n_bytes;
    g_autofree char *json = read_file(folder, json_name, &n_bytes);
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonParser) parser = json_parser_new();
    json_parser_load_from_data(parser, json, (gssize)n_bytes, &error);
    g_assert_no_error(error);
    JsonObject *root = json_node_get_object(json_parser_get_root(parser));
    self->name = g_strdup(name);
    self->vocab = (uint32_t)json_object_get_int_member(root, "vocab_size");
    g_assert_cmpuint(self->vocab, >, 0);
    self->words = (void *)read_file(folder, json_object_get_string_member(root, "data"), &n_bytes);
    self->n_words = n_bytes / 4;
    g_assert_cmpuint(n_bytes, ==, 4 * (gsize)json_object_get_int_member(root, "data_words"));
    self->probe_ids = read_ids(self, json_object_get_array_member(root, "probe_ids"), &self->n_probes);

    JsonArray *prompts = json_object_get_array_member(root, "prompts");
    self->n_prompts = json_array_get_length(prompts);
    g_assert_cmpuint(self->n_prompts, >, 0);
    self->prompts = g_new0(fx_prompt, self->n_prompts);
    for (uint32_t i = 0; i < self->n_prompts; i++) {
        read_prompt(self, json_array_get_object_element(prompts, i), &self->prompts[i]);
        self->prompts[i].name = g_strdup(self->prompts[i].name);
    }
    read_rounding(self, folder);
    g_assert_cmphex(mix(0), ==, 0xE220A8397B1DCDAF);
    self->masks = g_new(uint32_t, self->vocab);
    for (uint32_t v = 0; v < self->vocab; v++)
        self->masks[v] = (uint32_t)mix(v);
    return self;
}

void fx_free(fx_file *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < self->n_prompts; i++) {
        g_free((char *)self->prompts[i].name);
        g_free(self->prompts[i].ids);
        g_free(self->prompts[i].rounding);
    }
    g_free(self->prompts);
    g_free(self->probe_ids);
    g_free(self->masks);
    g_free(self->words);
    g_free(self->model_dir);
    g_free(self->name);
    g_free(self);
}

const fx_prompt *fx_find(const fx_file *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_prompts; i++) {
        if (g_str_equal(self->prompts[i].name, name))
            return &self->prompts[i];
    }
    g_error("%s has no prompt %s", self->name, name);
}

/* ---- Comparing ---- */

/* Sums of squares of one set of logits. */
typedef struct {
    double difference, reference, largest;
} sums;

static void add(sums *s, float got, float want)
{
    double d = (double)got - want;
    s->difference += d * d;
    s->reference += (double)want * want;
    s->largest = fmax(s->largest, fabs(d));
}

static double by_signs(const fx_file *self, const float *signs, double norm, const float *logits)
{
    double totals[FX_SIGNS] = {0};
    for (uint32_t v = 0; v < self->vocab; v++) {
        uint32_t mask = self->masks[v];
        double y[2] = {-(double)logits[v], logits[v]};
        for (uint32_t k = 0; k < FX_SIGNS; k++)
            totals[k] += y[mask >> k & 1];
    }
    double square = 0;
    for (uint32_t k = 0; k < FX_SIGNS; k++)
        square += (totals[k] - signs[k]) * (totals[k] - signs[k]);
    return sqrt(square / FX_SIGNS) / norm;
}

fx_error fx_compare(const fx_file *self, const fx_prompt *prompt, uint32_t position, const float *logits)
{
    g_assert_cmpuint(position, <, prompt->n_ids);
    for (uint32_t v = 0; v < self->vocab; v++) {
        if (!isfinite(logits[v]))
            return (fx_error){INFINITY, INFINITY};
    }
    if (prompt->full) {
        sums all = {0};
        for (uint32_t v = 0; v < self->vocab; v++)
            add(&all, logits[v], prompt->full[(gsize)position * self->vocab + v]);
        return (fx_error){sqrt(all.difference / all.reference), all.largest};
    }
    sums probes = {0}, top = {0};
    for (uint32_t i = 0; i < self->n_probes; i++)
        add(&probes, logits[self->probe_ids[i]], prompt->probes[(gsize)position * self->n_probes + i]);
    for (uint32_t i = position * FX_TOP; i < (position + 1) * FX_TOP; i++)
        add(&top, logits[prompt->top_ids[i]], prompt->top_values[i]);
    double norm = prompt->norm[position];
    double relative = by_signs(self, prompt->signs + (gsize)position * FX_SIGNS, norm, logits);
    relative = fmax(relative, sqrt(probes.difference / probes.reference));
    relative = fmax(relative, sqrt(top.difference) / norm);
    return (fx_error){relative, fmax(probes.largest, top.largest)};
}

double fx_tolerance(const fx_prompt *prompt, uint32_t position, bool bf16_pages)
{
    if (!bf16_pages)
        return 1e-4;
    double rounding = prompt->rounding[position];
    double bound = 1.5 * rounding + 5e-4;
    return rounding < 8.5e-3 ? fmin(bound, 1e-2) : bound;
}
