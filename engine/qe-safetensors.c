/* qe-safetensors.c: parses and validates one safetensors file.
 *
 * 1. Nothing of the data part is read here; the header is copied out of the file first, so parsing works on memory that
 *    no other program can change.
 * 2. After a successful open: names are unique and sorted; begin + n_bytes of each tensor lies within the data part; the
 *    tensors tile the data part exactly; n_bytes == product(dims) * element size.
 * 3. Memory follows the number of tensors, not what the header claims: a length is believed only after it has been
 *    compared with the size of the file.
 *
 * A qe_safetensors owns its mapping (unless made from memory), its tensor table and the arena that holds the names. */
#include "engine/qe-safetensors.h"
#include "engine/qe-json.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qe_safetensors {
    char *path;
    void *map; /* NULL when made from memory */
    size_t n_map_bytes;
    uint64_t n_file_bytes;
    uint64_t n_data_bytes;
    GArray *tensors; /* of qe_safetensor, by name */
    GStringChunk *names;
};

static const struct {
    const char *name;
    uint32_t n_bytes;
} dtypes[QE_N_DTYPES] = {
    [QE_DTYPE_BOOL] = {"BOOL", 1},
    [QE_DTYPE_U8] = {"U8", 1},
    [QE_DTYPE_I8] = {"I8", 1},
    [QE_DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [QE_DTYPE_F8_E5M2] = {"F8_E5M2", 1},
    [QE_DTYPE_F8_E8M0] = {"F8_E8M0", 1},
    [QE_DTYPE_U16] = {"U16", 2},
    [QE_DTYPE_I16] = {"I16", 2},
    [QE_DTYPE_F16] = {"F16", 2},
    [QE_DTYPE_BF16] = {"BF16", 2},
    [QE_DTYPE_U32] = {"U32", 4},
    [QE_DTYPE_I32] = {"I32", 4},
    [QE_DTYPE_F32] = {"F32", 4},
    [QE_DTYPE_U64] = {"U64", 8},
    [QE_DTYPE_I64] = {"I64", 8},
    [QE_DTYPE_F64] = {"F64", 8},
    [QE_DTYPE_C64] = {"C64", 8},
};

const char *qe_dtype_name(qe_dtype dtype)
{
    return (unsigned)dtype < QE_N_DTYPES ? dtypes[dtype].name : "?";
}

uint32_t qe_dtype_bytes(qe_dtype dtype)
{
    return (unsigned)dtype < QE_N_DTYPES ? dtypes[dtype].n_bytes : 0;
}

char *qe_shape_to_string(const uint64_t *dims, uint32_t n_dims)
{
    GString *text = g_string_new("[");
    for (uint32_t i = 0; i < n_dims; i++)
        g_string_append_printf(text, "%s%" G_GUINT64_FORMAT, i > 0 ? ", " : "", dims[i]);
    g_string_append_c(text, ']');
    return g_string_free(text, FALSE);
}

/* ---- header ---------------------------------------------------------------------------------------------------- */

static bool entry_error(const qe_safetensors *self, const char *tensor, const char *field,
    const char *expected, const char *found, GError **error)
{
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: tensor %s: %s: expected %s, found %s", self->path,
        tensor, field, expected, found);
    return false;
}

static bool parse_dtype(const qe_safetensors *self, qe_json_reader *reader, qe_json_token token,
    qe_safetensor *tensor, GError **error)
{
    if (token != QE_JSON_STRING)
        return entry_error(self, tensor->name, "dtype", "a string", qe_json_token_name(token), error);
    for (uint32_t i = 0; i < QE_N_DTYPES; i++) {
        if (strcmp(reader->text->str, dtypes[i].name) == 0) {
            tensor->dtype = (qe_dtype)i;
            return true;
        }
    }
    g_autofree char *found = qe_json_excerpt(reader->text->str);
    g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
        "%s: tensor %s: dtype \"%s\" is not known to this build", self->path, tensor->name, found);
    return false;
}

/* A list of at most @n_max non-negative integers; @token is its first token. */
static bool parse_sizes(const qe_safetensors *self, qe_json_reader *reader, qe_json_token token,
    const char *tensor, const char *field, uint64_t *sizes, uint32_t n_max, uint32_t *n, GError **error)
{
    if (token != QE_JSON_ARRAY)
        return entry_error(self, tensor, field, "a list", qe_json_token_name(token), error);
    *n = 0;
    for (;;) {
        token = qe_json_reader_next(reader, error);
        if (token == QE_JSON_ERROR)
            return false;
        if (token == QE_JSON_ARRAY_END)
            return true;
        if (token != QE_JSON_INTEGER || reader->integer < 0)
            return entry_error(self, tensor, field, "integers from 0 to 2^63 - 1",
                token == QE_JSON_INTEGER ? "a negative one" : qe_json_token_name(token), error);
        if (*n == n_max) {
            g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
                "%s: tensor %s: %s: expected at most %u entries", self->path, tensor, field, n_max);
            return false;
        }
        sizes[(*n)++] = (uint64_t)reader->integer;
    }
}

