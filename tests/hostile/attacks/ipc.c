/* Memory and queues that are shared by number or name. */
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <stdlib.h>
#include <string.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "base/cleanup.h"
#include "attack.h"

/* KEY of a segment that holds the secret. */
static int shared_memory(char **args)
{
    int id = shmget((key_t)atoi(args[0]), 0, 0);
    const char *at = id < 0 ? (void *)-1 : shmat(id, NULL, SHM_RDONLY);
    if (at == (void *)-1)
        return -errno;
    return memcmp(at, SECRET, sizeof SECRET - 1) == 0 ? 0 : -ENODATA;
}

static int message_queue(char **args)
{
    return result_of(msgget((key_t)atoi(args[0]), 0));
}

static int semaphores(char **args)
{
    return result_of(semget((key_t)atoi(args[0]), 0, 0));
}

/* NAME */
static int posix_queue(char **args)
{
    mqd_t queue = mq_open(args[0], O_RDONLY | O_CLOEXEC);
    if (queue < 0)
        return -errno;
    (void)mq_close(queue);
    return 0;
}

const struct attack attacks_on_ipc[] = {
    {"shared-memory", shared_memory, 1},
    {"message-queue", message_queue, 1},
    {"semaphores", semaphores, 1},
    {"posix-queue", posix_queue, 1},
    {NULL},
};
