/* fuzz-driver.c: runs a fuzz target over its seeds and a fixed series of mutations of them.
 *
 *     fuzz-config tests/fuzz/corpus/config            all seeds, then QUIRE_FUZZ_RUNS mutations (default below)
 *     QUIRE_FUZZ_RUNS=5000000 QUIRE_FUZZ_SEED=7 fuzz-config tests/fuzz/corpus/config
 *     fuzz-config FILE                                 that file alone: repeats a crash
 *
 * Before an input runs it is written to a temporary file, whose name is printed first; after a crash (or after an input
 * that took longer than INPUT_SECONDS_MAX, which ends the program) the file holds the input. It is removed on success.
 *
 * A target is one function, LLVMFuzzerTestOneInput(), so the same files build with libFuzzer, whose coverage guidance
 * finds more; from the root of the repository, with NAME the target:
 *
 *     CC=clang meson setup build-fuzz -Dgui=disabled -Dcuda=disabled -Db_lundef=false \
 *         -Db_sanitize=address,undefined -Dc_args=-fsanitize=fuzzer-no-link && ninja -C build-fuzz
 *     clang -g -fsanitize=fuzzer,address,undefined -I. tests/fuzz/fuzz-NAME.c $(find build-fuzz -name 'libq*.a') \
 *         $(pkg-config --cflags --libs gio-2.0 json-glib-1.0 libpcre2-8) -lm -o build-fuzz/libfuzzer-NAME
 *     mkdir -p build-fuzz/corpus && build-fuzz/libfuzzer-NAME build-fuzz/corpus tests/fuzz/corpus/NAME
 */
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUNS_DEFAULT      20000u
#define INPUT_BYTES_MAX   65536u
#define INPUT_SECONDS_MAX 20u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

typedef struct {
    uint64_t state;
    GPtrArray *seeds; /* of GBytes */
    int fd;           /* of the file that holds the running input */
} driver;

