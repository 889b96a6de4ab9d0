#include "command_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "exec/environment.h"
#include "exec/kill.h"

/* No test may hang: far above what any needs on a busy machine. */
#define TEST_SECONDS 60

static void on_started(void *context, pid_t pid)
{
    struct run *run = context;
    assert_true(pid > 0);
    run->started = true;
    if (run->stop_at_start)
        (void)event_base_loopbreak(run->base);
}

static size_t on_room(void *context, uint32_t stream)
{
    return ((struct run *)context)->room;
}

static void on_output(void *context, uint32_t stream, uint64_t offset, struct bytes data)
{
    struct run *run = context;
    assert_true(stream == 1 || stream == 2);
    assert_true(run->started);
    assert_int_equal(offset, run->output[stream - 1].len);
    assert_true(data.len <= run->room);
    assert_int_equal(buffer_append(&run->output[stream - 1], data.data, data.len), 0);
}

static void on_taken(void *context, size_t bytes)
{
    ((struct run *)context)->taken += bytes;
}

static void on_ended(void *context, const struct command_verdict *verdict)
{
    struct run *run = context;
    run->verdict = *verdict;
    run->ended = true;
    (void)event_base_loopbreak(run->base);
}

bool with_cgroup;
bool with_namespace;

enum wire_means means(void)
{
    return with_cgroup ? WIRE_MEANS_CGROUP : WIRE_MEANS_SUBREAPER;
}

static int new_confinement(struct run *run)
{
    static char name[64];
    (void)snprintf(name, sizeof name, "berth-test-%d", getpid());
    const struct confinement_options options = {.name = name};
    const char *text;
    if (!with_cgroup && !with_namespace)
        return 0;
    if (confinement_new(&options, &run->confinement) < 0)
        return -1;
    struct failure failure;
    const struct cell_options cell = {.root = run->root, .directory = -1};
    bool as_asked =
        confinement_holds(run->confinement, MECHANISM_CGROUP, &text) == with_cgroup &&
        confinement_holds(run->confinement, MECHANISM_PID_NAMESPACE, &text) == with_namespace;
    return as_asked && confinement_hold_cell(run->confinement, &cell, &run->cell, &failure) == 0
               ? 0
               : -1;
}

int set_up(void **state)
{
    static struct run run;
    run = (struct run){.base = event_base_new(), .room = 1 << 20};
    strcpy(run.directory, "/tmp/berth-command-XXXXXX");
    if (!run.base || !mkdtemp(run.directory))
        return -1;
    run.root = open(run.directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    spawn_limits_read(&run.limits);
    (void)alarm(TEST_SECONDS);
    *state = &run;
    return run.root < 0 ? -1 : new_confinement(&run);
}

int tear_down(void **state)
{
    struct run *run = *state;
    command_free(run->command);
    if (run->cell && run->confinement)
        confinement_release_cell(run->confinement, run->cell);
    confinement_free(run->confinement);
    event_base_free(run->base);
    buffer_release(&run->output[0]);
    buffer_release(&run->output[1]);
    close_fd(&run->root);
    char remove[128];
    (void)snprintf(remove, sizeof remove, "rm -rf %s", run->directory);
    (void)alarm(0);
    return system(remove);
}

struct command_events events_of(struct run *run)
{
    return (struct command_events){.started = on_started,
                                   .room = on_room,
                                   .output = on_output,
                                   .input_taken = on_taken,
                                   .ended = on_ended,
                                   .context = run};
}

int start(struct run *run, const char *const *argv, const struct command_options *extra)
{
    static const char *const environment[] = {"PATH=" ENVIRONMENT_DEFAULT_PATH, NULL};
    _cleanup_strings_ struct strings programs = {0};
    assert_int_equal(environment_programs(argv[0], ENVIRONMENT_DEFAULT_PATH, &programs), 0);
    struct command_options options = extra ? *extra : (struct command_options){.cwd = NULL};
    options.programs = programs.items;
    options.argv = (char *const *)(uintptr_t)argv;
    if (!options.envp)
        options.envp = (char *const *)(uintptr_t)environment;
    if (!options.cwd)
        options.cwd = "";
    options.root = run->root;
    options.limits = &run->limits;
    options.confinement = run->confinement;
    options.cell = run->cell;
    const struct command_events events = events_of(run);
    return command_start(run->base, &options, &events, &run->command, &run->verdict);
}

void wait_for_start(struct run *run)
{
    run->stop_at_start = true;
    assert_true(event_base_dispatch(run->base) >= 0);
    run->stop_at_start = false;
    assert_true(run->started);
}

void loop_to_end(struct run *run)
{
    while (!run->ended)
        assert_true(event_base_dispatch(run->base) >= 0);
}

void wait_for_end(struct run *run)
{
    loop_to_end(run);
    command_free(run->command);
    run->command = NULL;
}

void run_with(struct run *run, const struct command_options *extra, const char *script)
{
    const char *const argv[] = {"sh", "-c", script, NULL};
    assert_int_equal(start(run, argv, extra), 0);
    wait_for_end(run);
}

void run_script(struct run *run, const char *script)
{
    run_with(run, NULL, script);
}

void run_program(struct run *run, const char *program)
{
    const char *const argv[] = {program, NULL};
    assert_int_equal(start(run, argv, NULL), 0);
    wait_for_end(run);
}

void loop_for(struct run *run, uint64_t ms)
{
    const struct timeval time = {.tv_sec = (time_t)(ms / 1000),
                                 .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    (void)event_base_loopexit(run->base, &time);
    (void)event_base_dispatch(run->base);
}

void assert_output(struct run *run, size_t i, const char *expected)
{
    assert_int_equal(buffer_append_u8(&run->output[i], 0), 0);
    assert_string_equal((const char *)run->output[i].data, expected);
}

void assert_exited(const struct run *run, int code)
{
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_EXITED);
    assert_int_equal(run->verdict.code, code);
}

void assert_not_started(const struct run *run, enum wire_exec_stage stage, int error, int code)
{
    assert_false(run->started);
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_NOT_STARTED);
    assert_int_equal(run->verdict.stage, stage);
    assert_int_equal(run->verdict.error, error);
    assert_int_equal(run->verdict.code, code);
}

void write_file(const struct run *run, const char *name, const char *text, mode_t mode)
{
    int fd = openat(run->root, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close_fd(&fd);
}
