/* qe-kv-disk-io.h: the disk store's dealings with the file system. Internal; any thread; no state.
 *
 * Results are errno values, 0 for done. Paths are relative to a directory's descriptor. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

G_BEGIN_DECLS

#define QE_KV_DISK_ALIGN 4096u /* of offsets, lengths and addresses of direct I/O */

/* Reads or writes all of @iov (changed by the call) at @offset. *@direct: the descriptor has O_DIRECT; when the file
 * system refuses it (EINVAL), it is taken off, *@direct becomes false and the request runs again. @n_done: bytes, also
 * after an error. ENODATA: a read met the end of the file. */
int qe_kv_io_run(
    int fd, bool writes, struct iovec *iov, int n_iov, uint64_t offset, bool *direct, uint64_t *n_done);
/* Opens for reading and writing, with O_DIRECT when the file system has it. */
int qe_kv_io_open(int dir_fd, const char *name, bool create, int *fd, bool *direct);
/* The file's whole content, owned. EFBIG past @n_max bytes. */
int qe_kv_io_load(int dir_fd, const char *name, uint64_t n_max, uint8_t **data, size_t *n);
/* Puts @data in the place of @name: temporary file, fsync, rename, fsync of the directory. After any failure the file is
 * the old or the new one, whole. *@step (borrowed) says what failed. */
int qe_kv_io_replace(
    int dir_fd, const char *name, const char *temp, const uint8_t *data, size_t n, const char **step);
/* 0 also when it was not there. */
int qe_kv_io_unlink(int dir_fd, const char *name);

G_END_DECLS
