/* test-engine-config.c: config.json and generation_config.json: RoPE forms, end tokens, refusals. */
#include "engine/qe-config.h"
#include <math.h>
#include <string.h>

/* A whole config with @extra members (with a leading comma) and @rope in place of the RoPE members. */
static char *config_text(const char *rope, const char *extra)
{
    return g_strdup_printf(
        "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":1024,"
        "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,"
        "\"num_hidden_layers\":28,\"intermediate_size\":3072,\"vocab_size\":151936,"
        "\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-06,%s%s}",
        rope, extra);
}

static const char plain_rope[] = "\"rope_theta\":1000000";

static void parse_ok(const char *rope, const char *extra, qe_config *config)
{
    g_autofree char *text = config_text(rope, extra);
    g_autoptr(GError) error = NULL;
    g_assert_true(qe_config_parse("config.json", text, strlen(text), config, &error));
    g_assert_no_error(error);
}

static void text_fails(const char *text, qe_error_code code, const char *want)
{
    qe_config config;
    g_autoptr(GError) error = NULL;
    if (qe_config_parse("config.json", text, strlen(text), &config, &error))
        g_error("accepted: %s", text);
    g_assert_error(error, QE_ERROR, (int)code);
    if (strstr(error->message, want) == NULL || strstr(error->message, "config.json") == NULL)
        g_error("%s: message lacks \"%s\": %s", text, want, error->message);
}

static void parse_fails(const char *rope, const char *extra, qe_error_code code, const char *want)
{
    g_autofree char *text = config_text(rope, extra);
    text_fails(text, code, want);
}

static void assert_close(double found, double want, double tolerance)
{
    if (!(fabs(found - want) <= tolerance * fabs(want)))
        g_error("expected %.12g, found %.12g", want, found);
}

static void assert_unscaled(const qe_config *c)
{
    assert_close(c->rope_inv_freq[0], 1, 1e-12);
    assert_close(c->rope_inv_freq[16], 0.0316227766, 1e-9);
    assert_close(c->rope_inv_freq[32], 0.001, 1e-12);
    assert_close(c->rope_inv_freq[63], 1.24093776e-06, 1e-8);
    g_assert_cmpfloat(c->rope_attn_factor, ==, 1);
    g_assert_false(c->rope_yarn);
}

static void assert_yarn4(const qe_config *c)
{
    g_assert_true(c->rope_yarn);
    g_assert_cmpfloat(c->rope_theta, ==, 1000000);
    assert_close(c->rope_inv_freq[16], 0.0316227766, 1e-9);
    assert_close(c->rope_inv_freq[23], 0.00697830585, 1e-8);
    assert_close(c->rope_inv_freq[24], 0.00537532149, 1e-8);
    assert_close(c->rope_inv_freq[30], 0.00106436098, 1e-8);
    assert_close(c->rope_inv_freq[39], 6.49039432e-05, 1e-8);
    assert_close(c->rope_inv_freq[40], 4.44569853e-05, 1e-8);
    assert_close(c->rope_inv_freq[63], 3.1023444e-07, 1e-8);
    assert_close(c->rope_attn_factor, 1.138629436, 1e-9);
    g_assert_cmpuint(c->rope_yarn_original, ==, 32768);
    g_assert_cmpuint(c->max_positions, ==, 131072);
}

#define YARN "\"factor\":4.0,\"original_max_position_embeddings\":32768"

static void test_dims(void)
{
    qe_config c;
    parse_ok(plain_rope, ",\"_name_or_path\":\"Qwen/Qwen3-0.6B\",\"tie_word_embeddings\":true", &c);
    g_assert_cmpuint(c.n_layers, ==, 28);
    g_assert_cmpuint(c.n_heads, ==, 16);
    g_assert_cmpuint(c.n_kv_heads, ==, 8);
    g_assert_cmpuint(c.head_dim, ==, 128); /* not 1024 / 16 */
    g_assert_cmpuint(c.hidden, ==, 1024);
    g_assert_cmpuint(c.ffn, ==, 3072);
    g_assert_cmpuint(c.vocab, ==, 151936);
    g_assert_cmpuint(c.max_positions, ==, 40960);
    g_assert_cmpfloat(c.rms_eps, ==, 1e-6);
    g_assert_true(c.tied);
    g_assert_cmpstr(c.name_or_path, ==, "Qwen/Qwen3-0.6B");
    g_assert_cmpuint(qe_config_get_n_params(&c), ==, 596049920); /* as published: 0.6B */
    g_assert_cmpuint(qe_config_get_kv_token_bytes(&c, 2), ==, 114688);
    g_assert_cmpuint(qe_config_get_kv_token_bytes(&c, 4), ==, 229376);
    c.tied = false;
    g_assert_cmpuint(qe_config_get_n_params(&c), ==, 596049920 + 151936 * 1024);
}

