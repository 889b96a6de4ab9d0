"""From the command line to a usable mount and back: what is refused and how, the background,
signals, and a driver that dies."""

import errno
import os
import pwd
import signal
import stat
import subprocess
import time

import pytest

from lib import harness as parts
from lib import mounts

NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid),
             "--clear-groups"]


@pytest.fixture
def berthfs(harness, service):
    """berthfs(*arguments): runs it to its end (in the background it ends when mounted)."""
    def go(*arguments, name="berthfs", prefix=(), env=None, cwd=None):
        return harness.run([*prefix, harness.program(name), *arguments],
                           env=env or service.client_env(), cwd=cwd, timeout=20)
    return go


def refused(result, *words, status=1):
    """It failed, left one line that names the program and contains the words."""
    assert result.returncode == status, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("berthfs: error: "), result.stderr
    for word in words:
        assert str(word) in lines[0], lines[0]


def driver_of(path):
    import json
    return json.loads(os.getxattr(path, "user.berth.mount"))["stats"]["pid"]


def ended(pid):
    def look():
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True
    return look


# --- refusals ------------------------------------------------------------------------------

def test_no_service(berthfs, service, point, harness):
    service.stop()
    refused(berthfs(service.url, point), service.url, "berthd")
    refused(berthfs(f"unix:{harness.short}/none", point), "none")
    assert mounts.find_mount(point) is None


def test_mountpoints_that_do_not_do(berthfs, service, point, harness, run_berth):
    run_berth("create", "demo", check=True)
    refused(berthfs(service.url, point / "missing"), "missing", "No such file")
    (point / "file").touch()
    refused(berthfs(service.url, point / "file"), "not a directory")
    assert berthfs(service.url, point).returncode == 0, "a directory with files in it is fine"
    refused(berthfs(service.url, point), "already", "umount")
    refused(berthfs(service.url, point / "demo"), "inside the mount", point)
    above = os.path.dirname(service.url.removeprefix("unix:"))
    refused(berthfs(service.url, above), "socket", "under the mountpoint")
    refused(berthfs(service.url, "/"), "under the mountpoint /")
    # The service would wait for itself.
    for inside in (service.root, service.root / "workspaces" / "demo" / "tree"):
        refused(berthfs(service.url, inside), f"mountpoint {inside} is inside {service.root}")
    assert "fuse.berth" not in {mounts.find_mount(above) and mounts.find_mount(above)["type"]}


@pytest.mark.parametrize("arguments,words", [
    (["-o", "no_such_option"], ["no_such_option"]),
    (["-o", "symlink=refuse"], ['unknown option "symlink=refuse", did you mean symlinks?']),
    (["-o", "alow_other"], ["did you mean allow_other?"]),
    (["-o", "noatme"], ["did you mean noatime?"]),
    (["-o", "zzz"], ['unknown option "zzz"; see']),
    (["-o", "token_file"], ["token_file", "needs a value"]),
    (["-o", "ro=1"], ["option ro takes no value"]),
    (["-o", "timeout=soon"], ["timeout=soon", "seconds"]),
    (["-o", "owner=me"], ["owner=map"]),
    (["-o", "token_file="], ["token_file", "needs a value"]),
    (["-o", "allow_root"], ["allow_other"]),
    (["-x"], ["-x"]),
    (["one", "more"], ["unexpected argument"]),
])
def test_wrong_usage(berthfs, service, point, arguments, words):
    refused(berthfs(service.url, point, *arguments), *words, status=2)


@pytest.mark.parametrize("words", [["foo"], ["-o", "url=foo"]])
def test_what_is_no_url(berthfs, point, words):
    refused(berthfs(*words, point), "error: foo: not a URL of a service")


def test_no_mountpoint(berthfs):
    refused(berthfs(), "MOUNTPOINT", status=2)


