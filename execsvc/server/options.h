/* The command line of berthd. */
#pragma once

#include "config/config.h"

struct options {
    bool stdio;
    bool serve;  /* be the service: what berthd starts for itself (server/starter.h) */
    bool keeper; /* be the keeper of commands: what the service starts for itself (keeper/process.h)
                  */
    bool keeper_unit;   /* be the keeper that a service asks for (keeper_unit.h) */
    const char *egress; /* not NULL: be the proxy of commands, with these limits; what the keeper
                         * starts for itself (egress/process.h) */
    bool gateway;       /* answer HTTP: what the starter starts for itself (gateway/process.h) */
    uint64_t keep_s;
    const char *keeper_name;
    struct service_flags flags;
    const char *listen[CONFIG_LISTEN_MAX]; /* flags.listen points here */
};

enum { OPTIONS_RUN = 0, OPTIONS_EXIT = 1 };

/* OPTIONS_RUN; OPTIONS_EXIT after --help or --version was answered on standard output; -EINVAL
 * after the mistake was named on standard error. */
int options_parse(int argc, char **argv, struct options *ret);
