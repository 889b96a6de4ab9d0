"""Workspaces in containers of a real engine: the profiles docker, podman and kubernetes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess

import pytest

from lib import engines
from lib.harness import REPOSITORY, wait_until

# One worker: the engine is shared, and its image made once.
pytestmark = [pytest.mark.xdist_group("engines"), pytest.mark.sandbox, pytest.mark.unsanitised,
              pytest.mark.timeout(180)]

PROFILES = REPOSITORY / "contrib/providers"
STAND_INS = REPOSITORY / "tests/lib/standins"


@pytest.fixture(scope="module")
def podman():
    with contextlib.closing(engines.Podman()) as engine:
        engine.make_image()
        yield engine


@pytest.fixture(scope="module")
def podman_as_docker():
    with contextlib.closing(engines.PodmanAsDocker()) as engine:
        engine.make_image()
        yield engine


@pytest.fixture(scope="module")
def docker():
    # Its package starts a daemon that changes the machine's network, so that nothing here installs it.
    if not shutil.which("dockerd", path=engines.SEARCH):
        pytest.skip("optional: dockerd is not installed")
    with contextlib.closing(engines.Docker()) as engine:
        engine.make_image()
        yield engine


class Client:
    """A user with an engine, and no service of his own."""

    def __init__(self, harness, engine, provider=None):
        self.harness, self.engine, self.name = harness, engine, provider or engine.name
        self.places_directory = harness.directory / "home/state/berth-client/places"
        harness.env["PATH"] = f"{engine.bin}:{harness.env['PATH']}"
        harness.env["BERTH_PROVIDERS"] = str(PROFILES)
        harness.env["BERTH_STATIC_BERTHD"] = harness.program("berthd-static")

    def berth(self, *words, timeout=90, **keywords):
        return self.harness.run([self.harness.program("berth"), *words], timeout=timeout, **keywords)

    def create(self, name, *words, parameters="", **keywords):
        spec = f"{self.name}:image={self.engine.image}{parameters}"
        return self.berth("create", "--provider", spec, *words, name, **keywords)

    def policy_file(self, policy):
        path = self.harness.new_path("policy.json")
        path.write_text(json.dumps(policy))
        return path

    def places(self):
        return {path.name: json.loads(path.read_text()) for path in self.places_directory.glob("*.json")}

    def container(self, name):
        place, = (place for place in self.places().values() if place["id"] == name)
        return place["sandbox"]

    def assert_nothing_left(self):
        assert self.engine.names() == []
        assert self.engine.text("volume", "ls", "--quiet").split() == []
        assert self.places() == {}


@pytest.fixture
def client(harness, podman):
    yield Client(harness, podman)
    podman.remove_all()


ID, DIRECTORY = "task: 1", "task%3A%201"


def uses(client):
    """What a user does with it: exit codes, signals, time limits, files from both sides."""
    berth, harness = client.berth, client.harness
    assert DIRECTORY in berth("ls", check=True).stdout
    assert berth("exec", "-w", ID, "--", "sh", "-c", "exit 7").returncode == 7
    assert berth("exec", "-w", ID, "--", "sh", "-c", "kill -KILL $$").returncode == 137
    assert berth("exec", "-w", ID, "--timeout", "1", "--", "sleep", "60").returncode == 124
    data = os.urandom(70000)
    assert berth("exec", "-w", ID, "-i", "--", "tee", "there", input=data, text=False, check=True).stdout == data

    place, = client.places().values()
    mount = harness.start_mount(url=place["url"], env=harness.env)
    assert (mount.path / DIRECTORY / "there").read_bytes() == data
    (mount.path / DIRECTORY / "here").write_bytes(data[:1000])
    counted = berth("exec", "--", "wc", "-c", "here", cwd=mount.path / DIRECTORY, check=True)
    assert counted.stdout.split() == ["1000", "here"]
    mount.unmount()


def life(client):
    """From a workspace's creation to the end of all that it had."""
    assert client.create(ID, check=True).stdout == f"{DIRECTORY}\n"
    place, = client.places().values()
    assert (place["provider"], place["state"], place["id"]) == (client.name, "ready", ID)
    assert "ready" in client.berth("provider", "status", ID, check=True).stdout
    uses(client)
    client.berth("rm", "-f", ID, check=True)
    client.assert_nothing_left()
    assert client.berth("rm", ID).returncode != 0


def test_a_workspace_in_a_container_of_podmans(client):
    life(client)


@pytest.mark.long
def test_podman_by_the_name_of_docker_takes_dockers_profile(harness, podman_as_docker):
    client = Client(harness, podman_as_docker)
    client.create(ID, check=True)
    assert client.berth("exec", "-w", ID, "--", "sh", "-c", "exit 7").returncode == 7
    assert "ready" in client.berth("provider", "status", ID, check=True).stdout
    # A container that somebody else has removed is no trouble.
    client.engine.run("rm", "--force", "--volumes", client.container(ID))
    assert "gone" in client.berth("provider", "status", ID).stdout
    client.berth("rm", "-f", ID, check=True)
    client.assert_nothing_left()


@pytest.mark.long
def test_a_workspace_in_a_container_of_dockers(harness, docker):
    life(Client(harness, docker))


