#include "server/account.h"

#include <string.h>

#include "access/permit.h"
#include "names/thread_id.h"
#include "server/connection_private.h"

struct account {
    struct audit *audit;
    uint64_t connection;
    enum wire_type type;
    char identity[GRANT_ID_MAX + 1];
    char peer[sizeof((struct peer *)0)->name];
    char workspace[THREAD_NAME_MAX + 1];
    char exec[WIRE_EXEC_ID_MAX];
    size_t exec_len;
};

static bool has_line(const struct wire_row *row)
{
    unsigned group = (unsigned)row->type >> 8;
    return row->class == WIRE_CLASS_REQUEST && row->verb != WIRE_VERB_NONE &&
           (group == 1 || group == 3 || group == 5);
}

static struct bytes exec_of(const struct wire_message *m)
{
    const struct wire_row *row = wire_row(m->type);
    for (size_t i = 0; i < row->field_count; i++)
        if (row->fields[i].max == WIRE_EXEC_ID_MAX && strcmp(row->fields[i].name, "id") == 0)
            return *(const struct bytes *)(const void *)((const uint8_t *)m +
                                                         row->fields[i].offset);
    return (struct bytes){0};
}

static void fill(const struct connection *c, const struct wire_message *m, struct account *ret)
{
    bool by_name;
    struct bytes key = permit_workspace(m, &by_name), exec = exec_of(m);
    *ret = (struct account){
        .audit = c->server->audit, .connection = c->id, .type = m->type, .exec_len = exec.len};
    (void)snprintf(ret->identity, sizeof ret->identity, "%s", c->grant->id);
    (void)snprintf(ret->peer, sizeof ret->peer, "%s", c->peer.name);
    if (key.len > 0 && (by_name || thread_id_to_name(key, ret->workspace) < 0))
        (void)log_escape(key.data, key.len, ret->workspace, sizeof ret->workspace);
    if (exec.len > 0)
        memcpy(ret->exec, exec.data, exec.len);
}

static void put(const struct account *a, const char *outcome, const char *text)
{
    const struct wire_row *row = wire_row(a->type);
    const struct audit_entry entry = {.connection = a->connection,
                                      .identity = a->identity,
                                      .peer = a->peer,
                                      .verb = wire_verb_name(row->verb),
                                      .message = row->name,
                                      .workspace = a->workspace[0] ? a->workspace : NULL,
                                      .exec = bytes_of(a->exec, a->exec_len),
                                      .outcome = outcome,
                                      .text = text};
    audit_write(a->audit, &entry);
}

static const char *error_name(int error)
{
    const char *name = strerrorname_np(-error);
    return name ? name : "EIO";
}

/* --- connections --------------------------------------------------------------------- */

void account_connected(const struct connection *c, const char *why)
{
    const struct audit_entry entry = {.connection = c->id,
                                      .identity = c->grant ? c->grant->id : NULL,
                                      .peer = c->peer.name,
                                      .message = "CONNECT",
                                      .outcome = why ? "EACCES" : "ok",
                                      .text = why};
    if (!why || c->server->log_suppressed == 0)
        audit_write(c->server->audit, &entry);
}

/* --- calls --------------------------------------------------------------------------- */

bool account_allows(const struct connection *c, const struct wire_message *m)
{
    bool ends = m->type == WIRE_EXEC_KILL || m->type == WIRE_WORKSPACE_REMOVE;
    return ends || !has_line(wire_row(m->type)) || audit_works(c->server->audit);
}

void account_forbidden(const struct connection *c, const struct wire_message *m, int error,
                       const char *text)
{
    struct account a;
    if (!c->server->audit || c->server->log_suppressed > 0)
        return;
    fill(c, m, &a);
    put(&a, error_name(error), text);
}

struct account *account_begin(const struct connection *c, const struct wire_message *m)
{
    if (!c->server->audit || !has_line(wire_row(m->type)))
        return NULL;
    struct account a, *kept = malloc(sizeof *kept);
    fill(c, m, &a);
    if (kept)
        *kept = a;
    /* A command may run for longer than anybody waits to hear of it. */
    if (!kept || m->type == WIRE_EXEC)
        put(&a, "begun", NULL);
    return kept;
}

void account_end(struct account *account, const struct wire_message *reply)
{
    char text[48] = "ok", why[1024] = "";
    if (!account)
        return;
    if (reply->type == WIRE_EXEC_EXIT) {
        const struct wire_exec_exit *e = &reply->exec_exit;
        const char *name = wire_verdict_name(e->verdict);
        if (e->verdict == WIRE_VERDICT_EXITED || e->verdict == WIRE_VERDICT_SIGNALED)
            (void)snprintf(text, sizeof text, "%s %u", name,
                           e->verdict == WIRE_VERDICT_EXITED ? e->code : e->signal);
        else
            (void)snprintf(text, sizeof text, "%s", name ? name : "unknown");
        /* The service's own words; those of other stages have the command's in them. */
        if (e->verdict == WIRE_VERDICT_NOT_STARTED &&
            (e->stage == WIRE_STAGE_CONFINE || e->stage == WIRE_STAGE_ATTEST))
            (void)log_escape(e->text.data, e->text.len, why, sizeof why);
    }
    put(account, text, why[0] ? why : NULL);
    free(account);
}

void account_end_error(struct account *account, int error, const char *text)
{
    if (!account)
        return;
    put(account, error_name(error), text && text[0] ? text : NULL);
    free(account);
}

void account_end_gone(struct account *account)
{
    if (!account)
        return;
    put(account, "gone", NULL);
    free(account);
}
