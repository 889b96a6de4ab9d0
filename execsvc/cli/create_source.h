/* What `berth create` fills a workspace with. */
#pragma once

#include "cli/cli.h"

struct create_source {
    const char *from;     /* an archive's file, or - */
    const char *snapshot; /* its ID */
    const char *fork;     /* another workspace's thread ID */
    const char *worktree; /* REPOSITORY[@REF] */
    bool live;            /* with fork: commands in it go on meanwhile */
};

/* True when there is one; more than one is an error of the command line: *ret_error says so. */
bool create_source_given(const struct create_source *source, const char **ret_error);

/* Makes a workspace and prints its directory's name. 0, or a negative errno; the failure has been
 * printed. */
int create_source_run(struct cli *cli, const struct create_source *source, const char *id,
                      const struct wire_workspace_create *create);

/* A repository of its own in a new directory below the temporary one: the files of REF (without it,
 * of what REPOSITORY has checked out) and all that these come from, with the branch checked out if
 * REF is one. The path is the caller's, as is the directory. The failure has been printed. */
int worktree_make(struct cli *cli, const char *spec, char **ret_path);

/* Removes it; frees the path. */
void worktree_remove(char *path);

/* The same without files, over a connection; prints the name. file: of the policy, for messages, or
 * NULL. */
int create_one(const struct cli *cli, struct client *client, const char *id, const char *file,
               const struct wire_workspace_create *create);