def test_no_such_workspace(berthfs, service, point):
    refused(berthfs(service.url, point, "-w", "T/none"), "T/none", "berth create")
    assert mounts.find_mount(point) is None


def test_a_configured_url_is_the_default(berthfs, service, point):
    assert berthfs(point).returncode == 0
    assert mounts.find_mount(point)["source"] == service.url


def in_private_mounts(script):
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c",
            script + '; exec "$@"', "sh"]


def test_no_device(berthfs, service, point):
    for script, words in [("mount -t tmpfs none /dev", ["/dev/fuse is missing", "modprobe"]),
                          ("mount --bind /dev/fuse /dev/fuse; mount -o remount,bind,nodev /dev/fuse",
                           ["/dev/fuse may not be opened", "Permission denied"])]:
        refused(berthfs(service.url, point, prefix=in_private_mounts(script)), *words)


@pytest.fixture
def nobody(harness, start_service, fuse_works):
    """A service and a directory of an unprivileged user; run(*arguments) is their berthfs."""
    class Nobody:
        pass
    short = harness.short / "nobody"
    short.mkdir()
    for path in (harness.short, short):
        os.chmod(path, 0o755)
    root, point = short / "root", short / "mnt"
    for path in (root, point):
        path.mkdir()
        os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    os.chown(short, NOBODY.pw_uid, NOBODY.pw_gid)
    daemon = harness.start("nobodys berthd", *AS_NOBODY, harness.program("berthd"), "--root", root,
                           "--listen", f"unix:{short}/sock")
    daemon.wait_for_line("listening on")
    user = Nobody()
    user.url, user.point, user.root, user.short = f"unix:{short}/sock", point, root, short
    env = {**harness.env, "BERTH_URL": user.url, "HOME": str(short),
           "XDG_RUNTIME_DIR": str(short)}

    def run(program, *arguments, prefix=()):
        return harness.run([*prefix, *AS_NOBODY, harness.program(program), *arguments], env=env,
                           timeout=20)
    user.run = run
    yield user
    mounts.force_unmount(point)


def test_an_ordinary_user_mounts(nobody, harness):
    nobody.run("berth", "create", "demo").check_returncode()
    result = nobody.run("berthfs", nobody.url, nobody.point)
    assert result.returncode == 0, result
    assert mounts.find_mount(nobody.point)["type"] == "fuse.berth"
    assert mounts.find_mount(nobody.point)["source"] == nobody.url
    script = f"cd {nobody.point}/demo && echo x > f && cat f && stat -c %U f && mkdir ../no"
    result = harness.run([*AS_NOBODY, "sh", "-c", script], cwd="/")
    assert result.stdout == "x\nnobody\n"
    assert "not permitted" in result.stderr
    with pytest.raises(PermissionError):  # not even root, without allow_other
        os.listdir(nobody.point)
    harness.run([*AS_NOBODY, "fusermount3", "-u", str(nobody.point)], check=True)


def test_an_ordinary_user_ends_the_mount_by_a_signal(nobody, harness):
    daemon = harness.start("nobodys berthfs", *AS_NOBODY, harness.program("berthfs"), nobody.url,
                           nobody.point, "-f")
    daemon.wait_for_line("mounted")
    daemon.signal(signal.SIGTERM)
    assert daemon.popen.wait(10) == 0
    assert mounts.find_mount(nobody.point) is None


def test_an_ordinary_users_dead_driver_leaves_a_usable_directory(nobody, harness):
    daemon = harness.start("nobodys berthfs", *AS_NOBODY, harness.program("berthfs"), nobody.url,
                           nobody.point, "-f")
    daemon.wait_for_line("mounted")
    daemon.kill()
    parts.wait_until(lambda: mounts.find_mount(nobody.point) is None, what="the clean-up")
    assert os.listdir(nobody.point) == []


