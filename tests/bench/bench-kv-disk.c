/* bench-kv-disk.c: rates of the disk store beside the raw direct I/O of the same file system.
 *
 *     bench-kv-disk [--dir DIR] [--pages N] [--page-bytes N]      default: the temporary directory, 1,000, 2,359,296
 *
 * Raw: two threads, each with 16 MiB requests of its own half of one file, O_DIRECT, new file, fdatasync at the end. The
 * store: one conversation, all pages queued 64 deep, flush at the end; then closed, opened and read back with checksums.
 * Direct reads do not see the page cache. Needs room for twice the pages, one after the other. */
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "engine/qe-kv-disk.h"

#define REQUEST_BYTES (16u << 20)
#define DEPTH         64u

typedef struct {
    int fd;
    bool writes, failed;
    uint64_t from, to;
    uint8_t *memory;
} raw_half;

static double seconds(void)
{
    return (double)g_get_monotonic_time() / 1e6;
}

static uint8_t *map_memory(uint64_t n)
{
    uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        g_error("no memory for %" G_GUINT64_FORMAT " bytes", n);
    for (uint64_t i = 0; i < n; i += 8) { /* nothing that a disk could compress */
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9u;
        memcpy(p + i, &z, 8);
    }
    return p;
}

static gpointer run_half(gpointer data)
{
    raw_half *half = data;
    for (uint64_t at = half->from; at < half->to; at += REQUEST_BYTES) {
        uint64_t n = MIN(REQUEST_BYTES, half->to - at);
        ssize_t done = half->writes ? pwrite(half->fd, half->memory, n, (off_t)at)
                                    : pread(half->fd, half->memory, n, (off_t)at);
        half->failed = half->failed || done != (ssize_t)n;
    }
    return NULL;
}

static double run_raw(const char *path, uint64_t bytes, bool writes, uint8_t *memory)
{
    raw_half halves[2];
    GThread *threads[2];
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT | (writes ? O_TRUNC : 0), 0600);
    if (fd < 0)
        g_error("%s: %s (the raw rate needs O_DIRECT)", path, g_strerror(errno));
    uint64_t middle = bytes / 2 / 4096 * 4096;
    double start = seconds();
    for (int i = 0; i < 2; i++) {
        halves[i] = (raw_half){
            fd, writes, false, i == 0 ? 0 : middle, i == 0 ? middle : bytes, memory + i * REQUEST_BYTES};
        threads[i] = g_thread_new("raw", run_half, &halves[i]);
    }
    for (int i = 0; i < 2; i++)
        g_thread_join(threads[i]);
    if (halves[0].failed || halves[1].failed || (writes && fdatasync(fd) != 0))
        g_error("%s: %s", path, g_strerror(errno));
    double took = seconds() - start;
    close(fd);
    return (double)bytes / took / 1e9;
}

static void wait_one(qe_kv_disk *disk, qe_kv_disk_op op)
{
    qe_kv_disk_completion done;
    while (!qe_kv_disk_poll(disk, &done))
        g_usleep(100);
    if (done.op != op || done.status != QE_KV_DISK_OK)
        g_error("%s: %s", qe_kv_disk_status_name(done.status), done.message ? done.message : "no message");
    qe_kv_disk_completion_clear(&done);
}

static qe_kv_disk_page next_page(const qe_kv_disk_page *before, uint32_t i)
{
    qe_kv_disk_page page = {0};
    if (i > 0)
        page.parent = before->key;
    page.ids[0] = i;
    page.key = qe_page_key_child(&page.parent, page.ids);
    return page;
}

static double write_pages(
    qe_kv_disk *disk, qe_kv_disk_file *file, uint32_t n, uint64_t page_bytes, uint8_t *memory)
{
    qe_kv_disk_page page = {0};
    double start = seconds();
    for (uint32_t i = 0; i < n + DEPTH; i++) {
        if (i >= DEPTH && i - DEPTH < n)
            wait_one(disk, QE_KV_DISK_WRITE);
        if (i >= n)
            continue;
        page = next_page(&page, i);
        qe_kv_disk_write(disk, file, i, &page, memory + i % DEPTH * page_bytes, NULL);
    }
    qe_kv_disk_flush(disk, file, NULL);
    wait_one(disk, QE_KV_DISK_FLUSH);
    return (double)n * (double)page_bytes / (seconds() - start) / 1e9;
}

