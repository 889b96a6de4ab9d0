"""What programs load before they do anything: a command that goes over a connection that is there already
pays for no library that makes connections."""

import re
import subprocess
from pathlib import Path

import pytest

from lib.exec_client import WORKSPACE

NETWORK = re.compile(r"(lib(?:curl|ssl|crypto|ldap|gssapi_krb5|nghttp2|ssh2))[.-]")


def loaded(pid):
    """The libraries that a process has in its memory now, by name."""
    return {Path(line.split()[-1]).name for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if ".so" in line}


def network(libraries):
    """Of these, by name alone: libcurl, libssl, …"""
    return {found.group(1) for found in map(NETWORK.match, libraries) if found}


@pytest.fixture
def far(harness, start_service):
    """A service that is reached over TLS, with the environment of its clients."""
    service = start_service(tls=True)
    harness.run_berth("create", WORKSPACE, check=True, url=service.url)
    return service


def while_it_runs(harness, env, *options):
    """The program of `berth exec` and what it has loaded, while its command waits for its input."""
    with subprocess.Popen([harness.program("berth"), "exec", *options, "-i", "-w", WORKSPACE, "--",
                           "sh", "-c", "echo ready; cat"],
                          env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        found = Path(f"/proc/{process.pid}/exe").readlink().name, loaded(process.pid)
        process.communicate(timeout=30)
        assert process.returncode == 0
    return found


def test_a_warm_command_loads_no_network_library(harness, far):
    for _ in range(2):  # the first one has the holder started, which is another process
        program, libraries = while_it_runs(harness, far.client_env(far.tls_url))
        assert program == "berth"
        assert network(libraries) == set()
    (holder,) = harness.holders()
    assert network(loaded(holder)) >= {"libcurl", "libssl"}


def test_nor_does_one_over_a_unix_socket_or_a_mount(harness, far, start_mount):
    assert network(while_it_runs(harness, far.client_env(far.url))[1]) == set()
    mount = start_mount(far)
    env = {key: value for key, value in harness.env.items() if key != "BERTH_URL"}
    with subprocess.Popen([harness.program("berth"), "exec", "-i", "--", "sh", "-c", "echo ready; cat"], env=env,
                          cwd=mount.path / WORKSPACE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        assert network(loaded(process.pid)) == set()
        process.communicate(timeout=30)


def test_one_that_connects_for_itself_becomes_the_program_that_can(harness, far):
    program, libraries = while_it_runs(harness, far.client_env(far.tls_url), "--no-persist")
    assert program == "berth-network"
    assert network(libraries) >= {"libcurl", "libssl"}
    assert harness.holders() == []


def test_the_service_makes_no_connections_of_its_own(far):
    assert network(loaded(far.pid)) == {"libssl", "libcrypto"}