/* Offsets and shape against each other and against the file. */
static bool check_tensor(
    const qe_safetensors *self, qe_safetensor *tensor, uint64_t begin, uint64_t end, GError **error)
{
    if (begin > end || end > self->n_data_bytes) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: tensor %s: data_offsets: expected begin <= end <= %" G_GUINT64_FORMAT
            ", found [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT "]",
            self->path, tensor->name, self->n_data_bytes, begin, end);
        return false;
    }
    g_autofree char *shape = qe_shape_to_string(tensor->dims, tensor->n_dims);
    uint64_t n = qe_dtype_bytes(tensor->dtype);
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (__builtin_mul_overflow(n, tensor->dims[i], &n)) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: tensor %s: shape %s %s overflows 64 bits",
                self->path, tensor->name, shape, qe_dtype_name(tensor->dtype));
            return false;
        }
    }
    if (n != end - begin) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: tensor %s: shape %s %s: expected %" G_GUINT64_FORMAT " bytes, found %" G_GUINT64_FORMAT
            " in data_offsets",
            self->path, tensor->name, shape, qe_dtype_name(tensor->dtype), n, end - begin);
        return false;
    }
    tensor->begin = begin;
    tensor->n_bytes = n;
    return true;
}

/* After the key that is the tensor's name. */
static bool parse_tensor(qe_safetensors *self, qe_json_reader *reader, GError **error)
{
    enum { SEEN_DTYPE = 1, SEEN_SHAPE = 2, SEEN_OFFSETS = 4 };
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    if (reader->text->len > QE_SAFETENSORS_NAME_BYTES_MAX ||
        self->tensors->len >= QE_SAFETENSORS_TENSORS_MAX) {
        g_autofree char *name = qe_json_excerpt(reader->text->str);
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: tensor %s: expected at most %u tensors with names of at most %u bytes", self->path, name,
            QE_SAFETENSORS_TENSORS_MAX, QE_SAFETENSORS_NAME_BYTES_MAX);
        return false;
    }
    qe_safetensor tensor = {.name = g_string_chunk_insert(self->names, reader->text->str)};
    uint64_t offsets[2] = {0, 0};
    uint32_t n_offsets = 0;
    unsigned seen = 0;
    qe_json_token token = qe_json_reader_next(reader, error);
    if (token != QE_JSON_OBJECT)
        return token == QE_JSON_ERROR
                   ? false
                   : entry_error(self, tensor.name, "value", "an object", qe_json_token_name(token), error);
    while ((token = qe_json_reader_next(reader, error)) == QE_JSON_KEY) {
        uint32_t idx = 0;
        while (idx < 3 && strcmp(reader->text->str, fields[idx]) != 0)
            idx++;
        if (idx < 3 && (seen & (1u << idx)))
            return entry_error(self, tensor.name, fields[idx], "one value", "two", error);
        seen |= 1u << idx;
        token = qe_json_reader_next(reader, error);
        bool ok = token != QE_JSON_ERROR;
        if (ok && idx == 0)
            ok = parse_dtype(self, reader, token, &tensor, error);
        else if (ok && idx == 1)
            ok = parse_sizes(self, reader, token, tensor.name, "shape", tensor.dims, QE_SAFETENSORS_DIMS_MAX,
                &tensor.n_dims, error);
        else if (ok && idx == 2)
            ok = parse_sizes(self, reader, token, tensor.name, "data_offsets", offsets, 2, &n_offsets, error);
        else if (ok)
            ok = qe_json_reader_skip(reader, token, error);
        if (!ok)
            return false;
    }
    if (token == QE_JSON_ERROR)
        return false;
    for (uint32_t i = 0; i < 3; i++)
        if (!(seen & (1u << i)))
            return entry_error(self, tensor.name, fields[i], "a value", "nothing", error);
    if (n_offsets != 2)
        return entry_error(self, tensor.name, "data_offsets", "two integers", "fewer", error);
    if (!check_tensor(self, &tensor, offsets[0], offsets[1], error))
        return false;
    g_array_append_val(self->tensors, tensor);
    return true;
}