static uint64_t next_random(driver *self)
{
    /* splitmix64: the increment and the two multipliers are those of its reference (Steele, Lea, Flood 2014). */
    uint64_t z = self->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(driver *self, size_t n)
{
    return n == 0 ? 0 : (size_t)(next_random(self) % n);
}

static void run_input(driver *self, const uint8_t *data, size_t n_bytes)
{
    /* A block of the exact size, so that a sanitizer sees the first byte past it. */
    uint8_t *copy = g_malloc(MAX(n_bytes, 1));
    if (n_bytes > 0) /* an empty array has no data at all */
        memcpy(copy, data, n_bytes);
    if (ftruncate(self->fd, 0) != 0 || pwrite(self->fd, copy, n_bytes, 0) != (ssize_t)n_bytes)
        g_error("cannot write the input to the temporary file");
    alarm(INPUT_SECONDS_MAX);
    LLVMFuzzerTestOneInput(copy, n_bytes);
    alarm(0);
    g_free(copy);
}

static void insert_bytes(GByteArray *input, size_t at, const uint8_t *data, size_t n)
{
    size_t old = input->len;
    if (n == 0)
        return;
    g_byte_array_set_size(input, (guint)(old + n));
    memmove(input->data + at + n, input->data + at, old - at);
    memcpy(input->data + at, data, n);
}

/* Numbers and words at which parsers of JSON and of sizes break. */
static const char *const tokens[] = {"0", "-1", "1", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "1e999", "-0", "0.5", "null", "true", "[]", "{}", "\"\"",
    "[", "]", "{", "}", ",", ":", "\"", "\\u0000", "\\ud800", "\\udc00", "\\", "\xef\xbf\xbd",
    "\xf0\x9f\x98\x80", "\xff", "\xc3", "NaN", "[[[[[[[[", "    "};

static void mutate_once(driver *self, GByteArray *input)
{
    size_t n = input->len, at = below(self, n + 1), span = below(self, MIN(n - at, 64) + 1);
    switch (below(self, 9)) {
    case 0:
        if (at < n)
            input->data[at] ^= (uint8_t)(1u << below(self, 8));
        break;
    case 1:
        if (at < n)
            input->data[at] = (uint8_t)next_random(self);
        break;
    case 2:
        if (span > 0)
            g_byte_array_remove_range(input, (guint)at, (guint)span);
        break;
    case 3: {
        const char *token = tokens[below(self, G_N_ELEMENTS(tokens))];
        insert_bytes(input, at, (const uint8_t *)token, strlen(token));
        break;
    }
    case 4: { /* a token in place of a run of digits or letters */
        size_t end = at;
        while (end < n && g_ascii_isalnum(input->data[end]))
            end++;
        const char *token = tokens[below(self, G_N_ELEMENTS(tokens))];
        if (end > at)
            g_byte_array_remove_range(input, (guint)at, (guint)(end - at));
        insert_bytes(input, at, (const uint8_t *)token, strlen(token));
        break;
    }
    case 5: { /* a piece of itself again */
        g_autofree uint8_t *piece = g_memdup2(input->data + at, span);
        insert_bytes(input, below(self, n + 1), piece, span);
        break;
    }
    case 6: { /* a piece of another seed */
        gsize n_other = 0;
        const uint8_t *other = g_bytes_get_data(self->seeds->pdata[below(self, self->seeds->len)], &n_other);
        size_t from = below(self, n_other + 1);
        insert_bytes(input, at, other + from, below(self, MIN(n_other - from, 256) + 1));
        break;
    }
    case 7: /* a changed byte among the first eight, where lengths are */
        if (n > 0)
            input->data[below(self, MIN(n, 8))] =
                (uint8_t)(next_random(self) % 4 == 0 ? 0xff : next_random(self));
        break;
    default:
        if (below(self, 4) == 0)
            g_byte_array_set_size(input, (guint)at);
    }
    if (input->len > INPUT_BYTES_MAX)
        g_byte_array_set_size(input, INPUT_BYTES_MAX);
}

static void add_seed(driver *self, const char *path)
{
    char *data = NULL;
    gsize n = 0;
    g_autoptr(GError) error = NULL;
    if (!g_file_get_contents(path, &data, &n, &error))
        g_error("%s", error->message);
    g_ptr_array_add(self->seeds, g_bytes_new_take(data, n));
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* In the order of their names: the series of mutations must not depend on the file system. */
static void add_folder(driver *self, const char *dir_path)
{
    g_autoptr(GPtrArray) paths = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    g_autoptr(GDir) dir = g_dir_open(dir_path, 0, &error);
    if (dir == NULL)
        g_error("%s", error->message);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;)
        g_ptr_array_add(paths, g_build_filename(dir_path, name, NULL));
    g_ptr_array_sort(paths, compare_paths);
    for (guint i = 0; i < paths->len; i++)
        add_seed(self, paths->pdata[i]);
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = g_getenv(name);
    guint64 value = otherwise;
    if (text != NULL && !g_ascii_string_to_unsigned(text, 10, 0, G_MAXUINT64, &value, NULL))
        g_error("%s: expected a number, found \"%s\"", name, text);
    return value;
}

int main(int argc, char **argv)
{
    driver self = {.state = env_number("QUIRE_FUZZ_SEED", 1), .seeds = g_ptr_array_new()};
    uint64_t n_runs = env_number("QUIRE_FUZZ_RUNS", RUNS_DEFAULT);
    g_autofree char *temp = NULL;
    g_autoptr(GError) error = NULL;
    if (argc != 2) {
        g_printerr("usage: %s FOLDER-OF-SEEDS | FILE\n", argv[0]);
        return 2;
    }
    g_ptr_array_set_free_func(self.seeds, (GDestroyNotify)g_bytes_unref);
    bool is_folder = g_file_test(argv[1], G_FILE_TEST_IS_DIR);
    if (is_folder)
        add_folder(&self, argv[1]);
    else
        add_seed(&self, argv[1]);
    if (self.seeds->len == 0)
        g_error("%s: no seeds", argv[1]);
    self.fd = g_file_open_tmp("quire-fuzz-XXXXXX", &temp, &error);
    if (self.fd < 0)
        g_error("%s", error->message);
    g_print("running input: %s\n", temp);
    for (guint i = 0; i < self.seeds->len; i++) {
        gsize n = 0;
        const uint8_t *data = g_bytes_get_data(self.seeds->pdata[i], &n);
        run_input(&self, data, n);
    }
    GByteArray *input = g_byte_array_new();
    for (uint64_t run = 0; is_folder && run < n_runs; run++) {
        gsize n = 0;
        const uint8_t *data = g_bytes_get_data(self.seeds->pdata[below(&self, self.seeds->len)], &n);
        g_byte_array_set_size(input, 0);
        g_byte_array_append(input, data, (guint)n);
        for (size_t left = 1 + below(&self, 4); left > 0; left--)
            mutate_once(&self, input);
        run_input(&self, input->data, input->len);
    }
    g_print("%u seeds and %" G_GUINT64_FORMAT " mutations ran\n", self.seeds->len, is_folder ? n_runs : 0);
    g_byte_array_unref(input);
    g_ptr_array_unref(self.seeds);
    close(self.fd);
    unlink(temp);
    return 0;
}
