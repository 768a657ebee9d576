/* qe-kv-disk-io.c: whole reads and writes, direct where possible, and files replaced in one step. No state; any thread. */
#include "engine/qe-kv-disk-io.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Takes @n bytes off the front of the vector. */
static void advance(struct iovec **iov, int *n_iov, size_t n)
{
    while (*n_iov > 0 && n >= (*iov)->iov_len) {
        n -= (*iov)->iov_len;
        (*iov)++;
        (*n_iov)--;
    }
    if (n > 0) {
        (*iov)->iov_base = (uint8_t *)(*iov)->iov_base + n;
        (*iov)->iov_len -= n;
    }
}

int qe_kv_io_run(
    int fd, bool writes, struct iovec *iov, int n_iov, uint64_t offset, bool *direct, uint64_t *n_done)
{
    *n_done = 0;
    while (n_iov > 0) {
        off_t at = (off_t)(offset + *n_done);
        ssize_t n = writes ? pwritev(fd, iov, n_iov, at) : preadv(fd, iov, n_iov, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && *direct) {
            int flags = fcntl(fd, F_GETFL);
            *direct = false;
            if (flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0)
                continue;
            return EINVAL;
        }
        if (n < 0)
            return errno;
        if (n == 0)
            return writes ? EIO : ENODATA;
        *n_done += (uint64_t)n;
        advance(&iov, &n_iov, (size_t)n);
    }
    return 0;
}

int qe_kv_io_open(int dir_fd, const char *name, bool create, int *fd, bool *direct)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    *direct = true;
    *fd = openat(dir_fd, name, flags | O_DIRECT, 0600);
    if (*fd < 0 && errno == EINVAL) {
        *direct = false;
        *fd = openat(dir_fd, name, flags, 0600);
    }
    return *fd < 0 ? errno : 0;
}

int qe_kv_io_load(int dir_fd, const char *name, uint64_t n_max, uint8_t **data, size_t *n)
{
    struct stat st;
    int rc = 0;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *data = NULL;
    *n = 0;
    if (fd < 0)
        return errno;
    if (fstat(fd, &st) != 0)
        rc = errno;
    else if (!S_ISREG(st.st_mode))
        rc = EISDIR;
    else if ((uint64_t)st.st_size > n_max)
        rc = EFBIG;
    if (rc == 0 && (*data = g_try_malloc((gsize)MAX(st.st_size, 1))) == NULL)
        rc = ENOMEM;
    while (rc == 0 && *n < (size_t)st.st_size) {
        ssize_t got = read(fd, *data + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno != EINTR)
            rc = errno;
        if (got == 0)
            break; /* cut meanwhile: the parser finds it */
        if (got > 0)
            *n += (size_t)got;
    }
    close(fd);
    if (rc != 0)
        g_clear_pointer(data, g_free);
    return rc;
}

static int write_all(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

int qe_kv_io_replace(
    int dir_fd, const char *name, const char *temp, const uint8_t *data, size_t n, const char **step)
{
    int rc;
    int fd = openat(dir_fd, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    *step = "creating the temporary index";
    if (fd < 0)
        return errno;
    *step = "writing the temporary index";
    rc = write_all(fd, data, n);
    if (rc == 0 && fsync(fd) != 0) {
        *step = "fsync of the temporary index";
        rc = errno;
    }
    close(fd);
    if (rc == 0 && renameat(dir_fd, temp, dir_fd, name) != 0) {
        *step = "renaming the temporary index";
        rc = errno;
    }
    if (rc != 0) {
        unlinkat(dir_fd, temp, 0);
        return rc;
    }
    if (fsync(dir_fd) != 0) {
        *step = "fsync of the directory";
        return errno;
    }
    return 0;
}

int qe_kv_io_unlink(int dir_fd, const char *name)
{
    return unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT ? 0 : errno;
}
