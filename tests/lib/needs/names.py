"""Errno by the book, and names that are bytes."""

import ctypes
import errno
import os
import stat
import subprocess

from .base import (LIBC, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, check, fails, get, opened,
                   put, renameat2)


@check
def a_directory_that_cannot_be_searched_is_listed(_):
    """Reading its names needs the permission to read alone."""
    os.mkdir("d")
    put("d/f")
    os.chmod("d", 0o444)
    try:
        assert os.listdir("d") == ["f"]
    finally:
        os.chmod("d", 0o755)


@check
def errno_of_names_that_exist(_):
    os.mkdir("d")
    put("d/f")
    os.mkdir("full")
    put("full/f")
    for make in (os.mkdir, os.mkfifo, lambda p: os.symlink("x", p), lambda p: os.link("d/f", p),
                 lambda p: os.open(p, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
                 lambda p: renameat2("d/f", p, RENAME_NOREPLACE)):
        for there in ("d", "full/f"):
            with fails(errno.EEXIST):
                make(there)
    with fails(errno.ENOTEMPTY):
        os.rmdir("full")
    with fails(errno.ENOTEMPTY):
        os.rename("d", "full")
    assert get("d/f") == get("full/f") == b""


@check
def errno_of_the_wrong_kind(_):
    os.mkdir("d")
    put("f", b"x")
    os.symlink("f", "l")
    for go in (lambda: os.stat("f/x"), lambda: os.mkdir("f/x"), lambda: os.rmdir("f"),
               lambda: os.listdir("f"), lambda: os.open("f", os.O_RDONLY | os.O_DIRECTORY),
               lambda: os.open("f/x", os.O_WRONLY | os.O_CREAT), lambda: os.stat("f/"),
               lambda: os.unlink("f/x"), lambda: os.rename("d", "f"),
               lambda: os.open("l", os.O_RDONLY | os.O_DIRECTORY)):
        with fails(errno.ENOTDIR):
            go()
    for go in (lambda: os.open("d", os.O_WRONLY), lambda: os.unlink("d"), lambda: os.truncate("d", 0),
               lambda: os.open("d", os.O_RDONLY | os.O_CREAT), lambda: os.rename("f", "d")):
        with fails(errno.EISDIR):
            go()
    with opened("d") as fd, fails(errno.EISDIR):
        os.read(fd, 1)
    with fails(errno.EPERM):
        os.link("d", "hard")
    with fails(errno.EINVAL):
        os.rename("d", "d/x")
    with fails(errno.EINVAL):
        os.readlink("f")
    with fails(errno.ENOENT):
        os.stat("missing")
    with fails(errno.ENOENT):
        os.rename("missing", "x")
    with opened("f") as fd:
        with fails(errno.EBADF):
            os.write(fd, b"x")
        with fails(errno.EINVAL):
            os.lseek(fd, -1, os.SEEK_SET)
        with fails(errno.EINVAL):
            os.ftruncate(fd, 0)
    with fails(errno.EINVAL):
        os.truncate("f", -1)


@check
def errno_of_long_names(_):
    for good in ("n" * 255, "é" * 127 + "n"):
        put(good, b"long")
        assert get(good) == b"long"
        os.rename(good, "s" + good[1:] if good[0] == "n" else "x")
    put("f")
    for bad in ("n" * 256, "é" * 128):
        for go in (lambda: os.stat(bad), lambda: os.mkdir(bad), lambda: os.unlink(bad),
                   lambda: os.open(bad, os.O_WRONLY | os.O_CREAT), lambda: os.rename("f", bad),
                   lambda: os.link("f", bad), lambda: os.symlink("f", bad), lambda: os.rmdir(bad),
                   lambda: os.stat(bad + "/x"), lambda: os.mkfifo(bad)):
            with fails(errno.ENAMETOOLONG):
                go()
    with fails(errno.ENAMETOOLONG):
        os.symlink("t" * 4096, "l")


@check
def errno_across_filesystems(other):
    """OTHER is another filesystem, or another workspace of the same mount."""
    put("f", b"x")
    os.mkdir("d")
    for name in ("f", "d"):
        with fails(errno.EXDEV):
            os.rename(name, os.path.join(other, name))
    with fails(errno.EXDEV):
        os.link("f", os.path.join(other, "f"))
    with fails(errno.EXDEV):
        renameat2("f", os.path.join(other, "f"), RENAME_NOREPLACE)
    assert os.listdir(other) == [] and sorted(os.listdir(".")) == ["d", "f"]
    # What mv does then.
    subprocess.run(["mv", "f", "d", other], check=True)
    assert sorted(os.listdir(other)) == ["d", "f"] and os.listdir(".") == []
    assert get(os.path.join(other, "f")) == b"x"


@check
def renameat2_flags(_):
    put("a", b"a")
    put("b", b"b")
    os.mkdir("d")
    put("d/in", b"in")
    with fails(errno.EEXIST):
        renameat2("a", "b", RENAME_NOREPLACE)
    assert get("b") == b"b"
    renameat2("a", "new", RENAME_NOREPLACE)
    assert get("new") == b"a"
    renameat2("new", "b", RENAME_EXCHANGE)
    assert (get("new"), get("b")) == (b"b", b"a")
    renameat2("new", "d", RENAME_EXCHANGE)
    assert get("d") == b"b" and get("new/in") == b"in"
    with fails(errno.ENOENT):
        renameat2("d", "missing", RENAME_EXCHANGE)
    for flags in (RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_WHITEOUT | RENAME_EXCHANGE, 64):
        with fails(errno.EINVAL):
            renameat2("d", "b", flags)
    assert sorted(os.listdir(".")) == ["b", "d", "new"]
    # For overlays: a device that marks the old name, from those who may make one, or a refusal.
    try:
        renameat2("d", "moved", RENAME_WHITEOUT)
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.EPERM), error
        assert sorted(os.listdir(".")) == ["b", "d", "new"]
    else:
        assert stat.S_ISCHR(os.lstat("d").st_mode) and os.lstat("d").st_rdev == 0


