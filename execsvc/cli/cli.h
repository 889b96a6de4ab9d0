/* What the subcommands of `berth` share: global options, settings, the connection, help and
 * exit statuses. Each subcommand is one file, cmd_NAME.c, and one row of the table in
 * commands.c. */
#pragma once

#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "base/failure.h"
#include "client/client.h"
#include "config/config.h"

struct here;

/* Documented and stable. `berth exec` has others of its own (exec_result.h). */
enum cli_status {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2, /* the command line itself is wrong; nothing was done */
};

struct cli {
    struct client_flags flags; /* global options as given; borrowed from argv */
    struct client_flags given; /* the same before cli_use_here */
    const struct here *here;   /* cli_use_here; borrowed */
    struct here *stands;       /* which.h; owned */
    bool url_given;            /* client_flags_name_service */
    bool settings_loaded;
    struct client_settings settings; /* valid after cli_load_settings() */
    const char *control;             /* socket of the mount that here is in, or NULL; borrowed */
    bool passive;                    /* no holder is started, and no command of an exec URL */
    char **words;                    /* the whole command line; borrowed */
    bool silent;                     /* names of what is made are not printed */
    bool under_way;                  /* something has been done that must not be done again */
    const char *way;                 /* what cli_connect_warm found: "mount", "holder", "direct" */
    char *place_url; /* of the workspace's place, when that is the URL (at_place.h) */
    const struct cli_command *command; /* the one that runs */
};

struct cli_command {
    const char *name;
    /* argv[0] is the command's name. Returns the exit status. Everything there is to say has
     * been printed. optind has been reset, so getopt_long may be used at once. */
    int (*run)(struct cli *cli, int argc, char **argv);
    const char *summary; /* one line of `berth --help`; NULL: not for people */
    const char *usage;   /* `berth help NAME`: usage, what it does, options, examples */
    bool changes;        /* a workspace: where an ID may be that of another one, it refuses */
};

/* The table, in the order of the help page; ends with a row without a name. */
extern const struct cli_command cli_commands[];

int cmd_create(struct cli *cli, int argc, char **argv);
int cmd_ls(struct cli *cli, int argc, char **argv);
int cmd_rm(struct cli *cli, int argc, char **argv);
int cmd_label(struct cli *cli, int argc, char **argv);
int cmd_ttl(struct cli *cli, int argc, char **argv);
int cmd_stop(struct cli *cli, int argc, char **argv);
int cmd_start(struct cli *cli, int argc, char **argv);
int cmd_snapshot(struct cli *cli, int argc, char **argv);
int cmd_fork(struct cli *cli, int argc, char **argv);
int cmd_export(struct cli *cli, int argc, char **argv);
int cmd_import(struct cli *cli, int argc, char **argv);
int cmd_mount(struct cli *cli, int argc, char **argv);
int cmd_umount(struct cli *cli, int argc, char **argv);
int cmd_exec(struct cli *cli, int argc, char **argv);
int cmd_shell(struct cli *cli, int argc, char **argv);
int cmd_ps(struct cli *cli, int argc, char **argv);
int cmd_logs(struct cli *cli, int argc, char **argv);
int cmd_attach(struct cli *cli, int argc, char **argv);
int cmd_wait(struct cli *cli, int argc, char **argv);
int cmd_kill(struct cli *cli, int argc, char **argv);
int cmd_provider(struct cli *cli, int argc, char **argv);
int cmd_policy(struct cli *cli, int argc, char **argv);
int cmd_visibility(struct cli *cli, int argc, char **argv);
int cmd_status(struct cli *cli, int argc, char **argv);
int cmd_top(struct cli *cli, int argc, char **argv);
int cmd_connection(struct cli *cli, int argc, char **argv);
int cmd_cache(struct cli *cli, int argc, char **argv);
int cmd_token(struct cli *cli, int argc, char **argv);
int cmd_doctor(struct cli *cli, int argc, char **argv);
int cmd_complete(struct cli *cli, int argc, char **argv);
int cmd_help(struct cli *cli, int argc, char **argv);