static void test_rope_forms(void)
{
    static const char *const plain[] = {plain_rope, "\"rope_theta\":1e6,\"rope_scaling\":null",
        "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000}",
        "\"rope_theta\":1000000.0,\"rope_parameters\":{\"rope_theta\":1000000}",
        "\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"default\"}"};
    static const char *const yarn[] = {"\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\"," YARN
                                       "}",
        "\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"yarn\"," YARN "}",
        "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1000000," YARN "}",
        "\"rope_theta\":1000000,\"rope_parameters\":{\"type\":\"yarn\"," YARN "}",
        "\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"yarn\"," YARN "},"
        "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1000000," YARN "}"};
    qe_config c;
    for (size_t i = 0; i < G_N_ELEMENTS(plain); i++) {
        parse_ok(plain[i], "", &c);
        g_assert_cmpfloat(c.rope_theta, ==, 1000000);
        g_assert_cmpuint(c.max_positions, ==, 40960);
        assert_unscaled(&c);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(yarn); i++) {
        parse_ok(yarn[i], "", &c);
        assert_yarn4(&c);
    }
    /* Without an original length the position limit is the original one. */
    parse_ok("\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}", "", &c);
    g_assert_cmpuint(c.rope_yarn_original, ==, 40960);
    g_assert_cmpuint(c.max_positions, ==, 81920);
    /* Factor 1 scales nothing. */
    parse_ok("\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1}", "", &c);
    assert_close(c.rope_inv_freq[63], 1.24093776e-06, 1e-8);
    g_assert_cmpfloat(c.rope_attn_factor, ==, 1);
    /* The file's own attention factor, and the two mscales. */
    parse_ok("\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"attention_factor\":0.5," YARN
             "}",
        "", &c);
    g_assert_cmpfloat(c.rope_attn_factor, ==, 0.5);
    parse_ok("\"rope_theta\":1000000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"mscale\":1,\"mscale_all_"
             "dim\":1," YARN "}",
        "", &c);
    g_assert_cmpfloat(c.rope_attn_factor, ==, 1);
}

static void test_rope_refused(void)
{
    static const struct {
        const char *scaling, *want;
        qe_error_code code;
    } cases[] = {
        {"{\"rope_type\":\"linear\",\"factor\":2}", "rope_scaling.rope_type is \"linear\"",
            QE_ERROR_UNSUPPORTED},
        {"{\"type\":\"dynamic\",\"factor\":2}", "rope_scaling.type is \"dynamic\"", QE_ERROR_UNSUPPORTED},
        {"{\"rope_type\":\"llama3\",\"factor\":2}", "llama3", QE_ERROR_UNSUPPORTED},
        {"{\"rope_type\":7}", "rope_scaling.rope_type: expected a string, found 7", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\"}", "rope_scaling.factor", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":0}", "rope_scaling.factor", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":0.5}", "rope_scaling.factor", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":-4}", "rope_scaling.factor", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":NaN}", "JSON", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":1e999}", "rope_scaling.factor", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":\"4\"}", "found \"4\"", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}",
            "rope_scaling.original_max_position_embeddings", QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":100000,\"original_max_position_embeddings\":32768}", "YaRN",
            QE_ERROR_FORMAT},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":2}", "beta_fast",
            QE_ERROR_FORMAT},
        {"[]", "rope_scaling: expected an object, found a list", QE_ERROR_FORMAT},
        {"\"yarn\"", "rope_scaling", QE_ERROR_FORMAT},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *rope =
            g_strdup_printf("\"rope_theta\":1000000,\"rope_scaling\":%s", cases[i].scaling);
        parse_fails(rope, "", cases[i].code, cases[i].want);
    }
    parse_fails("\"x\":0", "", QE_ERROR_FORMAT, "rope_theta: expected a number above 1");
    parse_fails("\"rope_theta\":1", "", QE_ERROR_FORMAT, "rope_theta");
    parse_fails("\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":1000000}", "", QE_ERROR_FORMAT,
        "rope_theta");
    parse_fails("\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"yarn\"," YARN
                "},\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2}",
        "", QE_ERROR_FORMAT, "disagree");
    parse_fails("\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1000000}}", "", QE_ERROR_FORMAT,
        "rope_theta");
}

