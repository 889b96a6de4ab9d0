"""Options of the mount that are the kernel's or change what calls mean."""

import errno
import os
import pwd
import shutil
import stat
import subprocess

import pytest

from lib.harness import wait_until
from lib.mounts import find_mount

NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid), "--clear-groups"]


@pytest.fixture
def demo(service, run_berth):
    """Where the service keeps workspace "demo"."""
    run_berth("create", "demo", check=True)
    return service.root / "workspaces" / "demo" / "tree"


def place(source, target, mode):
    shutil.copyfile(source, target)
    os.chmod(target, mode)


def test_set_user_id_has_no_effect(demo, harness, start_mount, run):
    """A program that the agent made set-user-ID must not be root's for whoever runs it. The
    control: on a local directory it is."""
    os.chmod(harness.short, 0o755)
    mount = start_mount(path=harness.short / "mnt", workspace="demo", options=["owner=server", "allow_other"])
    os.chmod(mount.path, 0o755)
    assert {"nosuid", "nodev"} <= set(find_mount(mount.path)["options"])
    for directory, effective in ((harness.short, "0"), (mount.path, str(NOBODY.pw_uid))):
        for mode in (0o4755, 0o2755):
            place("/usr/bin/id", directory / "id", mode)
            assert stat.S_IMODE((directory / "id").stat().st_mode) == mode
            shown = run([*AS_NOBODY, directory / "id", "-u" if mode == 0o4755 else "-g"], check=True).stdout
            assert shown.strip() == (effective if effective == "0" else str(NOBODY.pw_uid)), (directory, mode)
    # Neither have capabilities of files: none can be set.
    with pytest.raises(OSError) as caught:
        os.setxattr(mount.path / "id", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    assert caught.value.errno == errno.EOPNOTSUPP


def test_programs_run_unless_noexec(demo, start_mount):
    place("/usr/bin/true", demo / "true", 0o755)
    (demo / "script").write_text("#!/bin/sh\nexit 0\n")
    (demo / "script").chmod(0o755)
    plain = start_mount(workspace="demo")
    closed = start_mount(workspace="demo", options="noexec")
    for name in ("true", "script"):
        assert subprocess.run([plain.path / name], check=False).returncode == 0
        with pytest.raises(PermissionError):
            subprocess.run([closed.path / name], check=False)
    assert "noexec" in find_mount(closed.path)["options"]


def test_noatime(demo, start_mount):
    """Access times are made at the service, so that is who must know. Listings that are read ahead
    make none."""
    long_ago = (10**18, 10**18)

    def after_reading(mount):
        """Which access times a reader of a file and of a directory changes."""
        (demo / "d").mkdir(exist_ok=True)
        (demo / "d" / "f").write_bytes(b"x")
        for path in (demo / "d", demo / "d" / "f"):
            os.utime(path, ns=long_ago)
        assert os.listdir(mount.path / "d") == ["f"] and (mount.path / "d" / "f").read_bytes() == b"x"
        return {name for name, path in (("directory", demo / "d"), ("file", demo / "d" / "f"))
                if path.stat().st_atime_ns != long_ago[0]}
    for cache, directory in ("cache=no", {"directory"}), ("cache=yes", set()):
        assert after_reading(start_mount(workspace="demo", options=cache)) == {"file"} | directory
        assert after_reading(start_mount(workspace="demo", options=f"{cache},nodiratime")) == {"file"}
        assert after_reading(start_mount(workspace="demo", options=f"{cache},noatime")) == set()


def test_devices_have_no_effect(demo, start_mount):
    """Those that a command made are seen and not opened; the mount makes none unless for root with
    the owners of the service."""
    device = os.makedev(1, 3)
    os.mknod(demo / "null", stat.S_IFCHR | 0o666, device)
    mapped = start_mount(workspace="demo")
    served = start_mount(workspace="demo", options="owner=server")
    with pytest.raises(OSError) as caught:
        os.mknod(mapped.path / "new", stat.S_IFCHR | 0o666, device)
    assert caught.value.errno == errno.EPERM
    os.mknod(served.path / "new", stat.S_IFCHR | 0o666, device)
    for mount in mapped, served:
        for name in "null", "new":
            wait_until((mount.path / name).exists)
            assert stat.S_ISCHR((mount.path / name).stat().st_mode)
            with pytest.raises(PermissionError) as caught:
                os.open(mount.path / name, os.O_RDWR)
            assert caught.value.errno == errno.EACCES
