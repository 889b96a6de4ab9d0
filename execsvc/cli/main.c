#include <signal.h>
#include <stdlib.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/here.h"

int main(int argc, char **argv)
{
    struct cli cli = {0};
    log_setup("berth", LOG_LEVEL_WARNING);
    /* A service or a reader that goes away is an error to be told, not a silent death. */
    (void)signal(SIGPIPE, SIG_IGN);
    int status = cli_main(&cli, argc, argv);
    client_settings_release(&cli.settings);
    free(cli.place_url);
    if (cli.stands)
        here_release(cli.stands);
    free(cli.stands);
    return status;
}
