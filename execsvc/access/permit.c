#include "access/permit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "names/thread_id.h"

unsigned permit_verbs(const struct wire_message *m)
{
    enum wire_verb verb = wire_row(m->type)->verb;
    unsigned verbs = verb == WIRE_VERB_NONE ? 0 : 1u << verb;
    if (m->type == WIRE_OPEN &&
        (m->open.flags & (WIRE_OPEN_WRITE | WIRE_OPEN_APPEND | WIRE_OPEN_TRUNCATE)))
        verbs |= GRANT_VERB(WRITE);
    if (m->type == WIRE_CREATE && (m->create.flags & WIRE_OPEN_READ))
        verbs |= GRANT_VERB(READ);
    if (m->type == WIRE_COPY)
        verbs |= GRANT_VERB(READ);
    if (m->type == WIRE_WORKSPACE_CREATE &&
        (m->workspace_create.flags & WIRE_WORKSPACE_FROM_WORKSPACE))
        verbs |= GRANT_VERB(READ);
    if (m->type == WIRE_LOCK_SET && m->lock_set.type == WIRE_LOCK_WRITE)
        verbs |= GRANT_VERB(WRITE);
    return verbs;
}

/* --- workspaces ------------------------------------------------------------------------------- */

static const void *field_of(const struct wire_message *m, const struct wire_field *field)
{
    return (const uint8_t *)m + field->offset;
}

static uint32_t flags_of(const struct wire_message *m, const char *name)
{
    const struct wire_row *row = wire_row(m->type);
    for (size_t i = 0; i < row->field_count; i++)
        if (row->fields[i].type == WIRE_FIELD_U32 && strcmp(row->fields[i].name, name) == 0)
            return *(const uint32_t *)field_of(m, &row->fields[i]);
    return 0;
}

/* No other field has the bound of a thread ID. */
struct bytes permit_workspace(const struct wire_message *m, bool *ret_by_name)
{
    const struct wire_row *row = wire_row(m->type);
    for (size_t i = 0; i < row->field_count; i++) {
        const struct wire_field *field = &row->fields[i];
        if (field->type != WIRE_FIELD_BYTES || field->max != WIRE_THREAD_ID_MAX)
            continue;
        bool named = strcmp(field->name, "workspace") == 0;
        *ret_by_name = strcmp(field->name, "thread_id") != 0 &&
                       (flags_of(m, named ? "workspace_flags" : "flags") & WIRE_WORKSPACE_BY_NAME);
        return *(const struct bytes *)field_of(m, field);
    }
    *ret_by_name = false;
    return (struct bytes){0};
}

/* Only of names that were shortened does the disk know the ID. */
static bool covers_name(const struct grant *grant, struct store *store, struct bytes name)
{
    uint8_t id[THREAD_ID_MAX];
    struct workspace *workspace;
    int r = thread_id_from_name(name, id);
    if (r >= 0)
        return grant_covers(grant, bytes_of(id, (size_t)r));
    if (r != -ENODATA || store_workspace_find(store, name, WIRE_WORKSPACE_BY_NAME, &workspace) < 0)
        return false;
    bool covers = grant_covers(grant, workspace_thread_id(workspace));
    workspace_unref(workspace);
    return covers;
}

/* Of its ID, that is there since. Whatever is asked for: what lists workspaces would show it. */
static bool is_another(const struct grant *grant, struct store *store)
{
    uint32_t slot = store_workspace_slot(store, bytes_of(grant->only, grant->only_len));
    return slot != 0 && slot != grant->only_slot;
}

/* --- all -------------------------------------------------------------------------------------- */

int permit_check(const struct grant *grant, struct store *store, const struct wire_message *m,
                 char ret_text[PERMIT_TEXT_MAX])
{
    unsigned missing = permit_verbs(m) & ~grant->verbs;
    if (missing) {
        char words[64];
        (void)snprintf(ret_text, PERMIT_TEXT_MAX, "%s may not do this: it was not granted %s",
                       grant->id, grant_verbs_text(missing, words, sizeof words));
        return -EACCES;
    }
    if (grant->everything)
        return 0;
    if (grant->issuer && is_another(grant, store)) {
        (void)snprintf(
            ret_text, PERMIT_TEXT_MAX,
            "no such workspace: the one that this token was for is gone, and another has "
            "its ID");
        return -ENOENT;
    }
    bool by_name;
    struct bytes key = permit_workspace(m, &by_name);
    if (m->type == WIRE_WORKSPACE_CREATE &&
        (m->workspace_create.flags & WIRE_WORKSPACE_FROM_WORKSPACE) &&
        !grant_covers(grant, m->workspace_create.source)) {
        (void)snprintf(ret_text, PERMIT_TEXT_MAX,
                       "no such workspace to start from, or %s may not see it", grant->id);
        return -ENOENT;
    }
    if (key.len == 0 || (by_name ? covers_name(grant, store, key) : grant_covers(grant, key)))
        return 0;
    if (m->type == WIRE_WORKSPACE_CREATE) {
        (void)snprintf(ret_text, PERMIT_TEXT_MAX,
                       "%s may not make this workspace: no pattern granted to it matches",
                       grant->id);
        return -EACCES;
    }
    (void)snprintf(ret_text, PERMIT_TEXT_MAX, "no such workspace, or %s may not see it", grant->id);
    return -ENOENT;
}