static bool parse_metadata(qe_safetensors *self, qe_json_reader *reader, GError **error)
{
    qe_json_token token = qe_json_reader_next(reader, error);
    if (token == QE_JSON_OBJECT) {
        while ((token = qe_json_reader_next(reader, error)) == QE_JSON_KEY)
            if ((token = qe_json_reader_next(reader, error)) != QE_JSON_STRING)
                break;
        if (token == QE_JSON_OBJECT_END)
            return true;
    }
    if (token != QE_JSON_ERROR)
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: __metadata__: expected an object of strings, found %s", self->path,
            qe_json_token_name(token));
    return false;
}

static bool parse_header(qe_safetensors *self, const char *header, size_t n_bytes, GError **error)
{
    qe_json_reader reader;
    bool ok = false, seen_metadata = false;
    if (!qe_json_reader_init(&reader, self->path, header, n_bytes, error))
        goto out;
    /* The format wants the first byte to be '{', without space before it. */
    if (n_bytes == 0 || header[0] != '{') {
        g_set_error(
            error, QE_ERROR, QE_ERROR_FORMAT, "%s: header: expected '{' as its first byte", self->path);
        goto out;
    }
    qe_json_reader_next(&reader, NULL);
    for (;;) {
        qe_json_token token = qe_json_reader_next(&reader, error);
        if (token == QE_JSON_OBJECT_END)
            break;
        if (token != QE_JSON_KEY)
            goto out; /* inside an object the reader returns a key, its end or an error */
        if (strcmp(reader.text->str, "__metadata__") == 0) {
            if (seen_metadata) {
                g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: __metadata__ is there twice", self->path);
                goto out;
            }
            seen_metadata = true;
            if (!parse_metadata(self, &reader, error))
                goto out;
        } else if (!parse_tensor(self, &reader, error)) {
            goto out;
        }
    }
    ok = qe_json_reader_next(&reader, error) == QE_JSON_END;
out:
    qe_json_reader_clear(&reader);
    return ok;
}

/* ---- layout ---------------------------------------------------------------------------------------------------- */

static int compare_begin(const void *a, const void *b)
{
    const qe_safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const qe_safetensor *)a)->name, ((const qe_safetensor *)b)->name);
}

/* Invariant 2: sorts by place to see that the tensors tile the data, then by name. */
static bool check_layout(qe_safetensors *self, GError **error)
{
    qe_safetensor *tensors = (qe_safetensor *)(void *)self->tensors->data;
    size_t n = self->tensors->len;
    uint64_t end = 0;
    if (n > 1)
        qsort(tensors, n, sizeof *tensors, compare_begin);
    for (size_t i = 0; i < n; i++) {
        if (tensors[i].begin != end) {
            bool overlap = tensors[i].begin < end;
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: tensor %s: %s: expected begin %" G_GUINT64_FORMAT ", found %" G_GUINT64_FORMAT
                " (after %s)",
                self->path, tensors[i].name,
                overlap ? "overlaps another tensor" : "leaves a hole in the data", end, tensors[i].begin,
                i > 0 ? tensors[i - 1].name : "the header");
            return false;
        }
        end += tensors[i].n_bytes; /* cannot wrap: each end was checked against n_data_bytes */
    }
    if (end != self->n_data_bytes) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: expected %" G_GUINT64_FORMAT " bytes of data, found %" G_GUINT64_FORMAT
            " (bytes after tensor %s)",
            self->path, end, self->n_data_bytes, n > 0 ? tensors[n - 1].name : "(none)");
        return false;
    }
    if (n > 1)
        qsort(tensors, n, sizeof *tensors, compare_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: tensor %s is there twice", self->path,
                tensors[i].name);
            return false;
        }
    }
    return true;
}

static void point_to_data(qe_safetensors *self, const uint8_t *data)
{
    for (size_t i = 0; i < self->tensors->len; i++) {
        qe_safetensor *tensor = &g_array_index(self->tensors, qe_safetensor, i);
        tensor->data = data + tensor->begin;
        tensor->unaligned = (uintptr_t)tensor->data % qe_dtype_bytes(tensor->dtype) != 0;
    }
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static qe_safetensors *new_empty(const char *path, uint64_t n_file_bytes)
{
    qe_safetensors *self = g_new0(qe_safetensors, 1);
    self->path = g_strdup(path);
    self->n_file_bytes = n_file_bytes;
    self->tensors = g_array_new(FALSE, FALSE, sizeof(qe_safetensor));
    self->names = g_string_chunk_new(4096);
    return self;
}

void qe_safetensors_free(qe_safetensors *self)
{
    if (self == NULL)
        return;
    if (self->map != NULL)
        munmap(self->map, self->n_map_bytes);
    g_array_unref(self->tensors);
    g_string_chunk_free(self->names);
    g_free(self->path);
    g_free(self);
}

/* The header's length, checked against the file. */
static bool check_prefix(qe_safetensors *self, const uint8_t prefix[8], uint64_t *n_header, GError **error)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | prefix[i];
    uint64_t room = self->n_file_bytes - 8;
    if (n > QE_SAFETENSORS_HEADER_BYTES_MAX || n > room) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: header: expected at most %" G_GUINT64_FORMAT " bytes, found a length of %" G_GUINT64_FORMAT,
            self->path, MIN(room, (uint64_t)QE_SAFETENSORS_HEADER_BYTES_MAX), n);
        return false;
    }
    self->n_data_bytes = room - n;
    *n_header = n;
    return true;
}

