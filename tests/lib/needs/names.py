"""Errno by the book, and names that are bytes."""

import errno
import os
import subprocess

from .base import (RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, check, fails, get, opened,
                   put, renameat2)


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
