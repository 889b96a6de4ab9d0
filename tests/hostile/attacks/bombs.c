/* More of something than there ought to be. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "attack.h"

#define STACK 16384

static void *wait_for_ever(void *nothing)
{
    (void)pause();
    return nothing;
}

/* COUNT of threads, which count as processes and need less. */
static int fork_bomb(char **args)
{
    pthread_attr_t attr;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK);
    int r = 0;
    for (int i = 0; r == 0 && i < atoi(args[0]); i++) {
        pthread_t thread;
        r = -pthread_create(&thread, &attr, wait_for_ever, NULL);
    }
    return r;
}

/* DIRECTORY MEBIBYTES of a file that is gone again then. */
static int fill(char **args)
{
    static const char block[1 << 20];
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/attack-file", args[0]);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    (void)unlink(path);
    for (int i = 0; i < atoi(args[1]); i++)
        if (write(fd, block, sizeof block) < 0)
            return -errno;
    return 0;
}

/* DIRECTORY COUNT of files. */
static int fill_with_names(char **args)
{
    char path[4096];
    int r = 0;
    int made = 0;
    for (; r == 0 && made < atoi(args[1]); made++) {
        (void)snprintf(path, sizeof path, "%s/attack-%d", args[0], made);
        _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        r = fd < 0 ? -errno : 0;
    }
    while (made-- > 0) {
        (void)snprintf(path, sizeof path, "%s/attack-%d", args[0], made);
        (void)unlink(path);
    }
    return r;
}

const struct attack attacks_of_number[] = {
    {"fork-bomb", fork_bomb, 1},
    {"fill", fill, 2},
    {"fill-with-names", fill_with_names, 2},
    {NULL},
};
