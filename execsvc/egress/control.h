/* What the process that has a proxy is told by the one that keeps commands: messages on a
 * SOCK_SEQPACKET socket, of which one is never answered. */
#pragma once

#include <stdint.h>

#include "egress/allow_list.h"

/* A message with ALLOW_ENTRIES_MAX entries and a name fits. */
#define CONTROL_MESSAGE_MAX ((size_t)128 << 10)

enum control_kind {
    CONTROL_OPEN,   /* egress_open */
    CONTROL_CHANGE, /* egress_change */
    CONTROL_CLOSE,  /* egress_close */
};

struct control_message {
    enum control_kind kind;
    uint64_t id;
    char *name;              /* OPEN */
    struct allow_list *list; /* OPEN, CHANGE */
    int listener;            /* OPEN */
};

/* Nothing is taken. -EAGAIN: not now; -ENOMEM; others: it is gone. */
int control_send(int fd, const struct control_message *m);

/* 1 and a message, which the caller releases; 0: the other end has gone; -EAGAIN; -EBADMSG;
 * -ENOMEM.
 */
int control_receive(int fd, struct control_message *ret);
void control_message_release(struct control_message *m);
#define _cleanup_control_message_ _cleanup_(control_message_release)
