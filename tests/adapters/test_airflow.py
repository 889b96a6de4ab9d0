"""Airflow's contract of a sandbox backend (its provider common.ai 1.1), and what other backends of it have met:
contrib/adapters/airflow, which is tried without Airflow."""

import contextlib
import copy
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from lib.harness import REPOSITORY, wait_until

ADAPTER = REPOSITORY / "contrib/adapters/airflow"
sys.path.insert(0, str(ADAPTER / "src"))

from berth_airflow import BerthSandboxBackend, client as berth_client, commands  # noqa: E402 pylint: disable=C0413
from berth_airflow import contract, files, transport  # noqa: E402 pylint: disable=C0413

pytestmark = pytest.mark.release

SLEEPERS = ("n=0; for f in /proc/[0-9]*/cmdline; do c=$(tr '\\0' ' ' < $f 2>/dev/null); "
            "case $c in *'sleep 4321'*|*'4321 '*) case $c in *tr*|*case*) ;; *) n=$((n+1));; esac;; esac; done; echo $n")


@pytest.fixture
def backend(service):
    backend = BerthSandboxBackend(service.url)
    yield backend
    backend.close()


@pytest.fixture
def sandbox(backend):
    return backend.create(spec=contract.SandboxSpec())


@pytest.fixture
def run(backend, sandbox):
    return runner(backend, sandbox)


def runner(backend, sandbox):
    def run(command, timeout=60.0, max_output_bytes=50 * 1024):
        return backend.run_command(sandbox, command, timeout=timeout, max_output_bytes=max_output_bytes)
    return run


def refusal(call, *arguments, kind=None, **keywords):
    """The failure's text, of exactly this class."""
    with pytest.raises(contract.SandboxError) as caught:
        call(*arguments, **keywords)
    assert type(caught.value) is (kind or contract.SandboxError), caught.value
    return str(caught.value)


def terminal(call, *arguments, **keywords):
    return refusal(call, *arguments, kind=contract.SandboxTerminalError, **keywords)


# --- the contract -----------------------------------------------------------------------------

@pytest.mark.parametrize("way", ["unix", "http", "https", "exec"])
def test_a_life(harness, way):
    service = harness.start_service(tls=way == "https", http=way == "http")
    url = {"unix": service.url, "http": service.http_url, "https": service.tls_url,
           "exec": f"exec:{harness.program('berthd')} --stdio --root {service.root}"}[way]
    backend = BerthSandboxBackend(url, token_file=service.token_file if way.startswith("http") else None,
                                  ca_file=harness.certificates.ca if way == "https" else None, tags={"team": "a"})
    spec = contract.SandboxSpec(env={"KEY": "a b\nc"}, owner="dag/run")
    sandbox = backend.create(spec=spec)
    assert sandbox.startswith("airflow-sandbox-")
    tags = backend.read_tags(sandbox)
    assert tags["team"] == "a" and tags[contract.OWNER_TAG] == "dag/run" and tags[contract.WORKDIR_TAG] == "/workspace"
    assert 3500 < float(tags[contract.EXPIRES_AT_TAG]) - time.time() <= 3600
    assert contract.decode_network_policy(tags[contract.NETWORK_TAG]) == contract.SandboxSpec()
    labels = backend._service().workspace(sandbox)["labels"]
    assert labels["created-by"] == "airflow" and abs(int(labels["created-at"]) - time.time()) < 30
    run = runner(backend, sandbox)
    result = run("pwd; printf '%s' \"$KEY\"; echo err >&2; exit 3")
    assert result == contract.SandboxExecResult(exit_code=3, stdout="/workspace\na b\nc", stderr="err\n")
    backend.write_file(sandbox, "a/b/c.bin", bytes(range(256)) * 40)
    assert run("sha256sum < a/b/c.bin").stdout == run("printf '%s' \"$(cat a/b/c.bin)\" > /dev/null; sha256sum "
                                                      "/workspace/a/b/c.bin | sed 's/-$//;s/ .*/  -/'").stdout
    assert backend.read_file(sandbox, "/workspace/a/b/c.bin", max_bytes=10240) == bytes(range(256)) * 40
    assert backend.list_directory(sandbox, ".") == [("a", True)]
    assert backend.list_directory(sandbox, "a/b") == [("c.bin", False)]
    # Another process finds it by its name alone, with its environment.
    other = pickle.loads(pickle.dumps(copy.deepcopy(backend)))
    assert runner(other, sandbox)("printf '%s' \"$KEY\"").stdout == "a b\nc"
    backend.destroy(sandbox)
    backend.destroy(sandbox)
    backend.destroy("airflow-sandbox-never")
    assert "gone" in terminal(runner(other, sandbox), "true")
    terminal(backend.read_tags, sandbox)
    terminal(backend.write_file, sandbox, "x", b"")
    for each in (backend, other):
        each.close()