def test_what_an_ordinary_user_may_not(nobody):
    refused(nobody.run("berthfs", nobody.url, nobody.point, "-o", "owner=server"), "root")
    for option in ("strictatime", "lazytime", "context=system_u:object_r:tmp_t:s0"):
        refused(nobody.run("berthfs", nobody.url, nobody.point, "-o", f"ro,{option}"),
                "only root may mount with the option", option)
    refused(nobody.run("berthfs", nobody.url, nobody.point, "-o", "allow_other"),
            "user_allow_other", "/etc/fuse.conf")
    os.chmod(nobody.point, 0o755)
    os.chown(nobody.point, 0, 0)
    refused(nobody.run("berthfs", nobody.url, nobody.point), "fusermount3")
    assert mounts.find_mount(nobody.point) is None


def test_no_fusermount(nobody):
    hide = in_private_mounts("for f in /usr/bin/fusermount3 /bin/fusermount3; do "
                             "mount --bind /dev/null $f || exit; done")
    refused(nobody.run("berthfs", nobody.url, nobody.point, prefix=hide), "fusermount3", "fuse3")


def test_a_device_that_may_not_be_opened(nobody, harness):
    closed = harness.short / "closed"
    closed.touch()
    os.chmod(closed, 0o600)
    hide = in_private_mounts(f"mount --bind {closed} /dev/fuse")
    refused(nobody.run("berthfs", nobody.url, nobody.point, prefix=hide),
            "/dev/fuse may not be opened", "Permission denied")


# --- background, helper, signals -----------------------------------------------------------

def test_background(berthfs, service, point, harness, run_berth):
    run_berth("create", "demo", check=True)
    log = harness.short / "log"
    os.mkfifo(log)
    result = berthfs(service.url, point, "-o", f"log={log}")
    assert result.returncode == 1 and f"log={log}: it is no regular file" in result.stderr
    log.unlink()
    started = time.monotonic()
    result = berthfs(service.url, point, "-o", f"log={log}")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert time.monotonic() - started < 5
    assert os.listdir(point) == ["demo"], "usable at once"
    pid = driver_of(point)
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o600
    os.kill(pid, signal.SIGTERM)
    parts.wait_until(ended(pid), what="the driver's end")
    assert mounts.find_mount(point) is None
    text = log.read_text()
    assert "mounted" in text and "unmounting" in text


def test_a_relative_mountpoint(berthfs, service, point):
    assert berthfs(service.url, point.name, cwd=point.parent).returncode == 0
    assert mounts.find_mount(point)["type"] == "fuse.berth"


def test_as_a_helper_of_mount(berthfs, service, point, run_berth):
    run_berth("create", "demo", check=True)
    options = "rw,_netdev,noauto,user,nofail,x-systemd.automount,noatime,workspace=demo"
    result = berthfs(service.url, point, "-f", "-o", options, name="mount.fuse.berth")
    assert result.returncode == 0 and mounts.find_mount(point) is None, "-f is fake there"
    result = berthfs(service.url, point, "-v", "-n", "-s", "-o", options, name="mount.fuse.berth")
    assert result.returncode == 0, result
    row = mounts.find_mount(point)
    assert row["type"] == "fuse.berth"
    assert os.getxattr(point, "user.berth.thread_id") == b"demo"
    mounts.force_unmount(point)
    assert berthfs("none", point, name="mount.fuse.berth").returncode == 0
    assert mounts.find_mount(point)["source"] == service.url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_unmount(mount, number):
    mount.signal(number)
    assert mount.popen.wait(10) == 0
    assert mounts.find_mount(mount.path) is None


