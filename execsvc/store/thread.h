/* A thread of the store's own. */
#pragma once

#include <pthread.h>

/* Signals are for the loop's thread. 0, or the negative errno of what could not be made. */
int thread_start(pthread_t *thread, void *(*run)(void *context), void *context);
