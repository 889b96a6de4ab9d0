/* A process beside the driver that holds no descriptor of the mount and looks only at whether
 * the driver lives. When the driver dies without having unmounted (kill -9, a crash), it
 * aborts the connection to the kernel, so that nobody hangs on it, and unmounts, so that the
 * mountpoint can be used again; and it tells the service that the session is over, whose locks
 * would be kept for a while else. It also carries the log of a driver in the background to syslog.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/failure.h"
#include "config/config.h"
#include "wire/wire.h"

struct supervisor;

/* Forks it; call before there are threads or descriptors that matter. mountpoint: absolute.
 * settings: for reaching the service. log_fd: where the supervisor itself writes. If it is -1, that
 * is syslog, and *ret_log_fd is then where the driver's standard error is to go (else *ret_log_fd
 * is -1). */
int supervisor_start(const char *mountpoint, const struct client_settings *settings, int log_fd,
                     struct supervisor **ret, int *ret_log_fd, struct failure *ret_failure);

/* Tells it what to clean up if the driver dies from now on. */
void supervisor_mounted(struct supervisor *s, uint32_t minor);

/* Tells it the key of the session. NULL s: there is none to be told. */
void supervisor_session(struct supervisor *s, const uint8_t key[WIRE_KEY_SIZE]);

/* The mount is gone (or there never was one): nothing to clean up. parted: there is no connection
 * on which the driver could say goodbye, so the supervisor tries for SUPERVISOR_GOODBYE_S to make
 * one. Frees s. */
#define SUPERVISOR_GOODBYE_S 20
void supervisor_end(struct supervisor *s, bool parted);
