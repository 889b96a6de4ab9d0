/* What `berth` leaves to berth-network, so that it starts without libcurl, OpenSSL and libarchive:
 * a command that goes over a mount's connection, a holder's or a unix socket needs neither. */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/doctor_certificate.h"
#include "cli/programs.h"
#include "cli/tree_call.h"

int cli_need_network(struct cli *cli, struct failure *ret_failure)
{
    _cleanup_free_ char *program = NULL;
    if (cli->under_way)
        return failure_set(ret_failure, -EPROTONOSUPPORT, "nobody holds a connection to %s",
                           cli->settings.url);
    int r = program_find_network(&program);
    if (r == 0) {
        /* What is still in the buffers of stdio will be said again. */
        (void)execv(program, cli->words);
        r = -errno;
    }
    return failure_set(ret_failure, r,
                       "%s, which makes connections over the network and reads archives: %s",
                       program ? program : program_network_place, strerror(-r));
}

void doctor_check_certificates(struct doctor *d)
{
    if (d->cli->settings.ca_file || d->cli->settings.cert_file)
        doctor_problem(d, "install Berth anew",
                       "certificates cannot be looked at without %s, which is not found",
                       PROGRAM_NETWORK);
}

/* Whoever would call these has become berth-network before. */
int archive_upload(struct cli *cli, const char *file, struct tree_call *call,
                   struct progress *progress)
{
    return -EPROTONOSUPPORT;
}

int archive_download(struct cli *cli, const char *id, const char *file, const char *compression,
                     struct tree_call *call)
{
    tree_call_drop(call);
    return -EPROTONOSUPPORT;
}
