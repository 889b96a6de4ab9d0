"""Compare two directory trees as a tool would see them, file by file."""

import hashlib
import os
import stat


def _digest(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def describe(root, times=True, skip=()):
    """Maps each relative path (bytes) below root to what is visible of it.

    Hard links are described by the group of names that share an inode, so inode
    numbers themselves need not agree. times=False leaves modification times out, for
    work that does not set them. skip: relative paths (bytes) that are left out with
    all below them.
    """
    root = os.fsencode(root)
    seen = {}
    groups = {}
    stack = [b""]
    while stack:
        relative = stack.pop()
        path = os.path.join(root, relative) if relative else root
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        row = {"kind": stat.filemode(status.st_mode)[0], "mode": oct(stat.S_IMODE(status.st_mode))}
        if times and relative:
            row["mtime"] = status.st_mtime_ns
        if kind == stat.S_IFREG:
            row["size"] = status.st_size
            row["sha256"] = _digest(path)
            row["nlink"] = status.st_nlink
            if status.st_nlink > 1:
                groups.setdefault((status.st_dev, status.st_ino), []).append(relative)
        elif kind == stat.S_IFLNK:
            row["target"] = os.readlink(path)
        elif kind == stat.S_IFDIR:
            for name in os.listdir(path):
                child = os.path.join(relative, name) if relative else name
                if child not in skip:
                    stack.append(child)
        seen[relative] = row
    for names in groups.values():
        for name in names:
            seen[name]["linked"] = tuple(sorted(names))
    return seen


def differences(left, right, times=True, skip=()):
    """Lines that tell where two trees differ; empty when they do not."""
    one, two = describe(left, times, skip), describe(right, times, skip)
    lines = []
    for path in sorted(one.keys() | two.keys()):
        if path not in one:
            lines.append(f"{path!r}: only in {right}")
        elif path not in two:
            lines.append(f"{path!r}: only in {left}")
        elif one[path] != two[path]:
            facts = {
                key: (one[path].get(key), two[path].get(key))
                for key in one[path].keys() | two[path].keys()
                if one[path].get(key) != two[path].get(key)
            }
            lines.append(f"{path!r}: {facts}")
    return lines
