#include "store/publish.h"

#include <string.h>

#include "store/grip.h"
#include "store/handle.h"

static bool others_listen(const struct file_session *session)
{
    struct store *store = session->store;
    bool listen = false;
    store_lock(store);
    for (const struct subscription *s = store->subscriptions; s && !listen;
         s = subscription_next(s))
        listen = !subscription_is_of(s, session);
    store_unlock(store);
    return listen;
}

static void note_node(struct file_session *session, uint64_t number, uint32_t kinds,
                      struct bytes name)
{
    _cleanup_node_ struct node *node = NULL;
    if (node_get_open(session, number, &node) == 0)
        changes_note(session->store, session, node, kinds, name);
}

static void note_handle(struct file_session *session, uint64_t number, uint32_t kinds)
{
    _cleanup_handle_ struct handle *handle = NULL;
    if (handle_get(session, number, &handle) == 0)
        changes_note(session->store, session, handle->node, kinds, (struct bytes){0});
}

/* The node at a name of a directory, if there is one. */
static struct node *node_at(struct file_session *session, uint64_t parent, struct bytes name)
{
    char text[WIRE_NAME_MAX + 1];
    if (name.len > WIRE_NAME_MAX || memchr(name.data, '/', name.len))
        return NULL;
    memcpy(text, name.data, name.len);
    text[name.len] = '\0';
    _cleanup_node_ struct node *dir = NULL;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    struct node *node = NULL;
    if (node_get_open(session, parent, &dir) < 0 || dir->type != S_IFDIR ||
        grip_take(dir, &grip, NULL) < 0 || node_find_at(dir, grip.fd, text, &node) < 0)
        return NULL;
    return node;
}

void publish_before(struct file_session *session, const struct wire_message *m,
                    struct publication *ret)
{
    *ret = (struct publication){0};
    const bool replaces = m->type == WIRE_UNLINK || m->type == WIRE_RENAME || m->type == WIRE_PLACE;
    if (!replaces || !others_listen(session))
        return;
    ret->victim = m->type == WIRE_UNLINK ? node_at(session, m->unlink.parent, m->unlink.name)
                  : m->type == WIRE_RENAME
                      ? node_at(session, m->rename.new_parent, m->rename.new_name)
                      : node_at(session, m->place.parent, m->place.name);
}

static void note_moved(struct file_session *session, uint64_t parent, struct bytes name)
{
    _cleanup_node_ struct node *node = node_at(session, parent, name);
    if (node)
        changes_note(session->store, session, node, WIRE_CHANGE_ATTR, (struct bytes){0});
}

static void publish_names(struct file_session *session, const struct wire_message *m)
{
    struct bytes none = {0};
    switch ((uint32_t)m->type) {
    case WIRE_MKNOD:
        note_node(session, m->mknod.parent, WIRE_CHANGE_NAME, m->mknod.name);
        break;
    case WIRE_MKDIR:
        note_node(session, m->mkdir.parent, WIRE_CHANGE_NAME, m->mkdir.name);
        break;
    case WIRE_SYMLINK:
        note_node(session, m->symlink.parent, WIRE_CHANGE_NAME, m->symlink.name);
        break;
    case WIRE_CREATE:
        if (!(m->create.flags & WIRE_OPEN_UNNAMED))
            note_node(session, m->create.parent, WIRE_CHANGE_NAME, m->create.name);
        break;
    case WIRE_PLACE:
        note_node(session, m->place.parent, WIRE_CHANGE_NAME, m->place.name);
        note_moved(session, m->place.parent, m->place.name);
        break;
    case WIRE_LINK:
        note_node(session, m->link.parent, WIRE_CHANGE_NAME, m->link.name);
        note_node(session, m->link.node, WIRE_CHANGE_ATTR, none);
        break;
    case WIRE_UNLINK:
        note_node(session, m->unlink.parent, WIRE_CHANGE_NAME, m->unlink.name);
        break;
    case WIRE_RMDIR:
        note_node(session, m->rmdir.parent, WIRE_CHANGE_NAME, m->rmdir.name);
        break;
    case WIRE_RENAME:
        note_node(session, m->rename.parent, WIRE_CHANGE_NAME, m->rename.name);
        note_node(session, m->rename.new_parent, WIRE_CHANGE_NAME, m->rename.new_name);
        note_moved(session, m->rename.new_parent, m->rename.new_name);
        break;
    default:
        break;
    }
}

/* What may have changed something even though it failed. */
static void publish_contents(struct file_session *session, const struct wire_message *m)
{
    struct bytes none = {0};
    switch ((uint32_t)m->type) {
    case WIRE_SETATTR:
        note_node(session, m->setattr.node,
                  m->setattr.valid & WIRE_SET_SIZE ? WIRE_CHANGE_CONTENT : WIRE_CHANGE_ATTR, none);
        break;
    case WIRE_SETXATTR:
        note_node(session, m->setxattr.node, WIRE_CHANGE_ATTR, none);
        break;
    case WIRE_REMOVEXATTR:
        note_node(session, m->removexattr.node, WIRE_CHANGE_ATTR, none);
        break;
    case WIRE_OPEN:
        if (m->open.flags & WIRE_OPEN_TRUNCATE)
            note_node(session, m->open.node, WIRE_CHANGE_CONTENT, none);
        break;
    case WIRE_CREATE:
        if (m->create.flags & WIRE_OPEN_TRUNCATE) {
            _cleanup_node_ struct node *node = node_at(session, m->create.parent, m->create.name);
            if (node)
                changes_note(session->store, session, node, WIRE_CHANGE_CONTENT, none);
        }
        break;
    case WIRE_WRITE:
        note_handle(session, m->write.handle, WIRE_CHANGE_CONTENT);
        break;
    case WIRE_FALLOCATE:
        note_handle(session, m->fallocate.handle, WIRE_CHANGE_CONTENT);
        break;
    case WIRE_COPY:
        note_handle(session, m->copy.handle_out, WIRE_CHANGE_CONTENT);
        break;
    default:
        break;
    }
}

void publish_after(struct file_session *session, const struct wire_message *m, int result,
                   struct publication *publication)
{
    _cleanup_node_ struct node *victim = take_ptr(publication->victim);
    if (wire_row(m->type)->effect != WIRE_EFFECT_WRITES && m->type != WIRE_OPEN)
        return;
    if (!others_listen(session))
        return;
    if (result == 0)
        publish_names(session, m);
    publish_contents(session, m);
    if (victim)
        changes_note(session->store, session, victim, WIRE_CHANGE_ATTR, (struct bytes){0});
    if (m->type == WIRE_WORKSPACE_REMOVE || m->type == WIRE_WORKSPACE_SET_VISIBILITY)
        changes_note_all(session->store);
}
