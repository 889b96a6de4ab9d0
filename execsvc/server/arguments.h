/* The command line of a berthd with the same settings as this one. */
#pragma once

#include "config/config.h"

/* More than all options but --listen come to. */
#define ARGUMENTS_MAX 40

struct arguments {
    char keep[16];
    char mode[16];
    const char *argv[ARGUMENTS_MAX + 2 * CONFIG_LISTEN_MAX];
};

/* Borrows from settings. first: an option of its own to begin with, or NULL. */
void arguments_set(struct arguments *a, const char *first, const struct service_settings *settings);

/* At its end. */
void arguments_add(struct arguments *a, const char *option, const char *value);
