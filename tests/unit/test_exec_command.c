/* Commands on an event loop, without a service: verdicts, streams, limits, removal. Run by each
 * means of removal: a subreaper, or a cgroup (argument "cgroup"); and again with clone3, openat2
 * and close_range taken away by a seccomp filter ("fallback"), so that the ways around them are
 * really covered. */
#include "command_fixture.h"

#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "confine/confinement.h"
#include "exec/beneath.h"
#include "exec/command.h"
#include "exec/environment.h"
#include "exec/kill.h"

static void streams_are_separate(void **state)
{
    struct run *run = *state;
    run_script(run, "printf out; printf err >&2; exit 7");
    assert_exited(run, 7);
    assert_true(run->started);
    assert_output(run, 0, "out");
    assert_output(run, 1, "err");
    assert_int_equal(run->verdict.stdout_bytes, 3);
    assert_int_equal(run->verdict.stderr_bytes, 3);
    assert_true(run->verdict.duration_ns > 0);
    assert_int_equal(run->verdict.removed, 0);
}

static void merged_in_order(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.flags = WIRE_EXEC_MERGE};
    run_with(run, &extra, "printf a; printf b >&2; printf c");
    assert_exited(run, 0);
    assert_output(run, 0, "abc");
    assert_int_equal(run->output[1].len, 0);
}

static void signals_are_told(void **state)
{
    struct run *run = *state;
    run_script(run, "kill -9 $$");
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_SIGNALED);
    assert_int_equal(run->verdict.signal, SIGKILL);
    assert_false(run->verdict.core);
}

static void missing_program(void **state)
{
    struct run *run = *state;
    run_program(run, "no-such-program");
    assert_not_started(run, WIRE_STAGE_EXECVE, -ENOENT, 127);
    assert_string_equal(run->verdict.text, "no-such-program: not found in PATH");
}

static void missing_path(void **state)
{
    struct run *run = *state;
    run_program(run, "./gone");
    assert_not_started(run, WIRE_STAGE_EXECVE, -ENOENT, 127);
    assert_string_equal(run->verdict.text, "./gone: No such file or directory");
}

static void not_executable(void **state)
{
    struct run *run = *state;
    write_file(run, "plain", "#!/bin/sh\n", 0644);
    run_program(run, "./plain");
    assert_not_started(run, WIRE_STAGE_EXECVE, -EACCES, 126);
    assert_string_equal(run->verdict.text, "./plain: Permission denied");
}

static void bad_interpreter(void **state)
{
    struct run *run = *state;
    write_file(run, "script", "#!/no/such/interpreter\n", 0755);
    run_program(run, "./script");
    assert_not_started(run, WIRE_STAGE_EXECVE, -ENOENT, 127);
    assert_non_null(strstr(run->verdict.text, "interpreter"));
}

static void bad_format(void **state)
{
    struct run *run = *state;
    write_file(run, "elf", "\177ELF but no more", 0755);
    run_program(run, "./elf");
    assert_not_started(run, WIRE_STAGE_EXECVE, -ENOEXEC, 126);
}

static void search_prefers_what_is_there(void **state)
{
    struct run *run = *state;
    write_file(run, "plain", "", 0644);
    const char *const argv[] = {"plain", NULL};
    char *programs[] = {(char[]){"nowhere/plain"}, (char[]){"./plain"}, (char[]){"none/plain"},
                        NULL};
    const struct command_options options = {.programs = programs,
                                            .argv = (char *const *)(uintptr_t)argv,
                                            .envp = (char *const[]){NULL},
                                            .root = run->root,
                                            .cwd = "",
                                            .limits = &run->limits};
    const struct command_events events = events_of(run);
    assert_int_equal(command_start(run->base, &options, &events, &run->command, &run->verdict), 0);
    wait_for_end(run);
    assert_not_started(run, WIRE_STAGE_EXECVE, -EACCES, 126);
    assert_string_equal(run->verdict.text, "./plain: Permission denied");
}

