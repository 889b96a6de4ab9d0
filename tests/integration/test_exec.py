"""Commands in a workspace: the verdict is true, complete and final; bytes arrive as written;
nothing leaks in, nothing is left behind."""

import base64
import errno
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from lib.exec_client import DETACH, MERGE, PTY, STDIN, ExecClient
from lib.harness import wait_until

pytestmark = pytest.mark.sandbox

WORKSPACE = "work"

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def tree(service, run_berth):
    """The workspace's directory at the service."""
    run_berth("create", WORKSPACE, check=True)
    return service.root / "workspaces" / WORKSPACE / "tree"


@pytest.fixture
def client(service, tree):
    with ExecClient(service.socket) as connected:
        yield connected


@pytest.fixture
def execute(run_berth, tree):
    """execute("sh", "-c", "…", options=["-i"], …): berth exec in the workspace."""
    def run(*argv, options=(), **keywords):
        return run_berth("exec", "-w", WORKSPACE, *options, "--", *argv, **keywords)
    return run


@pytest.fixture
def begin(harness, service, tree):
    """Starts berth exec in the background; it is killed at the end of the test."""
    started = []

    def start(*argv, options=(), **keywords):
        process = subprocess.Popen(
            [harness.program("berth"), "exec", "-w", WORKSPACE, *options, "--", *argv],
            env=service.client_env(), cwd=harness.directory, start_new_session=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
               "stderr": subprocess.PIPE, **keywords})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def processes_with(word):
    """Processes that have this word in their arguments."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            line = open(f"/proc/{entry}/cmdline", "rb").read() if entry.isdigit() else b""
        except OSError:
            continue
        if word.encode() in line.split(b"\0") and int(entry) != os.getpid():
            found.append(int(entry))
    return found


def memory_limit(harness):
    """Growth of a service that is bounded; a sanitised one keeps freed memory aside."""
    with open(harness.program("berthd"), "rb") as program:
        return (512 if b"__asan_init" in program.read() else 16) << 20


def unique_sleep():
    """Arguments of a sleep that only this test runs."""
    return f"{600 + os.getpid() % 100}.{time.monotonic_ns()}"


# --- how it ends ---------------------------------------------------------------------------

def test_every_exit_code(client):
    for code in range(256):
        verdict = client.run(WORKSPACE, ["sh", "-c", f"exit {code}"]).verdict
        assert (verdict.verdict, verdict.code, verdict.signal) == ("exited", code, 0)


@pytest.mark.parametrize("code", [0, 1, 2, 119, 120, 124, 125, 126, 127, 128, 130, 200, 255])
def test_exit_status_of_the_cli(execute, code):
    result = execute("sh", "-c", f"exit {code}")
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")


ENDING_SIGNALS = sorted(set(range(1, 65)) - {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGURG, signal.SIGWINCH})


def test_every_signal(client):
    for number in ENDING_SIGNALS:
        call = client.wait_started(client.start(WORKSPACE, ["sleep", "60"]))
        client.signal(call, number)
        verdict = client.wait(call)
        assert (verdict.verdict, verdict.signal, verdict.code) == ("signaled", number, 0)


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 11, 13, 15, 34, 64])
def test_signal_status_of_the_cli(execute, number):
    script = (f"import os, signal\n"
              f"if {number} != 9: signal.signal({number}, signal.SIG_DFL)\n"
              f"os.kill(os.getpid(), {number})")
    assert execute("python3", "-c", script).returncode == 128 + number


def test_duration_and_counts(client):
    call = client.run(WORKSPACE, ["sh", "-c", "sleep 0.3; printf abc; printf de >&2"])
    assert (call.verdict.stdout_bytes, call.verdict.stderr_bytes) == (3, 2)
    assert 300e6 <= call.verdict.duration_ns < 20e9
    assert call.verdict.removed == 0


# --- what does not start -------------------------------------------------------------------

def write(path, text, mode):
    path.write_bytes(text)
    path.chmod(mode)


NOT_STARTED = [
    (["no-such-program"], 127, "execve: no-such-program: not found in PATH"),
    (["./missing"], 127, "execve: ./missing: No such file or directory"),
    (["/no/such/program"], 127, "execve: /no/such/program: No such file or directory"),
    ([""], 127, "execve: : not found in PATH"),
    (["./plain"], 126, "execve: ./plain: Permission denied"),
    (["./directory"], 126, "execve: ./directory: Permission denied"),
    (["./plain/x"], 126, "execve: ./plain/x: Not a directory"),
    (["./bad-interpreter"], 127, "execve: ./bad-interpreter: No such file or directory"
                                 " (the interpreter or loader that it names)"),
    (["./bad-elf"], 126, "execve: ./bad-elf: Exec format error"),
    (["./empty"], 126, "execve: ./empty: Exec format error"),
]


@pytest.mark.parametrize("argv,status,text", NOT_STARTED, ids=lambda value: str(value)[:30])
def test_program_that_does_not_start(execute, tree, argv, status, text):
    write(tree / "plain", b"#!/bin/sh\n", 0o644)
    write(tree / "bad-interpreter", b"#!/no/such/interpreter\n", 0o755)
    write(tree / "bad-elf", b"\x7fELF\x02\x01\x01 and no more", 0o755)
    write(tree / "empty", b"", 0o755)
    (tree / "directory").mkdir()
    result = execute(*argv)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr == f"berth: not started: {text}\n"


@pytest.mark.parametrize("directory,text", [
    ("missing", "missing: No such file or directory"),
    ("a/b/c", "a/b/c: No such file or directory"),
    ("file", "file: Not a directory"),
    ("..", "..: leads out of the workspace"),
    ("inside/../..", "inside/../..: leads out of the workspace"),
    ("out", "out: leads out of the workspace"),
    ("absolute", "absolute: leads out of the workspace"),
    ("loop", "loop: Too many levels of symbolic links"),
])
def test_directory_that_is_none(execute, tree, directory, text):
    (tree / "inside").mkdir()
    (tree / "file").write_text("")
    (tree / "out").symlink_to("..")
    (tree / "absolute").symlink_to("/tmp")
    (tree / "loop").symlink_to("loop")
    result = execute("true", options=["-C", directory])
    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr == f"berth: not started: cwd: {text}\n"


def test_absolute_directory_that_is_none(execute):
    result = execute("true", options=["-C", "/x"])
    assert result.returncode == 125
    assert result.stderr.startswith("berth: not started: cwd: /x: No such file or directory")


@pytest.mark.parametrize("directory,expected", [
    (None, ""), (".", ""), ("a", "/a"), ("a/b", "/a/b"), ("a/../a//b/", "/a/b"), ("link", "/a/b"),
    ("/workspace", ""), ("/workspace/a", "/a")])
def test_working_directory(execute, tree, directory, expected):
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "link").symlink_to("a/b")
    result = execute("pwd", "-P", options=["-C", directory] if directory else [], check=True)
    assert result.stdout == f"{tree}{expected}\n"


def test_program_is_relative_to_the_working_directory(execute, tree):
    (tree / "a").mkdir()
    write(tree / "a" / "tool", b"#!/bin/sh\necho here $0 $1\n", 0o755)
    result = execute("./tool", "x", options=["-C", "a"], check=True)
    assert result.stdout == "here ./tool x\n"


def test_search_uses_the_commands_own_path(execute, tree):
    (tree / "bin").mkdir()
    write(tree / "bin" / "tool", b"#!/bin/sh\necho found\n", 0o755)
    assert execute("tool").returncode == 127
    for path in ("bin", f"/nowhere:{tree}/bin:/usr/bin", "/nowhere:bin"):
        result = execute("tool", options=["-e", f"PATH={path}"])
        assert (result.returncode, result.stdout) == (0, "found\n"), result.stderr
    write(tree / "tool", b"#!/bin/sh\necho here\n", 0o755)
    assert execute("tool", options=["-e", "PATH="]).stdout == "here\n"


def test_unknown_workspace(run_berth, service):
    result = run_berth("exec", "-w", "nobody", "--", "true")
    assert result.returncode == 125
    assert result.stderr == ("berth: not started: workspace: nobody: no such workspace; see "
                             "`berth ls`, or make it with `berth create`\n")


def test_nul_bytes_are_refused(client):
    for keywords in ({"argv": ["echo", "a\0b"]}, {"argv": ["ec\0ho"]},
                     {"argv": ["true"], "cwd": "a\0b"}, {"argv": ["true"], "env": ["A=\0"]}):
        call = client.run(WORKSPACE, **keywords)
        assert not call.started
        assert (call.verdict.verdict, call.verdict.stage, call.verdict.error) == (
            "not_started", "request", errno.EINVAL)
        assert "NUL" in call.verdict.text


@pytest.mark.parametrize("variable,says", [
    ("NOEQUALS", "'='"), ("=value", "without a name"), ("BERTH_THREAD_ID=x", "reserved"),
    ("BERTH_ANYTHING=x", "reserved")])
def test_variables_that_are_refused(client, variable, says):
    verdict = client.run(WORKSPACE, ["true"], env=[variable]).verdict
    assert (verdict.verdict, verdict.stage, verdict.error) == (
        "not_started", "request", errno.EINVAL)
    assert says in verdict.text


def test_longest_argument(execute, client):
    result = execute("sh", "-c", 'printf %s "$1" | wc -c', "sh", "x" * 131071)
    assert (result.returncode, result.stdout) == (0, "131071\n")
    verdict = client.run(WORKSPACE, ["true", "x" * 131072]).verdict
    assert (verdict.verdict, verdict.stage, verdict.error, verdict.code) == (
        "not_started", "request", errno.E2BIG, 126)
    assert "131072" in verdict.text and "131071" in verdict.text


def test_too_many_arguments(client):
    verdict = client.run(WORKSPACE, ["true"] + ["x" * 100000] * 20,
                         env=[f"V{i}=" + "x" * 100000 for i in range(5)]).verdict
    assert (verdict.verdict, verdict.stage, verdict.error, verdict.code) == (
        "not_started", "execve", errno.E2BIG, 126)


def test_empty_argument_array_and_unknown_flags(client):
    for keywords, error in (({"argv": []}, errno.EINVAL),
                            ({"argv": ["true"], "flags": 1 << 20}, errno.EINVAL),
                            ({"argv": ["true"], "flags": DETACH}, errno.EOPNOTSUPP)):
        verdict = client.run(WORKSPACE, **keywords).verdict
        assert (verdict.verdict, verdict.stage, verdict.error) == ("not_started", "request", error)


def test_an_id_does_not_run_twice(client):
    first = client.wait_started(client.start(WORKSPACE, ["sleep", "60"], exec_id="one"))
    verdict = client.run(WORKSPACE, ["touch", "twice"], exec_id="one").verdict
    assert (verdict.verdict, verdict.stage, verdict.error) == (
        "not_started", "request", errno.EEXIST)
    assert client.run(WORKSPACE, ["true"], exec_id="two").verdict.verdict == "exited"
    client.signal(first, signal.SIGKILL)
    assert client.wait(first).signal == signal.SIGKILL


# --- what a command gets -------------------------------------------------------------------

def test_arguments_are_never_joined(execute):
    words = ["a b", "", "*", "$HOME", "'", '"', "\\", "-n", "é", "\n", "--"]
    result = execute("python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *words, check=True)
    assert result.stdout == ascii(words) + "\n"


def test_environment_is_clean(harness, start_service):
    """Nothing of the daemon's own environment is seen, whatever is set in it."""
    names = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "PWD", "OLDPWD",
             "LC_ALL", "LD_LIBRARY_PATH", "BERTH_TOKEN", "BERTH_URL", "HTTPS_PROXY", "IFS", "PS4",
             "SSL_CERT_FILE", "XDG_RUNTIME_DIR", "PYTHONPATH", "SECRET"]
    env = {**harness.env, **{name: f"leak-{name}" for name in names},
           "PATH": harness.env["PATH"] + ":/leak-PATH", "LD_LIBRARY_PATH": "/leak-LD_LIBRARY_PATH"}
    service = start_service(env=env)
    harness.run_berth("create", WORKSPACE, check=True)
    result = harness.run_berth("exec", "-w", WORKSPACE, "--", "/usr/bin/env", "-0", check=True)
    assert "leak" not in result.stdout
    found = dict(entry.split("=", 1) for entry in result.stdout.split("\0")[:-1])
    home = found.pop("HOME")
    assert home.startswith("/")
    user = found.pop("USER", None)
    assert found.pop("LOGNAME", None) == user
    assert found == {"PATH": BASE_PATH, "SHELL": "/bin/sh", "LANG": "C.UTF-8",
                     "BERTH_THREAD_ID": WORKSPACE, "BERTH_WORKSPACE": WORKSPACE}
    assert service.running()


