"""What calls are made of. Few names and few slots, so that calls meet; sizes and offsets where pages
and messages end."""

import os

from hypothesis import strategies as st

from .calls import PAGE, UTIME_NOW, UTIME_OMIT

SLOTS, MAPPINGS = 4, 2
SLOT = st.integers(0, SLOTS - 1)
M = st.integers(0, MAPPINGS - 1)
AT = st.sampled_from([None] * 9 + list(range(SLOTS)))

# Where the most happens; with START (pairs.py), half of these are there.
PLACES_OF_INTEREST = [b"a", b"b", b"c", b"d", b"d/a", b"d/b", b"d/e", b"d/e/a", b"c/b", b"/a", b"/d/e", b"../a"]
NAMES = [b"a", b"b", b"c", b"d", b"e"]
ODD = [b"line\nfeed", b"\xff\xfe", b"\xe2\x98\x83", b"n" * 255, b"n" * 256, b".", b"..", b" ", b"\x7f\x01"]
NAME = st.sampled_from(NAMES * 4 + ODD)


def _path(parts, rooted, trailing):
    return (b"/" if rooted else b"") + b"/".join(parts) + (b"/" if trailing else b"")


PATH = st.sampled_from(range(10)).flatmap(lambda kind: (
    st.sampled_from(PLACES_OF_INTEREST) if kind < 6 else NAME if kind < 8 else
    st.builds(_path, st.lists(NAME, min_size=1, max_size=3), st.booleans(), st.booleans()) if kind < 9 else
    st.sampled_from([b"/", b".", b"", b"a/" * 2100 + b"a"])))
TEXT = st.one_of(PATH.filter(bool), st.sampled_from([b"x" * 4095, b"missing/" * 30, b"./././a"]))

BOUNDARIES = [0, 1, PAGE, 2 * PAGE, 65536, 128 << 10, 256 << 10, 1 << 20]


def near(values, reach=3):
    return st.builds(lambda at, by: max(0, at + by), st.sampled_from(values), st.integers(-reach, reach))


SMALL = [0, 1, 100, PAGE, 2 * PAGE]
OFFSET = st.one_of(st.integers(0, 200), near(SMALL), near(BOUNDARIES))
SIZE = st.one_of(st.integers(0, 200), near(SMALL), near(BOUNDARIES))
DATA = st.tuples(st.one_of(st.integers(0, 40), near(SMALL), near([128 << 10, 300 << 10])), st.integers(0, 3))
HUGE = st.sampled_from([-1, 1 << 50, (1 << 63) - 1])
LENGTH_OR_WRONG = st.one_of(*[SIZE] * 8, HUGE)

ACCESS = st.sampled_from([os.O_RDONLY, os.O_RDWR, os.O_RDWR, os.O_WRONLY])
CREATION = st.sampled_from([0, 0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC,
                            os.O_TRUNC])
OTHERS = st.sampled_from([0, 0, 0, 0, os.O_APPEND, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_SYNC, os.O_DSYNC,
                          os.O_PATH, os.O_NOATIME])
FLAGS = st.builds(lambda a, b, c: a | b | c, ACCESS, CREATION, OTHERS)
MODE = st.one_of(st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o000, 0o4755, 0o2755, 0o1777, 0o7777]),
                 st.integers(0, 0o7777))

TIME = st.one_of(
    st.tuples(st.sampled_from([0, 1, 1_000_000_000, 1 << 31, 1 << 32, -1]),
              st.sampled_from([0, 1, 999_999_999, 123_456_789])),
    st.just((0, UTIME_NOW)), st.just((0, UTIME_OMIT)),
    st.sampled_from([(0, 1_000_000_000), (0, -1)]))

# Of fallocate, what the kernel passes on to FUSE; it refuses to collapse and to insert by itself.
KEEP, PUNCH, ZERO = 1, 2, 16
FALLOCATE = st.sampled_from([0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP, PUNCH])
XATTR = st.sampled_from([b"user.a", b"user.b", b"user.a", b"user.b", b"user." + b"x" * 250,
                         b"user." + b"x" * 251, b"user."])
XATTR_OF = st.one_of(PATH, PATH, SLOT)
XATTR_VALUE = st.tuples(st.sampled_from([0, 1, 40, 1000, 65537]), st.integers(0, 3))
FOLLOW = st.booleans()


def call(name, *arguments):
    return st.tuples(st.just(name), *arguments)


