"""Positive controls: what the other tests rely on works here, and the harness notices what it
says it notices. Without these, a green suite would mean nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lib import harness as parts
from lib import mounts


def test_fuse_can_be_mounted(fuse_works):
    assert os.path.exists("/dev/fuse")


def test_certificates_verify_only_where_they_should(certificates):
    def verify(name, authority, *options):
        certificate, _ = certificates.pair(name)
        return subprocess.run(
            ["openssl", "verify", *options, "-CAfile", authority, certificate],
            capture_output=True, timeout=30, check=False)

    assert verify("server", certificates.ca, "-verify_hostname", "localhost").returncode == 0
    assert verify("client", certificates.ca).returncode == 0
    assert verify("server", certificates.other_ca).returncode != 0
    wrong = verify("wrong_host", certificates.ca, "-verify_hostname", "localhost")
    assert wrong.returncode != 0 and b"ostname" in wrong.stderr + wrong.stdout
    expired = verify("expired", certificates.ca)
    assert expired.returncode != 0 and b"expired" in expired.stderr + expired.stdout


def test_a_program_that_hangs_is_ended(run):
    before = time.monotonic()
    with pytest.raises(parts.HarnessError, match="not within"):
        run(["sleep", "600"], timeout=0.3)
    assert time.monotonic() - before < 10


@pytest.mark.parametrize("line", [
    "==1==ERROR: AddressSanitizer: heap-use-after-free", "a.c:1:2: runtime error: shift",
    "berthd: x.c:3: f: Assertion `n > 0' failed.", "2 descriptors leaked"])
def test_suspicious_words_in_a_log_are_found(harness, line):
    process = harness.start("speaker", "echo", line)
    process.popen.wait(10)
    harness.owned.remove(process)
    with pytest.raises(parts.HarnessError, match="wrote"):
        process.close()


def test_harmless_words_in_a_log_are_not(harness):
    process = harness.start("speaker", "echo", "berthd: listening on unix:/x; client gone")
    process.popen.wait(10)
    process.close()


def test_a_bad_exit_status_is_noticed(harness):
    process = harness.start("failing", "sh", "-c", "exit 3")
    process.popen.wait(10)
    harness.owned.remove(process)
    with pytest.raises(parts.HarnessError, match="status 3"):
        process.close()


def test_a_program_that_ignores_term_is_noticed(harness):
    script = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    process = harness.start("stubborn", sys.executable, "-c", script)
    process.wait_for_line("up")
    harness.owned.remove(process)
    with pytest.raises(parts.HarnessError, match="did not end"):
        process.stop(timeout=0.5)
    assert not process.running()


def test_a_program_that_dies_early_is_reported_with_its_log(harness):
    process = harness.start("dying", "sh", "-c", "echo because; exit 1")
    process.expected_status = (1,)
    with pytest.raises(parts.HarnessError, match="because"):
        process.wait_for_line("never")


def test_processes_left_behind_are_found(tmp_path, build_dir):
    owner = parts.Harness(tmp_path, build_dir, lambda: None, 0)
    owner.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null &"], check=True)
    with pytest.raises(parts.HarnessError, match="left behind"):
        owner.close()


def test_environment_is_private(harness):
    assert harness.env["HOME"].startswith(str(harness.directory))
    assert not [name for name in harness.env if name.startswith("BERTH_")]
    assert len(str(harness.short)) < 60


def test_a_stuck_mount_is_freed_by_the_watchdog(tmp_path, build_dir, fuse_works):
    """A mount that nobody serves: stat waits in the kernel and signals do not end it."""
    point = tmp_path / "stuck"
    point.mkdir()
    ours, theirs = parts.socket.socketpair()
    subprocess.run(["fusermount3", "-o", "fsname=stuck", "--", point], check=True, timeout=20,
                   env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                   pass_fds=[theirs.fileno()])
    _, (descriptor,), _, _ = parts.socket.recv_fds(ours, 1, 1)
    owner = parts.Harness(tmp_path, build_dir, lambda: None, 1.0)
    try:
        os.read(descriptor, 1 << 20)  # INIT is taken and never answered
        before = time.monotonic()
        with pytest.raises(OSError):
            os.listdir(point)
        assert 0.5 < time.monotonic() - before < 20
        with pytest.raises(parts.HarnessError, match="mount was left"):
            owner.close()
        assert mounts.find_mount(point) is None
    finally:
        os.close(descriptor)
        mounts.force_unmount(point)
        ours.close()
        theirs.close()


def test_a_child_that_the_test_itself_waits_for_is_killed(tmp_path, build_dir, monkeypatch):
    monkeypatch.setattr(parts, "STOP_TIMEOUT", 0.3)
    owner = parts.Harness(tmp_path, build_dir, lambda: None, 0.3)
    child = subprocess.Popen(["sleep", "600"])
    assert child.wait(20) == -signal.SIGKILL
    owner.close()
    assert "killed" in owner.report[-1]


def test_signal_ends_the_process_it_is_sent_to(harness):
    process = harness.start("sleeper", "sleep", "600")
    process.expected_status = (-signal.SIGTERM,)
    assert process.stop() == -signal.SIGTERM


def test_a_mount_that_another_namespace_holds_is_ended(mount):
    """A copy in somebody's mount namespace keeps the filesystem, and so the driver, alive."""
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            assert mounts.held_elsewhere(mount.row)
            started = time.monotonic()
            mount.close()
            assert time.monotonic() - started < parts.STOP_TIMEOUT
        finally:
            other.kill()