def test_callers_variables(execute, harness, service):
    result = execute("sh", "-c", 'printf "%s|" "$A" "$B" "$C" "$HOME"', options=[
        "-e", "A=1", "-e", "A=two words", "-e", "B=x=y", "-e", "C", "-e", "HOME=/h"],
        env={**service.client_env(), "C": "from here"}, check=True)
    assert result.stdout == "two words|x=y|from here|/h|"


def test_thread_id_of_any_form(run_berth, service):
    run_berth("create", "T/2024:x é", check=True)
    result = run_berth("exec", "-w", "T/2024:x é", "--", "sh", "-c", 'echo "$BERTH_THREAD_ID"; pwd')
    thread_id, directory = result.stdout.splitlines()
    assert thread_id == "T/2024:x é"
    assert directory.endswith("/T%2F2024%3Ax%20%C3%A9/tree")


def test_process_is_clean(execute):
    """No descriptor, blocked or ignored signal, or limit of the daemon's; its own session and
    group; umask 022; no controlling terminal."""
    script = r"""
import os, resource, signal
print(sorted(os.listdir("/proc/self/fd"), key=int)[:-1])
status = dict(line.split(":\t", 1) for line in open("/proc/self/status"))
print(int(status["SigBlk"], 16))
# Python itself ignores these two.
print(int(status["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1) & ~(1 << signal.SIGXFSZ - 1))
print(os.getsid(0) == os.getpgid(0) == os.getppid())
print(oct(os.umask(0)))
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    print(error.errno)
print(open("/proc/self/oom_score_adj").read().strip())
"""
    result = execute("sh", "-c", '/usr/bin/python3 -c "$1"; exit $?', "sh", script, check=True)
    assert result.stdout.splitlines() == [
        "['0', '1', '2']", "0", "0", "True", "0o22", str(errno.ENXIO), "0"]


