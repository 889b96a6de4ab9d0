"""Modes and owners."""

import errno
import os
import stat

from .base import check, fails, get, opened, put


@check
def permissions_bind_the_owner_too(_):
    """An ordinary user is refused by the mode bits of what is their own."""
    put("f", b"secret")
    os.mkdir("d")
    put("d/f")
    os.chmod("f", 0o000)
    os.chmod("d", 0o000)
    if os.getuid() == 0:
        assert get("f") == b"secret" and os.listdir("d") == ["f"]
        return
    for go in (lambda: get("f"), lambda: os.open("f", os.O_WRONLY), lambda: os.listdir("d"),
               lambda: os.stat("d/f"), lambda: os.unlink("d/f"), lambda: os.rmdir("d/x"),
               lambda: put("d/new")):
        with fails(errno.EACCES):
            go()
    assert not os.access("f", os.R_OK)
    os.chmod("d", 0o500)
    assert os.listdir("d") == ["f"]
    with fails(errno.EACCES):
        os.unlink("d/f")
    with fails(errno.EACCES):
        put("d/new")
    os.chmod("d", 0o700)
    os.chmod("f", 0o200)
    with opened("f", os.O_WRONLY) as fd, fails(errno.EBADF):
        os.read(fd, 1)
    with fails(errno.EACCES):
        os.open("f", os.O_RDWR)


@check
def ownership_is_the_makers(_):
    """Whatever one makes is one's own, and only root gives it away."""
    put("f")
    os.mkdir("d")
    os.symlink("f", "l")
    os.mkfifo("p")
    os.mknod("n", stat.S_IFREG | 0o600)
    os.mknod("s", stat.S_IFSOCK | 0o600)
    for name in ("f", "d", "l", "p", "n", "s"):
        status = os.lstat(name)
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid()), name
        os.chown(name, os.getuid(), os.getgid(), follow_symlinks=False)
        os.chown(name, -1, -1, follow_symlinks=False)
    os.chmod("f", 0o600)
    put("f", b"x")
    if os.getuid() != 0:
        with fails(errno.EPERM):
            os.chown("f", 0, -1)
        with fails(errno.EPERM):
            os.chown("f", -1, 0)