static bool check_file_bytes(const qe_safetensors *self, GError **error)
{
    if (self->n_file_bytes >= 8 && self->n_file_bytes <= (uint64_t)PTRDIFF_MAX)
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
        "%s: expected a safetensors file of at least 8 bytes, found %" G_GUINT64_FORMAT, self->path,
        self->n_file_bytes);
    return false;
}

qe_safetensors *qe_safetensors_new_from_memory(
    const char *label, const void *data, size_t n_bytes, GError **error)
{
    g_autoptr(qe_safetensors) self = new_empty(label, n_bytes);
    const uint8_t *bytes = data;
    uint64_t n_header = 0;
    if (!check_file_bytes(self, error) || !check_prefix(self, bytes, &n_header, error) ||
        !parse_header(self, (const char *)bytes + 8, (size_t)n_header, error) || !check_layout(self, error))
        return NULL;
    point_to_data(self, bytes + 8 + n_header);
    return g_steal_pointer(&self);
}

static bool read_at(int fd, const char *path, void *to, size_t n_bytes, off_t offset, GError **error)
{
    size_t n = 0;
    while (n < n_bytes) {
        ssize_t got = pread(fd, (char *)to + n, n_bytes - n, offset + (off_t)n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            g_set_error(error, QE_ERROR, QE_ERROR_FILE, "%s: cannot read the header: %s", path,
                got < 0 ? g_strerror(errno) : "the file became shorter");
            return false;
        }
        n += (size_t)got;
    }
    return true;
}

/* Reads, parses and checks the header of @fd. */
static bool load_header(qe_safetensors *self, int fd, uint64_t *n_header, GError **error)
{
    uint8_t prefix[8];
    if (!check_file_bytes(self, error) || !read_at(fd, self->path, prefix, 8, 0, error) ||
        !check_prefix(self, prefix, n_header, error))
        return false;
    g_autofree char *header = g_try_malloc((size_t)*n_header + 1);
    if (header == NULL) {
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "%s: no memory for a header of %" G_GUINT64_FORMAT " bytes", self->path, *n_header);
        return false;
    }
    return read_at(fd, self->path, header, (size_t)*n_header, 8, error) &&
           parse_header(self, header, (size_t)*n_header, error) && check_layout(self, error);
}

qe_safetensors *qe_safetensors_open(const char *path, GError **error)
{
    uint64_t n_file_bytes = 0, n_header = 0;
    int fd = qe_file_open_regular(path, &n_file_bytes, error);
    if (fd < 0)
        return NULL;
    g_autoptr(qe_safetensors) self = new_empty(path, n_file_bytes);
    if (!load_header(self, fd, &n_header, error)) {
        close(fd);
        return NULL;
    }
    void *map = mmap(NULL, (size_t)n_file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int map_errno = errno;
    close(fd);
    if (map == MAP_FAILED) {
        g_set_error(error, QE_ERROR, QE_ERROR_FILE, "%s: cannot map %" G_GUINT64_FORMAT " bytes: %s", path,
            n_file_bytes, g_strerror(map_errno));
        return NULL;
    }
    self->map = map;
    self->n_map_bytes = (size_t)n_file_bytes;
    point_to_data(self, (const uint8_t *)map + 8 + n_header);
    return g_steal_pointer(&self);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

const char *qe_safetensors_get_path(const qe_safetensors *self)
{
    return self->path;
}

uint64_t qe_safetensors_get_file_bytes(const qe_safetensors *self)
{
    return self->n_file_bytes;
}

size_t qe_safetensors_get_n_tensors(const qe_safetensors *self)
{
    return self->tensors->len;
}

const qe_safetensor *qe_safetensors_get_tensor(const qe_safetensors *self, size_t idx)
{
    g_assert(idx < self->tensors->len);
    return &g_array_index(self->tensors, qe_safetensor, idx);
}

const qe_safetensor *qe_safetensors_find(const qe_safetensors *self, const char *name)
{
    qe_safetensor key = {.name = name};
    if (self->tensors->len == 0)
        return NULL;
    return bsearch(&key, self->tensors->data, self->tensors->len, sizeof key, compare_name);
}
