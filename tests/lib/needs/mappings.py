"""Mapped files, transfers past the page cache, files without a name, and whole appends."""

import errno
import mmap
import os
import signal

from .base import AT_FDCWD, LIBC, check, fails, get, in_child, libc, opened, put

AT_SYMLINK_FOLLOW = 0x400
PAGE = mmap.PAGESIZE


def killed_by(number, function):
    """Runs function in a child, which must end by this signal."""
    pid = os.fork()
    if pid == 0:
        try:
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            function()
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == number, status


def aligned(size):
    """Memory for O_DIRECT."""
    return mmap.mmap(-1, size)


@check
def stores_reach_the_file_when_a_process_dies(_):
    """With the descriptor closed before, and by SIGKILL: nobody calls msync or munmap."""
    put("f", b"-" * (3 * PAGE))

    def store():
        with opened("f", os.O_RDWR) as fd:
            memory = mmap.mmap(fd, 3 * PAGE)
        memory[PAGE + 1:PAGE + 6] = b"store"
        os.kill(os.getpid(), signal.SIGKILL)
    killed_by(signal.SIGKILL, store)
    assert get("f") == b"-" * (PAGE + 1) + b"store" + b"-" * (2 * PAGE - 6)


@check
def shared_mappings_of_two_processes_are_one(_):
    put("f", bytes(PAGE))
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, PAGE) as memory:
        def other():
            with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, PAGE) as theirs:
                theirs[10:15] = b"child"
        in_child(other)
        assert memory[10:15] == b"child"


@check
def private_mappings_keep_their_stores(_):
    put("f", b"-" * (2 * PAGE))
    for flags in (os.O_RDONLY, os.O_RDWR):
        with opened("f", flags) as fd, mmap.mmap(fd, 2 * PAGE, flags=mmap.MAP_PRIVATE) as memory:
            memory[100:104] = b"mine"
            assert memory[99:105] == b"-mine-"
            assert os.pread(fd, 4, 100) == b"----"
            # A page that was not stored to shows what is in the file now.
            put_at = PAGE + 5
            with opened("f", os.O_WRONLY) as writer:
                os.pwrite(writer, b"new", put_at)
            assert memory[put_at:put_at + 3] == b"new"
            with opened("f", os.O_WRONLY) as writer:
                os.pwrite(writer, b"---", put_at)
    assert get("f") == b"-" * (2 * PAGE)
    with opened("f", os.O_WRONLY) as fd, fails(errno.EACCES):
        mmap.mmap(fd, PAGE, flags=mmap.MAP_PRIVATE)
    with opened("f") as fd, fails(errno.EACCES):
        mmap.mmap(fd, PAGE)  # shared and writable


@check
def a_truncated_mapping_is_sigbus(_):
    """Past the page that holds the end; within it, what was cut off reads as zero."""
    put("f", b"x" * (3 * PAGE))
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, 3 * PAGE) as memory:
        assert memory[2 * PAGE] == ord("x")
        os.ftruncate(fd, PAGE + 10)
        assert memory[PAGE + 9:PAGE + 12] == b"x\0\0"
        killed_by(signal.SIGBUS, lambda: memory[2 * PAGE])
        os.ftruncate(fd, 3 * PAGE)
        assert memory[2 * PAGE] == 0, "what comes back is a hole"
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, 3 * PAGE) as memory:
        in_child(lambda: os.truncate("f", 0))
        killed_by(signal.SIGBUS, lambda: memory[0])


@check
def files_open_to_append_can_be_mapped(_):
    put("f", b"-" * (2 * PAGE))
    with opened("f", os.O_RDWR | os.O_APPEND) as fd, mmap.mmap(fd, 2 * PAGE) as memory:
        memory[PAGE:PAGE + 6] = b"mapped"
        assert os.write(fd, b"appended") == 8
        memory.flush()
        assert os.pread(fd, 6, PAGE) == b"mapped"
    assert get("f") == b"-" * PAGE + b"mapped" + b"-" * (PAGE - 6) + b"appended"


@check
def transfers_past_the_page_cache(_):
    """O_DIRECT, aligned as a disk wants it: what is written so is seen by others, and what others
    write is seen so."""
    block = 4096
    put("f", b"-" * (4 * block))
    with opened("f", os.O_RDWR | os.O_DIRECT) as fd, opened("f", os.O_RDWR) as other, \
            aligned(2 * block) as memory:
        memory[:] = b"d" * (2 * block)
        assert os.pwritev(fd, [memory], block) == 2 * block
        assert os.pread(other, 6, block - 3) == b"---ddd"
        assert os.pwrite(other, b"cached", block + 5) == 6
        os.fsync(other)
        assert os.preadv(fd, [memory], block) == 2 * block
        assert memory[4:12] == b"dcachedd"
        # The end of the file is not a multiple of a block.
        os.ftruncate(other, 3 * block + 100)
        assert os.preadv(fd, [memory], 3 * block) == 100
        assert os.preadv(fd, [memory], 4 * block) == 0
        # Growing it.
        memory[:] = b"e" * (2 * block)
        assert os.pwritev(fd, [memory], 4 * block) == 2 * block
        assert os.fstat(fd).st_size == 6 * block
    assert get("f")[3 * block:] == b"-" * 100 + bytes(block - 100) + b"e" * (2 * block)


@check
def files_without_a_name_are_made_or_refused(_):
    """O_TMPFILE, and linkat() that gives the file a name; or EOPNOTSUPP, upon which programs make
    one with a name."""
    try:
        fd = os.open(".", os.O_RDWR | os.O_TMPFILE, 0o640)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP, error
        assert os.listdir(".") == []
        put("named", b"made")
        assert get("named") == b"made"
        return
    try:
        assert os.listdir(".") == [] and os.fstat(fd).st_nlink == 0
        os.write(fd, b"made")
        libc(LIBC.linkat, AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, b"named", AT_SYMLINK_FOLLOW)
        assert os.fstat(fd).st_nlink == 1
    finally:
        os.close(fd)
    assert get("named") == b"made"


@check
def large_appends_are_whole(_):
    """Four processes, records of 10, 5,000 and 100,000 bytes: each write() is there in one piece."""
    def work(letter, size, count):
        with opened("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
            for _ in range(count):
                assert os.write(fd, letter * size) == size
    for size, count in ((10, 100), (5000, 20), (100_000, 5)):
        put("log")
        pids = []
        for letter in (b"a", b"b", b"c", b"d"):
            pid = os.fork()
            if pid == 0:
                try:
                    work(letter, size, count)
                    os._exit(0)
                finally:
                    os._exit(1)
            pids.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
        data = get("log")
        records = [data[at:at + size] for at in range(0, len(data), size)]
        assert sorted(records) == [letter * size for letter in (b"a", b"b", b"c", b"d")
                                   for _ in range(count)]
