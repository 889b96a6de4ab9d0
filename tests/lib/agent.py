"""What an agent does to the files of its workspace, at random, and all that can be told of a file by
the usual calls."""

import errno
import os
import shlex
import stat

NAMES = ["a", "b", "c", "d/a", "d/b", "e/a", "e/f/a"]
# What links lead to, wherever they come to be: nothing outside.
BELOW = ["a", "b", "d", "e/a", "f", "f/a", "x"]
# Beside these: directories, what a swap puts into one, and what is never there.
PLACES = [*NAMES, "", "d", "e", "e/f", "e/d", "t", "a/x", "d/a/x", "never", "e/never"]

MMAP = r"""
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, max(os.fstat(fd).st_size, 5000))
with mmap.mmap(fd, 0) as m:
    m[4990:4996] = sys.argv[2].encode()[:6].ljust(6, b"-")
"""

EXCHANGE = r"""
import ctypes, os, sys
ctypes.CDLL(None).renameat2(-100, os.fsencode(sys.argv[1]), -100, os.fsencode(sys.argv[2]), 2)
"""


def python(text, *words):
    return " ".join(["/usr/bin/python3 -S -E -c", shlex.quote(text), *words])


def change(rng, number):
    """A shell command that changes something, whatever is there; its first word is its kind."""
    one, two = rng.sample(NAMES, 2)
    text = f"{number:06d}"
    when = f"@{1700000000 + rng.randrange(3)}.{rng.randrange(3)}"
    # Starting an interpreter takes longer than all else.
    rare = number % 10 == 0
    return rng.choice([
        f": create; set -C; printf {text} > {one}",
        f": rewrite; printf {text} > {one}",
        f": rewrite-same-time; printf {text} > {one}; touch -d @1700000000 {one}",
        f": rewrite-long; printf {text}{'x' * rng.randrange(9000)} > {one}",
        f": append; printf {text} >> {one}",
        f": rename-over; printf {text} > t; mv -fT t {one}",
        f": rename-over-keeping-time; printf {text} > t; touch -r {one} t; mv -fT t {one}",
        f": delete; rm -rf {one}",
        f": file-to-directory; rm -rf {one}; mkdir {one}; printf {text} > {one}/x",
        f": directory-to-file; rm -rf {one}; printf {text} > {one}",
        f": rmdir; rm -f {one}/x; rmdir {one}",
        f": symlink; ln -sfn {text} {one}",
        f": symlink-to; rm -rf {one}; ln -s {rng.choice(BELOW)} {one}",
        f": rename; rm -rf {two}; mv -T {one} {two}",
        f": link; ln -fT {one} {two}",
        f": write-by-link; ln -fT {one} {two} && printf {text} > {two}",
        f": chmod; chmod {rng.choice(['600', '644', '755', '000'])} {one}",
        f": chmod-directory; chmod {rng.choice(['700', '755'])} {os.path.dirname(one) or '.'}",
        f": utimes; touch -m -d {when} {one}",
        f": utimes-of-directory; touch -m -d {when} {os.path.dirname(one) or '.'}",
        f": truncate; truncate -s {rng.randrange(6000)} {one}",
        f": extend; truncate -s +4096 {one}",
        f": punch; fallocate -p -o 0 -l 4096 {one}",
        f": again; mkdir -p d e/f; printf {text} > d/a; printf {text} > e/f/a",
        ": move-directory; mv -T d e/d",
        ": move-directory-back; rm -rf d; mv -T e/d d",
        ": replace-directory; cp -a d t; rm -rf d; mv -T t d; rm -rf t",
        f": many; mkdir -p d; for i in 1 2 3 4 5 6 7 8; do printf {text} > d/m$i; done; rm -f d/m[1-7]",
        f": copy; cp -f {one} {two}",
        f": mmap; {python(MMAP, one, text) if rare else ''}",
        f": exchange; {python(EXCHANGE, one, two) if rare else ''}",
    ])


def kind_of(command):
    return command.split(";", 1)[0][2:]


def told(info, inode):
    return [info.st_mode, info.st_nlink, None if stat.S_ISDIR(info.st_mode) else info.st_size,
            info.st_mtime_ns, info.st_ctime_ns, info.st_ino & inode]


def seen(path, inode=(1 << 40) - 1):
    """All that can be told of a file by the usual calls, or the errno of the first. inode: the bits of
    inode numbers that are the same on a mount."""
    try:
        info = os.lstat(path)
        shown = [told(info, inode), os.access(path, os.X_OK), os.access(path, os.R_OK)]
        if stat.S_ISLNK(info.st_mode):
            return [*shown, os.readlink(path)]
        if stat.S_ISDIR(info.st_mode):
            with os.scandir(path) as entries:
                shown.append(sorted((entry.name, entry.inode() & inode, entry.is_dir(follow_symlinks=False),
                                     entry.is_symlink()) for entry in entries))
            shown.append(os.path.lexists(os.path.join(path, "missing")))
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            shown.append(told(os.fstat(fd), inode))
        else:
            fd = os.open(path, os.O_RDONLY)
            shown += [told(os.fstat(fd), inode), os.read(fd, 1 << 20), os.lseek(fd, 0, os.SEEK_END)]
        os.close(fd)
        return shown
    except OSError as error:
        return errno.errorcode[error.errno]


def brief(shown):
    if isinstance(shown, str):
        return shown
    return [part[:16] + b"..." if isinstance(part, bytes) and len(part) > 16 else part for part in shown]


def differences(mount, tree, names=PLACES):
    lines = []
    for name in names:
        truth, shown = seen(tree / name), seen(mount / name)
        if shown != truth:
            lines.append(f"{name or '.'} on {mount}: {brief(shown)}, but in truth {brief(truth)}")
    return lines


def compare(mounts, tree, names, what):
    for mount in mounts:
        found = differences(mount, tree, names)
        if found:
            # Whatever was looked up may be right by now.
            others = differences(mount, tree)
            raise AssertionError("\n".join([what, *found, "and then:", *others]))
