/* Whole reads and writes of regular files, through short counts and signals. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads until size bytes or the end. 0 and *ret_len, or a negative errno. To notice a file that
 * is longer than it may be, ask for one byte more. */
int file_read_up_to(int fd, void *data, size_t size, size_t *ret_len);

/* The same from an offset, whatever the descriptor's own is. */
int file_read_at(int fd, void *data, size_t size, uint64_t offset, size_t *ret_len);

/* /dev/null, close-on-exec; where a minimal root has none, something else that has ended when it is
 * read, and refuses to be written to. Async-signal-safe. A descriptor, or a negative errno. */
int file_open_null(void);

/* For lines at its end; made with mode 0600. Never waits. A descriptor, or a negative errno;
 * -ENXIO: it is a FIFO or the like, whose reader could keep us waiting: neither a regular file nor
 * a character device. */
int file_open_log(const char *path);
const char *file_log_error(int error); /* as strerror(-error) */

/* Writes all len bytes. 0 or a negative errno; how much was written is then not known. */
int file_write_all(int fd, const void *data, size_t len);

/* A text and the end of its line, on the disk when it returns: a rename that outlives a power cut
 * must not lead to an empty file. As above. */
int file_write_text_synced(int fd, const char *text);
