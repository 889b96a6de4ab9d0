#include "cli/create_source.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cli/at_place.h"
#include "cli/tree_call.h"
#include "store/tree_send.h"

bool create_source_given(const struct create_source *s, const char **ret_error)
{
    int count = !!s->from + !!s->snapshot + !!s->fork + !!s->worktree;
    *ret_error = NULL;
    if (count > 1)
        *ret_error = "--from, --snapshot, --fork and --worktree exclude each other";
    else if (s->live && !s->fork)
        *ret_error = "--live is for --fork";
    return count > 0;
}

struct counted_call {
    struct tree_call *call;
    struct progress *progress;
};

static int send_part(void *context, const struct wire_list *items)
{
    const struct counted_call *counted = context;
    progress_add(counted->progress, items->len);
    return tree_call_part(counted->call, items);
}

static int send_worktree(struct cli *cli, const char *spec, const char *path,
                         struct tree_call *call, struct progress *progress)
{
    const struct tree_reader_options options = {0};
    struct counted_call counted = {.call = call, .progress = progress};
    const struct tree_sink sink = {.part = send_part, .context = &counted};
    struct tree_counts counts;
    struct failure failure = {0};
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 ? failure_set(&failure, -errno, "%s", strerror(errno))
                   : tree_send(fd, &options, false, &sink, NULL, &counts, &failure);
    if (r == 0)
        r = tree_call_end_items(call);
    if (r == -ECANCELED)
        return 0;
    if (r < 0)
        cli_error(cli, "%s: %s", spec, failure.text);
    return r;
}

static int print_name(const struct wire_frame *reply)
{
    struct bytes name = reply->message.workspace.name;
    (void)printf("%.*s\n", (int)name.len, (const char *)name.data);
    return 0;
}

static int run(struct cli *cli, const struct create_source *s, const char *id,
               const struct wire_workspace_create *create, const char *worktree)
{
    struct failure failure;
    struct wire_frame *reply;
    struct tree_call *call;
    struct wire_message request = {.type = WIRE_WORKSPACE_CREATE, .workspace_create = *create};
    struct wire_workspace_create *m = &request.workspace_create;
    m->thread_id = bytes_of_string(id);
    if (s->snapshot) {
        m->flags |= WIRE_WORKSPACE_FROM_SNAPSHOT;
        m->source = bytes_of_string(s->snapshot);
    } else if (s->fork) {
        m->flags |= WIRE_WORKSPACE_FROM_WORKSPACE | (s->live ? WIRE_WORKSPACE_LIVE : 0);
        m->source = bytes_of_string(s->fork);
    } else {
        m->flags |= WIRE_WORKSPACE_FROM_STREAM;
    }
    int r = tree_call_begin(cli, &request, &call);
    if (r < 0)
        return r;
    _cleanup_progress_ struct progress *progress =
        progress_start(id, 0, s->from || worktree ? PROGRESS_BYTES : PROGRESS_STEPS);
    if (s->from)
        r = archive_upload(cli, s->from, call, progress);
    else if (worktree)
        r = send_worktree(cli, s->worktree, worktree, call, progress);
    if (r < 0) {
        tree_call_drop(call);
        return r;
    }
    /* All of it has gone; that it is on the service's disk is what takes the time now. */
    progress_step(progress, "waiting for the service");
    r = tree_call_finish(call, &reply, &failure);
    progress_end(take_ptr(progress));
    if (r == -EEXIST)
        cli_error(cli, "%s: %s", id,
                  failure.text[0] ? failure.text : "a workspace of this ID exists");
    else if (r < 0)
        cli_error(cli, "%s: %s", id, failure.text);
    if (r < 0)
        return r;
    if (!cli->silent)
        (void)print_name(reply);
    wire_frame_free(reply);
    return 0;
}

/* A fork is made by the service that has the workspace. */
static int refuse_elsewhere(const struct cli *cli, const char *fork, const char *id)
{
    _cleanup_place_ struct place p = {0};
    int r = at_place_find(cli, fork, false, &p);
    if (r <= 0)
        return r;
    cli_error(cli,
              "%s: it is in a sandbox of its own, which the provider %s made, and a fork stays "
              "within one service: berth export %s FILE.tar.zst, then berth create --from "
              "FILE.tar.zst %s",
              fork, p.provider, fork, id);
    return -EXDEV;
}

int create_source_run(struct cli *cli, const struct create_source *s, const char *id,
                      const struct wire_workspace_create *create)
{
    struct failure failure;
    char *worktree = NULL;
    char forked[WHICH_ID_SIZE];
    struct create_source resolved = *s;
    int r = s->fork ? which_find_id(cli, s->fork, forked) : which_service(cli) ? 0 : -ENOTUNIQ;
    if (r == 0 && s->fork) {
        resolved.fork = forked;
        r = which_check_new(cli, id);
    }
    if (r == 0 && s->fork) {
        r = refuse_elsewhere(cli, forked, id);
    }
    if (r == 0 && s->from) {
        r = cli_need_network(cli, &failure);
        if (r < 0)
            cli_error(cli, "%s", failure.text);
    }
    if (r == 0 && s->worktree)
        r = worktree_make(cli, s->worktree, &worktree);
    if (r == 0)
        r = run(cli, &resolved, id, create, worktree);
    worktree_remove(worktree);
    return r;
}
