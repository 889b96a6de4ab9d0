"""mount(8), umount(8) and fstab(5) with the driver as their helper: in a mount namespace of the
test's own, whose /sbin has nothing but the helper and whose fstab is the test's."""

import os
import pwd
import textwrap

import pytest

from lib import mounts

NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = f"setpriv --reuid {NOBODY.pw_uid} --regid {NOBODY.pw_gid} --clear-groups"


@pytest.fixture
def point(harness):
    path = harness.short / "point"
    path.mkdir()
    return path


@pytest.fixture
def in_namespace(harness, fuse_works):
    """in_namespace(script, fstab): runs the script there; all mounts go away with its last
    process, so a script ends by unmounting what it has mounted."""
    sbin = harness.short / "sbin"
    sbin.mkdir()
    (sbin / "mount.fuse.berth").symlink_to(harness.program("mount.fuse.berth"))
    table = harness.short / "fstab"

    def go(script, fstab="", env=None):
        table.write_text(fstab)
        setup = f"mount --bind {sbin} /sbin && mount --bind {table} /etc/fstab && "
        # An automounter or systemd must not see fuse's mounts here.
        return harness.run(["unshare", "--mount", "--propagation", "slave", "sh", "-ec",
                            setup + "set -e\n" + textwrap.dedent(script)], env=env, cwd="/", timeout=40)
    return go


def test_mount_and_umount(harness, service, run_berth, point, in_namespace):
    run_berth("create", "demo", check=True)
    result = in_namespace(f"""
        mount -t fuse.berth -o rw,noexec {service.url} {point}
        ls {point}
        grep -c " {point} .* - fuse.berth {service.url} " /proc/self/mountinfo
        findmnt -n -o FSTYPE,OPTIONS {point} | grep -q '^fuse.berth .*noexec'
        echo text > {point}/demo/file
        mount -t fuse.berth {service.url} {point} && echo "mounted twice" || echo "refused: $?"
        umount {point}
        ! mountpoint -q {point}
        mount -t fuse.berth {service.url} {point} -o workspace=demo -r
        cat {point}/file
        ! touch {point}/new
        umount {point}
        """)
    assert result.returncode == 0, result
    assert result.stdout == "demo\n1\nrefused: 1\ntext\n", result
    assert "mounted at" in result.stderr and "already" in result.stderr
    assert "Read-only file system" in result.stderr
    assert mounts.find_mount(point) is None, "the test's namespace is not the machine's"
    assert (service.root / "workspaces/demo/tree/file").read_text() == "text\n"


def test_what_cannot_be_mounted_fails_the_command(harness, service, point, in_namespace):
    gone = f"unix:{harness.short}/nobody-here"
    result = in_namespace(f"mount -t fuse.berth {gone} {point}")
    assert result.returncode == 1 and gone in result.stderr, result
    result = in_namespace(f"mount -t fuse.berth -o no_such_option {service.url} {point}")
    assert result.returncode == 2 and "no_such_option" in result.stderr, result
    result = in_namespace(f"mount -f -t fuse.berth {service.url} {point} && ! mountpoint -q {point}")
    assert result.returncode == 0, result


def test_lines_of_fstab(harness, service, run_berth, point, in_namespace):
    """As the manual page has them: a URL in the first field or among the options; a token file;
    what systemd and the boot scripts put there."""
    run_berth("create", "T/1", check=True)
    remote = harness.start_service(tls=True)
    harness.run_berth("create", "far", service=remote, check=True)
    other = harness.short / "other"
    other.mkdir()
    result = in_namespace(
        f"""
        mount {point}
        ls {point}
        mount -a -t fuse.berth
        ls {other}
        umount {point} {other}
        mount -a -t fuse.berth -O no_netdev
        ! mountpoint -q {other}
        """,
        fstab=f"{service.url}  {point}  fuse.berth  noauto,_netdev,nofail,x-systemd.automount,noatime  0  0\n"
              f"none  {other}  fuse.berth  _netdev,url={remote.tls_url},token_file={remote.token_file},"
              f"ca_file={harness.certificates.ca},allow_other,comment=x  0 0\n")
    assert result.returncode == 0, result
    assert result.stdout.startswith("T%2F1\nfar\n"), result


def test_an_ordinary_user_and_fstab(harness, service, run_berth, in_namespace):
    """With "user" in its line: mount(8) gives its privileges away, and the helper mounts as the
    user, whose files they are then."""
    os.chmod(harness.short, 0o755)
    home = harness.short / "nobody"
    home.mkdir()
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    url = f"unix:{home}/sock"
    env = {**harness.env, "HOME": str(home)}
    theirs = harness.start("berthd", *AS_NOBODY.split(), harness.program("berthd"), "--root", home / "root",
                           "--listen", url, env=env)
    theirs.wait_for_line("listening on unix:" + str(home / "sock"))
    harness.run([*AS_NOBODY.split(), harness.program("berth"), "create", "mine"],
                env={**env, "BERTH_URL": url}, check=True)
    point = home / "mnt"
    point.mkdir()
    os.chown(point, NOBODY.pw_uid, NOBODY.pw_gid)
    result = in_namespace(
        f"""
        {AS_NOBODY} mount {point}
        {AS_NOBODY} stat -c '%U %n' {point}/mine
        ls {point} 2>&1 | grep -o 'Permission denied'
        {AS_NOBODY} umount {point}
        ! mountpoint -q {point}
        """, fstab=f"{url}  {point}  fuse.berth  noauto,user,_netdev  0  0\n", env=env)
    assert result.returncode == 0, result
    assert result.stdout == f"nobody {point}/mine\nPermission denied\n", result
    # "user" implies noexec, which an exec behind it takes back, as in the manual page's line.
    for options, executable in (("user", False), ("user,exec", True)):
        result = in_namespace(
            f"""
            {AS_NOBODY} mount {point}
            grep " {point} " /proc/self/mountinfo
            {AS_NOBODY} umount {point}
            """, fstab=f"{url}  {point}  fuse.berth  noauto,{options},_netdev  0  0\n", env=env)
        assert result.returncode == 0 and ("noexec" not in result.stdout) == executable, result
