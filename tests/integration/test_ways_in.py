"""The same service over every byte stream: one journal, one table of workspaces, one truth."""

import hashlib
import json
import os
import shlex
import signal

import pytest

from lib.harness import wait_until
from lib.sshd import Sshd


@pytest.fixture
def sshd(harness):
    daemon = Sshd(harness.new_path("sshd"))
    yield daemon
    daemon.stop()


def stdio_command(harness, root):
    return f"{shlex.quote(harness.program('berthd'))} --root {shlex.quote(str(root))} --stdio"


def use(harness, env, start_mount, service=None):
    """Create, mount, write, run a command on what was written, read what it wrote, remove."""
    run = lambda *argv, **keywords: harness.run_berth(*argv, env=env, check=True, **keywords)
    run("create", "way/in")
    assert "way/in" in run("ls").stdout
    mount = start_mount(service, url=env["BERTH_URL"], env=env)
    folder = mount.path / "way%2Fin"
    content = b"\0binary\xff" * 1000
    (folder / "from-mount").write_bytes(content)
    out = run("exec", "-w", "way/in", "--", "sh", "-c",
              "md5sum < from-mount; echo from-exec > from-exec; echo err >&2; exit 0")
    assert out.stderr == "err\n"
    assert out.stdout.split()[0] == hashlib.md5(content).hexdigest()
    assert (folder / "from-exec").read_text() == "from-exec\n"
    big = run("exec", "-w", "way/in", "--", "head", "-c", "3000000", "/dev/zero", text=False)
    assert big.stdout == bytes(3000000)
    assert harness.run_berth("exec", "-w", "way/in", "--", "sh", "-c", "exit 7", env=env).returncode == 7
    mount.stop()
    run("rm", "way/in")
    assert "way/in" not in run("ls").stdout


def test_unix(harness, service, start_mount):
    use(harness, service.client_env(), start_mount, service)


def test_https_token(harness, start_service, start_mount):
    service = start_service(tls=True)
    use(harness, service.client_env(service.tls_url), start_mount, service)


def test_https_client_certificate(harness, start_service, start_mount, certificates):
    service = start_service(tls=True, client_ca=True)
    env = service.client_env(service.tls_url)
    pem, key = certificates.pair("client")
    env.update(BERTH_CERT_FILE=str(pem), BERTH_KEY_FILE=str(key))
    use(harness, env, start_mount, service)


def test_http_on_loopback(harness, start_service, start_mount):
    service = start_service(http=True)
    use(harness, service.client_env(service.http_url), start_mount, service)


def test_exec_of_stdio(harness, service, start_mount):
    """--stdio beside a running service joins it."""
    env = {**harness.env, "BERTH_URL": "exec:" + stdio_command(harness, service.root)}
    harness.run_berth("create", "made-over-unix", check=True)
    assert "made-over-unix" in harness.run_berth("ls", env=env, check=True).stdout
    use(harness, env, start_mount, service)


def test_exec_through_a_shell(harness, service, start_mount):
    inner = stdio_command(harness, service.root)
    env = {**harness.env, "BERTH_URL": f"exec:sh -c {shlex.quote('exec ' + inner)}"}
    use(harness, env, start_mount, service)


def test_exec_through_ssh(harness, service, sshd, start_mount):
    command = shlex.join(sshd.command()) + " " + shlex.quote(stdio_command(harness, service.root))
    use(harness, {**harness.env, "BERTH_URL": f"exec:{command}"}, start_mount, service)


def test_stdio_starts_the_service(harness):
    """With nobody on the root, --stdio starts a service that outlives the stream."""
    root = harness.new_path("root")
    env = {**harness.env, "BERTH_URL": "exec:" + stdio_command(harness, root)}
    pid = None
    try:
        harness.run_berth("create", "kept", env=env, check=True)
        # Its exit status also speaks of the mounts of other tests that run now.
        status = json.loads(harness.run_berth("status", "--json", env=env).stdout)
        pid = status["service"]["pid"]
        os.kill(pid, 0)
        over_socket = {**harness.env, "BERTH_URL": f"unix:{root}/berthd.sock"}
        assert "kept" in harness.run_berth("ls", env=over_socket, check=True).stdout
    finally:
        if pid:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the service's end")