def test_limits_are_those_before_the_daemon_raised_its_own(harness, start_service):
    limits = ["sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc"]
    command = harness.program("berthd")
    wrapper = harness.new_path("berthd-limited")
    wrapper.write_text(f'#!/bin/sh\nulimit -Sn 777; exec "{command}" "$@"\n')
    wrapper.chmod(0o755)
    harness.binaries["berthd"] = wrapper
    start_service()
    harness.run_berth("create", WORKSPACE, check=True)
    result = harness.run_berth("exec", "-w", WORKSPACE, "--", *limits, check=True)
    expected = harness.run(["sh", "-c", "ulimit -Sn 777; ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc"])
    assert result.stdout == expected.stdout


# --- output --------------------------------------------------------------------------------

def test_streams_are_separate_and_binary_safe(execute):
    every = bytes(range(256)) * 300
    script = ("import sys, os; b = bytes(range(256)) * 300\n"
              "os.write(1, b) if len(b) < 65536 else sys.stdout.buffer.write(b)\n"
              "sys.stdout.flush(); sys.stderr.buffer.write(b[::-1])")
    result = execute("python3", "-c", script, text=False)
    assert result.returncode == 0
    assert result.stdout == every
    assert result.stderr == every[::-1]


def test_merged_streams_keep_their_order(execute):
    script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
    result = execute("sh", "-c", script, options=["--merge"])
    assert result.stdout == "".join(f"out {i}\nerr {i}\n" for i in range(1, 6))
    assert result.stderr == ""


