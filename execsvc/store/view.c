#include "store/view.h"

#include <string.h>

/* States with more live components than this are found anew each time. Stops a client from making
 * the service keep kilobytes for each directory with rules made for it. */
#define SEEN_LIVE_MAX 64

/* Workspaces that STATUS tells about one by one: bounds its reply. */
#define STATUS_WORKSPACES_MAX 64

struct seen_directory {
    uint64_t at;
    struct visibility_state state;
};

/* --- changes ---------------------------------------------------------------------- */

void view_changed_locked(struct store *store, uint64_t *changed)
{
    *changed = ++store->view_changes;
}

static uint64_t changed_last(const struct file_session *session, const struct workspace *workspace)
{
    return session->view_changed > workspace->view_changed ? session->view_changed
                                                           : workspace->view_changed;
}

static bool hides(const struct visibility_rules *rules)
{
    return rules && visibility_rules_hide(rules);
}

static bool hides_locked(const struct file_session *session, const struct workspace *workspace)
{
    return hides(session->rules) || hides(workspace->rules) || hides(session->store->rules);
}

bool store_hides(struct file_session *session, const struct workspace *workspace)
{
    store_lock(session->store);
    bool any = hides_locked(session, workspace);
    store_unlock(session->store);
    return any;
}

bool view_unsure_locked(const struct file_session *session, const struct node_ref *ref)
{
    const struct workspace *workspace = ref->node->workspace;
    return !ref->node->root && hides_locked(session, workspace) &&
           ref->seen_at < changed_last(session, workspace);
}

void view_forget(struct node_ref *ref)
{
    if (ref->seen) {
        visibility_state_release(&ref->seen->state);
        free(take_ptr(ref->seen));
    }
}

/* --- a directory's state ------------------------------------------------------------ */

/* How a directory is reached from one whose state is known. */
struct way {
    struct visibility_state from;
    bool from_root;
    struct buffer names; /* from below upwards: name, its length as one byte */
};

static void way_release(struct way *way)
{
    visibility_state_release(&way->from);
    buffer_release(&way->names);
}
#define _cleanup_way_ _cleanup_(way_release)

static const struct seen_directory *seen_locked(const struct file_session *session,
                                                const struct node *dir)
{
    const struct node_ref *ref = table_get(&session->nodes, dir->number);
    if (!ref || !ref->seen || ref->seen->at < changed_last(session, dir->workspace))
        return NULL;
    return ref->seen;
}

/* -ESTALE: the place of dir, or of one above it, is not known. */
static int find_way_locked(const struct file_session *session, const struct node *dir,
                           struct way *way)
{
    size_t depth = 0;
    for (const struct node *n = dir;; n = n->parent) {
        const struct seen_directory *seen = seen_locked(session, n);
        if (seen)
            return visibility_state_copy(&seen->state, &way->from);
        if (n->root)
            break;
        if (!n->parent)
            return -ESTALE;
        if (depth++ == TREE_DEPTH_MAX)
            return -ENAMETOOLONG;
        size_t len = strlen(n->name);
        int r = buffer_append(&way->names, n->name, len);
        if (r == 0)
            r = buffer_append_u8(&way->names, (uint8_t)len);
        if (r < 0)
            return r;
    }
    way->from_root = true;
    return 0;
}

/* Goes the way; without the store's lock, since rules can be costly. */
static int go(const struct visibility_view *rules, struct way *way, struct visibility_state *ret)
{
    _cleanup_visibility_state_ struct visibility_state state = {0};
    int r = 0;
    if (way->from_root)
        r = visibility_state_root(rules, &state);
    else
        state = way->from;
    way->from = (struct visibility_state){0};
    while (r == 0 && way->names.len && state.own != VISIBILITY_HIDDEN) {
        size_t len = way->names.data[way->names.len - 1];
        way->names.len -= len + 1;
        struct visibility_state next;
        r = visibility_state_enter(rules, &state, bytes_of(way->names.data + way->names.len, len),
                                   &next);
        if (r == 0) {
            visibility_state_release(&state);
            state = next;
        }
    }
    if (r < 0)
        return r;
    *ret = state;
    state = (struct visibility_state){0};
    return 0;
}

/* Remembers dir's state, if there is memory for it and the session still holds dir. */
static void remember(struct file_session *session, const struct node *dir, uint64_t at,
                     const struct visibility_state *state)
{
    if (state->count > SEEN_LIVE_MAX)
        return;
    struct seen_directory *seen = malloc(sizeof *seen);
    if (!seen)
        return;
    seen->at = at;
    if (visibility_state_copy(state, &seen->state) < 0) {
        free(seen);
        return;
    }
    store_lock(session->store);
    struct node_ref *ref = table_get(&session->nodes, dir->number);
    if (ref && (!ref->seen || ref->seen->at <= at)) {
        view_forget(ref);
        ref->seen = take_ptr(seen);
        if (ref->seen_at < at)
            ref->seen_at = at;
    }
    store_unlock(session->store);
    if (seen) {
        visibility_state_release(&seen->state);
        free(seen);
    }
}

