"""Actors on mounts and in the service's own directory, and beside each its double on one local
directory. Every call is made by both, and must have the same outcome; then all must see the same
tree as the local directory has.

What may be asserted, today and with kernel caches that a journal keeps true:
- a call sees what earlier calls of the same mount did;
- what was done on one mount is seen on the others, and in the service's directory, after a barrier
  there: fsync or close of a file, fsync of a directory. Each change is followed by one;
- what was done in the service's directory is seen on the mounts after `settle`: the end of a command.
Memory mappings are not kept alike between machines. What one stored is seen once it was synchronised,
by mappings that are made afterwards."""

import collections
import itertools
import os
import shutil

from .actor import Actor

# What a run begins with, so that few calls are needed to come by something.
START = [
    ("mkdir", None, b"d"), ("mkdir", None, b"d/e"),
    ("open", 0, None, b"a", os.O_RDWR | os.O_CREAT), ("pwrite", 0, (5000, 1), 0),
    ("link", None, b"a", None, b"d/b"), ("setxattr", b"a", b"user.a", (40, 1), 0),
    ("open", 1, None, b"b", os.O_RDWR | os.O_CREAT), ("open", 3, None, b"d/b", os.O_RDONLY),
    ("open", 2, None, b"d", os.O_RDONLY | os.O_DIRECTORY),
    ("utimens", None, b"b", (1, 1), (2, 2), True),
    ("symlink", b"d", None, b"c"), ("symlink", b"../missing", None, b"d/e/a"),
]
# And the others then, where there are others.
START_OF_OTHERS = [
    ("open", 0, None, b"a", os.O_RDWR), ("open", 1, None, b"d/b", os.O_RDWR | os.O_APPEND),
    ("open", 2, None, b"d/e", os.O_RDONLY | os.O_DIRECTORY),
]
CHANGES_NOTHING = {"read", "pread", "lseek", "stat", "fstat", "access", "getxattr", "listxattr", "list",
                   "readlink", "getcwd", "statvfs", "look", "mapread"}


class Differs(AssertionError):
    """The mount is not as a local directory."""


def differences(expected, found):
    if not (isinstance(expected, dict) and isinstance(found, dict)):
        return [f"locally {expected!r}, but {found!r}"]
    lines = []
    for key in sorted(expected.keys() | found.keys(), key=repr):
        if expected.get(key) != found.get(key):
            lines += [f"{key!r}: {line}" for line in differences(expected.get(key), found.get(key))]
    return lines


class Pairs:
    """places: maps the name of each actor to its directory. They show the same files, which are
    to be like those of `local`. settle: see above."""

    counter = itertools.count()
    outcomes = collections.Counter()  # of (name of the call, whether it succeeded)

    def __init__(self, local, places, settle=lambda: None):
        name = f"run{next(Pairs.counter)}"
        self.settle = settle
        self.local = local / name
        self.local.mkdir()
        self.places = {actor: place / name for actor, place in places.items()}
        self.made = next(iter(self.places.values()))
        self.made.mkdir()
        self.real, self.doubles = {}, {}
        try:
            for actor, place in self.places.items():
                self.real[actor] = Actor(place)
                self.doubles[actor] = Actor(self.local)
        except BaseException:
            self.close()
            raise

    def call(self, actor, *call):
        expected = self.doubles[actor].call(*call)
        found = self.real[actor].call(*call)
        Pairs.outcomes[call[0], expected[0]] += 1
        if expected != found:
            what = "\n".join(differences(expected[1], found[1]))
            raise Differs(f"{actor}: {call}:\n{what if expected[0] == found[0] else f'{expected} and {found}'}")
        if expected[0] is False and str(expected[1]).startswith("wrong"):
            raise Differs(f"{actor}: {call}: the check itself fails on a local directory: {expected[1]}")
        if len(self.real) > 1 and call[0] not in CHANGES_NOTHING:
            self.real[actor].call("barrier")
            self.settle()
        return expected

    def compare(self):
        for actor in self.real:
            self.call(actor, "look")

    def close(self):
        for one in [*self.real.values(), *self.doubles.values()]:
            one.close()
        shutil.rmtree(self.local, ignore_errors=True)
        shutil.rmtree(self.made, ignore_errors=True)


def run_script(local, place, script):
    """A found sequence again: calls of one actor, or with the actor's name before each."""
    places = place if isinstance(place, dict) else {"mount": place}
    pairs = Pairs(local, places)
    try:
        for call in script:
            pairs.call(*(call if isinstance(place, dict) else ("mount", *call)))
        pairs.compare()
    finally:
        pairs.close()
