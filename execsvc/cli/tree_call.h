/* Calls that move whole trees, from the command line: items go to and come from files, archives and
 * directories of this machine. Each has a connection of its own. */
#pragma once

#include "cli/cli.h"
#include "terminal/progress.h"
#include "wire/tree_batch.h"

struct tree_call;

/* Connects and sends the request. 0, or a negative errno; the failure has been printed. */
int tree_call_begin(struct cli *cli, const struct wire_message *request, struct tree_call **ret);

/* A sink's part (context: the call): sends items, and waits for credit. -ECANCELED: the service has
 * answered already. */
int tree_call_part(void *call, const struct wire_list *items);

/* There are no more items. A negative errno: see tree_call_finish. */
int tree_call_end_items(struct tree_call *call);

/* The next items of the service: 1 and *ret, which last until the next call, and *ret_total; 0:
 * there are none any more. */
int tree_call_next(struct tree_call *call, struct wire_list *ret, uint64_t *ret_total);

/* Waits for the reply, which the caller frees, and frees the call. */
int tree_call_finish(struct tree_call *call, struct wire_frame **ret, struct failure *ret_failure);

/* Frees the call; the service is told that nobody wants it. NULL is allowed. */
void tree_call_drop(struct tree_call *call);

/* Sends an archive's items, from a file (- is standard input) or as they come. The failure has been
 * printed. In berth-network; `berth` becomes that before. progress counts bytes. */
int archive_upload(struct cli *cli, const char *file, struct tree_call *call,
                   struct progress *progress);

/* Writes the call's items to an archive: "-" or NULL is standard output. Its name tells whether it
 * is compressed, unless `compression` does. A file is there whole, or is left as it was. */
int archive_download(struct cli *cli, const char *id, const char *file, const char *compression,
                     struct tree_call *call);
