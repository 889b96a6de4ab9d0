/* Standard input on its way to a command, over one connection after the other: what may have been
 * lost with one is kept, and sent again on the next. */
#pragma once

#include <event2/event.h>

#include "client/client.h"

struct exec_input;

/* Nothing is read before exec_input_connect. -ENOMEM. */
int exec_input_new(struct event_base *base, struct exec_input **ret);
void exec_input_free(struct exec_input *in);

/* From now on it goes to this call, of whose input the service has received so many bytes. -ERANGE:
 * what comes next is not kept any more. */
int exec_input_connect(struct exec_input *in, struct client *client, uint64_t tag,
                       uint64_t received);
/* There is no connection now. */
void exec_input_disconnect(struct exec_input *in);

/* Credit has come. */
void exec_input_writable(struct exec_input *in);