def test_a_signal_while_the_mount_is_in_use(mount, run_berth):
    run_berth("create", "demo", check=True)
    path = mount.path / "demo" / "f"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    started = time.monotonic()
    mount.signal(signal.SIGTERM)
    assert mount.popen.wait(10) == 0
    assert time.monotonic() - started < 5
    assert mounts.find_mount(mount.path) is None
    for call in (lambda: os.write(fd, b"y"), lambda: os.close(fd)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert "in use" in mount.log


def test_a_signal_writes_what_a_mapping_holds(mount, service, run_berth):
    """Unmounting waits for dirty pages, which go through the driver."""
    import mmap
    run_berth("create", "demo", check=True)
    path = mount.path / "demo" / "f"
    path.write_bytes(b"-" * 8192)
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 8192)
    memory[:5] = b"dirty"
    memory.close()
    mount.signal(signal.SIGTERM)
    assert mount.popen.wait(10) == 0
    below = service.root / "workspaces" / "demo" / "tree" / "f"
    assert below.read_bytes()[:5] == b"dirty"


def test_a_signal_while_the_service_is_dead(service, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    mount = start_mount(service)
    (mount.path / "demo" / "f").touch()
    service.kill()
    mount.signal(signal.SIGTERM)
    assert mount.popen.wait(15) == 0
    assert mounts.find_mount(mount.path) is None


def test_unmounting_by_others_ends_the_driver(mount):
    subprocess.run(["umount", mount.path], check=True, timeout=10)
    assert mount.popen.wait(10) == 0


def test_a_dead_driver_leaves_a_usable_mountpoint(mount, service, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    fd = os.open(mount.path / "demo" / "f", os.O_WRONLY | os.O_CREAT)
    mount.kill()
    parts.wait_until(lambda: mounts.find_mount(mount.path) is None, what="the clean-up")
    for call in (lambda: os.write(fd, b"y"), lambda: os.close(fd)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    again = start_mount(service, path=mount.path)
    assert os.listdir(again.path) == ["demo"]


def test_a_caller_is_not_left_waiting_for_a_dead_driver(service, start_relay, start_mount, run_berth):
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url)
    os.stat(mount.path / "demo")
    relay.stall()
    waiting = subprocess.Popen(["stat", mount.path / "demo" / "f"], stderr=subprocess.DEVNULL)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.3)
        mount.kill()
        assert waiting.wait(5) == 1
    finally:
        waiting.kill()
        waiting.wait()


def test_the_supervisor_holds_nothing_of_the_driver(mount):
    children = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()
                and f"PPid:\t{mount.pid}\n" in _status(pid)]
    assert len(children) == 1
    held = {os.readlink(f"/proc/{children[0]}/fd/{fd}")
            for fd in os.listdir(f"/proc/{children[0]}/fd")}
    assert not any("fuse" in name or "socket" in name or "eventpoll" in name for name in held), held
    # A supervisor killed by somebody takes nothing with it, and the mount still ends well.
    os.kill(children[0], signal.SIGKILL)
    os.listdir(mount.path)
    mount.signal(signal.SIGTERM)
    assert mount.popen.wait(10) == 0
    assert mounts.find_mount(mount.path) is None


def _status(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def test_a_dead_mount_is_replaced(berthfs, service, harness, point):
    """Left by a driver and supervisor that both were killed."""
    daemon = harness.start("berthfs", harness.program("berthfs"), service.url, point, "-f")
    daemon.wait_for_line("mounted")
    for pid in os.listdir("/proc"):
        if pid.isdigit() and f"PPid:\t{daemon.pid}\n" in _status(pid):
            os.kill(int(pid), signal.SIGKILL)
    daemon.kill()
    with pytest.raises(OSError) as caught:
        os.listdir(point)
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert berthfs(service.url, point).returncode == 0
    assert os.listdir(point) == []


def test_the_syslog_pipe_of_a_background_driver_does_not_keep_the_caller(berthfs, service, point):
    """The caller's output ends when berthfs returns: nobody in the background holds it."""
    result = berthfs(service.url, point)
    assert result.returncode == 0  # and harness.run came back, which reads to the end
    pid = driver_of(point)
    names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1)]
    assert names == ["/dev/null", "/dev/null"]
    assert os.readlink(f"/proc/{pid}/fd/2").startswith("pipe:")
