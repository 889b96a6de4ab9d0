"""The driver's own count of waits agrees with what the relay saw pass."""

import os
import threading

import pytest



@pytest.fixture
def through_relay(service, start_relay, start_mount, run_berth, caches_kept):
    """A workspace's directory on a mount behind the relay, and a function that counts."""
    run_berth("create", "counted", check=True)
    relay = start_relay(service, delay=2)
    mount = start_mount(service, url=relay.url)
    directory = mount.path / "counted"
    os.listdir(directory)

    def count(work):
        relay.reset_stats()
        before = mount.stats()
        work()
        return relay.stats(), before, mount.stats()

    return directory, count


def test_operations_in_series_are_counted_alike(through_relay):
    directory, count = through_relay

    def work():
        for number in range(10):
            path = directory / f"file{number}"
            path.write_bytes(b"content")
            assert path.read_bytes() == b"content"
            path.rename(directory / f"renamed{number}")
            assert not path.exists()
        os.mkdir(directory / "d")
        os.rmdir(directory / "d")

    relay, before, after = count(work)
    # Every request of one program in series is waited for, but what it writes is by close() alone, so
    # both rules say the same.
    assert relay["malformed"] == 0
    made = {kind: after["requests"].get(kind, 0) - before["requests"].get(kind, 0)
            for kind in ("WRITE", "PLACE", "CREATE")}
    quiet = relay["requests"] - sum(made.values()) - (after["blocking"] - before["blocking"])
    # Files that stay open for 20 ms are opened then, by nobody's wish; the first files are waited for.
    assert -10 <= quiet <= 10
    # The relay counts what nobody waits for as well: files that are made in advance.
    own = after["round_trips"] - before["round_trips"]
    assert own <= relay["round_trips_max"] <= own + 10
    # Close, read and rename, each with an answer, and that the first files are made; the missing name is
    # known.
    assert 32 <= relay["round_trips_max"] <= 46


def test_messages_are_counted_alike(through_relay):
    directory, count = through_relay
    relay, before, after = count(lambda: [(directory / f"f{n}").write_bytes(b"x") for n in range(20)])
    sent = {kind: row["frames"] for kind, row in relay["to_server"]["types"].items()}
    told = {kind: number - before["requests"].get(kind, 0)
            for kind, number in after["requests"].items()}
    # FORGET and RELEASE may leave the driver while the two counts are being read, and so may files that
    # are made in advance; the lease is renewed by the second.
    for counts in (sent, told):
        for kind in ("FORGET", "RELEASE", "PING"):
            counts.pop(kind, None)
    made, made_told = sent.pop("CREATE"), told.pop("CREATE")
    assert made <= made_told <= made + 2
    assert {kind: number for kind, number in told.items() if number} == sent
    assert made + sent.get("PLACE", 0) >= 20


def test_operations_at_the_same_time_share_their_round_trips(through_relay):
    directory, count = through_relay
    for number in range(16):
        (directory / f"f{number}").write_bytes(b"x")

    def work():
        threads = [threading.Thread(target=os.chmod, args=(directory / f"f{n}", 0o600)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    relay, before, after = count(work)
    assert relay["requests"] >= 16
    # The relay cannot be below the driver: it counts every request, and sees replies earlier.
    own = after["round_trips"] - before["round_trips"]
    assert own <= relay["round_trips_max"] < 16