static double read_pages(
    qe_kv_disk *disk, qe_kv_disk_file *file, uint32_t n, uint64_t page_bytes, uint8_t *memory)
{
    qe_kv_disk_page page = {0};
    double start = seconds();
    for (uint32_t i = 0; i < n + DEPTH; i++) {
        if (i >= DEPTH && i - DEPTH < n)
            wait_one(disk, QE_KV_DISK_READ);
        if (i >= n)
            continue;
        page = next_page(&page, i);
        qe_kv_disk_read(disk, file, i, &page.key, memory + i % DEPTH * page_bytes, NULL);
    }
    return (double)n * (double)page_bytes / (seconds() - start) / 1e9;
}

int main(int argc, char **argv)
{
    g_autofree char *dir = NULL;
    gint n_pages = 1000;
    gint64 page_bytes = 2359296;
    const GOptionEntry options[] = {{"dir", 0, 0, G_OPTION_ARG_FILENAME, &dir, "where the files go", "DIR"},
        {"pages", 0, 0, G_OPTION_ARG_INT, &n_pages, "how many pages", "N"},
        {"page-bytes", 0, 0, G_OPTION_ARG_INT64, &page_bytes, "bytes of a page", "N"}, {NULL}};
    const uint8_t digest[QE_KV_DISK_DIGEST_BYTES] = {0};
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GError) error = NULL;
    qe_kv_disk_usage usage;
    g_option_context_add_main_entries(context, options, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error))
        g_error("%s", error->message);
    if (n_pages < 1 || n_pages > (gint)QE_KV_DISK_PAGES_MAX || page_bytes < 1)
        g_error("the numbers are out of range");
    g_autofree char *top = g_build_filename(dir ? dir : g_get_tmp_dir(), "quire-bench-kv-XXXXXX", NULL);
    if (!g_mkdtemp(top))
        g_error("%s: %s", top, g_strerror(errno));
    g_autofree char *raw = g_build_filename(top, "raw", NULL), *store = g_build_filename(top, "kv", NULL);
    uint8_t *memory = map_memory(MAX(DEPTH * (uint64_t)page_bytes, 2ull * REQUEST_BYTES));
    uint64_t bytes = ((uint64_t)page_bytes + 4095) / 4096 * 4096 * (uint64_t)n_pages;

    double raw_write = run_raw(raw, bytes, true, memory), raw_read = run_raw(raw, bytes, false, memory);
    g_unlink(raw);
    qe_kv_disk *disk = qe_kv_disk_new(
        store, UINT64_MAX / 2, &(qe_kv_disk_kind){digest, (uint64_t)page_bytes}, 1, NULL, NULL, &error);
    if (!disk)
        g_error("%s", error->message);
    qe_kv_disk_file *file = qe_kv_disk_open(disk, 0, "bench", NULL, &error);
    qe_kv_disk_completion done;
    while (!qe_kv_disk_poll(disk, &done))
        g_usleep(100);
    qe_kv_disk_completion_clear(&done);
    double write = write_pages(disk, file, (uint32_t)n_pages, (uint64_t)page_bytes, memory);
    qe_kv_disk_close(disk, file, NULL);
    wait_one(disk, QE_KV_DISK_CLOSE);
    file = qe_kv_disk_open(disk, 0, "bench", NULL, &error);
    double start = seconds();
    wait_one(disk, QE_KV_DISK_OPEN);
    double open_ms = (seconds() - start) * 1e3;
    double read = read_pages(disk, file, (uint32_t)n_pages, (uint64_t)page_bytes, memory);
    qe_kv_disk_get_usage(disk, &usage);
    g_print("%d pages of %" G_GINT64_FORMAT " bytes, O_DIRECT %s\n", n_pages, page_bytes,
        usage.direct ? "yes" : "no");
    g_print("          raw GB/s  store GB/s  share\n");
    g_print("write     %8.3f  %10.3f  %4.0f%%\n", raw_write, write, 100 * write / raw_write);
    g_print("read      %8.3f  %10.3f  %4.0f%%\n", raw_read, read, 100 * read / raw_read);
    g_print("open      %.2f ms\n", open_ms);
    if (!qe_kv_disk_delete(disk, "bench", NULL, &error))
        g_error("%s", error->message);
    wait_one(disk, QE_KV_DISK_DELETE);
    qe_kv_disk_free(disk);
    g_autofree char *lock = g_build_filename(store, "lock", NULL);
    g_autofree char *model = g_build_filename(store,
        "00000000000000000000000000000000"
        "00000000000000000000000000000000",
        NULL);
    g_unlink(lock);
    g_rmdir(model);
    g_rmdir(store);
    g_rmdir(top);
    return 0;
}
