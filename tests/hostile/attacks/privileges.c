/* Privileges that a command was not to have. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "attack.h"

#define SOMEBODY 54321

/* Of a program that is run: its status is what came of it. */
static int run_program(const char *path, const char *argument, uid_t user)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (user != getuid())
            (void)setresuid(user, user, user);
        (void)execl(path, path, argument, NULL);
        _exit(errno);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
}

/* PATH of a program of another user's (tests/hostile/attacks/gain.c) with the set-user-ID bit. */
static int set_user_id(char **args)
{
    return run_program(args[0], "user", getuid());
}

/* PATH of one with capabilities; by somebody who has none, where that can be. */
static int file_capabilities(char **args)
{
    return run_program(args[0], "capabilities", SOMEBODY);
}

/* Somebody else's numbers. */
static int set_user(char **args)
{
    return result_of(setresuid(SOMEBODY, SOMEBODY, SOMEBODY));
}

static int give_away(char **args)
{
    FILE *f = fopen("attack-file", "we");
    if (f)
        (void)fclose(f);
    int r = result_of(chown("attack-file", SOMEBODY, SOMEBODY));
    (void)unlink("attack-file");
    return r;
}

/* Without no_new_privs. */
static int gain_again(char **args)
{
    int now = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    return now == 0 ? 0 : result_of(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

const struct attack attacks_on_privileges[] = {
    {"set-user-id", set_user_id, 1}, {"file-capabilities", file_capabilities, 1},
    {"setuid", set_user, 0},         {"chown", give_away, 0},
    {"gain-again", gain_again, 0},   {NULL},
};
