"""Extended attributes, and what else can be asked of a file or a filesystem."""

import ctypes
import errno
import os
import stat
import struct

from .base import (AT_FDCWD, AT_SYMLINK_NOFOLLOW, LIBC, check, fails, in_child, opened, put)

AT_EACCESS, AT_EMPTY_PATH = 0x200, 0x1000
AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC = 0x2000, 0x4000
STATX_BASIC_STATS, STATX_BTIME, STATX__RESERVED = 0x7ff, 0x800, 0x80000000
SYS_FACCESSAT2 = 439


@check
def extended_attributes(_):
    """user.*: create and replace, bytes as they are, and sizes asked for before a call."""
    put("f")
    os.mkdir("d")
    for name in ("f", "d"):
        with fails(errno.ENODATA):
            os.getxattr(name, "user.x")
        with fails(errno.ENODATA):
            os.setxattr(name, "user.x", b"", os.XATTR_REPLACE)
        with fails(errno.ENODATA):
            os.removexattr(name, "user.x")
        os.setxattr(name, "user.x", b"\0one\xff", os.XATTR_CREATE)
        with fails(errno.EEXIST):
            os.setxattr(name, "user.x", b"two", os.XATTR_CREATE)
        assert os.getxattr(name, "user.x") == b"\0one\xff"
        os.setxattr(name, "user.x", b"", os.XATTR_REPLACE)
        assert os.getxattr(name, "user.x") == b""
        os.setxattr(name, "user.x", b"12345")
        assert os.listxattr(name) == ["user.x"]
        os.removexattr(name, "user.x")
        assert os.listxattr(name) == []
    with opened("f", os.O_RDWR) as fd:
        os.setxattr(fd, "user.by descriptor", b"1")
        assert os.listxattr(fd) == ["user.by descriptor"]
        assert os.getxattr("f", "user.by descriptor") == b"1"
    for bad, number in (("user." + "n" * 251, errno.ERANGE), ("", errno.ERANGE)):
        with fails(number):
            os.setxattr("f", bad, b"x")
    longest = "user." + "n" * 250
    os.setxattr("f", longest, b"x")
    assert longest in os.listxattr("f")
    with fails(errno.E2BIG):
        os.setxattr("f", "user.big", b"x" * 65537)
    # What is no file's own: links, FIFOs and the like have none.
    os.symlink("f", "l")
    os.mkfifo("p")
    for name in ("l", "p"):
        with fails(errno.EPERM):
            os.setxattr(name, "user.x", b"1", follow_symlinks=False)


@check
def extended_attributes_tell_their_size(_):
    put("f")
    names = [f"user.attribute{i:02}" for i in range(40)]
    for name in names:
        os.setxattr("f", name, name.encode())
    assert sorted(os.listxattr("f")) == names
    need = sum(len(name) + 1 for name in names)
    buffer = ctypes.create_string_buffer(need)
    assert LIBC.listxattr(b"f", None, 0) == need
    assert LIBC.listxattr(b"f", buffer, need) == need
    assert sorted(buffer.raw.rstrip(b"\0").decode().split("\0")) == names
    assert LIBC.listxattr(b"f", buffer, need - 1) == -1 and ctypes.get_errno() == errno.ERANGE
    size = len(names[7])
    name = names[7].encode()
    assert LIBC.getxattr(b"f", name, None, 0) == size
    assert LIBC.getxattr(b"f", name, buffer, size) == size and buffer.raw[:size] == name
    assert LIBC.getxattr(b"f", name, buffer, size - 1) == -1 and ctypes.get_errno() == errno.ERANGE
    for name in names[::2]:
        os.removexattr("f", name)
    assert sorted(os.listxattr("f")) == names[1::2]


@check
def attributes_of_other_namespaces(_):
    """What is not kept is refused as by a filesystem that does not know it, not by surprise."""
    put("f")
    for name in ("security.capability", "security.x"):
        with fails(errno.ENODATA):
            os.getxattr("f", name)
    for name in ("bogus.x", "system.x"):
        with fails(errno.EOPNOTSUPP):
            os.getxattr("f", name)
        with fails(errno.EOPNOTSUPP):
            os.setxattr("f", name, b"1")
        with fails(errno.EOPNOTSUPP):
            os.removexattr("f", name)
    # ls -l, cp -p and tar --acls ask; both answers say that there is no list.
    with fails(errno.ENODATA, errno.EOPNOTSUPP):
        os.getxattr("f", "system.posix_acl_access")
    acl = struct.pack("<I HHI HHI HHI HHI HHI", 2, 1, 6, 0xffffffff, 2, 7, 1234, 4, 4, 0xffffffff,
                      16, 7, 0xffffffff, 32, 4, 0xffffffff)
    try:
        os.setxattr("f", "system.posix_acl_access", acl)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP, error
        assert stat.S_IMODE(os.stat("f").st_mode) == 0o644
    else:
        assert os.getxattr("f", "system.posix_acl_access") == acl
    if os.getuid() == 0:
        with fails(errno.ENODATA):
            os.getxattr("f", "trusted.x")
    else:
        with fails(errno.EPERM):
            os.setxattr("f", "trusted.x", b"1")
        with fails(errno.EPERM):
            os.setxattr("f", "security.x", b"1")