GENERATE = ("head -c 268435456 /dev/zero | "
            "openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 2>/dev/null")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_256_mib_of_binary_output(execute, harness, service):
    expected = harness.run(["sh", "-c", GENERATE + " | md5sum"], timeout=60).stdout.split()[0]
    before = service.memory()
    path = harness.new_path("output")
    with open(path, "wb") as output:
        result = execute("sh", "-c", GENERATE, stdout=output, timeout=150, text=False)
    assert result.returncode == 0
    digest = hashlib.md5()
    with open(path, "rb") as output:
        while chunk := output.read(1 << 20):
            digest.update(chunk)
    path.unlink()
    assert digest.hexdigest() == expected
    assert service.memory() - before < memory_limit(harness)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_million_lines(execute):
    result = execute("seq", "2000000", timeout=120, text=False)
    assert result.returncode == 0
    assert result.stdout.count(b"\n") == 2000000
    assert hashlib.md5(result.stdout).hexdigest() == hashlib.md5(
        b"".join(b"%d\n" % i for i in range(1, 2000001))).hexdigest()


def test_many_small_writes(execute):
    result = execute("sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done")
    assert result.stdout == "".join(f"{i}\n" for i in range(20000))


def test_character_split_across_writes(execute):
    result = execute("sh", "-c", r"printf 'a\303'; sleep 0.2; printf '\251b'", text=False)
    assert result.stdout == "aéb".encode()


def test_last_line_without_newline(execute):
    assert execute("printf", "one\\ntwo").stdout == "one\ntwo"


def test_output_appears_while_the_command_runs(begin):
    process = begin("sh", "-c", "echo early; sleep 60")
    assert process.stdout.readline() == b"early\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM


def test_children_that_hold_the_pipes_do_not_hold_the_caller(execute):
    word = unique_sleep()
    before = time.monotonic()
    result = execute("sh", "-c", f"sleep {word} & echo started")
    took = time.monotonic() - before
    try:
        assert (result.returncode, result.stdout) == (0, "started\n")
        assert took < 10
        assert len(processes_with(word)) == 1  # left running
    finally:
        for pid in processes_with(word):
            os.kill(pid, signal.SIGKILL)