/* Their help pages, beside them. */
extern const char create_usage[];
extern const char ls_usage[];
extern const char rm_usage[];
extern const char label_usage[];
extern const char ttl_usage[];
extern const char stop_usage[];
extern const char start_usage[];
extern const char snapshot_usage[];
extern const char fork_usage[];
extern const char export_usage[];
extern const char import_usage[];
extern const char mount_usage[];
extern const char umount_usage[];
extern const char shell_usage[];
extern const char ps_usage[];
extern const char logs_usage[];
extern const char attach_usage[];
extern const char wait_usage[];
extern const char kill_usage[];
extern const char provider_usage[];
extern const char policy_usage[];
extern const char visibility_usage[];
extern const char status_usage[];
extern const char top_usage[];
extern const char connection_usage[];
extern const char cache_usage[];
extern const char token_usage[];
extern const char doctor_usage[];
extern const char help_usage[];

/* The whole program but its process-wide settings; returns the exit status. */
int cli_main(struct cli *cli, int argc, char **argv);

/* Takes an option that stands before a command, as getopt would; next: the word behind it, or NULL.
 * Returns how many words that were. */
int cli_take_word(struct cli *cli, const char *word, const char *next);

/* The row of a name, or NULL. */
const struct cli_command *cli_find_command(const char *name);

#define CLI_AGENT "berth " BERTH_VERSION

/* Appends what cli_error prints. -ENOMEM. */
struct buffer;
__attribute__((format(printf, 3, 0))) int cli_error_line(const struct cli *cli, struct buffer *line,
                                                         const char *format, va_list args);

/* Prints "berth: COMMAND: sentence" on standard error. Control characters of the sentence
 * come out as \xNN, since it may hold what a peer chose. */
void cli_error(const struct cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints the sentence and where the command's help is, and returns CLI_USAGE. */
int cli_usage_error(const struct cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints the running command's help on standard output and returns CLI_OK. */
int cli_show_help(const struct cli *cli);

/* For '?' and ':' of getopt_long, with opterr = 0 and short options that begin with ':' (or
 * "+:"): says which option is wrong and why. Returns CLI_USAGE. */
int cli_option_error(const struct cli *cli, int option, char **argv);

/* Flushes standard output. CLI_FAILED, with a message, when it could not be written; else
 * status. Every command that prints returns through it: a full disk is not a success. */
int cli_finish_output(const struct cli *cli, int status);

/* Fills cli->settings from flags, environment, configuration file and defaults, once. False:
 * a message has been printed. */
bool cli_load_settings(struct cli *cli);

/* From now on the service is that of this mount, unless the user named one (--url, --service, …).
 * here must outlive the use of cli; call it before cli_load_settings and cli_connect. The
 * mount's files beat those of the environment and of the configuration, which belong to another
 * URL; explicit flags beat the mount's. */
void cli_use_here(struct cli *cli, const struct here *here);

/* The same with the mount that the working directory is in, if it is in one. False: it may be in
 * one, which does not tell its service. */
bool cli_use_working_directory(struct cli *cli, struct here *here);

/* Back to what was given, and to no mount. */
void cli_leave_here(struct cli *cli);

/* Before this program connects over the network itself, or looks into certificates. `berth` can do
 * neither: it becomes berth-network, the same program with libcurl and OpenSSL, which begins from
 * the start, and this does not return. -EPROTONOSUPPORT: it is too late for that. Others: there is
 * no such program. */
int cli_need_network(struct cli *cli, struct failure *ret_failure);

/* A connection of this process's own, without a word. The settings have been loaded. */
int cli_connect_alone(struct cli *cli, struct client **ret, struct failure *ret_failure);

/* Connects. 0; or a negative errno, and the failure has been printed. */
int cli_connect(struct cli *cli, struct client **ret);

/* The same over a connection that is there already, if one is: a mount's, or that of a connection
 * holder (warm.h). */
int cli_connect_warm(struct cli *cli, struct client **ret);

/* The same without a word. The settings have been loaded. */
int cli_reach_warm(struct cli *cli, struct client **ret, struct failure *ret_failure);

/* One call of a command that does one thing at a time; waits at most CLI_CALL_TIMEOUT_MS.
 * As client_call_sync; prints nothing. */
#define CLI_CALL_TIMEOUT_MS 120000 /* removing a large workspace takes its time */
int cli_call(struct client *client, const struct wire_message *request, struct wire_frame **ret,
             struct failure *ret_failure);
