"""The state machines. Each is made with a place to work in; steps are calls as calls.py has them, and
are printed so that they can be pasted into a script of test_found.py."""

import os
import shutil

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from . import strategies as s
from .actor import Actor
from .calls import PAGE, brief, data_of
from .pairs import START, START_OF_OTHERS, Differs, Pairs


LOOK_EVERY = 8  # steps; a look costs as much as many of them


class Compared(RuleBasedStateMachine):
    """Whose pairs are compared now and then, and at the end."""

    def __init__(self, pairs):
        super().__init__()
        self.pairs, self.steps = pairs, 0

    def go(self, who, call):
        self.pairs.call(who, *call)
        self.steps += 1
        if self.steps % LOOK_EVERY == 0:
            self.pairs.compare()

    def teardown(self):
        try:
            self.pairs.compare()
        finally:
            self.pairs.close()


class Tree(Compared):
    """Any calls by one process on one mount."""

    def __init__(self, local, mount):
        super().__init__(Pairs(local, {"mount": mount}))
        for call in START:
            self.pairs.call("mount", *call)

    @rule(call=s.OPENING)
    def opening(self, call):
        self.go("mount", call)

    @rule(call=s.CONTENT)
    def content(self, call):
        self.go("mount", call)

    @rule(call=s.NAMING)
    def naming(self, call):
        self.go("mount", call)

    @rule(call=s.PLACES)
    def places(self, call):
        self.go("mount", call)

    @rule(call=s.ATTRIBUTES)
    def attributes(self, call):
        self.go("mount", call)

    @rule(call=s.MAPPED)
    def mapped(self, call):
        self.go("mount", call)


WHO = st.sampled_from(["first", "second", "agent"])


class Together(Compared):
    """Two mounts of one workspace, and an agent beside the service: every change is seen by all."""

    def __init__(self, local, first, second, agent, settle):
        super().__init__(Pairs(local, {"first": first, "second": second, "agent": agent}, settle))
        for call in START:
            self.pairs.call("first", *call)
        for who in ("second", "agent"):
            for call in START_OF_OTHERS:
                self.pairs.call(who, *call)

    @rule(who=WHO, call=s.OPENING)
    def opening(self, who, call):
        self.go(who, call)

    @rule(who=WHO, call=s.CONTENT)
    def content(self, who, call):
        self.go(who, call)

    @rule(who=WHO, call=s.NAMING)
    def naming(self, who, call):
        self.go(who, call)

    @rule(who=WHO, call=s.PLACES)
    def places(self, who, call):
        self.go(who, call)

    @rule(who=WHO, call=s.ATTRIBUTES)
    def attributes(self, who, call):
        self.go(who, call)

    @rule(who=WHO, call=s.STORING)
    def storing(self, who, call):
        self.go(who, call)