static void test_refused(void)
{
    static const struct {
        const char *extra, *want;
        qe_error_code code;
    } cases[] = {
        {",\"attention_bias\":true", "attention_bias is true", QE_ERROR_UNSUPPORTED},
        {",\"hidden_act\":\"gelu\"", "hidden_act is \"gelu\"", QE_ERROR_UNSUPPORTED},
        {",\"use_sliding_window\":true,\"sliding_window\":4096,\"max_window_layers\":12",
            "sliding_window is 4096", QE_ERROR_UNSUPPORTED},
        {",\"num_experts\":128", "num_experts is 128", QE_ERROR_UNSUPPORTED},
        {",\"moe_intermediate_size\":768", "moe_intermediate_size", QE_ERROR_UNSUPPORTED},
        {",\"quantization_config\":{\"quant_method\":\"fp8\"}", "quantization_config", QE_ERROR_UNSUPPORTED},
        {",\"partial_rotary_factor\":0.5", "partial_rotary_factor", QE_ERROR_UNSUPPORTED},
        {",\"layer_types\":[\"full_attention\"]", "layer_types", QE_ERROR_FORMAT},
        {",\"attention_bias\":\"no\"", "attention_bias: expected true or false, found \"no\"",
            QE_ERROR_FORMAT},
        {",\"eos_token_id\":\"x\"", "eos_token_id", QE_ERROR_FORMAT},
        {",\"eos_token_id\":[1,-1]", "eos_token_id[1]", QE_ERROR_FORMAT},
        {",\"eos_token_id\":151936", "eos_token_id: expected ids below vocab_size", QE_ERROR_FORMAT},
        {",\"eos_token_id\":1.5", "eos_token_id", QE_ERROR_FORMAT},
        {",\"tie_word_embeddings\":1", "tie_word_embeddings", QE_ERROR_FORMAT},
        {",\"head_dim\":64", "twice", QE_ERROR_FORMAT},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        parse_fails(plain_rope, cases[i].extra, cases[i].code, cases[i].want);

    GString *layers = g_string_new(",\"layer_types\":[");
    for (int i = 0; i < 28; i++)
        g_string_append(layers, i == 0 ? "\"full_attention\"" : ",\"full_attention\"");
    g_string_append_c(layers, ']');
    qe_config c;
    parse_ok(plain_rope, layers->str, &c);
    char *last = g_strrstr(layers->str, "full");
    memcpy(last, "slid", 4);
    parse_fails(plain_rope, layers->str, QE_ERROR_UNSUPPORTED, "layer_types[27] is \"slid_attention\"");
    g_string_free(layers, TRUE);

    /* On paper but not in use. */
    parse_ok(
        plain_rope, ",\"use_sliding_window\":false,\"sliding_window\":4096,\"max_window_layers\":12", &c);
    parse_ok(plain_rope, ",\"use_sliding_window\":true,\"sliding_window\":4096,\"max_window_layers\":28", &c);
    parse_ok(plain_rope, ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0", &c);
    parse_ok(plain_rope, ",\"num_experts\":0,\"quantization_config\":null", &c);
}

static void test_architecture(void)
{
    text_fails("{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"]}", QE_ERROR_UNSUPPORTED,
        "model_type is \"llama\"");
    text_fails("{\"model_type\":\"qwen3_moe\"}", QE_ERROR_UNSUPPORTED, "qwen3_moe");
    text_fails("{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForSequenceClassification\"]}",
        QE_ERROR_UNSUPPORTED, "Qwen3ForSequenceClassification");
    text_fails("{}", QE_ERROR_FORMAT, "model_type");
    text_fails("{\"model_type\":[]}", QE_ERROR_FORMAT, "model_type: expected a string, found a list");
    text_fails("{\"model_type\":\"qwen3\",\"architectures\":[7]}", QE_ERROR_FORMAT, "architectures");
    text_fails("{\"model_type\":\"qwen3\",\"architectures\":[]}", QE_ERROR_FORMAT, "architectures");
}

