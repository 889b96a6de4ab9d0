"""The berthd that needs no libraries, where there is nothing but it: in an empty root with a /proc, and in
one of BusyBox."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from lib.minimal_root import MinimalRoot

pytestmark = [pytest.mark.sandbox, pytest.mark.unsanitised]

ROOT = "/srv/berth"


@pytest.fixture
def place(harness):
    root = MinimalRoot(harness)
    root.put(harness.program("berthd-static"), "/berthd")
    return root


@pytest.fixture
def empty(place):
    place.start("/berthd", "--root", ROOT, "--listen", "unix:/s").wait_for_line("listening on unix:/s")
    place.url = f"unix:{place.directory}/s"
    return place


@pytest.fixture
def busybox(place):
    place.put_busybox()
    return place


def policy_of(harness, place, name):
    return json.loads(harness.run_berth("policy", "--json", name, url=place.url, check=True).stdout)


def test_it_has_everything_inside(harness):
    program = harness.program("berthd-static")
    sections = subprocess.run(["readelf", "-l", "-d", program], check=True, capture_output=True, text=True,
                              timeout=60).stdout
    assert "INTERP" not in sections and "(NEEDED)" not in sections
    symbols = subprocess.run(["readelf", "-S", program], check=True, capture_output=True, text=True,
                             timeout=60).stdout
    assert ".debug_info" not in symbols, "it is copied into containers"


def test_an_empty_root(harness, empty):
    """Files and commands, with no /dev, /tmp, /etc or program beside it."""
    harness.run_berth("create", "w", url=empty.url, check=True)
    result = harness.run_berth("exec", "-w", "w", "--", "/bin/true", url=empty.url)
    assert result.returncode == 127 and "/bin/true: No such file" in result.stderr
    mount = harness.start_mount(url=empty.url, env=harness.env)
    tree = mount.path / "w"
    (tree / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (tree / "busybox").chmod(0o755)
    result = harness.run_berth("exec", "--", "./busybox", "sh", "-c",
                               "echo out; echo err >&2; pwd > there; ./busybox ls -a /; exit 7", url=empty.url,
                               cwd=tree)
    assert (result.returncode, result.stderr) == (7, "err\n")
    assert result.stdout.split()[0] == "out"
    # Its own root, in which neither berthd nor what it keeps is to be seen.
    assert "berthd" not in result.stdout.split() and "workspace" in result.stdout.split()
    assert (tree / "there").read_text().strip() == str(tree)
    result = harness.run_berth("exec", "-i", "-w", "w", "--", "./busybox", "wc", "-c", url=empty.url, input="12345")
    assert result.stdout.strip() == "5"
    # Without -i standard input has ended, also where there is no /dev/null.
    result = harness.run_berth("exec", "-w", "w", "--", "./busybox", "wc", "-c", url=empty.url)
    assert (result.returncode, result.stdout.strip()) == (0, "0")


def test_what_holds_commands_in_an_empty_root(harness, empty):
    harness.run_berth("create", "w", url=empty.url, check=True)
    text = harness.run_berth("policy", "w", url=empty.url, check=True).stdout
    assert re.search(r"^filesystem +own +own, by mount-namespace and landlock$", text, re.MULTILINE)
    assert re.search(r"^network +none +none, by net-namespace$", text, re.MULTILINE)
    assert re.search(r"^capabilities +- +0{16}$", text, re.MULTILINE)
    assert re.search(r"^interfaces +- +1$", text, re.MULTILINE)
    status = json.loads(harness.run_berth("status", "--json", url=empty.url, check=True).stdout)["service"]
    assert status["level"] == "full"


def test_it_ends_as_process_1(harness, empty):
    """With status 0 and nothing left, as a container's engine asks for it."""
    harness.run_berth("create", "w", url=empty.url, check=True)
    os.kill(empty.process.pid, signal.SIGTERM)
    assert empty.process.popen.wait(20) == 0
    assert not (empty.directory / "s").exists()


def test_stdio_in_a_running_container(harness, busybox):
    """As by `docker exec -i`: nobody serves there; the first stream starts who does, as an ordinary
    user, and others find it."""
    busybox.start("/bin/sleep", "600", uid=1234).wait_for_program("sleep")
    words = ["nsenter", "-t", busybox.process.pid, "--mount", "--pid", "--root", "--wd=/", "--setuid", 1234, "--setgid", 1234,
             "/berthd", "--root", ROOT, "--stdio"]
    url = "exec:" + " ".join(shlex.quote(str(word)) for word in words)
    busybox.url = url
    harness.run_berth("create", "w", url=url, check=True)
    script = "id -u; echo $HOME $USER; ls /bin/sh; echo x > /tmp/t && cat /tmp/t; echo made > file; exit 3"
    result = harness.run_berth("exec", "-w", "w", "--", "sh", "-c", script, url=url)
    assert (result.returncode, result.stdout.split()) == (3, ["1234", "/home/agent", "agent", "/bin/sh", "x"]), result.stderr
    (pid,) = {json.loads(harness.run_berth("status", "--json", url=url, check=True).stdout)["service"]["pid"]
              for _ in range(2)}
    assert pid > 1
    assert (busybox.directory / ROOT.lstrip("/") / "workspaces/w/tree/file").read_text() == "made\n"
    policy = harness.run_berth("policy", "w", url=url, check=True).stdout
    assert re.search(r"^filesystem +own +own, by ", policy, re.MULTILINE), policy
    assert re.search(r"^network +none +none, by ", policy, re.MULTILINE), policy


def test_names_come_from_files_and_dns_alone(harness, busybox):
    """A module that the root's nsswitch.conf names would be loaded into a program with another C library
    inside."""
    library = busybox.directory / "lib/x86_64-linux-gnu" / "libnss_trap.so.2"
    library.parent.mkdir(parents=True)
    source = harness.new_path("trap.c")
    source.write_text('__attribute__((constructor)) static void trap(void) { *(volatile char *)0 = 0; }\n'
                      'int _nss_trap_getpwuid_r(void) { return 0; }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-o", library, source], check=True, timeout=60)
    (busybox.directory / "etc/nsswitch.conf").write_text("passwd: trap files\nhosts: trap\ngroup: trap\n")
    busybox.start("/berthd", "--root", ROOT, "--listen", "unix:/s").wait_for_line("listening on unix:/s")
    url = f"unix:{busybox.directory}/s"
    harness.run_berth("create", "w", url=url, check=True)
    result = harness.run_berth("exec", "-w", "w", "--", "sh", "-c", "echo $USER", url=url)
    assert (result.returncode, result.stdout) == (0, "root\n"), result.stderr