def test_construction_asks_nothing():
    """It happens whenever a Dag file is parsed."""
    backend = BerthSandboxBackend("unix:/nonexistent/socket")
    assert issubclass(BerthSandboxBackend, contract.AttachableSandboxBackend) and backend.name == "berth"
    assert "not reached" in terminal(backend.create)
    for wrong in ({"url": "ftp://x"}, {"url": "http://192.0.2.1:80"}, {"url": "unix:/x", "berth_conn_id": "y"},
                  {"open_network": "all"}, {"sandbox_timeout": 0}, {"policy": {"network": "host"}},
                  {"tags": {"airflow_owner": "x"}}):
        with pytest.raises(ValueError):
            BerthSandboxBackend(**wrong)
    assert "Airflow" in terminal(BerthSandboxBackend(berth_conn_id="berth_default").create)


def test_wrong_credentials_are_terminal(harness):
    service = harness.start_service(http=True)
    assert "token" in terminal(BerthSandboxBackend(service.http_url, token="wrong").create).lower()
    terminal(BerthSandboxBackend(service.http_url, token_file=str(harness.directory / "none")).create)


@pytest.mark.parametrize("wrong, word", [
    ({"allow_egress_to": "pypi.org"}, "sequence"), ({"allow_egress_to": ["https://pypi.org"]}, "host name"),
    ({"allow_egress_to": ["pypi.org:443"]}, "host name"), ({"allow_egress_to": ["192.0.2.1"]}, "host name"),
    ({"allow_egress_to": ["localhost"]}, "host name"), ({"allow_egress_to": ["*"]}, "host name"),
    ({"allow_egress_to": [f"h{i}.example.org" for i in range(257)]}, "256"),
    ({"allow_egress_to_cidrs": ["203.0.113.0/24"]}, "proxy"), ({"allow_egress_to_cidrs": "203.0.113.0/24"}, "sequence"),
    ({"block_network": False, "allow_egress_to": ["pypi.org"]}, "narrow"),
    ({"env": {"A=B": "x"}}, "name"), ({"env": {"A": "x\0"}}, "NUL"), ({"env": {"BERTH_X": "x"}}, "own"),
    ({"env": {"A": 1}}, "string"), ({"env": {"A": "x" * 13000}}, "at most"), ({"env": {"A": "\udc80"}}, "UTF-8"),
    ({"env": {"HTTPS_PROXY": "x"}, "allow_egress_to": ["pypi.org"]}, "proxy")])
def test_what_cannot_be_enforced_is_refused_and_nothing_is_made(wrong, word):
    """No service is asked: there is none."""
    backend = BerthSandboxBackend("unix:/nonexistent/socket")
    assert word in terminal(backend.create, spec=contract.SandboxSpec(**wrong))


def test_networks(service, backend):
    def network(backend=backend, **spec):
        return backend._service().policy(backend.create(spec=contract.SandboxSpec(**spec)))["asked"]["network"]
    assert network() == "none"
    assert network(allow_egress_to=["PyPI.org", "*.example.org"]) == {"allow": ["*.example.org:443", "pypi.org:443"]}
    assert network(block_network=False) == {"allow": ["*:*"]}
    for wrong in (["203.0.113.1/24"], ["0.0.0.0/0"], ["2001:db8::/32"], ["host"]):
        lax = BerthSandboxBackend(service.url, cidrs_by_proxy=True, open_network="host")
        terminal(lax.create, spec=contract.SandboxSpec(allow_egress_to_cidrs=wrong))
    assert network(lax, allow_egress_to_cidrs=["203.0.113.0/24"]) == {"allow": ["203.0.113.0/24:*"]}
    assert network(lax, block_network=False) == "host"
    lax.close()