static void test_dims_refused(void)
{
    static const char *const fields[] = {"hidden_size", "num_attention_heads", "num_key_value_heads",
        "num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"};
    static const char *const values[] = {
        "0", "-1", "1.5", "\"7\"", "true", "4294967296", "9223372036854775807", "[1]"};
    for (size_t f = 0; f < G_N_ELEMENTS(fields); f++) {
        g_autofree char *text = config_text(plain_rope, "");
        g_autofree char *key = g_strdup_printf("\"%s\":", fields[f]);
        char *at = strstr(text, key);
        g_assert_nonnull(at);
        char *rest = strchr(at, ',');
        *at = '\0';
        for (size_t v = 0; v < G_N_ELEMENTS(values); v++) {
            g_autofree char *bad = g_strconcat(text, key, values[v], rest, NULL);
            text_fails(bad, QE_ERROR_FORMAT, fields[f]);
        }
        g_autofree char *without = g_strconcat(text, rest + 1, NULL);
        if (strcmp(fields[f], "head_dim") != 0) {
            text_fails(without, QE_ERROR_FORMAT, fields[f]);
        } else {
            qe_config c;
            g_assert_true(qe_config_parse("config.json", without, strlen(without), &c, NULL));
            g_assert_cmpuint(c.head_dim, ==, 128);
        }
    }
    g_autofree char *text = config_text(plain_rope, "");
    char *at = strstr(text, "\"num_key_value_heads\":8");
    at[strlen("\"num_key_value_heads\":")] = '5';
    text_fails(text, QE_ERROR_FORMAT, "num_key_value_heads: expected a divisor");
}

