"""What users may do to each other's files, and what becomes of modes and times: each rule by the
same calls, in the same order, on a local directory and on a mount with owner=server that
everybody may enter."""

import contextlib
import ctypes
import errno
import os
import pickle
import resource
import signal
import socket
import stat
import threading
import time
import traceback

import pytest

ROOT, ALICE, BOB = ("root", 0, [0]), ("alice", 70001, [70001, 70009]), ("bob", 70002, [70002])
USERS = (ROOT, ALICE, BOB)
SHARED_GROUP = 70009  # alice's, too

LIBC = ctypes.CDLL(None, use_errno=True)
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2

CLONE_FS, CLONE_FILES = 0x200, 0x400
SYS_SETGROUPS, SYS_SETRESUID, SYS_SETRESGID = 116, 117, 119  # x86-64's

# The clock of files may tick every 10 ms.
TICK = 0.02


def libc(name, *args):
    result = getattr(LIBC, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def utimensat(path, atime, mtime):
    times = (ctypes.c_long * 4)(0, atime, 0, mtime)
    return libc("utimensat", -100, os.fsencode(path), times, 0)


def result(function, *args, **keywords):
    """What it returns, or the name of its errno."""
    try:
        return function(*args, **keywords)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


class Place:
    """Runs calls in a directory, each as some user, and notes what it gave: a value, or errno."""

    def __init__(self, directory):
        self.directory = directory
        self.notes = []
        self.count = 0

    def by(self, user, what, function, *args, **keywords):
        name, uid, groups = user
        self.notes.append((f"{name}: {what}", self._run(uid, groups, function, args, keywords)))
        return self.notes[-1][1]

    def root(self, what, function, *args, **keywords):
        return self.by(ROOT, what, function, *args, **keywords)

    def _run(self, uid, groups, function, args, keywords):
        """In a thread of its own, with its own user, directory, umask and descriptors: to fork all of
        pytest for each call would take a hundred times as long."""
        value = []

        def become_and_call():
            try:
                libc("unshare", CLONE_FS | CLONE_FILES)
                os.chdir(self.directory)
                os.umask(0)
                # By the system calls, which change the thread alone.
                libc("syscall", SYS_SETGROUPS, len(groups), (ctypes.c_uint * len(groups))(*groups))
                libc("syscall", SYS_SETRESGID, *[groups[0]] * 3)
                libc("syscall", SYS_SETRESUID, *[uid] * 3)
                value.append(result(function, *args, **keywords))
            except BaseException:
                value.append(traceback.format_exc())

        thread = threading.Thread(target=become_and_call)
        thread.start()
        thread.join()
        assert not (isinstance(value[0], str) and value[0].startswith("Traceback")), value[0]
        return value[0]

    def apart(self, what, function, *args):
        """By root in a process of its own, for what a process has but once."""
        get, put = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(get)
                os.chdir(self.directory)
                os.write(put, pickle.dumps(result(function, *args)))
            except BaseException:
                os.write(put, pickle.dumps(traceback.format_exc()))
            finally:
                os._exit(0)
        os.close(put)
        with os.fdopen(get, "rb") as file:
            value = pickle.loads(file.read())
        os.waitpid(pid, 0)
        assert not (isinstance(value, str) and value.startswith("Traceback")), value
        self.notes.append((f"apart: {what}", value))

    def new(self, mode=0o644, owner=ROOT, group=None, kind="file"):
        """A fresh name of that kind."""
        self.count += 1
        name = f"{kind}{self.count}"
        path = os.path.join(self.directory, name)
        makers = {"file": lambda: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
                  "dir": lambda: os.mkdir(path), "fifo": lambda: os.mkfifo(path),
                  "symlink": lambda: os.symlink("nowhere", path)}
        makers[kind]()
        os.chown(path, owner[1], owner[2][0] if group is None else group, follow_symlinks=False)
        if kind != "symlink":
            os.chmod(path, mode)
        return name

    def show(self, name):
        status = os.lstat(os.path.join(self.directory, name))
        self.notes.append((f"{name} is", (oct(status.st_mode), status.st_uid, status.st_gid,
                                          status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0)))

    def times(self, what, function, *names):
        """Notes which times of these names the function changes."""
        def look():
            result = []
            for name in names:
                status = os.lstat(os.path.join(self.directory, name))
                result.append((status.st_mtime_ns, status.st_ctime_ns))
            return result
        before = look()
        time.sleep(TICK)
        self.root(what, function)
        changed = [tuple("=" if a == b else "<" if a < b else ">" for a, b in zip(*pair))
                   for pair in zip(before, look())]
        self.notes.append((f"{what}: mtime, ctime of {names}", changed))


def opened(name, flags, mode=0o666):
    os.close(os.open(name, flags, mode))


# --- the rules -------------------------------------------------------------------------------

def devices(p):
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        for user in USERS:
            p.by(user, "mknod", os.mknod, "device", kind | 0o640, os.makedev(1, 3))
        p.show("device")
        p.root("number", lambda: os.lstat("device").st_rdev)
        p.root("again", os.mknod, "device", kind | 0o600, os.makedev(1, 3))
        p.root("chmod", os.chmod, "device", 0o666)
        p.root("chown", os.chown, "device", ALICE[1], -1)
        p.by(ALICE, "chmod", os.chmod, "device", 0o600)
        p.by(BOB, "open", opened, "device", os.O_RDONLY)
        p.root("truncate", os.truncate, "device", 0)
        p.root("link", os.link, "device", "second")
        p.root("rename", os.rename, "second", "third")
        p.show("third")
        p.root("utime", os.utime, "third", ns=(1, 2))
        p.root("number", lambda: (os.lstat("third").st_rdev, os.lstat("third").st_mtime_ns))
        p.root("unlink", os.unlink, "third")
        p.root("unlink", os.unlink, "device")
    for major, minor in ((4095, 5), (1, 1048575), (0, 1)):
        p.root("mknod", os.mknod, "wide", stat.S_IFCHR | 0o600, os.makedev(major, minor))
        p.root("number", lambda: (os.lstat("wide").st_rdev, os.unlink("wide")))


def fifos_and_sockets(p):
    fifo = p.new(0o666, kind="fifo")
    p.root("no reader", opened, fifo, os.O_WRONLY | os.O_NONBLOCK)
    p.root("read", opened, fifo, os.O_RDONLY | os.O_NONBLOCK)
    p.root("truncate", os.truncate, fifo, 0)
    p.root("create", opened, fifo, os.O_RDWR | os.O_CREAT)
    p.root("exclusive", opened, fifo, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def through():
        pid = os.fork()
        if pid == 0:
            os.execvp("sh", ["sh", "-c", f"echo through > {fifo}"])
        with open(fifo, "rb") as file:
            data = file.read()
        return data, os.waitpid(pid, 0)[1]
    p.by(ALICE, "through", through)
    os.chmod(os.path.join(p.directory, fifo), 0o600)
    p.by(ALICE, "not hers", opened, fifo, os.O_RDONLY | os.O_NONBLOCK)

    def connected():
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind("socket")
            server.listen()
            client.connect("socket")
            peer, _ = server.accept()
            client.sendall(b"hello")
            with peer:
                return peer.recv(10)
    p.root("bind and connect", connected)
    p.show("socket")
    p.root("open", opened, "socket", os.O_RDWR)
    p.root("nobody listens", lambda: socket.socket(socket.AF_UNIX).connect("socket"))
    p.root("truncate", os.truncate, "socket", 0)


def chown_and_what_it_clears(p):
    for kind, mode in (("file", 0o6755), ("file", 0o6745), ("file", 0o644), ("dir", 0o6755),
                       ("fifo", 0o6755), ("symlink", 0)):
        for user in USERS:
            for uid, gid in ((-1, -1), (ALICE[1], -1), (-1, ALICE[1]), (-1, SHARED_GROUP),
                             (-1, BOB[1]), (BOB[1], -1), (BOB[1], BOB[1]), (0, 0)):
                name = p.new(mode, ALICE, kind=kind)
                # Whoever does not own a file can have set-uid cleared here; see semantics.md.
                if user is BOB and (uid, gid) == (-1, -1) and mode & 0o6000:
                    continue
                p.by(user, f"chown {uid} {gid}", os.chown, name, uid, gid, follow_symlinks=False)
                p.show(name)


def chown_that_changes_nothing_is_a_change(p):
    for kind in ("file", "dir", "fifo", "symlink"):
        name = p.new(0o755, ROOT, kind=kind)
        for ids in ((-1, -1), (0, 0), (0, -1)):
            p.times(f"chown {ids}", lambda: os.chown(name, *ids, follow_symlinks=False), name)


def chmod_by_group(p):
    for group in (ALICE[1], SHARED_GROUP, BOB[1]):
        for kind in ("file", "dir"):
            for user in USERS:
                name = p.new(0o644, ALICE, group, kind)
                p.by(user, "chmod", os.chmod, name, 0o7755)
                p.show(name)


def changes_clear_set_uid(p):
    def write(name):
        fd = os.open(name, os.O_WRONLY)
        return os.write(fd, b"x")

    def shrink(name):
        os.ftruncate(os.open(name, os.O_WRONLY), 3)

    def allocate(name):
        libc("fallocate", os.open(name, os.O_WRONLY), 0, ctypes.c_long(0), ctypes.c_long(8192))

    def copy(name):
        source, target = os.open("source", os.O_RDONLY), os.open(name, os.O_WRONLY)
        return os.copy_file_range(source, target, 4)

    with open(os.path.join(p.directory, "source"), "wb") as file:
        file.write(b"1234")
    os.chmod(os.path.join(p.directory, "source"), 0o644)
    changes = {"write": write, "truncate": lambda name: os.truncate(name, 2), "ftruncate": shrink,
               "O_TRUNC": lambda name: opened(name, os.O_WRONLY | os.O_TRUNC),
               "creat": lambda name: opened(name, os.O_WRONLY | os.O_TRUNC | os.O_CREAT),
               "fallocate": allocate, "copy_file_range": copy,
               "touch": os.utime, "open": lambda name: opened(name, os.O_RDWR)}
    for what, change in changes.items():
        for user in USERS:
            for mode in (0o6777, 0o4767, 0o2767, 0o2777):
                # Which the kernel does not ask of a FUSE filesystem; see semantics.md.
                if user is BOB and mode == 0o2767:
                    continue
                name = p.new(mode, ALICE)
                p.by(user, f"{what} {mode:o}", change, name)
                p.show(name)


def sticky_directories(p):
    def name_in(directory, kind, owner):
        made = p.new(0o777, owner, kind=kind)
        os.rename(os.path.join(p.directory, made), os.path.join(p.directory, directory, made))
        return f"{directory}/{made}"

    for mode, owner in ((0o1777, ROOT), (0o1777, BOB), (0o777, ROOT), (0o1755, ALICE)):
        directory = p.new(mode, owner, kind="dir")
        for user in USERS:
            p.by(user, "unlink", os.unlink, name_in(directory, "file", ALICE))
            p.by(user, "rmdir", os.rmdir, name_in(directory, "dir", ALICE))
            p.by(user, "rename", os.rename, name_in(directory, "file", ALICE), f"{directory}/new")
            p.by(user, "rename over", os.rename, name_in(directory, "file", user),
                 name_in(directory, "file", ALICE))
            p.by(user, "rename a directory", os.rename, name_in(directory, "dir", ALICE),
                 p.new(kind="dir") + "/x")
            p.by(user, "create over", opened, name_in(directory, "file", ALICE),
                 os.O_WRONLY | os.O_CREAT)
            p.by(user, "create over a FIFO", opened, name_in(directory, "fifo", ALICE),
                 os.O_RDWR | os.O_CREAT)
        p.root("left", lambda: sorted(os.listdir(directory)))


def a_directory_moves_only_if_it_is_writable(p):
    home = p.new(0o777, kind="dir")
    for mode in (0o755, 0o777):
        for user in USERS:
            directory = p.new(mode, BOB, kind="dir")
            os.chmod(p.directory, 0o777)
            p.by(user, "to another parent", os.rename, directory, f"{home}/{directory}")
            directory = p.new(mode, BOB, kind="dir")
            p.by(user, "to another name", os.rename, directory, directory + "x")
    os.chmod(p.directory, 0o755)


def access_by_mode(p):
    flags = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR, "rt": os.O_RDONLY | os.O_TRUNC,
             "noatime": os.O_RDONLY | os.O_NOATIME, "path": os.O_PATH}
    def all_of(name):
        return {what: result(opened, name, value) for what, value in flags.items()} | {
            "truncate": result(os.truncate, name, 0),
            "setxattr": result(os.setxattr, name, "user.x", b"1"),
            "getxattr": result(os.getxattr, name, "user.x"),
            "execute": os.access(name, os.X_OK)}

    for mode in (0o000, 0o400, 0o200, 0o040, 0o020, 0o004, 0o002, 0o077, 0o707, 0o770):
        for group in (SHARED_GROUP, BOB[1]):
            name = p.new(mode, ALICE, group)
            for user in USERS:
                p.by(user, f"{mode:o}", all_of, name)


def search_by_mode(p):
    def all_of(directory):
        return [result(os.listdir, directory),
                result(lambda: os.stat(f"{directory}/f").st_size),
                result(os.stat, f"{directory}/x"),
                result(lambda: os.stat(f"{directory}/../{directory}").st_uid),
                result(opened, f"{directory}/n", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
                result(os.unlink, f"{directory}/n"),
                result(os.mkdir, f"{directory}/d"), result(os.rmdir, f"{directory}/d"),
                result(os.link, f"{directory}/f", f"{directory}/l"),
                result(os.unlink, f"{directory}/l"), result(os.chdir, directory)]

    for mode in (0o000, 0o100, 0o400, 0o200, 0o300, 0o600, 0o010, 0o070, 0o001, 0o007):
        directory = p.new(0o777, ALICE, SHARED_GROUP, "dir")
        with open(os.path.join(p.directory, directory, "f"), "w", encoding="ascii"):
            pass
        os.chmod(os.path.join(p.directory, directory), mode)
        for user in (ALICE, BOB):
            p.by(user, f"{mode:o}", all_of, directory)


def set_group_id_directories(p):
    for mode, group in ((0o2777, SHARED_GROUP), (0o2777, BOB[1]), (0o777, SHARED_GROUP)):
        for user in USERS:
            directory = p.new(mode, ROOT, group, "dir")
            p.by(user, "create", opened, f"{directory}/f", os.O_CREAT | os.O_WRONLY, 0o2775)
            p.by(user, "create", opened, f"{directory}/g", os.O_CREAT | os.O_WRONLY, 0o6745)
            p.by(user, "mkdir", os.mkdir, f"{directory}/d", 0o755)
            p.by(user, "mkfifo", os.mkfifo, f"{directory}/p", 0o6755)
            p.by(user, "mknod", os.mknod, f"{directory}/n", stat.S_IFREG | 0o2755)
            p.by(user, "symlink", os.symlink, "x", f"{directory}/s")
            for name in ("f", "g", "d", "p", "n", "s"):
                p.show(f"{directory}/{name}")


def times_by_permission(p):
    now, omit = UTIME_NOW, UTIME_OMIT
    for mode in (0o644, 0o666, 0o444):
        for user in USERS:
            for times in ((now, now), (1, 2), (now, omit), (omit, now), (1, omit), (omit, omit),
                          (now, 2)):
                name = p.new(mode, ALICE)
                p.by(user, f"utimensat {mode:o} {times}", utimensat, name, *times)
            name = p.new(mode, ALICE)
            p.by(user, "utimensat -1", utimensat, name, -1, 0)
            p.by(user, "utimensat 10^9", utimensat, name, 10**9, 0)


def times_that_change(p):
    p.root("mkdir", os.mkdir, "d")
    p.root("mkdir", os.mkdir, "e")
    p.times("create", lambda: opened("d/f", os.O_CREAT | os.O_WRONLY), "d")
    p.times("open", lambda: opened("d/f", os.O_CREAT | os.O_RDWR), "d", "d/f")
    p.times("truncate empty", lambda: opened("d/f", os.O_TRUNC | os.O_RDWR), "d", "d/f")
    p.times("write", lambda: os.write(os.open("d/f", os.O_WRONLY), b"data"), "d", "d/f")
    p.times("write nothing", lambda: os.write(os.open("d/f", os.O_WRONLY), b""), "d", "d/f")
    p.times("read", lambda: os.read(os.open("d/f", os.O_RDONLY), 10), "d", "d/f")
    p.times("O_TRUNC", lambda: opened("d/f", os.O_TRUNC | os.O_RDWR), "d", "d/f")
    p.times("truncate", lambda: os.truncate("d/f", 100), "d/f")
    p.times("truncate to the same", lambda: os.truncate("d/f", 100), "d/f")
    p.times("ftruncate to the same",
            lambda: os.ftruncate(os.open("d/f", os.O_WRONLY), 100), "d/f")
    p.times("chmod", lambda: os.chmod("d/f", 0o600), "d", "d/f")
    p.times("chmod to the same", lambda: os.chmod("d/f", 0o600), "d/f")
    p.times("chown", lambda: os.chown("d/f", 1, 1), "d", "d/f")
    p.times("utime", lambda: os.utime("d/f", ns=(1, 2)), "d", "d/f")
    p.times("setxattr", lambda: os.setxattr("d/f", "user.x", b"1"), "d", "d/f")
    p.times("removexattr", lambda: os.removexattr("d/f", "user.x"), "d", "d/f")
    p.times("no xattr", lambda: os.removexattr("d/f", "user.x"), "d", "d/f")
    p.times("link", lambda: os.link("d/f", "d/g"), "d", "d/f")
    p.times("rename", lambda: os.rename("d/g", "d/h"), "d", "d/f")
    p.times("rename away", lambda: os.rename("d/h", "e/h"), "d", "e", "d/f")
    p.times("rename to another name of it", lambda: os.rename("d/f", "e/h"), "d", "e", "d/f")
    p.times("unlink", lambda: os.unlink("e/h"), "e", "d/f")
    p.times("symlink", lambda: os.symlink("x", "d/s"), "d")
    p.times("mkdir", lambda: os.mkdir("d/d"), "d")
    p.times("rename a directory", lambda: os.rename("d/d", "e/d"), "d", "e")
    p.times("rmdir", lambda: os.rmdir("e/d"), "e")
    p.times("mkfifo", lambda: os.mkfifo("d/p"), "d")
    p.times("fails", lambda: os.mkdir("d/p"), "d", "d/p")
    p.times("fails", lambda: os.link("d/p", "d/s"), "d", "d/p")
    p.times("fallocate", lambda: os.posix_fallocate(os.open("d/f", os.O_WRONLY), 0, 5000), "d/f")


def links_by_permission(p):
    """With the kernel's protection of links, whatever it is set to."""
    for mode in (0o600, 0o644, 0o666, 0o4666):
        for user in USERS:
            name = p.new(mode, ALICE)
            os.chmod(p.directory, 0o777)
            p.by(user, f"link {mode:o}", os.link, name, name + "-")
            os.chmod(p.directory, 0o755)
    sticky = p.new(0o1777, kind="dir")
    with open(os.path.join(p.directory, "text"), "w", encoding="ascii") as file:
        file.write("text")
    os.chmod(os.path.join(p.directory, "text"), 0o644)
    for owner in USERS:
        name = f"{sticky}/{owner[0]}"
        p.by(owner, "symlink", os.symlink, "../text", name)
        for user in USERS:
            p.by(user, "follow", lambda: os.read(os.open(name, os.O_RDONLY), 9))


def long_paths(p):
    for length in (255, 256):
        name = "n" * length
        p.root(f"create {length}", opened, name, os.O_CREAT | os.O_WRONLY)
        p.root("mkdir", os.mkdir, name[:-1] + "d")
        p.root("mkfifo", os.mkfifo, name[:-1] + "p")
        p.root("symlink", os.symlink, "x", name[:-1] + "s")
        p.root("rename", os.rename, name, name[:-1] + "r")
        p.root("link", os.link, name[:-1] + "r", name[:-1] + "l")
        p.root("stat", lambda: os.lstat(name[:-1] + "l").st_nlink)
        p.root("unlink", os.unlink, name[:-1] + "l")
        p.root("rmdir", os.rmdir, name[:-1] + "d")
        p.root("below", os.mkdir, f"missing/{name}")
        p.root("below a file", os.mkdir, f"{name[:-1]}r/{name}")
    part = "d" * 100

    def deep():
        for _ in range(39):
            os.mkdir(part)
            os.chdir(part)
    p.root("deep", deep)
    whole = "/".join([part] * 39)
    for length in (4094, 4095, 4096, 5000):
        p.root(f"path of {length}", opened, whole + "/" + "f" * (length - len(whole) - 1),
               os.O_CREAT | os.O_WRONLY)
        p.root(f"stat of {length}",
               lambda: os.stat("/".join([whole, "f" * (length - len(whole) - 1)])).st_size)
    for length in (4094, 4095, 4096):
        p.root(f"target of {length}", os.symlink, "x" * length, f"to{length}")
        p.root("readlink", lambda: len(os.readlink(f"to{length}")))
    p.root("no target", os.symlink, "", "empty")


def links_in_a_row(p):
    p.root("file", opened, "l0", os.O_CREAT | os.O_WRONLY)
    for i in range(1, 43):
        p.root("link", os.symlink, f"l{i - 1}", f"l{i}")
    for i in (39, 40, 41, 42):
        p.root(f"open {i}", opened, f"l{i}", os.O_RDONLY)
        p.root("no follow", opened, f"l{i}", os.O_RDONLY | os.O_NOFOLLOW)
    p.root("itself", os.symlink, "self", "self")
    p.root("open", opened, "self", os.O_RDONLY)
    p.root("create", opened, "self", os.O_CREAT | os.O_WRONLY)
    p.root("below", os.mkdir, "self/d")
    p.root("dangling", os.symlink, "target", "dangling")
    p.root("exclusive", opened, "dangling", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    p.root("create through", opened, "dangling", os.O_CREAT | os.O_WRONLY)
    p.show("target")


def limits_of_size(p):
    def limited(function):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return function()

    for name in ("f", "g", "h"):
        opened(os.path.join(p.directory, name), os.O_CREAT | os.O_WRONLY)
    p.apart("write up to it", limited, lambda: os.write(os.open("f", os.O_WRONLY), b"x" * 1500))
    p.apart("write at it", limited, lambda: os.pwrite(os.open("f", os.O_WRONLY), b"x", 1000))
    p.apart("append", limited,
           lambda: os.write(os.open("f", os.O_WRONLY | os.O_APPEND), b"x" * 10))
    p.apart("truncate", limited, lambda: os.truncate("g", 1001))
    p.apart("truncate to it", limited, lambda: os.truncate("g", 1000))
    p.apart("fallocate", limited, lambda: os.posix_fallocate(os.open("h", os.O_WRONLY), 0, 1001))
    p.root("sizes", lambda: [os.stat(name).st_size for name in ("f", "g", "h")])
    p.root("far", os.truncate, "h", 2**63 - 1)
    p.root("negative", os.truncate, "h", -1)


RULES = (devices, fifos_and_sockets, chown_and_what_it_clears,
         chown_that_changes_nothing_is_a_change, chmod_by_group, changes_clear_set_uid,
         sticky_directories, a_directory_moves_only_if_it_is_writable, access_by_mode,
         search_by_mode, set_group_id_directories, times_by_permission, times_that_change,
         links_by_permission, long_paths, links_in_a_row, limits_of_size)


@pytest.fixture
def places(harness, service, start_mount, run_berth):
    """A local directory and a workspace that everybody may enter."""
    run_berth("create", "one", check=True)
    os.chmod(harness.short, 0o755)
    mount = start_mount(service, path=harness.short / "mnt",
                        options=["owner=server", "allow_other"])
    local = harness.short / "local"
    local.mkdir()
    with umask(0):
        for place in (local, mount.path / "one"):
            place.chmod(0o755)
        yield local, mount.path / "one"


@contextlib.contextmanager
def umask(mask):
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@pytest.mark.matrix
@pytest.mark.parametrize("rule", RULES, ids=lambda f: f.__name__)
def test_as_in_a_local_directory(rule, places):
    local, mounted = (Place(path) for path in places)
    rule(local)
    rule(mounted)
    assert len(local.notes) > 5
    differences = [f"{a[0]}: {a[1]} here, {b[1]} on the mount"
                   for a, b in zip(local.notes, mounted.notes) if a != b]
    assert not differences, "\n".join(differences)
    assert len(local.notes) == len(mounted.notes)


def test_devices_are_not_opened_on_a_mount(places):
    _, mounted = places
    os.mknod(mounted / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(PermissionError) as caught:
            os.open(mounted / "null", flags)
        assert caught.value.errno == errno.EACCES


def test_devices_are_made_for_owner_server_alone(service, start_mount, run_berth):
    run_berth("create", "one", check=True)
    mount = start_mount(service)
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        with pytest.raises(PermissionError) as caught:
            os.mknod(mount.path / "one" / "null", kind | 0o666, os.makedev(1, 3))
        assert caught.value.errno == errno.EPERM
    assert os.listdir(mount.path / "one") == []
