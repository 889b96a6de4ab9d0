/* What a session sees: the rules of the service, the workspace and the session, applied to
 * places.
 *
 * A directory is seen as its place says, the names of the directories above it as they were last
 * noted (node.h); what that comes to is kept with the session's reference. A file can have
 * several names, and a session that was given it by one that is not hidden keeps it, until the
 * rules or the places of directories change: then the name at which it was last noted decides. An
 * open handle stays usable whatever becomes of the name, as that of a file that was unlinked.
 *
 * store.view_changes counts changes of rules and of directories' places; what was found out at
 * one count is right until session.view_changed or workspace.view_changed is larger. */
#pragma once

#include "store/node.h"

struct view {
    struct visibility_view rules; /* each referenced, or NULL */
    struct visibility_state dir;
    uint64_t at; /* store.view_changes */
};

/* What a session sees of dir's entries. -ESTALE: dir itself is hidden, or something is to be
 * hidden and dir's place is not known; -ENOMEM; -ENAMETOOLONG: deeper than TREE_DEPTH_MAX. */
int view_open(struct file_session *session, struct node *dir, struct view *ret);

/* {0} is allowed. */
void view_close(struct view *view);

static inline enum visibility view_of(const struct view *view, struct bytes name, bool directory)
{
    return visibility_of(&view->rules, &view->dir, name, directory);
}

/* True when it is not sure that the session may still use this node; view_check tells. */
bool view_unsure_locked(const struct file_session *session, const struct node_ref *ref);

/* -ESTALE: the node is hidden from the session; others as view_open. */
int view_check(struct file_session *session, struct node *node);

/* Frees what a reference knows; for its end. */
void view_forget(struct node_ref *ref);

/* Something changed that *changed (a session's or a workspace's view_changed) is for. */
void view_changed_locked(struct store *store, uint64_t *changed);

/* "visibility" of store_status. -ENOMEM. */
int view_status(struct store *store, json_t *object);
