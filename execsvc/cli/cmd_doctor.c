#include <stdio.h>
#include <string.h>

#include "cli/doctor.h"
#include "cli/text.h"
#include "stream/url.h"

const char doctor_usage[] =
    "usage: berth doctor\n"
    "Looks at all that mounts and commands need on this machine, and at the service, and says\n"
    "what is wrong and what to do about it. Fails when there is a problem; warnings are about\n"
    "what works but could be better, or may be meant; notes about what cannot be seen from here,\n"
    "or only some need.\n"
    "\n"
    "Examples\n"
    "  berth doctor\n"
    "  berth --url https://build.example.org:7443 doctor\n";

static const struct option options[] = {
    {"help", no_argument, NULL, 'h'},
    {0},
};

__attribute__((format(printf, 2, 0))) static void print_line(const char *word, const char *format,
                                                             va_list args)
{
    _cleanup_free_ char *text = NULL;
    _cleanup_buffer_ struct buffer line = {0};
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    if (text && text_escape(&line, bytes_of_string(text), TEXT_SENTENCE) == 0)
        (void)printf("%-8s %.*s\n", word, (int)line.len, (const char *)line.data);
}

static void print_advice(const char *advice)
{
    _cleanup_buffer_ struct buffer line = {0};
    if (advice && text_escape(&line, bytes_of_string(advice), TEXT_SENTENCE) == 0)
        (void)printf("%-8s -> %.*s\n", "", (int)line.len, (const char *)line.data);
}

void doctor_ok(struct doctor *d, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line("ok", format, args);
    va_end(args);
}

void doctor_note(struct doctor *d, const char *advice, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line("note", format, args);
    va_end(args);
    print_advice(advice);
}

void doctor_warning(struct doctor *d, const char *advice, const char *format, ...)
{
    va_list args;
    d->warnings++;
    va_start(args, format);
    print_line("warning", format, args);
    va_end(args);
    print_advice(advice);
}

void doctor_problem(struct doctor *d, const char *advice, const char *format, ...)
{
    va_list args;
    d->problems++;
    va_start(args, format);
    print_line("problem", format, args);
    va_end(args);
    print_advice(advice);
}

static void print_summary(const struct doctor *d)
{
    if (d->problems)
        (void)printf("\n%u problem%s, %u warning%s\n", d->problems, d->problems == 1 ? "" : "s",
                     d->warnings, d->warnings == 1 ? "" : "s");
    else if (d->warnings)
        (void)printf("\nNo problem, %u warning%s\n", d->warnings, d->warnings == 1 ? "" : "s");
    else
        (void)puts("\nAll is well");
}

/* What takes the other program must be known before anything is said. Without it, all else is still
 * worth looking at. */
static void get_ready(struct cli *cli)
{
    struct client_settings settings;
    struct failure failure;
    if (client_settings_load(&cli->flags, &settings, &failure) < 0)
        return;
    bool needed = stream_url_is_network(settings.url) || settings.ca_file || settings.cert_file;
    client_settings_release(&settings);
    if (needed)
        (void)cli_need_network(cli, &failure);
}

int cmd_doctor(struct cli *cli, int argc, char **argv)
{
    /* From the ground up: what fails further down is often explained further up. */
    static void (*const checks[])(struct doctor *) = {
        doctor_check_device,  doctor_check_fusermount, doctor_check_allow_other,
        doctor_check_kernel,  doctor_check_clock,      doctor_check_programs,
        doctor_check_runtime, doctor_check_cache,      doctor_check_settings,
        doctor_check_service, doctor_check_mounts,
    };
    struct doctor d = {.cli = cli};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == 'h')
            return cli_show_help(cli);
        return cli_option_error(cli, option, argv);
    }
    if (optind < argc)
        return cli_usage_error(cli, "%s: doctor takes no arguments", argv[optind]);
    get_ready(cli);
    for (size_t i = 0; i < ARRAY_SIZE(checks); i++) {
        checks[i](&d);
        (void)fflush(stdout);
    }
    print_summary(&d);
    return cli_finish_output(cli, d.problems ? CLI_FAILED : CLI_OK);
}