static void missing_directory(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.cwd = "a/b"};
    run_with(run, &extra, "true");
    assert_not_started(run, WIRE_STAGE_CWD, -ENOENT, 125);
    assert_string_equal(run->verdict.text, "a/b: No such file or directory");
}

static void directory_must_be_one(void **state)
{
    struct run *run = *state;
    write_file(run, "file", "", 0755);
    const struct command_options extra = {.cwd = "file"};
    run_with(run, &extra, "true");
    assert_not_started(run, WIRE_STAGE_CWD, -ENOTDIR, 125);
}

static void directory_stays_beneath(void **state)
{
    struct run *run = *state;
    assert_int_equal(mkdirat(run->root, "in", 0755), 0);
    assert_int_equal(mkdirat(run->root, "in/deep", 0755), 0);
    assert_int_equal(symlinkat("in/deep", run->root, "good"), 0);
    assert_int_equal(symlinkat("../in/../in/deep", run->root, "in/up"), 0);
    assert_int_equal(symlinkat("..", run->root, "out"), 0);
    assert_int_equal(symlinkat("/tmp", run->root, "absolute"), 0);
    assert_int_equal(symlinkat("loop", run->root, "loop"), 0);
    assert_int_equal(symlinkat("nowhere", run->root, "dangling"), 0);
    const struct {
        const char *path;
        int result; /* 0: in/deep */
    } rows[] = {
        {"in/deep", 0},        {"good", 0},          {"in/up", 0},        {"./in//deep/.", 0},
        {"in/../in/deep", 0},  {"good/../deep", 0},  {"..", -EXDEV},      {"in/../..", -EXDEV},
        {"out", -EXDEV},       {"absolute", -EXDEV}, {"/tmp", -EXDEV},    {"loop", -ELOOP},
        {"dangling", -ENOENT}, {"in/nope", -ENOENT}, {"out/tmp", -EXDEV},
    };
    struct stat deep;
    assert_int_equal(fstatat(run->root, "in/deep", &deep, 0), 0);
    int (*const opens[])(int, const char *) = {beneath_open_directory,
                                               beneath_open_directory_by_steps};
    for (size_t way = 0; way < ARRAY_SIZE(opens); way++) {
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            _cleanup_close_ int fd = opens[way](run->root, rows[i].path);
            if (rows[i].result < 0) {
                if (fd != rows[i].result)
                    fail_msg("%s: %d, expected %d", rows[i].path, fd, rows[i].result);
                continue;
            }
            struct stat st;
            assert_true(fd >= 0);
            assert_int_equal(fstat(fd, &st), 0);
            assert_int_equal(st.st_ino, deep.st_ino);
        }
    }
}

static void last_bytes_arrive(void **state)
{
    struct run *run = *state;
    run_script(run, "printf 'line\\nlast without newline'");
    assert_output(run, 0, "line\nlast without newline");
}

/* They are left running, and known as the command's until it is freed. */
static void children_that_hold_the_pipes(void **state)
{
    struct run *run = *state;
    char script[64], search[96];
    (void)snprintf(script, sizeof script, "sleep 30.%d & :", getpid());
    (void)snprintf(search, sizeof search, "pgrep -fx 'sleep 30.%d' >/dev/null", getpid());
    uint64_t before = clock_monotonic_ns();
    const char *const argv[] = {"sh", "-c", script, NULL};
    assert_int_equal(start(run, argv, NULL), 0);
    loop_to_end(run);
    uint64_t took = (clock_monotonic_ns() - before) / NSEC_PER_MSEC;
    assert_exited(run, 0);
    assert_int_equal(run->verdict.removed, 0);
    assert_int_equal(system(search), 0);
    assert_int_equal(command_processes(run->command), 1);
    assert_true(took >= 100);
    assert_true(took < 10000);
    command_free(take_ptr(run->command));
    for (int i = 0; i < 200 && system(search) == 0; i++)
        (void)usleep(50000);
    assert_int_not_equal(system(search), 0);
}