def test_reader_that_goes_away(harness, service, tree):
    """As locally: the command gets SIGPIPE, and nobody says anything."""
    berth = harness.program("berth")
    result = harness.run(
        ["bash", "-c", f"'{berth}' exec -w {WORKSPACE} -- yes | head -n 2; echo ${{PIPESTATUS[0]}}"],
        env=service.client_env())
    assert (result.stdout, result.stderr) == ("y\ny\n141\n", "")


def test_full_local_disk_is_no_success(execute):
    with open("/dev/full", "wb") as full:
        result = execute("echo", "x", stdout=full)
    assert result.returncode != 0
    assert result.stderr == "berth: standard output: No space left on device\n"


def test_closed_local_output(harness, service, tree):
    berth = harness.program("berth")
    result = harness.run(["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -- echo x >&-"],
                         env=service.client_env())
    assert (result.returncode, result.stderr) == (
        120, "berth: standard output: Bad file descriptor\n")


@pytest.mark.parametrize("rest", ["", "; sleep 1"])
def test_output_that_cannot_be_written(harness, service, tree, rest):
    """It ran, so neither 125 nor the status of the command or of our signal to it is true."""
    berth = harness.program("berth")
    result = harness.run(
        ["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -- sh -c 'echo hi{rest}' > /dev/full"],
        env=service.client_env())
    assert (result.returncode, result.stderr) == (
        120, "berth: standard output: No space left on device\n")


def test_closed_local_error_output(harness, service, tree):
    """Nowhere to write messages: the command goes on, as it would here."""
    berth = harness.program("berth")
    result = harness.run(
        ["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -- sh -c 'echo x >&2; sleep 0.2; exit 7' 2>&-"],
        env=service.client_env())
    assert (result.returncode, result.stdout) == (7, "")


def test_service_that_stops(harness, service, tree, begin):
    """The verdict says so, and the output that came before is not called missing."""
    process = begin("sh", "-c", "echo start; sleep 20")
    assert process.stdout.readline() == b"start\n"
    service.signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert b"the service is stopping" in err and b"missing" not in err, err
    assert process.returncode == 120  # how far it came is not known
    service.popen.wait(20)


def test_slow_reader_gets_everything(begin, service):
    process = begin("head", "-c", "3000000", "/dev/zero")
    time.sleep(1)
    assert process.poll() is None
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == (bytes(3000000), b"", 0)


def test_shared_descriptors_stay_blocking(harness, service, tree):
    """O_NONBLOCK on a descriptor that we inherit would break every process that shares it."""
    read, write_end = os.pipe()
    result = subprocess.run(
        [harness.program("berth"), "exec", "-w", WORKSPACE, "-i", "--", "true"],
        env=service.client_env(), stdin=subprocess.DEVNULL, stdout=write_end, timeout=30,
        check=False)
    flags = fcntl.fcntl(write_end, fcntl.F_GETFL)
    os.close(read)
    os.close(write_end)
    assert result.returncode == 0
    assert not flags & os.O_NONBLOCK


# --- input ---------------------------------------------------------------------------------

def test_input_is_empty_unless_asked_for(execute, begin):
    assert execute("cat", input="ignored").stdout == ""
    process = begin("cat", stdin=subprocess.PIPE)  # held open
    assert process.wait(20) == 0


def test_input_arrives_and_ends(execute):
    content = os.urandom(10 << 20)
    result = execute("md5sum", options=["-i"], input=content, text=False)
    assert result.stdout.split()[0].decode() == hashlib.md5(content).hexdigest()


def test_input_through_and_back(execute):
    content = os.urandom(5 << 20)
    result = execute("cat", options=["-i"], input=content, text=False)
    assert result.stdout == content


def test_input_from_a_file(execute, harness):
    path = harness.new_path("input")
    path.write_bytes(os.urandom(3 << 20))
    with open(path, "rb") as file:
        result = execute("md5sum", options=["-i"], stdin=file)
    assert result.stdout.split()[0] == hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("command", ["sleep 1000", "yes", "cat /dev/zero"])
def test_endless_input_delays_nothing(harness, service, tree, command):
    berth = harness.program("berth")
    before = time.monotonic()
    result = harness.run(
        ["bash", "-c", f"exec 3< <(exec {command}); feeder=$!; '{berth}' exec -w {WORKSPACE} -i"
                       " -- echo hi <&3; status=$?; kill $feeder; exit $status"],
        env=service.client_env())
    assert (result.returncode, result.stdout, result.stderr) == (0, "hi\n", "")
    assert time.monotonic() - before < 10


def test_closed_input(harness, service, tree):
    berth = harness.program("berth")
    result = harness.run(["sh", "-c", f"'{berth}' exec -w {WORKSPACE} -i -- wc -c <&-"],
                         env=service.client_env())
    assert (result.returncode, result.stdout) == (0, "0\n")