# Each group is a rule of its own: Hypothesis leaves some rules out of some runs, and so comes by runs
# that are mostly renames, or mostly about one file.
OPENING = st.one_of(
    call("open", SLOT, AT, PATH, FLAGS, MODE), call("open", SLOT, AT, PATH, FLAGS, MODE),
    call("open", SLOT, AT, NAME, st.just(os.O_RDWR | os.O_CREAT), st.just(0o644)),
    call("open", SLOT, AT, PATH, st.just(os.O_RDONLY | os.O_DIRECTORY)),
    call("open", SLOT, st.none(), st.sampled_from(PLACES_OF_INTEREST), ACCESS),
    call("close", SLOT), call("dup", SLOT, SLOT), call("append", SLOT, st.booleans()))
CONTENT = st.one_of(
    call("read", SLOT, SIZE), call("pread", SLOT, SIZE, OFFSET),
    call("write", SLOT, DATA), call("pwrite", SLOT, DATA, OFFSET),
    call("lseek", SLOT, OFFSET, st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])),
    call("ftruncate", SLOT, LENGTH_OR_WRONG), call("truncate", PATH, LENGTH_OR_WRONG),
    call("fallocate", SLOT, FALLOCATE, OFFSET, SIZE),
    call("copy", SLOT, st.one_of(st.none(), OFFSET), SLOT, st.one_of(st.none(), OFFSET), SIZE),
    call("sendfile", SLOT, SLOT, OFFSET, SIZE), call("fsync", SLOT), call("fdatasync", SLOT))
NAMING = st.one_of(
    call("rename", AT, PATH, AT, PATH), call("rename", AT, PATH, AT, PATH, st.sampled_from([1, 2, 2, 3, 8])),
    call("rename", st.none(), st.sampled_from(PLACES_OF_INTEREST), st.none(), st.sampled_from(PLACES_OF_INTEREST)),
    call("link", AT, PATH, AT, PATH, FOLLOW), call("symlink", TEXT, AT, PATH), call("readlink", AT, PATH), call("readlink", st.none(), st.sampled_from([b"c", b"d/e/a"])),
    call("unlink", AT, PATH), call("unlink", st.none(), st.sampled_from(PLACES_OF_INTEREST)), call("rmdir", AT, PATH), call("rmdir", st.none(), st.sampled_from([b"d", b"d/e", b"e"])),
    call("mkdir", AT, PATH, MODE.map(lambda mode: mode | 0o700)), call("mkdir", AT, NAME),
    call("mknod", AT, NAME, st.sampled_from([0o100644, 0o010600, 0o140644])))
PLACES = st.one_of(
    call("chdir", PATH), call("fchdir", SLOT), call("getcwd"), call("list", AT, PATH),
    call("list_changing", st.sampled_from([b"a", b"b", b"d/a"]), st.integers(1, 20), st.integers(1, 4)),
    call("statvfs", PATH), call("stat", AT, PATH, FOLLOW), call("fstat", SLOT),
    call("access", AT, PATH, st.integers(0, 7)))
ATTRIBUTES = st.one_of(
    call("chmod", AT, PATH, MODE), call("fchmod", SLOT, MODE), call("chown", AT, PATH, FOLLOW),
    call("utimens", AT, PATH, TIME, TIME, FOLLOW), call("utimens", SLOT, st.none(), TIME, TIME, st.just(True)),
    call("setxattr", st.sampled_from([0, 1, 2, 3, b"a", b"d/b"]), st.sampled_from([b"user.a", b"user.b"]),
         XATTR_VALUE, st.just(0)),
    call("setxattr", XATTR_OF, XATTR, XATTR_VALUE, st.sampled_from([0, 0, 1, 2]), FOLLOW),
    call("getxattr", XATTR_OF, XATTR, FOLLOW), call("listxattr", XATTR_OF, FOLLOW),
    call("removexattr", XATTR_OF, XATTR, FOLLOW))
MAPPED = st.one_of(
    call("map", M, SLOT, st.booleans(), st.sampled_from([0, 0, PAGE]),
         st.sampled_from([PAGE, 3 * PAGE, 20000]), st.sampled_from([False, False, True])),
    call("mapread", M, OFFSET, st.integers(1, 9000)), call("mapwrite", M, OFFSET, st.tuples(
        st.integers(1, 9000), st.integers(0, 3))),
    call("mapwrite", M, st.integers(0, 100), st.tuples(st.integers(1, 100), st.integers(0, 3))),
    call("msync", M), call("unmap", M))
# Of a mapping, what others see after it was written back; see pairs.py.
STORING = call("store", SLOT, OFFSET, st.tuples(st.integers(1, 9000), st.integers(0, 3)))

# --- one file ------------------------------------------------------------------------------

WHERE = st.one_of(near(BOUNDARIES[2:] + [2 << 20], 9), st.integers(0, 3 << 20), st.integers(0, 300))
HOW_MUCH = st.one_of(st.integers(0, 300), near(BOUNDARIES, 9), st.integers(0, 700_000))
SEED = st.integers(0, 255)
ALIGNED = st.integers(0, 600).map(lambda n: n * PAGE)