static void slow_owner_gets_everything(void **state)
{
    struct run *run = *state;
    const char *const argv[] = {"sh", "-c", "sleep 30 & head -c 50000 /dev/zero", NULL};
    run->room = 0;
    assert_int_equal(start(run, argv, NULL), 0);
    loop_for(run, 600); /* far past the drain */
    assert_false(run->ended);
    assert_int_equal(run->output[0].len, 0);
    run->room = 4096;
    command_resume(run->command);
    wait_for_end(run);
    assert_int_equal(run->output[0].len, 50000);
}

static void input_and_its_end(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.flags = WIRE_EXEC_STDIN};
    const char *const argv[] = {"sh", "-c", "wc -c; echo done", NULL};
    assert_int_equal(start(run, argv, &extra), 0);
    _cleanup_free_ char *data = calloc(1, 300000);
    assert_int_equal(command_input(run->command, bytes_of(data, 300000), false), 0);
    assert_int_equal(command_input(run->command, bytes_of(NULL, 0), true), 0);
    wait_for_end(run);
    assert_output(run, 0, "300000\ndone\n");
    assert_int_equal(run->taken, 300000);
}

static void input_nobody_reads(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.flags = WIRE_EXEC_STDIN};
    const char *const argv[] = {"sh", "-c", "exec 0<&-; sleep 0.3", NULL};
    assert_int_equal(start(run, argv, &extra), 0);
    _cleanup_free_ char *data = calloc(1, 300000);
    assert_int_equal(command_input(run->command, bytes_of(data, 300000), false), 0);
    wait_for_end(run);
    assert_exited(run, 0);
    assert_int_equal(run->taken, 300000);
}

static void no_input_is_empty(void **state)
{
    struct run *run = *state;
    run_script(run, "cat; readlink /proc/self/fd/0");
    assert_output(run, 0, "/dev/null\n");
}

static void child_is_clean(void **state)
{
    struct run *run = *state;
    int leak = open("/dev/null", O_RDONLY);
    int high = fcntl(leak, F_DUPFD, 500);
    assert_true(leak >= 0 && high >= 500);
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction old;
    assert_int_equal(sigaction(SIGUSR1, &ignore, &old), 0);
    (void)umask(077);
    run->limits.nofile.rlim_cur = 321;
    run_script(run, "ls /proc/self/fd | tr '\\n' ' '; umask; ulimit -n; "
                    "grep -E 'SigBlk|SigIgn' /proc/self/status | tr -d '\\n\\t'; echo; "
                    "cut -d' ' -f5-7 /proc/$$/stat | sed \"s/$$/leader/g\"; pwd; env | sort");
    (void)umask(022);
    (void)sigaction(SIGUSR1, &old, NULL);
    close_fd(&leak);
    close_fd(&high);
    char expected[512];
    /* ls has its own descriptor on /proc/self/fd: 3. */
    (void)snprintf(expected, sizeof expected,
                   "0 1 2 3 0022\n321\nSigBlk:0000000000000000SigIgn:0000000000000000\nleader "
                   "leader 0\n%s\nPATH=%s\nPWD=%s\n",
                   run->directory, ENVIRONMENT_DEFAULT_PATH, run->directory);
    assert_output(run, 0, expected);
}

static void terminal(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {
        .flags = WIRE_EXEC_PTY | WIRE_EXEC_STDIN, .rows = 33, .columns = 77};
    run_with(run, &extra,
             "stty size; tty >/dev/null && [ -t 2 ] && echo tty; : >/dev/tty && echo yes");
    assert_exited(run, 0);
    assert_output(run, 0, "33 77\r\ntty\r\nyes\r\n");
}

