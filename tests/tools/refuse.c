/* Runs a program for which the kernel refuses system calls:
 *   refuse CALL[&BITS]=ERRNO… -- PROGRAM [ARGUMENT…]
 * ERRNO is a number; with BITS a call is refused when its first argument has them all. As in an old
 * kernel, or in a container whose filter does not know a call, or some of its flags. */
#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what, int error)
{
    (void)fprintf(stderr, "refuse: %s: %s\n", what, strerror(error));
    exit(2);
}

static void refuse(scmp_filter_ctx filter, char *rule)
{
    char *equals = strchr(rule, '=');
    if (!equals)
        fail(rule, EINVAL);
    *equals = '\0';
    char *bits = strchr(rule, '&');
    if (bits)
        *bits = '\0';
    int call = seccomp_syscall_resolve_name(rule);
    char *end;
    unsigned long error = strtoul(equals + 1, &end, 10);
    if (call == __NR_SCMP_ERROR || *end || error == 0 || error > 4095)
        fail(rule, EINVAL);
    scmp_datum_t mask = bits ? strtoul(bits + 1, NULL, 0) : 0;
    int r = seccomp_rule_add(filter, SCMP_ACT_ERRNO((uint16_t)error), call, mask ? 1 : 0,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, mask, mask));
    if (r < 0)
        fail(rule, -r);
}

int main(int argc, char **argv)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (!filter)
        fail("seccomp", ENOMEM);
    /* Where root needs no such promise, programs with set-user-ID keep working. */
    (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, geteuid() != 0);
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        refuse(filter, argv[i]);
    if (i + 1 >= argc)
        fail("no program", EINVAL);
    int r = seccomp_load(filter);
    if (r < 0)
        fail("seccomp", -r);
    (void)execv(argv[i + 1], argv + i + 1);
    fail(argv[i + 1], errno);
}