def test_a_policy_that_this_machine_cannot_enforce(harness):
    """The service makes the workspace, and says that no command can be held so: nothing is left of it."""
    harness.env["BERTH_WITHOUT"] = "net-namespace,seccomp"
    service = harness.start_service()
    backend = BerthSandboxBackend(service.url)
    assert "removed" in terminal(backend.create, spec=contract.SandboxSpec())
    strict = BerthSandboxBackend(service.url, policy={"require": ["full"]})
    terminal(strict.create)
    assert backend._service().ask("GET", "/v1/workspaces").json()["workspaces"] == []
    for each in (backend, strict):
        each.close()


def test_files(backend, sandbox, run):
    names = ["plain", "two\nlines", "späße", "-n", "'\"$(id)", ".hidden"]
    for name in names:
        backend.write_file(sandbox, f"d/{name}", name.encode())
        assert backend.read_file(sandbox, f"d/{name}", max_bytes=100) == name.encode()
    assert sorted(backend.list_directory(sandbox, "d")) == sorted((name, False) for name in names)
    run("cd d; i=0; while [ $i -lt 1100 ]; do : > f$i; i=$((i+1)); done; rm f*; mkdir sub; ln -s sub link")
    assert {("sub", True), ("link", False)} <= set(backend.list_directory(sandbox, "/workspace/d/"))
    run("mkdir many; cd many; seq 1 2100 | xargs touch")
    assert len(set(backend.list_directory(sandbox, "many"))) == 2100
    assert backend.list_directory(sandbox, "d/sub") == []
    # Outside of the workspace, and behind links that lead there, only commands reach.
    for path in ("/tmp/o/a b", "out/-x", "d/../../tmp/dots"):
        run("ln -sfn /tmp out")
        backend.write_file(sandbox, path, b"\0\xff\n" * 3)
        assert backend.read_file(sandbox, path, max_bytes=9) == b"\0\xff\n" * 3
        too_large = refused_size(backend, sandbox, path, 8)
        assert (too_large.size_bytes, too_large.max_bytes, too_large.path) == (9, 8, path)
    assert ("a b", False) in backend.list_directory(sandbox, "/tmp/o") and ("o", True) in backend.list_directory(sandbox, "out")
    assert backend.list_directory(sandbox, "d/..") != []
    big = bytes(range(256)) * 20000  # 5 MB, more than a request takes
    backend.write_file(sandbox, "/tmp/big", big)
    assert backend.read_file(sandbox, "/tmp/big", max_bytes=len(big)) == big
    assert backend.read_file(sandbox, "/proc/self/status", max_bytes=1 << 20).startswith(b"Name:")


def refused_size(backend, sandbox, path, max_bytes):
    with pytest.raises(contract.SandboxFileTooLargeError) as caught:
        backend.read_file(sandbox, path, max_bytes=max_bytes)
    return caught.value


def test_reads_are_bounded_and_tell_the_real_size(backend, sandbox, run):
    run("truncate -s 10G huge; : > empty; printf 12345 > five; mkfifo fifo; ln -s /dev/zero zero; mkfifo /tmp/fifo")
    started = time.monotonic()
    assert refused_size(backend, sandbox, "huge", 5 << 20).size_bytes == 10 << 30
    assert refused_size(backend, sandbox, "five", 4).size_bytes == 5
    assert backend.read_file(sandbox, "five", max_bytes=5) == b"12345"
    assert backend.read_file(sandbox, "empty", max_bytes=5) == b""
    # None of these is waited for.
    for special in ("fifo", "zero", "/dev/zero", "/tmp/fifo", "/dev/tty"):
        assert "regular" in refusal(backend.read_file, sandbox, special, max_bytes=100) or special == "/dev/tty"
        if special != "zero":
            refusal(backend.write_file, sandbox, special, b"x")
    assert time.monotonic() - started < 25