def test_input_with_a_gap_ends_the_command(client):
    call = client.wait_started(client.start(WORKSPACE, ["cat"], flags=STDIN))
    client.input(call, 0, "abc")
    client.input(call, 5, "def")
    verdict = client.wait(call)
    assert verdict.verdict == "killed"
    assert "gap" in verdict.text


# --- signals and time ----------------------------------------------------------------------

def test_interrupt_reaches_the_group(begin):
    word = unique_sleep()
    process = begin("sh", "-c", f"echo ready; sleep {word}; echo not reached")
    assert process.stdout.readline() == b"ready\n"
    wait_until(lambda: processes_with(word), what="the sleep")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert processes_with(word) == []


@pytest.mark.parametrize("number,name", [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"),
                                         (signal.SIGHUP, "HUP"), (signal.SIGQUIT, "QUIT")])
def test_signals_are_forwarded(begin, number, name):
    process = begin("sh", "-c", f"trap 'echo got {name}; exit 5' {name}; echo ready;"
                                "while :; do sleep 0.05; done")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, f"got {name}\n".encode())


def test_second_interrupt_kills(begin):
    process = begin("sh", "-c", "trap '' INT; echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 137


def state_of(pid):
    return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]


def test_stop_and_continue(begin):
    word = unique_sleep()
    process = begin("sleep", word)
    pid, = wait_until(lambda: [p for p in processes_with(word) if p != process.pid], what="start")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(pid) == "T", what="the command's stop")
    wait_until(lambda: state_of(process.pid) == "T", what="our own stop")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: state_of(pid) == "S", what="the command's continuation")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143


def test_stop_and_continue_lose_no_output(harness, begin):
    with open(harness.new_path("output"), "wb") as output:
        process = begin("sh", "-c", "i=0; while :; do echo $((i=i+1)); done", stdout=output)
        wait_until(lambda: output.tell() or os.path.getsize(output.name) > 1 << 18, what="output")
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(process.pid) == "T", what="our own stop")
        process.send_signal(signal.SIGCONT)
        size = os.path.getsize(output.name)
        wait_until(lambda: os.path.getsize(output.name) > size, what="more output")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    lines = open(output.name).read().split("\n")
    assert lines[:-1] == [str(i + 1) for i in range(len(lines) - 1)]


def test_timeout(execute):
    word = unique_sleep()
    before = time.monotonic()
    result = execute("sh", "-c", f"sleep {word} & sleep {word}; echo no", options=["--timeout", "0.5"])
    assert time.monotonic() - before < 15
    assert (result.returncode, result.stdout) == (124, "")
    assert result.stderr == "berth: timed out after 0.5 s; 3 processes removed\n"
    assert processes_with(word) == []


def test_timeout_of_what_ignores_term(client):
    word = unique_sleep()
    script = f"trap '' TERM; setsid sleep {word} & sleep {word} & while :; do sleep 0.1; done"
    call = client.run(WORKSPACE, ["sh", "-c", script], timeout_ms=500)
    verdict = call.verdict
    assert (verdict.verdict, verdict.signal, verdict.timeout_ms) == ("timed_out", 9, 500)
    assert verdict.removed >= 3
    assert 2.4e9 < verdict.duration_ns < 20e9
    assert processes_with(word) == []


def test_command_in_time_is_not_timed_out(client):
    verdict = client.run(WORKSPACE, ["sh", "-c", "exit 3"], timeout_ms=20000).verdict
    assert (verdict.verdict, verdict.code, verdict.timeout_ms) == ("exited", 3, 20000)


def test_cancel(client):
    call = client.wait_started(client.start(WORKSPACE, ["sleep", "60"]))
    client.cancel(call)
    verdict = client.wait(call)
    assert (verdict.verdict, verdict.signal, verdict.removed) == ("killed", signal.SIGTERM, 1)
    assert "cancelled" in verdict.text


@pytest.mark.parametrize("ignores", [False, True])
def test_lost_client_ends_its_commands(begin, tree, ignores):
    word = unique_sleep()
    trap = "trap '' TERM" if ignores else "trap 'touch got-term; exit' TERM"
    process = begin("sh", "-c", f"{trap}; echo ready; while :; do sleep 0.05; done; : {word}")
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait(20)
    wait_until(lambda: not processes_with(f"{trap}; echo ready; while :; do sleep 0.05; done; : {word}"),
               timeout=10, what="the command's end")
    assert (tree / "got-term").exists() != ignores


