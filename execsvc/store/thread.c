#include "store/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, void *(*run)(void *context), void *context)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(thread, NULL, run, context);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}
