"""Commands in a workspace whose policy lists hosts: what they reach from end to end, and what
happens when the proxy ends."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from lib.harness import wait_until
from lib.processes import children_of
from lib.world import World

pytestmark = pytest.mark.sandbox

ALLOW = {"network": {"allow": ["example.org:443", "*.example.org:80"]}}


@pytest.fixture(scope="module")
def world(tmp_path_factory, certificates):
    world = World(tmp_path_factory.mktemp("world"))
    world.dns.names = {"example.org": [["198.51.100.10"]], "www.example.org": [["198.51.100.10"]],
                       "loop.example.org": [["127.0.0.1"]]}
    world.serve("198.51.100.10", 443, tls=certificates.pair("site"))
    world.serve("198.51.100.10", 80)
    world.serve("127.0.0.1", 80, where=world.machine)
    yield world
    world.close()


@pytest.fixture
def machine(harness, world, run_berth):
    """A service on the world's machine, with a workspace w."""
    def start(policy):
        service = harness.start_service(wrapper=[str(word) for word in world.on_machine()])
        run_berth("create", "--policy", "-", "w", input=json.dumps(policy), check=True)
        return service
    return start


def _decisions(service, **wanted):
    log = (Path(service.root) / "exec/egress.log").read_text()
    found = [json.loads(text) for text in re.findall(r"^berth-egress: egress (\{.*\})$", log,
                                                     re.MULTILINE)]
    return [one for one in found if all(one.get(key) == value for key, value in wanted.items())]


def _proxy(service):
    """The number of the proxy's process."""
    for pid in children_of(service.keeper().pid):
        try:
            if b"--egress" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        except OSError:
            pass
    return None


def test_only_what_is_listed(machine, run_berth, certificates):
    service = machine(ALLOW)
    ca = Path(certificates.ca).read_text()
    run_berth("exec", "-w", "w", "-i", "--", "sh", "-c", "cat > ca.pem", input=ca, check=True)
    curl = ["exec", "-w", "w", "--", "curl", "-sS", "--max-time", "20", "--cacert", "ca.pem"]
    result = run_berth(*curl, "https://example.org/a")
    assert (result.returncode, result.stdout) == (0, "198.51.100.10:443 /a example.org\n"), result
    assert run_berth(*curl, "http://www.example.org/b").stdout.startswith("198.51.100.10:80 /b ")
    result = run_berth(*curl, "https://www.example.org/")
    assert result.returncode == 56 and "response 403" in result.stderr
    assert "127.0.0.1 is loopback" in run_berth(*curl, "http://loop.example.org/").stdout
    result = run_berth(*curl, "--noproxy", "*", "http://198.51.100.10/")
    assert result.returncode == 7
    result = run_berth(*curl, "--noproxy", "*", "http://example.org/")
    assert result.returncode == 6
    wait_until(lambda: len(_decisions(service, verdict="ended", workspace="w")) == 2,
               what="decisions")
    assert len(_decisions(service, verdict="refused", workspace="w")) == 2


def test_environment(machine, run_berth):
    machine(ALLOW)
    result = run_berth("exec", "-w", "w", "--", "env", check=True)
    env = dict(line.split("=", 1) for line in result.stdout.splitlines())
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        assert env[name] == "http://127.0.0.1:3128"
    assert env["NO_PROXY"] == env["no_proxy"] == "localhost,127.0.0.1,::1"


def test_no_proxy_without_a_list(machine, run_berth):
    service = machine({"network": "none"})
    result = run_berth("exec", "-w", "w", "--", "env", check=True)
    assert "proxy" not in result.stdout.lower()
    assert _proxy(service) is None


def test_a_crash_of_the_proxy(machine, run_berth, harness):
    """Commands go on, what connects meanwhile waits, and the next one serves it."""
    service = machine(ALLOW)
    run_berth("exec", "-w", "w", "--detach", "--id", "long", "--", "sleep", "60", check=True)
    first = wait_until(lambda: _proxy(service), what="the proxy")
    for _ in range(2):
        os.kill(first, signal.SIGKILL)
        result = run_berth("exec", "-w", "w", "--", "curl", "-sS", "http://www.example.org/")
        assert result.stdout.startswith("198.51.100.10:80 / "), result
        second = _proxy(service)
        assert second not in (None, first)
        first = second
    assert "long" in run_berth("ps").stdout
    service.keeper().kill()
    wait_until(lambda: not os.path.exists(f"/proc/{first}"), what="the end of the proxy")


