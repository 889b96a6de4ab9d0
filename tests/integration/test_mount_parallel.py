"""Nothing in the driver waits for one answer before it asks the next question."""

import os
import threading
import time

import pytest

from lib import kernel_caches

DELAY = 0.05  # one way, so that a round trip is 100 ms


@pytest.fixture
def slow(service, start_relay, start_mount, run_berth):
    """A workspace behind a relay, of which nothing is kept; returns (path, relay) with the delay still off."""
    run_berth("create", "demo", check=True)
    relay = start_relay(service)
    mount = start_mount(service, url=relay.url, options="cache=no")
    os.stat(mount.path / "demo")
    return mount.path / "demo", relay


def together(count, function):
    """Runs function(0) … function(count - 1) at the same time; seconds until all are done."""
    barrier = threading.Barrier(count + 1)
    errors = []

    def one(number):
        barrier.wait()
        try:
            function(number)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.monotonic()
    for thread in threads:
        thread.join()
    assert not errors
    return time.monotonic() - start


def test_look_ups_in_one_directory_overlap(slow):
    """HAZARD: without PARALLEL_DIROPS the kernel sends them one after the other."""
    path, relay = slow
    for i in range(16):
        (path / f"f{i}").touch()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    (path / "made-after-reading").touch()  # what was read ahead answers no more
    try:
        relay.delay(DELAY * 1000)
        start = time.monotonic()
        os.path.exists(f"/proc/self/fd/{fd}/missing")
        alone = time.monotonic() - start
        assert alone > 2 * DELAY  # the delay is really there
        # New names: files known to the kernel are revalidated, which never was serial.
        missing = together(16, lambda i: os.path.exists(f"/proc/self/fd/{fd}/missing-{i}"))
        kernel_caches.drop("2")
        found = together(16, lambda i: os.stat(f"f{i}", dir_fd=fd))
        relay.delay(0)
    finally:
        os.close(fd)
    assert missing < 8 * DELAY, (alone, missing)
    assert found < 8 * DELAY, (alone, found)


def test_listings_of_one_directory_overlap(slow):
    path, relay = slow
    for i in range(10):
        (path / f"f{i}").touch()
    os.listdir(path)
    relay.delay(DELAY * 1000)
    start = time.monotonic()
    os.listdir(path)
    alone = time.monotonic() - start
    assert alone > 2 * DELAY
    at_once = together(8, lambda i: os.listdir(path))
    relay.delay(0)
    assert at_once < 2.5 * alone, (alone, at_once)


def test_reads_of_one_file_and_of_many_overlap(slow):
    path, relay = slow
    (path / "big").write_bytes(os.urandom(4 << 20))
    for i in range(16):
        (path / f"f{i}").write_bytes(b"%d" % i)
    fds = [os.open(path / f"f{i}", os.O_RDONLY) for i in range(16)]
    big = os.open(path / "big", os.O_RDONLY)
    try:
        relay.delay(DELAY * 1000)
        many = together(16, lambda i: os.pread(fds[i], 10, 0))
        one = together(16, lambda i: os.pread(big, 4096, i << 18))
        relay.delay(0)
    finally:
        for fd in (*fds, big):
            os.close(fd)
    # A GETATTR, which tells whether cached pages are still good, and the READ.
    assert many < 8 * DELAY, many
    assert one < 8 * DELAY, one


def test_a_slow_answer_holds_up_nobody(slow, start_mount, service, start_relay, run_berth):
    """One workspace is stuck behind a stalled connection; another mount goes on."""
    path, relay = slow
    other = start_mount(service)
    relay.stall()
    stuck = threading.Thread(target=lambda: os.path.exists(path / "x"))
    stuck.start()
    try:
        (other.path / "demo" / "y").write_text("quick")
        assert (other.path / "demo" / "y").read_text() == "quick"
        assert stuck.is_alive()
    finally:
        relay.resume()
        stuck.join(20)
    assert not stuck.is_alive()
