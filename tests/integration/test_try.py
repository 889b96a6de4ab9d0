"""contrib/try on a private home: works, works again, and is undone without a trace."""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import subprocess

import pytest

from lib import harness as parts
from lib import mounts

TRY = parts.REPOSITORY / "contrib" / "try"
LIMIT = 300
RUN_LIMIT = 120


@pytest.fixture
def start_try(harness, build_dir, fuse_works):
    """Runs contrib/try with this build; whatever happens, undoes it at the end."""
    # Packages are contrib/check's business, and the build directory is already there.
    env = {**harness.env, "BERTH_TRY_BUILD": str(build_dir), "BERTH_SKIP_PACKAGES": "1",
           "XDG_STATE_HOME": str(harness.directory / "state")}
    private_root(harness.directory / "home" / "config", harness.directory / "root")

    def run(*args, check=True):
        return harness.run([TRY, *args], env=env, timeout=RUN_LIMIT, check=check)

    run.env = env
    run.build = build_dir
    run.mountpoint = harness.directory / "home" / "berth"
    run.state = harness.directory / "state"
    yield run
    try:
        run("--stop", check=False)
    finally:
        mounts.force_unmount(harness.directory)
        kill_leftover(run.state)


def private_root(config_home, root):
    """Root's own default would be the machine's one service, in /var/lib."""
    (config_home / "berth").mkdir(parents=True)
    (config_home / "berth" / "berth.json").write_text(json.dumps({"service": {"root": str(root)}}))


def service_pid(state):
    path = state / "berth-try" / "berthd.pid"
    return int(path.read_text()) if path.exists() else None