class File(RuleBasedStateMachine):
    """One file by several descriptors and mappings, against its bytes in memory, in the manner of
    fsx. The place may be a local directory, which shows that the expectations are right."""

    BUFFERED, DIRECT = st.sampled_from([0, 1]), 2

    def __init__(self, place, beside):
        """beside: the same directory as the service sees it."""
        super().__init__()
        self.bytes = bytearray()
        name = f"run{next(Pairs.counter)}"
        self.place, self.beside = place / name, beside / name
        self.place.mkdir()
        self.actor = Actor(self.place)
        self.windows = {}
        for slot in (0, 1):
            self.expect(None, "open", slot, None, b"file", os.O_RDWR | os.O_CREAT)
        self.expect(None, "open", self.DIRECT, None, b"file", os.O_RDWR | os.O_DIRECT)

    def expect(self, value, *call):
        succeeded, found = self.actor.call(*call)
        Pairs.outcomes[call[0], succeeded] += 1
        if found != value:
            raise Differs(f"{call}: {value!r} expected, but {found!r}")

    def store(self, content, at):
        if content and at > len(self.bytes):
            self.bytes.extend(bytes(at - len(self.bytes)))
        self.bytes[at:at + len(content)] = content

    def resize(self, size):
        del self.bytes[size:]
        self.bytes.extend(bytes(size - len(self.bytes)))

    @rule(slot=BUFFERED, at=s.WHERE, size=s.HOW_MUCH, seed=s.SEED)
    def write(self, slot, at, size, seed):
        self.store(data_of((size, seed)), at)
        self.expect(size, "pwrite", slot, (size, seed), at)

    @rule(slot=BUFFERED, size=s.HOW_MUCH, seed=s.SEED)
    def append(self, slot, size, seed):
        self.expect(None, "append", slot, True)
        self.store(data_of((size, seed)), len(self.bytes))
        self.expect(size, "write", slot, (size, seed))
        self.expect(None, "append", slot, False)

    @rule(slot=BUFFERED, at=s.WHERE, size=s.HOW_MUCH)
    def read(self, slot, at, size):
        self.expect(brief(bytes(self.bytes[at:at + size])), "pread", slot, size, at)

    @rule(at=s.ALIGNED, pages=st.integers(0, 80), seed=s.SEED)
    def write_direct(self, at, pages, seed):
        self.store(data_of((pages * PAGE, seed)), at)
        self.expect(pages * PAGE, "direct_write", self.DIRECT, (pages * PAGE, seed), at)

    @rule(at=s.ALIGNED, pages=st.integers(0, 80))
    def read_direct(self, at, pages):
        self.expect(brief(bytes(self.bytes[at:at + pages * PAGE])), "direct_read", self.DIRECT, pages * PAGE, at)

    @rule(slot=BUFFERED, size=s.WHERE)
    def truncate(self, slot, size):
        self.resize(size)
        self.expect(None, "ftruncate", slot, size)

    @rule(size=s.WHERE)
    def truncate_by_name(self, size):
        self.resize(size)
        self.expect(None, "truncate", b"file", size)

    @rule(slot=BUFFERED, at=s.WHERE, size=s.HOW_MUCH, mode=st.sampled_from([0, 1]))
    def allocate(self, slot, at, size, mode):
        if not mode and size and at + size > len(self.bytes):
            self.resize(at + size)
        self.expect(None if size else "EINVAL", "fallocate", slot, mode, at, size)

    @rule(slot=BUFFERED, at=s.WHERE, size=s.HOW_MUCH, mode=st.sampled_from([s.PUNCH | s.KEEP, s.ZERO,
                                                                            s.ZERO | s.KEEP]))
    def clear(self, slot, at, size, mode):
        if size:
            if mode == s.ZERO and at + size > len(self.bytes):
                self.resize(at + size)
            inside = max(0, min(at + size, len(self.bytes)) - at)
            self.bytes[at:at + inside] = bytes(inside)
        self.expect(None if size else "EINVAL", "fallocate", slot, mode, at, size)

    @rule(slot=BUFFERED, other=BUFFERED, at=s.WHERE, to=s.WHERE, size=s.HOW_MUCH)
    def copy(self, slot, other, at, to, size):
        size = max(0, min(size, len(self.bytes) - at))  # what is added meanwhile could be copied too
        if at < to + size and to < at + size:
            return
        content = bytes(self.bytes[at:at + size])
        self.store(content, to)
        self.expect(len(content), "copy", slot, at, other, to, size)

    @rule(m=s.M, slot=BUFFERED, page=st.integers(0, 300), pages=st.integers(1, 40))
    def map(self, m, slot, page, pages):
        self.expect(None, "map", m, slot, True, page * PAGE, pages * PAGE)
        self.windows[m] = (page * PAGE, pages * PAGE)

    @rule(m=s.M)
    def unmap(self, m):
        self.expect(None if self.windows.pop(m, None) else "nothing mapped", "unmap", m)

    def window(self, m, at, size):
        """The place in the file, if the mapping and the file have it."""
        start, length = self.windows.get(m, (0, 0))
        return start + at if at + size <= length and start + at + size <= len(self.bytes) else None

    @rule(m=s.M, at=st.integers(0, 40 * PAGE), size=st.integers(1, 60000), seed=s.SEED)
    def write_mapped(self, m, at, size, seed):
        place = self.window(m, at, size)
        if place is not None:
            self.store(data_of((size, seed)), place)
        self.expect("outside" if place is None else size, "mapwrite", m, at, (size, seed))

    @rule(m=s.M, at=st.integers(0, 40 * PAGE), size=st.integers(1, 60000))
    def read_mapped(self, m, at, size):
        place = self.window(m, at, size)
        self.expect("outside" if place is None else brief(bytes(self.bytes[place:place + size])),
                    "mapread", m, at, size)

    @rule(m=s.M)
    def synchronise(self, m):
        self.expect(None if m in self.windows else "nothing mapped", "msync", m)

    @rule(slot=BUFFERED, data=st.booleans())
    def sync(self, slot, data):
        self.expect(None, "fdatasync" if data else "fsync", slot)

    @rule(slot=BUFFERED)
    def reopen(self, slot):
        self.expect(None, "close", slot)
        self.expect(None, "open", slot, None, b"file", os.O_RDWR)

    @rule(slot=BUFFERED)
    def look(self, slot):
        self.expect(brief(bytes(self.bytes)), "content", slot)
        self.expect(len(self.bytes), "size", b"file")

    def teardown(self):
        try:
            for m in list(self.windows):
                self.unmap(m)
            for slot in (0, 1):
                self.look(slot)
            assert (self.beside / "file").read_bytes() == self.bytes, "other bytes in the service's file"
        finally:
            self.actor.close()
            shutil.rmtree(self.beside)