static void terminal_end_of_input(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.flags = WIRE_EXEC_PTY | WIRE_EXEC_STDIN};
    const char *const argv[] = {"sh", "-c", "stty -echo; wc -c", NULL};
    assert_int_equal(start(run, argv, &extra), 0);
    assert_int_equal(command_input(run->command, bytes_of_string("no newline"), true), 0);
    wait_for_end(run);
    assert_exited(run, 0);
    assert_int_equal(run->taken, 10);
    assert_int_equal(buffer_append_u8(&run->output[0], 0), 0);
    assert_non_null(strstr((const char *)run->output[0].data, "10\r\n"));
}

static void terminal_resize(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.flags = WIRE_EXEC_PTY};
    const char *const argv[] = {
        "sh", "-c", "trap 'stty size; exit 3' WINCH; while :; do sleep 0.05; done", NULL};
    assert_int_equal(start(run, argv, &extra), 0);
    wait_for_start(run);
    loop_for(run, 300);
    assert_int_equal(command_resize(run->command, 50, 132), 0);
    wait_for_end(run);
    assert_exited(run, 3);
    assert_output(run, 0, "50 132\r\n");
}

static void timeout_removes_all(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.timeout_ms = 300};
    uint64_t before = clock_monotonic_ns();
    run_with(run, &extra, "sleep 30 & sleep 31 & echo $$; wait");
    uint64_t took = (clock_monotonic_ns() - before) / NSEC_PER_MSEC;
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_TIMED_OUT);
    assert_int_equal(run->verdict.signal, SIGTERM);
    assert_int_equal(run->verdict.removed, 3);
    assert_int_equal(run->verdict.left, 0);
    assert_int_equal(run->verdict.means, means());
    assert_true(took >= 300);
}

static void timeout_kills_what_ignores_it(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.timeout_ms = 1500};
    /* setsid leaves the group and the session, and is found as a descendant. */
    char script[256];
    (void)snprintf(script, sizeof script,
                   "trap '' TERM; setsid sleep 30.%d & cp /bin/sleep './a) Z 1 (b\n'; "
                   "'./a) Z 1 (b\n' 32 & while :; do sleep 1; done",
                   getpid());
    run_with(run, &extra, script);
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_TIMED_OUT);
    assert_int_equal(run->verdict.signal, SIGKILL);
    assert_true(run->verdict.removed >= 3);
    (void)snprintf(script, sizeof script, "pgrep -fx 'sleep 30.%d' && exit 1; exit 0", getpid());
    assert_int_equal(system(script), 0);
}

static void stopped_commands_end(void **state)
{
    struct run *run = *state;
    const char *const argv[] = {"sleep", "30", NULL};
    assert_int_equal(start(run, argv, NULL), 0);
    wait_for_start(run);
    assert_int_equal(command_signal(run->command, SIGTSTP), 0);
    loop_for(run, 100);
    command_terminate(run->command, WIRE_VERDICT_KILLED, "asked");
    wait_for_end(run);
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_KILLED);
    assert_string_equal(run->verdict.text, "asked");
    assert_int_equal(run->verdict.signal, SIGTERM);
    assert_int_equal(run->verdict.removed, 1);
}

static void signal_reaches_the_group(void **state)
{
    struct run *run = *state;
    const char *const argv[] = {"sh", "-c", "sleep 30; echo $?", NULL};
    assert_int_equal(start(run, argv, NULL), 0);
    wait_for_start(run);
    assert_int_equal(command_signal(run->command, 0), -EINVAL);
    assert_int_equal(command_signal(run->command, 65), -EINVAL);
    loop_for(run, 200);
    assert_int_equal(command_signal(run->command, SIGINT), 0);
    wait_for_end(run);
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_SIGNALED);
    assert_int_equal(run->verdict.signal, SIGINT);
}