@check
def hostile_names(_):
    names = [b"new\nline", b"\xff\xfe\x80", b" ", b"-rf", b"\\", b"a\tb", b"%41", b"...", b"\x01\x1b[31m",
             b"\xc3\xa9", b"e\xcc\x81", b"A", b"a", "\N{RIGHT-TO-LEFT OVERRIDE}".encode(), b"~", b"*",
             b".fuse_hidden0", b".git", b"\xed\xa0\x80", b"x" * 255, b"\xff" * 255, b"\n" * 255]
    for i, name in enumerate(names):
        put(name, b"%d" % i)
        os.mkdir(name[:250] + b".dir")
        put(os.path.join(name[:250] + b".dir", name), b"%d" % i)
    listed = os.listdir(b".")
    assert len(listed) == len(set(listed)) == 2 * len(names)
    assert set(listed) == set(names) | {name[:250] + b".dir" for name in names}
    for i, name in enumerate(names):
        assert get(name) == b"%d" % i
        assert os.listdir(name[:250] + b".dir") == [name]
        os.rename(name, b"moved")
        os.symlink(name, name)
        assert os.readlink(name) == name
        os.rename(b"moved", name)
        assert get(name) == b"%d" % i


@check
def paths_of_4095_bytes(_):
    """The longest path that a system call takes, the first that it does not, and a directory
    that is deeper than any path: work goes on there by relative names."""
    step = "d" * 200
    here = os.getcwd()
    deep = here
    while len(deep) + 1 + len(step) < 4044:  # leaves 50 to 251 bytes for a name
        deep += "/" + step
        os.mkdir(deep)
    longest = deep + "/" + "f" * (4095 - len(deep) - 1)
    put(longest, b"longest")
    assert len(longest) == 4095 and get(longest) == b"longest"
    for go in (os.stat, os.mkdir, os.unlink, lambda p: os.open(p, os.O_WRONLY | os.O_CREAT),
               lambda p: os.rename(longest, p), os.readlink, lambda p: os.symlink("x", p)):
        with fails(errno.ENAMETOOLONG):
            go(longest + "f")
    os.chdir(deep)
    assert os.getcwd() == deep
    for _ in range(3):
        os.mkdir(step)
        os.chdir(step)
    put("f", b"deeper")
    assert get("f") == b"deeper" and os.listdir(".") == ["f"]
    os.rename("f", "g")
    with fails(errno.ENAMETOOLONG):
        os.stat(os.path.join(deep, step, step, step, "g"))
    buffer = ctypes.create_string_buffer(8192)
    assert LIBC.syscall(79, buffer, 8192) == -1 and ctypes.get_errno() == errno.ENAMETOOLONG  # getcwd
    os.chdir("../../..")
    assert os.getcwd() == deep
    os.chdir(here)
    subprocess.run(["rm", "-r", step], check=True)  # descends by descriptors
    assert os.listdir(".") == []


@check
def paths_with_dots_and_slashes(_):
    os.makedirs("a/b/c")
    put("a/f", b"x")
    for path in ("a//f", "./a/./f", "a/b/../f", "a/b/c/../../f", os.getcwd() + "//a///f"):
        assert get(path) == b"x"
    for path in ("a/missing/../f", "missing/../a/f"):
        with fails(errno.ENOENT):
            os.stat(path)
    with fails(errno.ENOTDIR):
        os.stat("a/f/../f")
    with fails(errno.ENOENT):
        os.stat("")
    for go, number in ((lambda: os.mkdir("a/."), errno.EEXIST), (lambda: os.mkdir("a/.."), errno.EEXIST),
                       (lambda: os.rmdir("a/b/."), errno.EINVAL), (lambda: os.rmdir("a/b/c/.."), errno.ENOTEMPTY),
                       (lambda: os.rename("a/b/.", "x"), errno.EBUSY), (lambda: os.unlink("a/f/"), errno.ENOTDIR)):
        with fails(number):
            go()
    os.mkdir("slash/")
    os.rename("slash/", "other/")
    os.rmdir("other/")
    assert os.listdir(".") == ["a"]
