/* Files outside what a test may touch, of which the kernel tells whether anybody opened, read or
 * changed them: inotify is told of every open but those with O_PATH. */
#pragma once

#include "unit.h"

#include <sys/stat.h>

/* What canaries hold, and how large they are. */
#define CANARY_TEXT "outside the workspace"
#define CANARY_SIZE 4242

#define CANARIES_MAX 64

struct canaries {
    int inotify;
    size_t count;
    struct canary {
        char path[256];
        struct stat st;
    } all[CANARIES_MAX];
};

void canaries_open(struct canaries *c);
void canaries_close(struct canaries *c);

/* A file; its attribute user.canary holds CANARY_TEXT too where there are attributes. */
void canary_make_file(struct canaries *c, const char *directory, const char *name);

/* A directory that is there; what is made in it later is a change. */
void canary_note_directory(struct canaries *c, const char *path);

/* From now on: IN_… events of path, which is not followed. */
void canary_watch(struct canaries *c, const char *path, uint32_t events);

/* Fails the test if anything has happened to one of them. Opens one in the end, as a control. */
void canaries_check(struct canaries *c);
void canaries_check_quiet(struct canaries *c);

/* The control for a path that is watched: to open it is told. */
void canaries_check_told(struct canaries *c, const char *path);