def test_status(machine, run_berth):
    """What the proxy has done, over its own crashes, and whether there is one."""
    service = machine(ALLOW)

    def egress():
        return json.loads(run_berth("status", "--json", check=True).stdout)["service"].get("egress")
    assert egress() is None
    curl = ["exec", "-w", "w", "--", "curl", "-sS", "--max-time", "20"]
    for url in ("www.example.org", "www.example.org", "evil.test"):
        run_berth(*curl, *(["-p"] if url == "www.example.org" else []), f"http://{url}/", check=True)
    told = egress()
    assert (told["running"], told["allowed"], told["refused"], told["failed"]) == (True, 2, 1, 0)
    wait_until(lambda: egress()["connections"] == 0, what="their end")
    told = egress()
    assert told["bytes_up"] > 100 and told["bytes_down"] > 100
    first = _proxy(service)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: _proxy(service) not in (None, first), what="the next one")
    wait_until(lambda: egress() == told, what="its first word")
    assert re.search(r"^  the proxy of commands runs: 0 connections; 2 allowed, 1 refused, 0 failed so far; "
                     r"\d+ bytes out, \d+ in$", run_berth("status", check=True).stdout, re.MULTILINE)
    service.keeper().stop()
    assert egress() == {**told, "running": False}


def test_settings_that_are_replaced(machine, run_berth, world, tmp_path):
    """Landlock admits the file that was there; the proxy begins anew when it is another one."""
    service = machine(ALLOW)
    curl = ["exec", "-w", "w", "--", "curl", "-sS", "--max-time", "20", "http://www.example.org/"]
    assert run_berth(*curl).stdout.startswith("198.51.100.10:80 / ")
    first = _proxy(service)
    another = tmp_path / "resolv.conf"
    another.write_bytes(world.resolv_conf.read_bytes())
    subprocess.run(["nsenter", "-t", str(service.keeper().pid), "-m", "mount", "--bind", another,
                    "/etc/resolv.conf"], check=True)
    assert run_berth(*curl).stdout.startswith("198.51.100.10:80 / ")
    assert _proxy(service) not in (None, first)
    log = (Path(service.root) / "exec/egress.log").read_text()
    assert log.count("what names are resolved with was replaced") == 1


def test_its_own_confinement(machine, run_berth):
    service = machine(ALLOW)
    run_berth("exec", "-w", "w", "--", "true", check=True)
    pid = wait_until(lambda: _proxy(service), what="the proxy")

    def status():
        text = Path(f"/proc/{pid}/status").read_text()
        return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    wait_until(lambda: status()["Seccomp"] == "2", what="its filter")
    now = status()
    assert now["NoNewPrivs"] == "1"
    assert all(int(now[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"))
    assert now["Uid"].split() == ["65534"] * 4


# A command that goes on: a tunnel to a server, which it says is there and when it ends, and then what
# the proxy answers for each host that it is asked for.
TALK = r"""
import socket, sys
def tunnel(target):
    s = socket.create_connection(("127.0.0.1", 3128), 20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    return s, s.recv(4096)[9:12].decode()
s, status = tunnel("example.org:80")
print(status, flush=True)
try:
    print("end" if s.recv(1) == b"" else "data", flush=True)
except ConnectionResetError:
    print("reset", flush=True)
for line in sys.stdin:
    print(line.strip(), tunnel(line.strip())[1], flush=True)
"""


def test_another_list_for_commands_that_run(machine, run_berth, harness):
    """What is on the list no more ends and is refused, what is on it now is reached; what a list of
    another kind would need, a later command has."""
    service = machine({"network": {"allow": ["example.org:80"]}})
    url = service.client_env()
    talk = subprocess.Popen(  # pylint: disable=consider-using-with
        [harness.program("berth"), "exec", "-w", "w", "-i", "--id", "talk", "--", "/usr/bin/python3", "-c", TALK],
        env=url, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=harness.directory)

    def change(network):
        result = run_berth("policy", "--json", "--set", "-", "w", input=json.dumps({"network": network}), check=True)
        return json.loads(result.stdout)

    def answer(target):
        talk.stdin.write(target + "\n")
        talk.stdin.flush()
        return talk.stdout.readline()
    try:
        assert talk.stdout.readline() == "200\n"
        told = change({"allow": ["www.example.org:80"]})
        assert (told["changed"], told["kept"]) == (["network"], [])
        assert talk.stdout.readline() == "reset\n"
        assert answer("example.org:80") == "example.org:80 403\n"
        assert answer("www.example.org:80") == "www.example.org:80 200\n"
        reason = "not on the allow list of this workspace any more"
        wait_until(lambda: _decisions(service, verdict="ended", host="example.org", reason=reason),
                   what="the end of the tunnel")
        # A list of no hosts, for the one that runs; no proxy at all, for the next.
        assert change("none")["kept"] == []
        assert answer("www.example.org:80") == "www.example.org:80 403\n"
        assert "PROXY" not in run_berth("exec", "-w", "w", "--", "env", check=True).stdout
        assert change({"allow": ["example.org:80"]})["kept"] == ["talk"]
        assert answer("example.org:80") == "example.org:80 200\n"
        curl = ["exec", "-w", "w", "--", "curl", "-sS", "--max-time", "20", "http://example.org/n"]
        assert run_berth(*curl).stdout.startswith("198.51.100.10:80 /n ")
        # The machine's network is not given to who was started without.
        assert change("host")["kept"] == ["talk"]
        assert answer("198.51.100.10:80") == "198.51.100.10:80 403\n"
    finally:
        talk.stdin.close()
        talk.wait(20)
        talk.stdout.close()