def test_lost_service_is_never_a_success(begin, service):
    word = unique_sleep()
    process = begin("sh", "-c", f"echo ready; sleep {word}")
    assert process.stdout.readline() == b"ready\n"
    service.kill()
    try:
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (120, b"")
        assert err.startswith(b"berth: outcome unknown: ")
    finally:
        for pid in processes_with(word):
            os.kill(pid, signal.SIGKILL)
        for pid in processes_with(f"echo ready; sleep {word}"):
            os.kill(pid, signal.SIGKILL)


def test_service_that_ends_kills_and_says_so(begin, service):
    word = unique_sleep()
    process = begin("sh", "-c", f"echo ready; sleep {word}")
    assert process.stdout.readline() == b"ready\n"
    service.stop()
    _, err = process.communicate(timeout=20)
    assert process.returncode not in (0, 1)
    assert err.startswith(b"berth: ")
    assert processes_with(word) == []


# --- terminals -----------------------------------------------------------------------------

class Terminal:
    """berth exec -i -t in a terminal of our own."""

    def __init__(self, harness, service, *argv, rows=31, columns=97):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", harness.program("berth"), "exec", "-w", WORKSPACE, "-i",
             "-t", "--", *argv],
            env={**service.client_env(), "TERM": "vt100"}, stdin=self.slave, stdout=self.slave,
            stderr=self.slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern, timeout=20):
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], self.seen
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[found.end():]
        return found

    def type(self, text):
        os.write(self.master, text)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(harness, service, tree):
    opened = []

    def start(*argv, **keywords):
        opened.append(Terminal(harness, service, *argv, **keywords))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_terminal_size_and_type_are_set_at_once(terminal):
    screen = terminal("sh", "-c", "stty size; echo $TERM; exit 4")
    screen.expect(rb"31 97\r\nvt100\r\n")
    assert screen.process.wait(20) == 4
    assert termios.tcgetattr(screen.slave) == screen.before


def test_terminal_follows_the_window(terminal):
    screen = terminal("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
    screen.expect(rb"ready\r\n")
    screen.resize(50, 120)
    screen.expect(rb"50 120\r\n")
    screen.type(b"\x03")
    assert screen.process.wait(20) == 130


def test_terminal_keys_reach_the_command(terminal):
    screen = terminal("sh", "-c", "trap 'echo interrupted' INT; echo ready;"
                                  " until read line; do :; done; echo got $line; cat; echo end")
    screen.expect(rb"ready\r\n")
    screen.type(b"\x03")
    screen.expect(rb"interrupted\r\n")
    screen.type(b"hello\n")
    screen.expect(rb"got hello\r\n")
    screen.type(b"\x04")
    screen.expect(rb"end\r\n")
    assert screen.process.wait(20) == 0
    assert termios.tcgetattr(screen.slave) == screen.before


def test_terminal_is_restored_after_a_signal(harness, terminal):
    screen = terminal("sh", "-c", "echo ready; sleep 60")
    screen.expect(rb"ready\r\n")
    assert termios.tcgetattr(screen.slave) != screen.before
    berth, = wait_until(lambda: [p for p in processes_with("echo ready; sleep 60")
                                 if os.readlink(f"/proc/{p}/exe").endswith("/berth")], what="berth")
    os.kill(berth, signal.SIGTERM)
    assert screen.process.wait(20) == 143
    assert termios.tcgetattr(screen.slave) == screen.before


def test_terminal_without_a_local_one(execute):
    result = execute("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size", options=["-t"],
                     text=False)
    assert (result.returncode, result.stdout) == (0, b"24 80\r\n")


def test_terminal_over_the_wire(client):
    call = client.wait_started(client.start(WORKSPACE, ["sh", "-c", "stty size; read x; stty size"],
                                            flags=PTY | STDIN, rows=10, columns=20))
    while bytes(call.output[1]) != b"10 20\r\n":
        client.step()
    client.resize(call, 11, 22)
    client.input(call, 0, "\n")
    client.wait(call)
    assert bytes(call.output[1]).endswith(b"11 22\r\n")


# --- JSON ----------------------------------------------------------------------------------

def test_json_of_an_exit(execute):
    result = execute("sh", "-c", "printf 'é\\0'; printf '\\377' >&2; exit 9", options=["--json"])
    assert (result.returncode, result.stderr) == (9, "")
    assert result.stdout.count("\n") == 1 and result.stdout.endswith("\n")
    object = json.loads(result.stdout)
    assert object.pop("duration_ms") > 0
    assert object == {
        "verdict": "exited", "exit_status": 9, "code": 9, "signal": None, "core": False,
        "stage": None, "error": None, "errno": None, "text": None, "removed": 0,
        "timeout_ms": None, "fs_seq": None, "stdout": "é\0", "stdout_encoding": "utf-8",
        "stdout_bytes": 3, "stdout_truncated": False,
        "stderr": base64.b64encode(b"\xff").decode(), "stderr_encoding": "base64",
        "stderr_bytes": 1, "stderr_truncated": False}


def test_json_of_what_does_not_start(execute):
    result = execute("no-such-program", options=["--json"])
    object = json.loads(result.stdout)
    assert (result.returncode, object["exit_status"], object["verdict"], object["stage"],
            object["errno"], object["code"]) == (127, 127, "not_started", "execve", "ENOENT", None)


def test_json_of_a_timeout(execute):
    result = execute("sleep", "60", options=["--json", "--timeout", "0.3"])
    object = json.loads(result.stdout)
    assert (result.returncode, object["verdict"], object["timeout_ms"], object["signal"],
            object["removed"]) == (124, "timed_out", 300, 15, 1)


@pytest.mark.slow
def test_json_of_endless_output_is_bounded(execute):
    result = execute("head", "-c", "20000000", "/dev/zero", options=["--json"])
    object = json.loads(result.stdout)
    assert (object["stdout_bytes"], object["stdout_truncated"]) == (20000000, True)
    assert len(object["stdout"]) == 16 << 20


# --- the command line ----------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [
    ["-w", WORKSPACE], ["-w", WORKSPACE, "--"], ["-w", WORKSPACE, "--timeout", "x", "--", "true"],
    ["-w", WORKSPACE, "--timeout", "0", "--", "true"], ["-w", WORKSPACE, "--timeout", "nan", "true"],
    ["-w", WORKSPACE, "--no-such-option", "true"], ["-w", "", "--", "true"],
    ["-w", WORKSPACE, "--id", "x" * 65, "--", "true"]])
