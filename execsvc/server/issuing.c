#include "server/issuing.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"

/* Workspaces asked for at once. */
#define PAGE 512

/* Calls each with those of one page; its last name is in name. False: that was the last. */
static bool each_of_page(const struct wire_workspaces *page,
                         bool (*each)(void *context, struct bytes thread_id, uint32_t slot),
                         void *context, char name[WIRE_NAME_MAX])
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(&page->items, &offset, &element)) {
        if (wire_decode(WIRE_WORKSPACE, element, &m) < 0 ||
            !each(context, m.workspace.thread_id, m.workspace.slot))
            return false;
        (void)snprintf(name, WIRE_NAME_MAX, "%.*s", (int)m.workspace.name.len,
                       (const char *)m.workspace.name.data);
    }
    return page->more && page->items.count > 0;
}

static void each_workspace(void *context,
                           bool (*each)(void *each_context, struct bytes thread_id, uint32_t slot),
                           void *each_context)
{
    struct server *s = context;
    struct file_session *files;
    char name[WIRE_NAME_MAX] = "";
    bool more = true;
    if (file_session_new(s->store, &files) < 0)
        return;
    while (more) {
        const struct wire_message request = {
            .type = WIRE_WORKSPACE_LIST,
            .workspace_list = {.count = PAGE, .after = bytes_of_string(name)}};
        struct reply reply = {0};
        more = store_handle(files, &request, &reply) == 0 &&
               each_of_page(&reply.message.workspaces, each, each_context, name);
        buffer_release(&reply.storage);
    }
    file_session_free(files);
}

int issuing_begin(struct server *s, struct failure *ret_failure)
{
    static const char name[] = "token-key";
    struct access_issuing issuing = {.workspaces = each_workspace, .context = s};
    _cleanup_close_ int root = open(store_root(s->store), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = root < 0 ? -errno : issued_key_load(root, name, &issuing.key);
    if (r < 0)
        return failure_set(ret_failure, r, "%s/%s: %s", store_root(s->store), name,
                           r == -EINVAL
                               ? "this is no key: it must be 32 bytes, and for its owner alone"
                               : strerror(-r));
    access_issue_tokens(s->access, &issuing);
    explicit_bzero(&issuing, sizeof issuing);
    return 0;
}
