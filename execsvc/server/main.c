#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "egress/process.h"
#include "gateway/process.h"
#include "keeper/process.h"
#include "server/activation.h"
#include "server/keeper_unit.h"
#include "server/options.h"
#include "server/service.h"
#include "server/starter.h"
#include "server/stdio_relay.h"

static enum log_level log_level_of(const struct options *options)
{
    for (enum log_level level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++)
        if (options->flags.log_level &&
            strcmp(options->flags.log_level, log_level_name(level)) == 0)
            return level;
    return LOG_LEVEL_INFO;
}

/* No configuration is read: the service that starts it has. */
static int keep_commands(const struct options *options)
{
    struct failure failure;
    const struct keeper_settings settings = {.root = options->flags.root,
                                             .name = options->keeper_name,
                                             .keep_s = options->keep_s,
                                             .log_level = log_level_of(options)};
    log_setup("berth-keeper", settings.log_level);
    int r = settings.root ? keeper_process_run(&settings, &failure)
                          : failure_set(&failure, -EINVAL, "no --root");
    if (r < 0)
        log_error("%s", failure.text);
    return r < 0 ? 1 : 0;
}

static int be_keeper_unit(void)
{
    struct failure failure;
    int r = keeper_unit_run(&failure);
    if (r < 0)
        log_error("%s", failure.text);
    return r < 0 ? 1 : 0;
}

static int be_egress(const struct options *options)
{
    struct failure failure;
    int r = egress_process_run(options->egress, log_level_of(options), &failure);
    if (r < 0)
        log_error("%s", failure.text);
    return r < 0 ? 1 : 0;
}

static int be_gateway(const struct options *options)
{
    struct failure failure;
    struct gateway_settings settings = {.root = options->flags.root};
    log_setup("berthd-gateway", log_level_of(options));
    int r = settings.root && options->flags.confine
                ? config_confine_parse(options->flags.confine, &settings.confine)
                : -EINVAL;
    if (r < 0)
        return 2;
    r = gateway_process_run(&settings, &failure);
    if (r < 0)
        log_error("%s", failure.text);
    return r < 0 ? 1 : 0;
}

/* What it was started with, besides what its settings name. */
static int serve_here(struct service_settings *settings, int *ret_status,
                      struct failure *ret_failure)
{
    _cleanup_activation_ struct activation activation = {.count = 0};
    int r = activation_take(&activation, ret_failure);
    for (size_t i = 0; r == 0 && i < activation.count; i++)
        r = service_settings_listen(settings, activation.list[i].url, "LISTEN_FDS", ret_failure);
    return r < 0 ? r : starter_run(settings, &activation, ret_status, ret_failure);
}

/* Exit status: 0 an orderly end, 1 a failure that was logged, 2 a mistake in the arguments. */
int main(int argc, char **argv)
{
    struct options options;
    /* A descriptor 0, 1 or 2 that is closed would become a socket that log lines go to. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && (file_open_null() != fd || fcntl(fd, F_SETFD, 0) < 0))
            return 1;
    int r = options_parse(argc, argv, &options);
    if (r != OPTIONS_RUN)
        return r < 0 ? 2 : 0;
    if (options.keeper)
        return keep_commands(&options);
    if (options.keeper_unit)
        return be_keeper_unit();
    if (options.egress)
        return be_egress(&options);
    if (options.gateway)
        return be_gateway(&options);
    log_setup("berthd", LOG_LEVEL_INFO);
    _cleanup_service_settings_ struct service_settings settings = {0};
    struct failure failure;
    int status = 0;
    r = service_settings_load(&options.flags, &settings, &failure);
    /* The caller may stand in a mount of this very service: a working directory there would keep
     * it busy for ever. All settings are absolute. */
    if (r == 0 && chdir("/") < 0)
        r = failure_set(&failure, -errno, "/: %s", strerror(errno));
    if (r == 0) {
        log_setup("berthd", settings.log_level);
        if (options.serve)
            r = service_run(&settings, &failure);
        else
            r = options.stdio ? stdio_run(&settings, &failure)
                              : serve_here(&settings, &status, &failure);
    }
    if (r < 0)
        log_error("%s", failure.text);
    return r < 0 ? 1 : status;
}