def test_command_lines_that_are_none(run_berth, tree, arguments):
    result = run_berth("exec", *arguments)
    assert result.returncode == 125
    assert result.stdout == "" and result.stderr != ""


def test_options_of_the_command_are_its_own(execute, run_berth, tree):
    assert run_berth("exec", "-w", WORKSPACE, "echo", "-w", "x", "--json").stdout == "-w x --json\n"


# --- many, and beside each other -----------------------------------------------------------

def children_of(pid):
    return open(f"/proc/{pid}/task/{pid}/children").read().split()


@pytest.mark.timeout(120)
def test_nothing_is_left_behind(client, service):
    for _ in range(5):
        client.run(WORKSPACE, ["true"])
    before = service.descriptors()
    for i in range(200):
        argv = [["sh", "-c", "echo x; echo y >&2"], ["no-such"], ["sh", "-c", "kill -9 $$"]][i % 3]
        client.run(WORKSPACE, argv, flags=[0, MERGE, STDIN, PTY][i % 4])
    assert service.descriptors() == before
    assert children_of(service.pid) == []


def test_commands_run_side_by_side(client):
    before = time.monotonic()
    calls = [client.start(WORKSPACE, ["sh", "-c", f"sleep 1; echo {i}"]) for i in range(40)]
    for i, call in enumerate(calls):
        assert client.wait(call).code == 0
        assert bytes(call.output[1]) == f"{i}\n".encode()
    assert time.monotonic() - before < 20


def test_client_that_never_reads(execute, client, harness, service):
    """Only its own command stops; the service's memory does not grow; others do not notice."""
    client.run(WORKSPACE, ["true"])
    before = service.memory()
    with ExecClient(service.socket) as deaf:
        calls = [deaf.start(WORKSPACE, ["yes"]) for _ in range(4)]
        time.sleep(0.5)
        begun = time.monotonic()
        for i in range(20):
            assert bytes(client.run(WORKSPACE, ["echo", str(i)]).output[1]) == f"{i}\n".encode()
        assert time.monotonic() - begun < 10
        assert execute("echo", "hi").stdout == "hi\n"
        assert service.memory() - before < memory_limit(harness)
        assert calls[0].verdict is None
    wait_until(lambda: children_of(service.pid) == [], what="the end of the deaf client's commands")


def test_call_that_is_not_granted_does_not_stop_its_neighbour(client):
    """Two calls on one connection: the one whose output is not taken waits alone."""
    client.grant = False
    stuck = client.wait_started(client.start(WORKSPACE, ["yes"]))
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline and len(stuck.output[1]) < 900000:
        client.step()
    other = client.run(WORKSPACE, ["sh", "-c", "seq 1000"])
    assert other.output[1].endswith(b"1000\n")
    client.signal(stuck, signal.SIGKILL)
    client.grant = True
    client._send(0x0007, stuck.tag, struct.pack("<I", 1 << 20))
    assert client.wait(stuck).signal == 9