def test_paths_that_are_none_do_not_hurt_the_sandbox(backend, sandbox, run):
    operations = [lambda path: backend.read_file(sandbox, path, max_bytes=10),
                  lambda path: backend.write_file(sandbox, path, b"x"),
                  lambda path: backend.list_directory(sandbox, path)]
    for path, word in (("a\0b", "NUL"), ("x/" * 20000, "bytes"), ("", "empty"), ("\udc80", "UTF-8"),
                       ("n" * 300, "too long")):
        for operation in operations:
            assert word in refusal(operation, path)
    assert "not there" in refusal(operations[0], "none") and "not there" in refusal(operations[2], "none")
    assert "directory" in refusal(operations[0], "/workspace") and "directory" in refusal(operations[0], "/tmp")
    assert "NUL" in refusal(run, "echo a\0b") and "UTF-8" in refusal(run, "\udc80")
    assert run("echo alive").stdout == "alive\n"


# --- commands, and the traps ------------------------------------------------------------------

def test_ends(backend, sandbox, run):
    assert run("kill -9 $$").exit_code == 137
    assert run("exec no-such-program").exit_code == 127
    assert run("cat").stdout == ""  # its input is empty
    # What a command prints, and where it leaves by, is no verdict.
    forged = run("echo '{\"event\":\"ended\",\"verdict\":\"exited\",\"exit_status\":0,\"code\":0}'; printf '\\r\\n0\\r\\n\\r\\n'; exit 9")
    assert forged.exit_code == 9 and "ended" in forged.stdout
    # 124, 125 and the numbers that scripts of ours use mean nothing else when a command uses them.
    for status in (66, 67, 68, 120, 124, 125, 126):
        result = run(f"exit {status}")
        assert (result.exit_code, result.timed_out) == (status, False)
    assert run("sleep 0.2 & echo begun").stdout == "begun\n"
    # As long as one word may be, all of it is run; a longer one is not run at all.
    assert run(": " + "x" * 130000 + "; echo whole").stdout == "whole\n"
    assert "at most" in refusal(run, "touch ran; : " + "x" * 140000)
    assert "ran" not in dict(backend.list_directory(sandbox, "."))


def test_a_full_tmp_does_not_change_what_runs(service):
    """Nothing of a command is staged anywhere."""
    backend = BerthSandboxBackend(service.url, policy={"limits": {"file_size": 4096}})
    run = runner(backend, backend.create(spec=contract.SandboxSpec()))
    result = run("dd if=/dev/zero of=/tmp/full bs=64k count=1 2>/dev/null; echo " + "y" * 20000 + "; exit 5")
    assert result.exit_code == 5 and result.stdout == "y" * 20000 + "\n"
    backend.close()


def test_output(run):
    result = run("seq 1 100000; echo oops >&2", max_output_bytes=1000)
    assert result.stdout_truncated and not result.stderr_truncated
    assert len(result.stdout) == 1000 and result.stdout.endswith("99999\n100000\n") and result.stderr == "oops\n"
    result = run("echo ok; seq 1 30000 >&2", max_output_bytes=1000)
    assert (result.stdout, result.stdout_truncated, result.stderr_truncated) == ("ok\n", False, True)
    assert result.stderr.endswith("30000\n")
    result = run("printf 'x'; head -c 999 /dev/zero | tr '\\0' y", max_output_bytes=1000)
    assert result.stdout == "x" + "y" * 999 and not result.stdout_truncated
    result = run("printf '%0999dä'", max_output_bytes=1000)  # cut within a character, at the beginning alone
    assert result.stdout_truncated is True and "�" not in result.stdout and result.stdout.endswith("0ä")
    assert run("printf 'a\\377b'").stdout == "a�b"


@pytest.mark.long
def test_more_output_than_anybody_can_hold(run):
    result = run("head -c 60M /dev/zero | tr '\\0' z; echo; echo last; exit 4", timeout=50, max_output_bytes=1000)
    assert result.exit_code == 4 and result.stdout_truncated and result.stdout.endswith("z\nlast\n")
    result = run("echo first >&2; exec yes", timeout=1, max_output_bytes=1000)
    assert result.timed_out and result.stdout_truncated and result.stdout.endswith("y\n") and result.stderr == "first\n"


