"""What starts, what does not and why, and what a command finds when it starts."""

import errno
import os
import pwd
import signal
from pathlib import Path

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import wait_until

pytestmark = pytest.mark.sandbox

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
                            ({"argv": ["true"], "flags": 1 << 20}, errno.EINVAL)):
        verdict = client.run(WORKSPACE, **keywords).verdict
        assert (verdict.verdict, verdict.stage, verdict.error) == ("not_started", "request", error)


def test_an_id_does_not_run_twice(client, tree):
    argv = ["sh", "-c", "echo x >> runs; exec sleep 60"]
    first = client.wait_started(client.start(WORKSPACE, argv, exec_id="one"))
    second = client.wait_started(client.start(WORKSPACE, argv, exec_id="one"))
    assert (first.attached, second.attached, second.pid) == (False, True, first.pid)
    assert client.run(WORKSPACE, ["true"], exec_id="two").verdict.verdict == "exited"
    wait_until(lambda: (tree / "runs").exists(), what="its first word")
    client.signal(second, signal.SIGKILL)
    assert client.wait(first).signal == client.wait(second).signal == signal.SIGKILL
    assert (tree / "runs").read_text() == "x\n"


# --- what a command gets -------------------------------------------------------------------

def test_arguments_are_never_joined(execute):
    words = ["a b", "", "*", "$HOME", "'", '"', "\\", "-n", "é", "\n", "--"]
    result = execute("python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *words, check=True)
    assert result.stdout == ascii(words) + "\n"


def odd_environment(names):
    """What a process can be started with, and then some."""
    odd = [b"no equals sign", b"=no name", b"==", b"", b"A=B=leak", b"A=leak again", b"\xff\xfe=leak \xff", b"-e=leak",
           b"new\nline=leak\nPATH=/leak", b"BASH_FUNC_ls%%=() { echo leak; }", b"LONG=" + b"leak" * 20000]
    odd += [name.encode() + b"=leak-" + name.encode() for name in names]
    odd += [prefix + b"%d=leak" % i for prefix in (b"LD_", b"BERTH_LEAK_", b"SECRET_", b"LC_", b"\xc3")
            for i in range(100)]
    return odd


START_WITH = """#!/usr/bin/python3
import ctypes, os, sys
odd = {odd!r}
named = [part.split(b"=", 1)[0] for part in odd]
environment = [name + b"=" + value for name, value in os.environb.items() if name not in named] + odd
argv = [b"berthd"] + [os.fsencode(word) for word in sys.argv[1:]]
array = lambda words: (ctypes.c_char_p * (len(words) + 1))(*words, None)
ctypes.CDLL(None).execve({program!r}, array(argv), array(environment))
sys.exit("execve")
"""


def test_environment_is_clean(harness, start_service):
    """Nothing of what the daemon, and the keeper after it, was started with is seen, whatever that is."""
    names = ["HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "PWD", "OLDPWD", "LC_ALL", "LANGUAGE", "TZ",
             "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT_NOT", "GCONV_PATH", "BERTH_TOKEN", "BERTH_URL",
             "BERTH_WORKSPACE", "BERTH_THREAD_ID", "HTTPS_PROXY", "IFS", "PS4", "ENV", "BASH_ENV", "CDPATH",
             "SSL_CERT_FILE", "XDG_RUNTIME_DIR", "PYTHONPATH", "SECRET"]
    odd = odd_environment(names)
    wrapper = harness.new_path("berthd-odd")
    wrapper.write_text(START_WITH.format(odd=odd, program=harness.program("berthd").encode()))
    wrapper.chmod(0o755)
    harness.binaries["berthd"] = wrapper
    service = start_service()
    user = pwd.getpwuid(os.getuid())
    base = {"PATH": BASE_PATH, "SHELL": "/bin/sh", "LANG": "C.UTF-8", "HOME": user.pw_dir, "USER": user.pw_name,
            "LOGNAME": user.pw_name, "BERTH_THREAD_ID": WORKSPACE, "BERTH_WORKSPACE": WORKSPACE}
    harness.run_berth("create", WORKSPACE, check=True)

    def seen(*options):
        result = harness.run_berth("exec", "-w", WORKSPACE, *options, "--", "/usr/bin/env", "-0", check=True)
        return sorted(result.stdout.split("\0"))

    def expected(**more):
        return sorted(["", *(f"{name}={value}" for name, value in {**base, **more}.items())])

    started = Path(f"/proc/{service.pid}/environ").read_bytes()
    assert all(part in started.split(b"\0") for part in odd)
    assert seen() == expected()
    assert seen("-e", "A=x=y", "-e", "LANG=de_DE") == expected(A="x=y", LANG="de_DE")
    service.kill()
    service.restart()
    assert seen() == expected()  # from the keeper of the one that was killed


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