/* Each prefix of a good config is refused and none crashes. */
static void test_cut(void)
{
    g_autofree char *text = config_text(plain_rope, ",\"eos_token_id\":[1,2]");
    for (size_t n = 0; n < strlen(text); n++) {
        qe_config c;
        g_autoptr(GError) error = NULL;
        g_autofree char *copy = g_memdup2(text, MAX(n, 1));
        g_assert_false(qe_config_parse("config.json", copy, n, &c, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
    }
}

static void parse_generation(const char *text, qe_generation_defaults *g)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(qe_generation_defaults_parse("generation_config.json", text, strlen(text), g, &error));
    g_assert_no_error(error);
}

static void test_eos(void)
{
    qe_config c;
    qe_generation_defaults g;
    qe_eos_list eos;
    /* A number in one file, a list in the other: generation_config.json wins. */
    parse_ok(plain_rope, ",\"eos_token_id\":151645", &c);
    g_assert_true(c.eos.present);
    g_assert_cmpuint(c.eos.n, ==, 1);
    parse_generation("{\"eos_token_id\":[151645,151643,151645]}", &g);
    g_assert_cmpuint(g.eos.n, ==, 2);
    qe_eos_list_resolve(&c, &g, 151645, &eos);
    g_assert_cmpuint(eos.n, ==, 2);
    g_assert_true(qe_eos_list_contains(&eos, 151645));
    g_assert_true(qe_eos_list_contains(&eos, 151643));
    parse_generation("{\"eos_token_id\":7}", &g);
    qe_eos_list_resolve(&c, &g, -1, &eos);
    g_assert_cmpuint(eos.n, ==, 1);
    g_assert_cmpuint(eos.ids[0], ==, 7);
    /* A base model without generation_config.json: the tokenizer's own end token counts too. */
    parse_ok(plain_rope, ",\"eos_token_id\":151643", &c);
    qe_generation_defaults_init(&g);
    qe_eos_list_resolve(&c, &g, 151645, &eos);
    g_assert_cmpuint(eos.n, ==, 2);
    g_assert_true(qe_eos_list_contains(&eos, 151643));
    g_assert_true(qe_eos_list_contains(&eos, 151645));
    /* Neither. */
    parse_ok(plain_rope, ",\"eos_token_id\":null", &c);
    qe_eos_list_resolve(&c, NULL, -1, &eos);
    g_assert_cmpuint(eos.n, ==, 0);
    g_assert_false(eos.present);
    /* An empty list names no id, so config.json's stands. */
    parse_ok(plain_rope, ",\"eos_token_id\":[5]", &c);
    parse_generation("{\"eos_token_id\":[]}", &g);
    qe_eos_list_resolve(&c, &g, -1, &eos);
    g_assert_true(qe_eos_list_contains(&eos, 5));
    /* As many as there is room for, and one more from the tokenizer. */
    GString *many = g_string_new("{\"eos_token_id\":[1");
    for (int i = 2; i < QE_MODEL_EOS_MAX; i++)
        g_string_append_printf(many, ",%d", i);
    g_string_append(many, "]}");
    parse_generation(many->str, &g);
    qe_eos_list_resolve(&c, &g, 9999, &eos);
    g_assert_cmpuint(eos.n, ==, QE_MODEL_EOS_MAX);
    g_assert_true(qe_eos_list_contains(&eos, 9999));
    g_string_free(many, TRUE);
}

static void test_generation(void)
{
    qe_generation_defaults g;
    parse_generation("{}", &g);
    g_assert_false(g.has_do_sample || g.has_temperature || g.has_top_k || g.has_top_p || g.has_min_p ||
                   g.has_repetition_penalty || g.do_sample || g.eos.present);
    g_assert_cmpfloat(g.temperature, ==, 1);
    g_assert_cmpuint(g.top_k, ==, 0);
    g_assert_cmpfloat(g.top_p, ==, 1);
    g_assert_cmpfloat(g.min_p, ==, 0);
    g_assert_cmpfloat(g.repetition_penalty, ==, 1);
    parse_generation("{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"min_p\":0.05,"
                     "\"repetition_penalty\":1.1,\"pad_token_id\":3}",
        &g);
    g_assert_true(g.has_do_sample && g.has_temperature && g.has_top_k && g.has_top_p && g.has_min_p &&
                  g.has_repetition_penalty && g.do_sample);
    g_assert_cmpfloat(g.temperature, ==, 0.6);
    g_assert_cmpuint(g.top_k, ==, 20);
    g_assert_cmpfloat(g.top_p, ==, 0.95);
    g_assert_cmpfloat(g.min_p, ==, 0.05);
    g_assert_cmpfloat(g.repetition_penalty, ==, 1.1);
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"{\"temperature\":-1}", "temperature"},
        {"{\"temperature\":1e400}", "temperature"},
        {"{\"temperature\":\"hot\"}", "found \"hot\""},
        {"{\"top_k\":-1}", "top_k"},
        {"{\"top_k\":2.5}", "top_k"},
        {"{\"top_p\":0}", "top_p"},
        {"{\"top_p\":1.1}", "top_p"},
        {"{\"min_p\":2}", "min_p"},
        {"{\"repetition_penalty\":0}", "repetition_penalty"},
        {"{\"do_sample\":1}", "do_sample"},
        {"{\"eos_token_id\":{}}", "eos_token_id"},
        {"[]", "an object"},
        {"", "JSON"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(qe_generation_defaults_parse("g.json", bad[i].text, strlen(bad[i].text), &g, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
        g_assert_nonnull(strstr(error->message, bad[i].want));
        g_assert_nonnull(strstr(error->message, "g.json"));
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/config/dims", test_dims);
    g_test_add_func("/engine/config/dims-refused", test_dims_refused);
    g_test_add_func("/engine/config/rope-forms", test_rope_forms);
    g_test_add_func("/engine/config/rope-refused", test_rope_refused);
    g_test_add_func("/engine/config/refused", test_refused);
    g_test_add_func("/engine/config/architecture", test_architecture);
    g_test_add_func("/engine/config/cut", test_cut);
    g_test_add_func("/engine/config/eos", test_eos);
    g_test_add_func("/engine/config/generation", test_generation);
    return g_test_run();
}
