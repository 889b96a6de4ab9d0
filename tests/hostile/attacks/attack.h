/* Attacks that a command of a workspace might try, each a function of its own that says whether it
 * came through. tests/lib/attacks.py says what they are told, and what stops them.
 *
 * They must be harmless where nothing stops them, since that is tried too: what is asked for is a
 * look, a change to what it was, or what fails for another reason once the kernel has found that it
 * is permitted. */
#pragma once

#include <stddef.h>

/* 0: it came through. A negative errno: why not; -ENODATA: nothing refused it, and nothing came of
 * it. */
typedef int attack_fn(char **args);

struct attack {
    const char *name;
    attack_fn *run;
    int args; /* how many it takes */
};

/* One list a file; each ends with a NULL name. */
extern const struct attack attacks_of_number[];
extern const struct attack attacks_on_descriptors[];
extern const struct attack attacks_on_devices[];
extern const struct attack attacks_on_ipc[];
extern const struct attack attacks_on_kernel[];
extern const struct attack attacks_on_mounts[];
extern const struct attack attacks_on_namespaces[];
extern const struct attack attacks_on_paths[];
extern const struct attack attacks_on_privileges[];
extern const struct attack attacks_on_processes[];
extern const struct attack attacks_on_signals[];
extern const struct attack attacks_on_sockets[];
extern const struct attack attacks_on_terminals[];

/* What the files share. 0 or -errno of a call that returns -1. */
int result_of(long returned);

/* The same where `passed` is what a call answers that was permitted and had nothing to do. */
int result_or(long returned, int passed);

/* Whether the file begins with what the test has written to those outside: 0, -ENODATA, or why it
 * cannot be read. */
int holds_secret(int fd);
int read_secret(const char *path);
#define SECRET "secret of the machine\n"