def kill_leftover(state):
    pid = service_pid(state)
    with contextlib.suppress(OSError):
        if pid and "berthd" in os.readlink(f"/proc/{pid}/exe"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_try_twice_and_stop(start_try, harness):
    """It refuses to stop what is in use, and keeps what it did not make."""
    first = start_try()
    assert "hello from the mount\n" in first.stdout
    assert re.search(r"^written by process \d+ beside the files$", first.stdout, re.MULTILINE)
    assert "exit status: 7" in first.stdout
    assert "contrib/try --stop" in first.stdout and "export PATH=" in first.stdout
    directory = re.search("export BERTH_PROVIDERS=(.*)", first.stdout).group(1)
    found = subprocess.run([start_try.build / "execsvc" / "cli" / "berth", "provider", "ls"], check=True, timeout=20, text=True,
                           env={**harness.env, "BERTH_PROVIDERS": directory}, capture_output=True)
    assert "ssh " in found.stdout
    assert (start_try.mountpoint / "demo" / "from-there.txt").exists()
    pid = service_pid(start_try.state)
    assert os.path.exists(f"/proc/{pid}")

    second = start_try()
    assert "berthd already runs" in second.stdout and "already mounted" in second.stdout
    assert service_pid(start_try.state) == pid
    assert len(mounts.mounts_below(start_try.mountpoint)) == 1

    with open(start_try.mountpoint / "demo" / "open", "w", encoding="utf-8"):
        # In the mount itself: what it runs is there too, and is not what is to be left.
        refused = harness.run([TRY, "--stop"], env=start_try.env, timeout=RUN_LIMIT, cwd=start_try.mountpoint / "demo")
    assert refused.returncode != 0 and refused.stderr.count("in use") == 1 == len(refused.stderr.splitlines())
    assert "(try)" not in refused.stderr and "timeout" not in refused.stderr
    assert service_pid(start_try.state) == pid, "the service must not go while its mount stays"

    stopped = start_try("--stop")
    assert f"stopped berthd ({pid})" in stopped.stdout
    assert not os.path.exists(f"/proc/{pid}")
    assert mounts.mounts_below(start_try.mountpoint) == []
    assert not start_try.mountpoint.exists()

    # Nothing to stop is no error; the files were kept and are shown again.
    start_try("--stop")
    start_try()
    assert (start_try.mountpoint / "demo" / "from-here.txt").read_text() == "hello from the mount\n"
    start_try("--stop", "--purge")
    start_try()
    assert sorted(os.listdir(start_try.mountpoint / "demo")) == ["from-here.txt", "from-there.txt"]

    # A workspace of the same name that was there before is somebody's work.
    (start_try.mountpoint / "demo" / "mine").write_text("kept")
    start_try("--stop")
    (made,) = harness.directory.rglob("made-demo")
    made.unlink()
    start_try()
    assert "is kept" in start_try("--stop", "--purge").stdout
    start_try()
    assert (start_try.mountpoint / "demo" / "mine").read_text() == "kept"


def test_wrong_words_are_refused(start_try):
    for words, what in ((["--stpo"], "--stpo"), (["--dir"], "--dir needs a directory"),
                        (["--dir", ""], "--dir needs a directory"), (["--purge"], "--stop"),
                        (["--stop", "--dir", "/tmp"], "takes no --dir")):
        result = start_try(*words, check=False)
        assert result.returncode == 2 and "usage" in result.stderr and what in result.stderr, words


def test_help_and_nothing_to_stop(start_try):
    assert start_try("-h").stdout == start_try("--help").stdout
    assert "BERTH_TRY_BUILD" in start_try("-h").stdout
    assert "nothing mounted and no service running" in start_try("--stop").stdout


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_stop_undoes_what_try_did_and_no_more(start_try, harness):
    """Every directory of several runs; one that was there before stays; --purge also after the
    service was stopped."""
    mine, other = harness.directory / "mine", harness.directory / "a place"
    mine.mkdir()
    first = start_try("--dir", str(mine))
    assert f"{start_try.build}/execsvc/server" in re.search("export PATH=.*", first.stdout).group()
    start_try("--dir", str(other))
    assert mounts.find_mount(other)
    (other / "demo" / "mine").write_text("kept?")
    assert "already mounted" in start_try("--dir", str(mine)).stdout
    start_try("--stop")
    assert mounts.mounts_below(harness.directory) == []
    assert mine.is_dir() and not other.exists()

    assert "removed the workspace demo" in start_try("--stop", "--purge").stdout
    assert service_pid(start_try.state) is None
    assert "is kept" in start_try("--stop", "--purge").stdout
    start_try()
    assert not (start_try.mountpoint / "demo" / "mine").exists()
    blocked = start_try("--dir", str(harness.directory / "no" / "such"), check=False)
    assert blocked.returncode == 1 and "choose another one with --dir" in blocked.stderr


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.skipif(os.geteuid() != 0, reason="optional: needs root to become another user")
def test_try_as_an_ordinary_user(harness, build_dir, fuse_works):
    """Without any XDG variable, so that the fallbacks for the socket and the root are used."""
    user = pwd.getpwnam("nobody")
    home = harness.short / "home"
    home.mkdir()
    # The binaries of the build directory may be out of this user's reach.
    build = harness.short / "build"
    for name, path in parts.BINARIES.items():
        source = build_dir / path
        if source.exists() and name != "relay":
            (build / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, build / path)
    programs = ("execsvc/server/berthd", "execsvc/cli/berth", "execsvc/cli/berth-network", "fs/berthfs", "fs/mount.fuse.berth")
    (build / "build.ninja").write_text("".join(f"build {path}: phony\n" for path in programs))
    source = harness.short / "source"
    shutil.copytree(TRY.parent, source / "contrib")
    harness.short.chmod(0o755)
    for path in (home, build):
        subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", str(path)], check=True)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "BERTH_TRY_BUILD": str(build),
           "BERTH_SKIP_PACKAGES": "1"}

    def run(*args, check=True):
        return harness.run([source / "contrib" / "try", *args], env=env, timeout=RUN_LIMIT, cwd="/",
                           user=user.pw_uid, group=user.pw_gid, extra_groups=[], check=check)

    try:
        out = run().stdout
        assert "exit status: 7" in out and "hello from the mount" in out
        assert os.stat(home / ".local/state/berth").st_uid == user.pw_uid
        assert mounts.find_mount(home / "berth")
        run("--stop")
        assert mounts.find_mount(home / "berth") is None
        subprocess.run(["chown", "-R", "root", str(build)], check=True)
        refused = run(check=False)
        assert refused.returncode == 1 and f"{build} is for root to write: say where to build" in refused.stderr
    finally:
        mounts.force_unmount(home)
        kill_leftover(home / ".local/state")
