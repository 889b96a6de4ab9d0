"""Large output by the way it takes: program, keeper and its spool, service, client. Every byte arrives, attached and
detached, and neither keeper nor service grow with it."""

import subprocess
import threading

import pytest

from lib.exec_client import WORKSPACE
from lib.harness import memory_of
from lib.processes import memory_limit

pytestmark = pytest.mark.sandbox

MIB = 1 << 20
LONG = [pytest.mark.long, pytest.mark.timeout(900)]
GENERATE = ("head -c {size} /dev/zero | "
            "openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 2>/dev/null")


class Peaks:
    """The largest that service and keeper get."""

    def __init__(self, service):
        keeper = service.keeper()
        self.pids = {"service": service.pid, "keeper": keeper.pid}
        self.before = {name: memory_of(pid) for name, pid in self.pids.items()}
        self.most = dict(self.before)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.stop.wait(0.02):
            for name, pid in self.pids.items():
                self.most[name] = max(self.most[name], memory_of(pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def grown(self):
        return {name: self.most[name] - self.before[name] for name in self.pids}


def digest_of(harness, service, line):
    """Of what a command line prints, and how many lines that are."""
    shell = f"{line} | tee >(wc -l >&2) | md5sum; exit ${{PIPESTATUS[0]}}"
    result = harness.run(["bash", "-c", shell], env=service.client_env(), timeout=800)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()[0], int(result.stderr)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["attached", "detached"])
@pytest.mark.parametrize("command", [
    GENERATE.format(size=64 * MIB), pytest.param(GENERATE.format(size=1024 * MIB), marks=LONG),
    "seq 200000", pytest.param("seq 2000000", marks=LONG)], ids=["64 MiB", "1 GiB", "200,000 lines", "2,000,000 lines"])
def test_large_output(harness, service, execute, command, how):
    execute("true", check=True)
    berth = harness.program("berth")
    expected = digest_of(harness, service, command)
    with Peaks(service) as peaks:
        if how == "attached":
            got = digest_of(harness, service, f"'{berth}' exec -w {WORKSPACE} -- sh -c '{command}'")
        else:
            harness.run([berth, "exec", "-w", WORKSPACE, "--detach", "--id", "large", "--max-output", "1G", "--", "sh",
                         "-c", command], env=service.client_env(), check=True)
            subprocess.run([berth, "wait", "-w", WORKSPACE, "large"], env=service.client_env(), check=True, timeout=600)
            got = digest_of(harness, service, f"'{berth}' logs -w {WORKSPACE} large")
    assert got == expected
    print({name: f"{size / MIB:.1f} MiB" for name, size in peaks.grown().items()})
    assert max(peaks.grown().values()) < memory_limit(harness)