@pytest.mark.sandbox
def test_a_timeout_ends_everything(backend, sandbox, run):
    """Sessions of their own, processes without parents, names that confuse who reads /proc, many of them, and
    a machine that is busy: at its time nothing of the command is left."""
    run("cp /bin/sleep 'a) Z 1 b'; cp /bin/sleep \"$(printf 'x)\\n1 (y')\"")
    left = run("sleep 4321 > /dev/null 2>&1 & echo $!").stdout
    assert run(SLEEPERS).stdout == "1\n" and run(f"kill -9 {left}").exit_code == 0
    started = time.monotonic()
    result = run("echo begun; for i in $(seq 60); do sleep 4321 & done\n"
                 "setsid sleep 4321 &\n(setsid sh -c 'sleep 4321 & sleep 4321' &)\n"
                 "'./a) Z 1 b' 4321 &\nsetsid ./x*y 4321 &\n"
                 "trap '' TERM\nwhile :; do :; done & while :; do :; done & while :; do :; done &\n"
                 "while :; do sleep 4321; done", timeout=2.5)
    took = time.monotonic() - started
    assert result.timed_out and result.stdout == "begun\n" and not result.sandbox_terminated
    assert result.applied_timeout is None and took < 25, took
    assert run(SLEEPERS).stdout == "0\n"
    assert ("a) Z 1 b", False) in backend.list_directory(sandbox, ".")  # its files are there still


def test_the_applied_timeout_is_told(service):
    backend = BerthSandboxBackend(service.url, policy={"limits": {"wall_time": 1}})
    result = runner(backend, backend.create(spec=contract.SandboxSpec()))("sleep 60", timeout=100)
    assert result.timed_out and result.applied_timeout == 1.0
    backend.close()


def test_names_of_variables_are_the_callers_alone(service):
    """Whatever a wrapper would have for itself; and files are reached although PATH is of no use."""
    names = ["t", "c", "d", "f", "p", "w", "z", "sz", "e", "o", "IFS", "ENV", "PATH", "HOME", "PWD", "LD_PRELOAD"]
    backend = BerthSandboxBackend(service.url)
    sandbox = backend.create(spec=contract.SandboxSpec(env={**{name: f"mine-{name}" for name in names}, "PWD": "/x"}))
    result = runner(backend, sandbox)("echo \"$t $c $d $f $p $w $z $sz $e $o $HOME $ENV $PATH\"")
    assert result.stdout == "mine-" + " mine-".join("t c d f p w z sz e o HOME ENV PATH".split()) + "\n"
    backend.write_file(sandbox, "/tmp/x", b"1")
    assert backend.read_file(sandbox, "/tmp/x", max_bytes=1) == b"1"
    backend.close()


def test_a_policy_that_is_changed_is_noticed(service, backend, sandbox, run):
    """Before the next command and after the one that runs; the sandbox is not used again."""
    admin = BerthSandboxBackend(service.url)._service()
    assert run("echo fine").exit_code == 0
    change = {"network": {"allow": ["*:*"]}}
    admin.ask("PATCH", admin.place(sandbox, "/policy"), body=change)
    assert "network" in terminal(run, "touch ran")
    assert "gone" in terminal(run, "true")
    sandbox = backend.create(spec=contract.SandboxSpec())
    run = runner(backend, sandbox)
    thread = when_begun(service, sandbox, lambda: admin.ask("PATCH", admin.place(sandbox, "/policy"), body=change))
    assert "what it was" in terminal(run, "touch begun; sleep 4; echo done")
    thread.join()
    # Who attaches to one that is wider than its maker wrote down is refused as well.
    sandbox = backend.create(spec=contract.SandboxSpec(owner="o"))
    admin.ask("PATCH", admin.place(sandbox, "/policy"), body=change)
    other = BerthSandboxBackend(service.url)
    assert "not held" in terminal(other.attach, sandbox, owner="o", holder="h")
    for each in (admin, other):
        each.close()


# --- connections ------------------------------------------------------------------------------

