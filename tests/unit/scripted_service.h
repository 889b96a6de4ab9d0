/* A service made of a session and a script: what a request brings about is chosen by its type. One
 * connection at a time. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct scripted_service {
    char path[108];
    int listener;
    pthread_t thread;
    uint32_t max_calls;
    atomic_bool release; /* answers what FSYNC holds, newest first */
    atomic_uint pings;
    atomic_uint most_open;
    atomic_uint cancels;
    atomic_uint forgotten; /* nodes and handles given back */
    atomic_ullong input;   /* item bytes that came */
};

/* url: where it is to be found. */
void scripted_service_start(struct scripted_service *s, uint32_t max_calls, char *url, size_t size);

/* Once its connections are closed. */
void scripted_service_stop(struct scripted_service *s);

/* One connection, until it ends. */
void scripted_service_serve(struct scripted_service *service, int in, int out);
