/* The files by which the machine's names are resolved, which the process that has the proxy may
 * read, and nothing else of /etc. Landlock admits files, not names: what is put in the place of one
 * later cannot be read, and the process has to begin anew. */
#pragma once

#include <stdbool.h>

#define SETTINGS_FILES 7

struct settings {
    int errors[SETTINGS_FILES]; /* of opening each, 0: it can be read */
};

/* Adds rules for them to a set of Landlock's. -errno. */
int settings_allow(int landlock);

/* What can be read of them now. */
void settings_look(struct settings *ret);

/* Is one out of reach that was not? */
bool settings_lost(const struct settings *before);