@check
def free_space(_):
    put("f", b"x")
    shown = os.statvfs(".")
    assert shown.f_bsize >= 512 and shown.f_frsize >= 512 and shown.f_namemax == 255
    assert 0 < shown.f_blocks and shown.f_bavail <= shown.f_bfree <= shown.f_blocks
    assert 0 < shown.f_files and shown.f_favail <= shown.f_ffree <= shown.f_files
    with opened("f") as fd:
        same = os.statvfs(fd)
    assert (same.f_blocks, same.f_bsize, same.f_namemax) == (shown.f_blocks, shown.f_bsize, 255)
    with fails(errno.ENOENT):
        os.statvfs("missing")
    assert os.pathconf(".", "PC_NAME_MAX") == 255


def statx(directory, path, flags=0, mask=STATX_BASIC_STATS | STATX_BTIME):
    buffer = ctypes.create_string_buffer(256)
    if LIBC.statx(directory, os.fsencode(path), flags, ctypes.c_uint(mask), buffer) != 0:
        raise OSError(ctypes.get_errno(), "statx")
    mask, blksize, _, nlink, uid, gid, mode, ino, size, blocks = struct.unpack_from("<IIQIIIH2xQQQ", buffer)
    times = [struct.unpack_from("<qI", buffer, 64 + 16 * i) for i in range(4)]  # a, b, c, m
    return {"mask": mask, "blksize": blksize, "nlink": nlink, "uid": uid, "gid": gid, "mode": mode,
            "ino": ino, "size": size, "blocks": blocks, "times": [s * 10**9 + ns for s, ns in times]}


@check
def statx_tells_what_stat_does(_):
    put("f", b"12345")
    os.symlink("f", "l")
    os.mkdir("d")
    for name in ("f", "l", "d"):
        status = os.lstat(name)
        for sync in (0, AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC):
            found = statx(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW | sync)
            assert found["mask"] & STATX_BASIC_STATS == STATX_BASIC_STATS
            assert (found["ino"], found["size"], found["nlink"], found["mode"], found["uid"], found["gid"],
                    found["blocks"], found["blksize"]) == \
                (status.st_ino, status.st_size, status.st_nlink, status.st_mode, status.st_uid,
                 status.st_gid, status.st_blocks, status.st_blksize)
            access, birth, change, modified = found["times"]
            assert (access, change, modified) == (status.st_atime_ns, status.st_ctime_ns, status.st_mtime_ns)
            # A filesystem need not know a file's birth, but must not invent it.
            assert birth == 0 if not found["mask"] & STATX_BTIME else 0 < birth <= change
    assert statx(AT_FDCWD, "l")["ino"] == os.stat("f").st_ino
    with opened("f") as fd:
        assert statx(fd, "", AT_EMPTY_PATH)["ino"] == os.stat("f").st_ino
    for flags, mask in ((0, STATX__RESERVED), (AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, 1)):
        with fails(errno.EINVAL):
            statx(AT_FDCWD, "f", flags, mask)
    with fails(errno.ENOENT):
        statx(AT_FDCWD, "missing")


def faccessat2(path, mode, flags):
    if LIBC.syscall(SYS_FACCESSAT2, AT_FDCWD, os.fsencode(path), mode, flags) != 0:
        raise OSError(ctypes.get_errno(), "faccessat2")


@check
def access_tells_what_open_will(_):
    put("f", b"x")
    put("script", b"#!/bin/sh\n")
    os.mkdir("d")
    os.symlink("missing", "dangling")
    for name, mode in (("f", 0o444), ("script", 0o755), ("d", 0o555)):
        os.chmod(name, mode)
    root = os.getuid() == 0
    for flags in (0, AT_EACCESS):
        faccessat2("f", os.F_OK, flags)
        faccessat2("f", os.R_OK, flags)
        faccessat2("script", os.R_OK | os.X_OK, flags)
        faccessat2("d", os.R_OK | os.X_OK, flags)
        with fails(errno.EACCES):
            faccessat2("f", os.X_OK, flags)  # root's too: no bit at all
        for name in ("f", "d"):
            if root:
                faccessat2(name, os.W_OK, flags)
            else:
                with fails(errno.EACCES):
                    faccessat2(name, os.W_OK, flags)
        with fails(errno.ENOENT):
            faccessat2("dangling", os.F_OK, flags)
        faccessat2("dangling", os.F_OK, flags | AT_SYMLINK_NOFOLLOW)
    with fails(errno.EINVAL):
        faccessat2("f", 8, 0)
    with fails(errno.EINVAL):
        faccessat2("f", 0, 1)
    if root:
        # access(2) goes by the real user, AT_EACCESS by the effective one.
        os.chmod("f", 0o600)

        def another():
            os.setresuid(65534, 0, 0)
            assert not os.access("f", os.R_OK)
            faccessat2("f", os.R_OK, AT_EACCESS)
        os.chmod(".", 0o755)
        in_child(another)