static size_t count_descriptors(void)
{
    size_t count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void assert_no_children(struct run *run)
{
    confinement_free(take_ptr(run->confinement)); /* and with it the sandbox's init */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void nothing_is_left(void **state)
{
    struct run *run = *state;
    run_script(run, ":"); /* there is a sandbox from now on */
    size_t before = count_descriptors();
    for (int i = 0; i < 200; i++) {
        run->ended = false;
        run->started = false;
        run->output[0].len = 0;
        if (i % 3 == 0)
            run_program(run, "/no/such");
        else
            run_script(run, "echo x");
        assert_int_equal(run->output[0].len, i % 3 == 0 ? 0 : 2);
    }
    /* Children that were not yet dead are reaped later. */
    for (int i = 0; i < 500 && count_descriptors() != before; i++) {
        if (run->confinement)
            confinement_sweep(run->confinement);
        (void)usleep(10000);
    }
    assert_int_equal(count_descriptors(), before);
    assert_no_children(run);
}

static void free_kills(void **state)
{
    struct run *run = *state;
    const char *const argv[] = {"sleep", "30", NULL};
    assert_int_equal(start(run, argv, NULL), 0);
    wait_for_start(run);
    command_free(take_ptr(run->command));
    assert_false(run->ended);
    assert_no_children(run);
}

static void no_descriptors_is_told(void **state)
{
    struct run *run = *state;
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    run_script(run, ":");
    size_t before = count_descriptors();
    /* Each number of free descriptors fails at another step, or is enough. */
    for (rlim_t extra = 0; extra <= 12; extra++) {
        const struct rlimit tight = {.rlim_cur = before + extra, .rlim_max = old.rlim_max};
        run->ended = false;
        run->started = false;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
        const char *const argv[] = {"true", NULL};
        int r = start(run, argv, NULL);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (r == 0) {
            wait_for_end(run);
            /* The child has fewer free numbers than it needs to put its streams in place. */
            if (run->verdict.verdict == WIRE_VERDICT_NOT_STARTED)
                assert_int_equal(run->verdict.stage, WIRE_STAGE_SETUP);
            else
                assert_exited(run, 0);
            assert_int_equal(count_descriptors(), before);
            continue;
        }
        assert_int_equal(r, -EMFILE);
        assert_int_equal(run->verdict.verdict, WIRE_VERDICT_NOT_STARTED);
        assert_true(run->verdict.stage == WIRE_STAGE_PIPES ||
                    run->verdict.stage == WIRE_STAGE_FORK ||
                    (with_namespace && run->verdict.stage == WIRE_STAGE_CONFINE));
        assert_int_equal(count_descriptors(), before);
    }
}

/* In a child, which becomes a user who may have no process more. */
static void no_processes_is_told(void **state)
{
    struct run *run = *state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit none = {0};
        const char *const argv[] = {"true", NULL};
        struct run own = *run;
        own.base = event_base_new();
        own.confinement = NULL;
        own.cell = NULL;
        if (!own.base || setrlimit(RLIMIT_NPROC, &none) < 0 || setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        int r = start(&own, argv, NULL);
        bool told = r == -EAGAIN && own.verdict.verdict == WIRE_VERDICT_NOT_STARTED &&
                    own.verdict.stage == WIRE_STAGE_FORK && own.verdict.error == -EAGAIN &&
                    own.verdict.code == 125;
        _exit(told ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void limits_that_cannot_be_set_are_told(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.together.memory_bytes = 1 << 30};
    const char *const argv[] = {"true", NULL};
    if (run->confinement && confinement_cgroups(run->confinement) &&
        cgroup_base_limits_memory(confinement_cgroups(run->confinement))) {
        /* Where there is the controller: more than there may be. */
        run_with(run, &(struct command_options){.together.memory_bytes = 64 << 20},
                 "exec tail -c 300000000 /dev/zero");
        assert_int_equal(run->verdict.verdict, WIRE_VERDICT_OOM_KILLED);
        assert_int_equal(run->verdict.signal, SIGKILL);
        return;
    }
    assert_int_equal(start(run, argv, &extra), -EOPNOTSUPP);
    assert_not_started(run, WIRE_STAGE_CONFINE, -EOPNOTSUPP, 125);
}

static void limit_of_processes(void **state)
{
    struct run *run = *state;
    const struct command_options extra = {.together.processes = 1};
    const char *const argv[] = {"sh", "-c", "true & wait $!", NULL};
    bool can = run->confinement && confinement_cgroups(run->confinement) &&
               cgroup_base_limits_pids(confinement_cgroups(run->confinement));
    assert_int_equal(start(run, argv, &extra), can ? 0 : -EOPNOTSUPP);
    if (!can) {
        assert_not_started(run, WIRE_STAGE_CONFINE, -EOPNOTSUPP, 125);
        return;
    }
    wait_for_end(run);
    assert_exited(run, 2); /* the shell cannot fork */
    run->ended = run->started = false;
    run_script(run, "true & wait $!");
    assert_exited(run, 0);
}

static void core_dump_is_told(void **state)
{
    struct run *run = *state;
    run->limits.core = (struct rlimit){.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    run_script(run, "kill -QUIT $$");
    assert_int_equal(run->verdict.verdict, WIRE_VERDICT_SIGNALED);
    assert_int_equal(run->verdict.signal, SIGQUIT);
    assert_true(run->verdict.core);
    run->limits.core = (struct rlimit){.rlim_cur = 0, .rlim_max = 0};
    run->ended = run->started = false;
    run_script(run, "kill -QUIT $$");
    assert_int_equal(run->verdict.signal, SIGQUIT);
    assert_false(run->verdict.core);
}

static void directory_that_was_deleted(void **state)
{
    struct run *run = *state;
    assert_int_equal(rmdir(run->directory), 0);
    run_script(run, "true");
    /* In a sandbox the workspace is looked for by its name. */
    if (with_namespace)
        assert_not_started(run, WIRE_STAGE_CWD, -ENOENT, 125);
    else
        assert_exited(run, 0);
}

/* As an old kernel or a container engine's filter would answer. */
static int take_away_system_calls(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    const int calls[] = {SYS_clone3, SYS_openat2, SYS_close_range};
    for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
        if (!filter || seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), calls[i], 0) < 0)
            return -1;
    int r = seccomp_load(filter);
    seccomp_release(filter);
    /* The control: they are really gone. */
    return r < 0 || syscall(SYS_close_range, 900, 901, 0) != -1 || errno != ENOSYS ? -1 : 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(streams_are_separate),
        TEST(merged_in_order),
        TEST(signals_are_told),
        TEST(missing_program),
        TEST(missing_path),
        TEST(not_executable),
        TEST(bad_interpreter),
        TEST(bad_format),
        TEST(search_prefers_what_is_there),
        TEST(missing_directory),
        TEST(directory_must_be_one),
        TEST(directory_stays_beneath),
        TEST(last_bytes_arrive),
        TEST(children_that_hold_the_pipes),
        TEST(slow_owner_gets_everything),
        TEST(input_and_its_end),
        TEST(input_nobody_reads),
        TEST(no_input_is_empty),
        TEST(child_is_clean),
        TEST(terminal),
        TEST(terminal_end_of_input),
        TEST(terminal_resize),
        TEST(timeout_removes_all),
        TEST(timeout_kills_what_ignores_it),
        TEST(stopped_commands_end),
        TEST(signal_reaches_the_group),
        TEST(nothing_is_left),
        TEST(free_kills),
        TEST(no_descriptors_is_told),
        TEST(no_processes_is_told),
        TEST(limits_that_cannot_be_set_are_told),
        TEST(limit_of_processes),
        TEST(core_dump_is_told),
        TEST(directory_that_was_deleted),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        with_cgroup = with_cgroup || strcmp(argv[i], "cgroup") == 0;
        with_namespace = with_namespace || strcmp(argv[i], "namespace") == 0;
        if (strcmp(argv[i], "fallback") == 0 && take_away_system_calls() < 0)
            return 2;
    }
    (void)setenv("BERTH_WITHOUT",
                 !with_cgroup      ? "cgroup"
                 : !with_namespace ? "pid-namespace"
                                   : "",
                 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
