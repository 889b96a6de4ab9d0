/* Tells subscribers what requests change. */
#pragma once

#include "store/changes.h"

/* What must be looked up before the request is carried out. */
struct publication {
    struct node *victim; /* a file about to lose a name that others may know by another one */
};

/* Nothing is done, and nothing costs anything, while nobody else is subscribed. */
void publish_before(struct file_session *session, const struct wire_message *request,
                    struct publication *ret);

/* result: the operation's. Releases what publish_before took. */
void publish_after(struct file_session *session, const struct wire_message *request, int result,
                   struct publication *publication);
