#include "server/call.h"

#include "base/cleanup.h"
#include "server/account.h"
#include "server/connection_private.h"
#include "server/server.h"

bool call_connected(const struct call *c)
{
    return connection_alive(c->connection);
}

bool call_is_abandoned(const struct call *c)
{
    return c->connection->peer.local && !c->connection->server->stopping;
}

bool call_shows(const struct call *c, struct bytes thread_id)
{
    return grant_covers(connection_grant(c->connection), thread_id);
}

bool call_shows_all(const struct call *c)
{
    return connection_grant(c->connection)->everything;
}

/* A failed send leaves the call open, so that its owner can still end it. */
static int call_result(struct call *c, int r)
{
    if (r == -ENOMEM)
        connection_end(c->connection, LOG_LEVEL_ERROR, "no memory for a message");
    else
        connection_flush(c->connection);
    return r;
}

void call_set_events(struct call *c, const struct call_events *events)
{
    c->events = *events;
}

int call_send(struct call *c, const struct wire_message *message)
{
    if (!connection_alive(c->connection))
        return -ENOTCONN;
    return call_result(c, session_send(connection_session(c->connection), c->tag, message));
}

int call_send_kept(struct call *c, const struct wire_message *message)
{
    if (!connection_answers(c->connection))
        return -ENOTCONN;
    return call_result(c, session_send(connection_session(c->connection), c->tag, message));
}

size_t call_credit(const struct call *c)
{
    struct connection *connection = c->connection;
    if (!connection_alive(connection) || connection_stream_room(connection) == 0)
        return 0;
    return session_credit(connection_session(connection), c->tag);
}

int call_grant(struct call *c, size_t bytes)
{
    if (!connection_alive(c->connection))
        return -ENOTCONN;
    return call_result(c, session_grant(connection_session(c->connection), c->tag, bytes));
}

static void call_end(struct call *c)
{
    struct connection *connection = c->connection;
    connection_remove_call(connection, c);
    connection_flush(connection);
    connection_discharge(connection, c->cost);
    free(c);
}

/* A call that cannot be answered would keep its caller waiting for ever. */
static void call_unanswerable(struct call *c)
{
    connection_end(c->connection, LOG_LEVEL_ERROR, "no memory for a reply");
}

void call_reply(struct call *c, const struct wire_message *message)
{
    account_end(take_ptr(c->account), message);
    if (connection_answers(c->connection)) {
        struct session *session = connection_session(c->connection);
        int r = session_send(session, c->tag, message);
        if (r < 0 && r != -ENOMEM) {
            /* The reply breaks the table's bounds, or is more than the client takes. */
            log_error("the reply to %s cannot be sent: %s", c->row->name, strerror(-r));
            r = session_send_error(session, c->tag, r == -EMSGSIZE ? r : -EIO,
                                   "the service could not send its reply");
        }
        if (r < 0)
            call_unanswerable(c);
    }
    call_end(c);
}

void call_reply_error(struct call *c, int error, const char *text)
{
    account_end_error(take_ptr(c->account), error, text);
    if (connection_answers(c->connection) &&
        session_send_error(connection_session(c->connection), c->tag, error, text) < 0)
        call_unanswerable(c);
    call_end(c);
}
