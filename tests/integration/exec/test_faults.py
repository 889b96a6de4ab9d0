"""Whatever is cut, killed, restarted or full: no verdict is false. The truth is what the command did in
the workspace."""

import random
import resource
import time

import pytest

from lib.berthwire import CallError, Closed
from lib.exec_client import ATTACH_FOLLOW, DETACH, KEEP, WORKSPACE, ExecClient

pytestmark = pytest.mark.sandbox


# --- a full disk ---------------------------------------------------------------------------

def limit_files(keeper, size):
    """Makes writes of the keeper beyond this size fail, as those to a full disk do."""
    resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_output_that_the_disk_has_no_room_for(client, service):
    client.run(WORKSPACE, ["true"])
    limit_files(service.keeper(), 20000)
    call = client.start(WORKSPACE, ["sh", "-c", "yes | head -c 1000000; exit 3"], exec_id="full")
    verdict = client.wait(call)
    assert (verdict.verdict, verdict.code) == ("exited", 3)
    assert bytes(call.output[1]) == b"y\n" * 500000
    assert verdict.stdout_dropped == 1000000 - 20000 - (256 << 10)
    late = client.attach(WORKSPACE, "full")
    assert client.wait_verdict(late).stdout_dropped == 1000000 - 20000  # what was in memory is gone
    assert bytes(late.output[1]) == b"y\n" * 10000


def test_command_that_cannot_be_put_on_record_is_not_started(client, service, tree):
    client.run(WORKSPACE, ["true"])
    limit_files(service.keeper(), 0)
    verdict = client.run(WORKSPACE, ["touch", "ran"], exec_id="full").verdict
    assert (verdict.verdict, verdict.stage) == ("not_started", "request") and "on record" in verdict.text
    limit_files(service.keeper(), resource.RLIM_INFINITY)
    assert not (tree / "ran").exists()
    assert client.run(WORKSPACE, ["touch", "ran"], exec_id="full").verdict.code == 0
    assert (tree / "ran").exists()


def test_verdict_that_cannot_be_written_is_written_later(client, service, tree):
    client.wait_started(client.start(WORKSPACE, ["sleep", "0.5"], flags=KEEP, exec_id="late"))
    keeper = service.keeper()
    limit_files(keeper, 0)
    assert client.wait_verdict(client.attach(WORKSPACE, "late", ATTACH_FOLLOW)).verdict == "exited"
    limit_files(keeper, resource.RLIM_INFINITY)
    time.sleep(2.5)  # it tries each second
    keeper.kill()
    assert client.wait_verdict(client.attach(WORKSPACE, "late", ATTACH_FOLLOW)).verdict == "exited"


# --- at random -----------------------------------------------------------------------------

SCRIPT = ("import os, random, sys, time\n"
          "name, code, naps = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(',')\n"
          "open(name + '.began', 'x').close()\n"
          "for nap in naps:\n"
          "    print(name, nap, flush=True)\n"
          "    time.sleep(float(nap))\n"
          "open(name + '.ended', 'x').close()\n"
          "sys.exit(code)\n")


class Campaign:
    def __init__(self, service, tree, seed):
        self.service, self.tree, self.seed = service, tree, seed
        self.random = random.Random(seed)
        self.counts = {}

    def fault(self, client):
        """Does something bad, and gives the service that is there afterwards."""
        what = self.random.choice(["nothing", "cut", "cut", "kill", "restart", "keeper", "both"])
        self.counts[what] = self.counts.get(what, 0) + 1
        keeper = self.service.keeper()
        if what in ("cut", "kill", "restart", "both"):
            client.connection.close()
        if what in ("keeper", "both") and keeper:
            keeper.kill()
        if what in ("kill", "both"):
            self.service.kill()
        if what in ("kill", "restart", "both"):
            self.service = self.service.restart()
        return what

    def find_out(self, exec_id):
        """The verdict that a client gets who comes back, and the output; None: never heard of it."""
        while True:
            try:
                with ExecClient(self.service.socket) as client:
                    call = client.attach(WORKSPACE, exec_id)
                    return client.wait_verdict(call), bytes(call.output[1]), call.gaps
            except CallError as error:
                if error.errno == 2:
                    return None, b"", 0
                raise
            except (Closed, OSError):
                time.sleep(0.05)

    def round(self, number):
        name = f"r{self.seed}-{number}"
        code = self.random.randrange(256)
        naps = ",".join(f"{self.random.random() * 0.1:.3f}" for _ in range(self.random.randrange(1, 6)))
        flags = self.random.choice([0, 0, KEEP, DETACH])
        told = None
        with ExecClient(self.service.socket) as client:
            call = client.start(WORKSPACE, ["python3", "-c", SCRIPT, name, str(code), naps], flags=flags,
                                exec_id=name)
            client.connection.sock.settimeout(self.random.random() * 0.4)
            try:
                told = client.wait_verdict(call)
            except (TimeoutError, OSError, Closed):
                pass
            client.connection.sock.settimeout(30)
            what = self.fault(client)
        told = None if told is None or told.verdict == "running" else told
        verdict, output, gaps = self.find_out(name)
        began, ended = ((self.tree / f"{name}.{word}").exists() for word in ("began", "ended"))
        context = f"{name}: fault {what}, flags {flags}, told {told}, then {verdict}, {began=}, {ended=}"
        for one in (told, verdict):
            if one is None:
                continue
            if one.verdict == "exited":
                assert ended and one.code == code, context
            elif one.verdict == "not_started":
                assert not began, context
            else:
                assert one.verdict in ("unknown", "killed", "signaled"), context
        if told is not None and told.verdict == "exited":
            assert verdict is not None and verdict.verdict == "exited" and verdict.code == code, context
        if verdict is None:
            assert not began, context
        elif verdict.verdict == "exited":
            assert not gaps and output == "".join(f"{name} {nap}\n" for nap in naps.split(",")).encode(), context
        self.counts[verdict and verdict.verdict] = self.counts.get(verdict and verdict.verdict, 0) + 1


def test_no_verdict_is_false(service, tree):
    campaign = Campaign(service, tree, 1)
    for number in range(25):
        campaign.round(number)
    assert campaign.counts.get("exited", 0) >= 5, campaign.counts


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_verdict_is_false_long(service, tree):
    campaign = Campaign(service, tree, 2)
    for number in range(1000):
        campaign.round(number)
    assert campaign.counts.get("exited", 0) >= 200, campaign.counts