def test_lost_connections_change_nothing(harness, service):
    """Neither what is run nor what is told of it: once, all of its output, its own status."""
    relay = harness.start_relay(service)
    backend = BerthSandboxBackend(relay.url)
    sandbox = backend.create(spec=contract.SandboxSpec())
    cuts = iter([0.1, 0.25, 0.4, 0.6, 0.9] * 4)

    def cut():
        for pause in cuts:
            time.sleep(pause)
            relay.cut()
            if done.is_set():
                return

    done = threading.Event()
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        result = runner(backend, sandbox)("echo once >> ran; for i in $(seq 150); do echo $i; sleep 0.02; done; exit 6",
                                          timeout=100)
    finally:
        done.set()
        thread.join()
    assert result.exit_code == 6 and result.stdout == "".join(f"{i}\n" for i in range(1, 151))
    assert backend.read_file(sandbox, "ran", max_bytes=100) == b"once\n"
    backend.close()


def when_begun(service, sandbox, act):
    """Does that when a command has made the file `begun`."""
    def wait():
        direct = BerthSandboxBackend(service.url)
        wait_until(lambda: ("begun", False) in direct.list_directory(sandbox, "."), 60, "the command", 0.05)
        direct.destroy(sandbox) if act is None else act()
        direct.close()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_an_outcome_that_is_not_known_is_no_success(harness, service, monkeypatch):
    """Neither is it "not run"."""
    relay = harness.start_relay(service)
    backend = BerthSandboxBackend(relay.url)
    sandbox = backend.create(spec=contract.SandboxSpec())
    run = runner(backend, sandbox)
    run("true")
    # What keeps commands is killed: the service is there, and does not know how the command ended.
    thread = when_begun(service, sandbox, lambda: service.keeper().kill())
    assert "happened or not" in refusal(run, "touch begun; sleep 50", timeout=100)
    thread.join()
    assert run("rm begun; echo again").stdout == "again\n"
    # The service is not reached any more.
    for module in (berth_client, commands):
        monkeypatch.setattr(module, "RECOVERY_SECONDS", 1.0)
    thread = when_begun(service, sandbox, lambda: (relay.refuse(), relay.cut()))
    text = terminal(run, "touch begun; sleep 50", timeout=100)
    thread.join()
    assert "may have run" in text
    terminal(backend.read_file, sandbox, "x", max_bytes=1)
    terminal(backend.create)
    relay.refuse(False)
    backend.destroy(sandbox)
    backend.close()


def test_a_service_that_is_started_again(service, run):
    run("echo kept > file")
    service.restart()
    assert run("cat file").stdout == "kept\n"


def test_a_sandbox_that_is_removed_under_a_command(service, backend, sandbox, run):
    thread = when_begun(service, sandbox, None)
    try:
        result = run("touch begun; sleep 50", timeout=100)
        assert result.sandbox_terminated and result.exit_code != 0
    except contract.SandboxTerminalError as error:
        assert "gone" in str(error)
    thread.join()


# --- tags -------------------------------------------------------------------------------------

def test_tags_are_compared_and_swapped(service, backend):
    sandbox = backend.create(spec=contract.SandboxSpec(owner="dag/run", env={"A": "1"}))
    other = BerthSandboxBackend(service.url)
    tags = backend.read_tags(sandbox)
    other.write_tags(sandbox, {**other.read_tags(sandbox), "mine": "1"})
    assert "somebody else" in str(pytest.raises(contract.SandboxError, backend.write_tags, sandbox, tags).value)
    assert other.read_tags(sandbox)["mine"] == "1"
    backend.write_tags(sandbox, {**backend.read_tags(sandbox), "more": "2"})
    assert {**other.read_tags(sandbox)} == {**tags, "mine": "1", "more": "2"}
    # What the backend itself keeps there is no tag, and is not lost with those that are replaced.
    assert runner(other, sandbox)("echo $A").stdout == "1\n"
    assert "owner" in terminal(other.attach, sandbox, owner="dag/other", holder="t")
    attached = other.attach(sandbox, owner="dag/run", holder="t1")
    assert attached.workdir == "/workspace" and attached.network == contract.SandboxSpec()
    assert 3500 < attached.remaining_lifetime <= 3600
    assert "t1" in terminal(backend.attach, sandbox, owner="dag/run", holder="t2")
    assert backend.attach(sandbox, owner="dag/run", holder="t1") is not None  # a task that is tried again
    backend.release(sandbox, holder="t2")
    assert other.read_tags(sandbox)[contract.HOLDER_TAG] == "t1"
    backend.release(sandbox, holder="t1")
    backend.release(sandbox, holder="t1")
    assert contract.HOLDER_TAG not in other.read_tags(sandbox)
    other.close()


