/* The checks of `berth doctor`. Each prints one line or several: what it looked at, and, unless
 * all is well, what to do. */
#pragma once

#include "cli/cli.h"

struct doctor {
    struct cli *cli;
    unsigned int warnings;
    unsigned int problems;
};

/* One line each; advice, on a line of its own, says what to do (NULL: nothing). What comes
 * from others is escaped. */
void doctor_ok(struct doctor *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Neither well nor wrong: what cannot be known from here, or what only some need. */
void doctor_note(struct doctor *d, const char *advice, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void doctor_warning(struct doctor *d, const char *advice, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void doctor_problem(struct doctor *d, const char *advice, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* doctor_fuse.c */
void doctor_check_device(struct doctor *d);
void doctor_check_fusermount(struct doctor *d);
void doctor_check_allow_other(struct doctor *d);

/* doctor_kernel.c */
void doctor_check_kernel(struct doctor *d);
void doctor_check_clock(struct doctor *d);

/* doctor_service.c */
void doctor_check_runtime(struct doctor *d);
void doctor_check_cache(struct doctor *d);
void doctor_check_settings(struct doctor *d);
void doctor_check_service(struct doctor *d);

/* doctor_mounts.c */
void doctor_check_programs(struct doctor *d);
void doctor_check_mounts(struct doctor *d);