static void take_rules_locked(const struct file_session *session, const struct workspace *workspace,
                              struct visibility_view *ret)
{
    struct visibility_rules *const sources[VISIBILITY_SOURCES] = {
        [VISIBILITY_SERVICE] = session->store->rules,
        [VISIBILITY_WORKSPACE] = workspace->rules,
        [VISIBILITY_MOUNT] = session->rules,
    };
    for (size_t i = 0; i < VISIBILITY_SOURCES; i++)
        ret->sources[i] = sources[i] ? visibility_rules_ref(sources[i]) : NULL;
}

static bool any_rules(const struct visibility_view *rules)
{
    for (size_t i = 0; i < VISIBILITY_SOURCES; i++)
        if (rules->sources[i])
            return true;
    return false;
}

static bool any_hides(const struct visibility_view *rules)
{
    for (size_t i = 0; i < VISIBILITY_SOURCES; i++)
        if (hides(rules->sources[i]))
            return true;
    return false;
}

int view_open(struct file_session *session, struct node *dir, struct view *ret)
{
    struct store *store = session->store;
    _cleanup_(view_close) struct view view = {0};
    _cleanup_way_ struct way way = {0};
    int r = 0;
    store_lock(store);
    take_rules_locked(session, dir->workspace, &view.rules);
    view.at = store->view_changes;
    bool rules = any_rules(&view.rules);
    if (rules)
        r = find_way_locked(session, dir, &way);
    store_unlock(store);
    bool found_out = r == 0 && (way.from_root || way.names.len);
    if (!rules)
        view.dir.root = dir->root;
    else if (r == 0)
        r = go(&view.rules, &way, &view.dir);
    else if (r == -ESTALE && !any_hides(&view.rules))
        r = 0; /* nowhere: shown, and no pattern with a slash fits */
    if (r < 0)
        return r;
    if (view.dir.own == VISIBILITY_HIDDEN)
        return -ESTALE;
    if (found_out)
        remember(session, dir, view.at, &view.dir);
    *ret = view;
    view = (struct view){0};
    return 0;
}

void view_close(struct view *view)
{
    for (size_t i = 0; i < VISIBILITY_SOURCES; i++)
        visibility_rules_unref(view->rules.sources[i]);
    visibility_state_release(&view->dir);
    *view = (struct view){0};
}

/* --- a node --------------------------------------------------------------------------- */

static void note_seen(struct file_session *session, const struct node *node, uint64_t at)
{
    store_lock(session->store);
    struct node_ref *ref = table_get(&session->nodes, node->number);
    if (ref && ref->seen_at < at)
        ref->seen_at = at;
    store_unlock(session->store);
}

int view_check(struct file_session *session, struct node *node)
{
    _cleanup_(view_close) struct view view = {0};
    _cleanup_node_ struct node *parent = NULL;
    char name[WIRE_NAME_MAX + 1];
    bool directory = node->type == S_IFDIR;
    if (!directory && node_place(node, &parent, name) < 0)
        return 0; /* it was unlinked, or is used through a handle */
    int r = view_open(session, directory ? node : parent, &view);
    if (r == 0 && !directory && view_of(&view, bytes_of_string(name), false) == VISIBILITY_HIDDEN)
        r = -ESTALE;
    if (r == 0)
        note_seen(session, node, view.at);
    return r;
}

/* --- status ----------------------------------------------------------------------------- */

static json_int_t count_of(const struct visibility_rules *rules)
{
    return rules ? (json_int_t)visibility_rules_count(rules) : 0;
}

static int add_counts(json_t *object, const struct visibility_rules *rules, uint64_t unlisted,
                      uint64_t hidden)
{
    if (json_object_set_new(object, "rules", json_integer(count_of(rules))) < 0 ||
        json_object_set_new(object, "unlisted", json_integer((json_int_t)unlisted)) < 0 ||
        json_object_set_new(object, "hidden", json_integer((json_int_t)hidden)) < 0)
        return -ENOMEM;
    return 0;
}

static int add_workspaces_locked(const struct store *store, json_t *list, uint64_t *ret_unlisted,
                                 uint64_t *ret_hidden)
{
    const struct workspace *w;
    for (size_t i = 0; (w = table_next(&store->workspaces, &i));) {
        uint64_t unlisted = atomic_load(&w->unlisted), hidden = atomic_load(&w->hidden);
        *ret_unlisted += unlisted;
        *ret_hidden += hidden;
        if ((!w->rules && !unlisted && !hidden) || json_array_size(list) == STATUS_WORKSPACES_MAX)
            continue;
        json_t *one = json_object();
        if (json_array_append_new(list, one) < 0 ||
            json_object_set_new(one, "name", json_string(w->name)) < 0 ||
            add_counts(one, w->rules, unlisted, hidden) < 0)
            return -ENOMEM;
    }
    return 0;
}

int view_status(struct store *store, json_t *object)
{
    json_t *all = json_object(), *list = json_array();
    uint64_t unlisted = 0, hidden = 0;
    if (json_object_set_new(object, "visibility", all) < 0 ||
        json_object_set_new(all, "workspaces", list) < 0)
        return -ENOMEM;
    store_lock(store);
    int r = add_workspaces_locked(store, list, &unlisted, &hidden);
    store_unlock(store);
    return r < 0 ? r : add_counts(all, store->rules, unlisted, hidden);
}