def test_one_of_many_that_claim_at_once(service, backend):
    sandbox = backend.create(spec=contract.SandboxSpec(owner="o"))
    for _ in range(4):
        barrier, won = threading.Barrier(6), []

        def claim(name, barrier=barrier, won=won):
            barrier.wait()
            try:
                backend.attach(sandbox, owner="o", holder=name)
                won.append(name)
            except contract.SandboxTerminalError:
                pass

        threads = [threading.Thread(target=claim, args=(f"t{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and backend.read_tags(sandbox)[contract.HOLDER_TAG] == won[0]
        backend.release(sandbox, holder=won[0])


def test_many_threads_on_one_backend(backend, sandbox):
    """The toolset calls it from whichever thread is free."""
    results = {}

    def work(number):
        results[number] = runner(backend, sandbox)(f"echo {number}; exit {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: (result.stdout, result.exit_code) for number, result in results.items()} == {
        number: (f"{number}\n", number) for number in range(12)}


# --- exec: --------------------------------------------------------------------------------------

def test_what_a_command_line_of_a_transport_says_is_told(harness):
    backend = BerthSandboxBackend("exec:echo 'ssh: no route' >&2; exit 255")
    assert "no route" in terminal(backend.create)
    backend.close()


def test_a_transports_process_ends_with_its_connection(harness, service):
    marker = f"{service.root}"
    url = f"exec:{harness.program('berthd')} --stdio --root {marker}"
    backend = BerthSandboxBackend(url)
    sandbox = backend.create(spec=contract.SandboxSpec())
    assert runner(backend, sandbox)("echo x").stdout == "x\n"

    def relays():
        out = subprocess.run(["pgrep", "-f", "--", f"--stdio --root {marker}"], capture_output=True, text=True, check=False)
        return out.stdout.split()

    assert relays()
    backend.close()
    wait_until(lambda: not relays(), 10, "the end of the transports")


def test_a_transports_process_group_ends_with_its_connection(tmp_path):
    url = f"exec:(echo $$; exec sleep 987) >> {tmp_path}/a & sh -c 'echo $$ >> {tmp_path}/b; exec sleep 986'; true"
    connection = transport.Address(url).connect()
    connection.connect()
    sleepers = [tmp_path / "a", tmp_path / "b"]
    wait_until(lambda: all(each.exists() and each.read_text().strip() for each in sleepers), 10, "the sleepers")
    group = connection._child.pid
    try:
        connection.close()
        wait_until(lambda: not living(group), 10, "their end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def living(group):
    out = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if line.split()[0] == str(group) and "Z" not in line.split()[1]]


def test_what_a_transport_says_without_end_is_kept_in_bounds():
    connection = transport.Address("exec:yes flood >&2").connect()
    connection.connect()
    try:
        wait_until(lambda: len(connection._said.text()) > 1000, 10, "words")
        assert len(connection.explanation()) <= transport.CHILD_ERROR_MAX
    finally:
        connection.close()


# --- services that lie or are damaged -----------------------------------------------------------

@pytest.fixture
def liar():
    """Clients of services that answer every request by a function of the connection."""
    listeners, clients = [], []

    def serve(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def each(stream):
            with stream, contextlib.suppress(OSError):
                stream.recv(65536)
                answer(stream)

        def loop():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=each, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        clients.append(berth_client.Client(transport.Address(f"http://127.0.0.1:{listener.getsockname()[1]}")))
        return clients[-1]

    yield serve
    for each in clients:
        each.close()
    for each in listeners:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@pytest.fixture
def hasty(monkeypatch):
    for module, name, value in [
            (berth_client, "ANSWER_SECONDS", 0.5), (berth_client, "STREAM_SECONDS", 0.5), (commands, "STREAM_SECONDS", 0.5),
            (berth_client, "RECOVERY_SECONDS", 0.5), (commands, "RECOVERY_SECONDS", 0.5), (commands, "GRACE_SECONDS", 0.5)]:
        monkeypatch.setattr(module, name, value)


def says(body, status=200):
    return lambda stream: stream.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


def drips(head, word, pause=0.1):
    def answer(stream):
        stream.sendall(head)
        while True:
            stream.sendall(word)
            time.sleep(pause)
    return answer


def is_unknown(call):
    with pytest.raises(berth_client.BerthError) as caught:
        call()
    assert caught.value.effect == "unknown", caught.value


DEEP = b"[" * 200000


def a_run(client):
    return lambda: commands.run(client, "a", ["x"], timeout=0.1, output_max=100).exit_status


@pytest.mark.parametrize("body", [pytest.param(DEEP, id="deep"), b"[]", b"5", b"null", b"{}", b'{"id":"b","labels":{}}', b'{"id":"a","labels":[1,2]}',
                                  b'{"id":"a"}', b"\xff"])
def test_answers_of_no_such_shape_are_unknown_outcomes(liar, hasty, body):
    client = liar(says(body))
    for call in (client.workspace, client.create, client.policy):
        is_unknown(lambda call=call: call("a"))
    if body not in (b"{}", b'{"id":"a"}'):
        is_unknown(lambda: client.labels("a"))
    is_unknown(lambda: files.Files(client).list("a", "."))
    is_unknown(lambda: liar(says(body, 500)).workspace("a"))


@pytest.mark.parametrize("line", [
    pytest.param(DEEP, id="deep"), b'{"event":"ended"}', b'{"event":"ended","verdict":"exited","exit_status":"zz"}',
    b'{"event":"ended","verdict":"exited","exit_status":0,"stdout_bytes":99}',
    b'{"event":"output","stream":"stdout","offset":0,"data":"!","encoding":"base64"}',
    b'{"event":"output","stream":"stdout","offset":-5,"data":""}'])
def test_events_of_no_such_shape_are_unknown_outcomes(liar, hasty, line):
    is_unknown(a_run(liar(says(line + b"\n"))))


@pytest.mark.parametrize("head, word", [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    (b"HTTP/1.1 200 OK\r\n", b"x"), (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n")])
def test_an_answer_that_drips_is_lost(liar, hasty, head, word):
    begun = time.monotonic()
    is_unknown(lambda: liar(drips(head, word)).workspace("a"))
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize("word", [b" ", b'{"event":"alive"}\n'])
def test_a_run_ends_although_its_stream_does_not(liar, hasty, word):
    begun = time.monotonic()
    is_unknown(a_run(liar(drips(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n", word))))
    assert time.monotonic() - begun < 12


def test_a_request_that_nobody_takes_is_lost(liar, hasty):
    client = liar(lambda stream: time.sleep(5))
    begun = time.monotonic()
    is_unknown(lambda: client.ask("PUT", "/x", content=bytes(64 << 20)))
    assert time.monotonic() - begun < 5


def test_nothing_is_said_to_be_left_where_nothing_was_sent(harness, liar, hasty, caplog):
    caplog.set_level(logging.WARNING)
    service = harness.start_service(http=True)
    for nowhere in (BerthSandboxBackend("unix:/nonexistent/socket"), BerthSandboxBackend(service.http_url, token="wrong")):
        terminal(nowhere.create)
        assert "may be left" not in caplog.text
        nowhere.close()
    lying = BerthSandboxBackend(liar(says(b"[]"))._address.url)
    terminal(lying.create)
    lying.close()
    assert "may be left" not in caplog.text  # DELETE was answered
    lost = BerthSandboxBackend(liar(lambda stream: None)._address.url)
    terminal(lost.create)
    lost.close()
    assert "may be left" in caplog.text


# --- types --------------------------------------------------------------------------------------

def test_types(tmp_path):
    done = subprocess.run(["mypy", "--strict", "--cache-dir", str(tmp_path)], cwd=ADAPTER, capture_output=True, text=True,
                          timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