def test_what_a_policy_asks_the_engine_enforces(client):
    policy = {"network": "none", "limits": {"memory": "64M", "pids": 40, "cpu": 1.5, "open_files": 100}}
    client.create("held", "--policy", client.policy_file(policy), check=True)
    container = client.container("held")
    config, = json.loads(client.engine.text("inspect", container))
    assert config["HostConfig"]["NetworkMode"] == "none"
    assert config["HostConfig"]["Memory"] == 64 << 20
    assert config["HostConfig"]["PidsLimit"] == 40
    assert config["Config"]["CreateCommand"].count("none") == 1
    interfaces = client.engine.text("exec", container, "cat", "/proc/net/dev").splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]

    def run(script):
        return client.berth("exec", "-w", "held", "--", "sh", "-c", script)

    assert run("ulimit -n").stdout == "100\n"
    # Killed by the kernel; the service goes on.
    assert run("a=x; while :; do a=$a$a; done").returncode == 137
    assert "fork" in run("for i in $(seq 60); do sleep 5 & done; wait").stderr


@pytest.mark.parametrize("field, value", [("disk", "1G"), ("files", 10)])
def test_what_nobody_can_enforce_is_refused_before_anything_is_made(client, field, value):
    result = client.create("refused", "--policy", client.policy_file({"limits": {field: value}}))
    assert result.returncode != 0 and field in result.stderr
    client.assert_nothing_left()


def test_level_full_in_a_container_that_may_make_namespaces(client):
    policy = client.policy_file({"require": ["full", "landlock"]})
    client.create("full", "--policy", policy, parameters=",seccomp=unconfined,unmask=ALL", check=True)
    assert "level is full" in client.berth("policy", "full", check=True).stdout
    inside = client.berth("exec", "-w", "full", "--", "sh", "-c", "ls /; test -e /berthd || echo hidden", check=True)
    assert {"hidden", "workspace"} < set(inside.stdout.split())


@pytest.fixture
def cluster(harness, podman):
    """A stand-in for a cluster: kubectl in front of PATH, with one namespace."""
    client = Client(harness, podman, "kubernetes")
    state = harness.new_path("cluster")
    (state / "berth").mkdir(parents=True)
    harness.env["PATH"] = f"{STAND_INS}:{harness.env['PATH']}"
    client.log = harness.new_path("kubectl.log")
    harness.env.update(KUBECTL_STATE=str(state), KUBECTL_ENGINE=str(podman.bin / "podman"),
                       KUBECTL_LOG=str(client.log))
    yield client
    podman.remove_all()


def test_a_workspace_in_a_pod(cluster):
    cluster.harness.env["KUBECTL_CURRENT_CONTEXT"] = "lab"
    life(cluster)
    asked, *calls = [json.loads(line) for line in cluster.log.read_text().splitlines()]
    assert asked == ["config", "current-context"]
    assert {call[4] for call in calls} == {"run", "wait", "exec", "get", "delete"}
    assert all(call[:4] == ["--context", "lab", "--namespace", "berth"] for call in calls)


@pytest.mark.parametrize("refused, said", [
    ("create pods", "pods is forbidden"),
    pytest.param("create pods/exec", "pods/exec is forbidden", marks=pytest.mark.long)])
def test_what_the_cluster_does_not_permit_is_told_and_leaves_nothing(cluster, refused, said):
    cluster.harness.env["KUBECTL_FORBIDDEN"] = refused
    result = cluster.create("task")
    assert result.returncode != 0 and said in result.stderr
    cluster.assert_nothing_left()


def test_a_pod_takes_no_limits_from_a_policy(cluster):
    result = cluster.create("task", "--policy", cluster.policy_file({"limits": {"memory": "64M"}}))
    assert result.returncode != 0 and "memory" in result.stderr
    bad = cluster.create("task", parameters=',memory="}]')
    assert bad.returncode != 0 and "memory" in bad.stderr
    assert not cluster.log.exists()


def kill_during_create(client, step):
    """Ends berth as a crash would while the engine runs that step."""
    program = client.engine.bin / client.engine.name
    real = program.with_suffix(".real")
    program.rename(real)
    flag = client.harness.new_path("reached")
    program.write_text(f'#!/bin/sh\ncase " $* " in *" {step} "*) : > {flag}; "{real}" "$@"; sleep 60;; esac\n'
                       f'exec "{real}" "$@"\n')
    program.chmod(0o755)
    process = subprocess.Popen(
        [client.harness.program("berth"), "create", "--provider", f"{client.name}:image={client.engine.image}",
         "crashed"], env=client.harness.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(flag.exists, 60, step)
        wait_until(client.engine.names, 60, "the container")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        real.rename(program)


def test_a_crash_while_a_container_is_made_orphans_nothing(client):
    kill_during_create(client, "create")
    place, = client.places().values()
    assert place["state"] == "creating"
    assert client.engine.names() == [place["sandbox"]]
    listed = client.berth("ls", check=True).stdout
    assert "crashed" in listed and "creating" in listed
    client.berth("rm", "-f", "crashed", check=True)
    client.assert_nothing_left()


def test_orphans_are_found_by_their_labels_and_removed(client):
    client.create("lost", check=True)
    lost = client.container("lost")
    client.engine.run("create", "--name", "others", client.engine.image, "sleep", "99")
    assert client.berth("provider", "orphans", client.name, check=True).stdout == ""
    for path in client.places_directory.glob("*.json"):
        path.unlink()
    found = client.berth("provider", "orphans", client.name, check=True).stdout
    assert lost in found and "others" not in found
    client.berth("provider", "orphans", "--remove", client.name, check=True)
    assert client.engine.names() == ["others"]
