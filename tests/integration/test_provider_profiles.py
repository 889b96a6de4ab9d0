"""The profiles that Berth comes with: ssh with a real sshd, local with the service itself, and others with
stand-ins that follow the vendor's documented command line or interface. Docker, Podman and Kubernetes: test_engines.py and
test_kubernetes.py."""

import getpass
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lib.harness import wait_until
from lib.sandboxes import PROFILES, STANDINS, Sandboxes
from lib.sshd import Sshd
from lib.standins import boat as boat_standin
from lib.standins import opensandbox as opensandbox_standin

pytestmark = pytest.mark.release

ALL = sorted(path.stem for path in PROFILES.glob("*.json"))


@pytest.fixture
def sandboxes(harness):
    s = Sandboxes(harness)
    yield s
    s.close()


@pytest.fixture
def sshd(harness):
    home = harness.new_path("there")
    home.mkdir(mode=0o700)
    daemon = Sshd(harness.new_path("sshd"), settings=f"SetEnv HOME={home}\n")
    daemon.home = home
    yield daemon
    daemon.stop()


def use(sandboxes, provider, *options, policy=None):
    """A whole life; what the stand-in has of the sandbox."""
    words = ["--policy", policy] if policy else []
    sandboxes.berth("create", "--provider", provider, *options, *words, "Thread/1", check=True, timeout=60)
    box = sandboxes.boxes()[0]
    out = sandboxes.berth("exec", "-w", "Thread/1", "-i", "--", "sh", "-c", "cat; exit 7", input="in\n")
    assert (out.returncode, out.stdout) == (7, "in\n")
    sandboxes.berth("rm", "Thread/1", check=True)
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []
    return box


def test_all_are_valid(sandboxes):
    """Each can be read, says how it was tried, and refuses or places every field of a policy."""
    rows = {row["name"]: row for row in json.loads(sandboxes.berth("provider", "ls", "--json", check=True).stdout)}
    for name in ALL:
        assert "error" not in rows[name], rows[name]
        assert rows[name]["tried"] in ("real", "stand-in") and rows[name]["summary"]
        json.loads(sandboxes.berth("provider", "show", name, check=True).stdout)


def test_local(sandboxes, service, tmp_path):
    """A worktree of a repository here, in the service that is used anyway; no sandbox, no place."""
    repository = tmp_path / "app"
    for words in (["init", "-q", str(repository)], ["-C", str(repository), "commit", "-q", "--allow-empty", "-m", "x"],
                  ["-C", str(repository), "branch", "feature"]):
        subprocess.run(["git", *words], check=True, timeout=20, env=sandboxes.env)
    more = {"BERTH_URL": service.url}
    spec = f"local:repository={repository},ref=feature"
    sandboxes.berth("create", "--provider", spec, "a", check=True, more=more)
    out = sandboxes.berth("exec", "-w", "a", "--", "git", "branch", "--show-current", check=True, more=more)
    assert out.stdout == "feature\n" and sandboxes.place_names() == []
    sandboxes.berth("create", "--provider", "local", "b", "c", check=True, more=more)
    assert sandboxes.berth("ls", "-q", check=True, more=more).stdout == "a\nb\nc\n"
    sandboxes.berth("rm", "a", "b", "c", check=True, more=more)


def test_ssh(sandboxes, sshd):
    """A real sshd: berthd is put there when there is none, used when there is, and stays."""
    config = sandboxes.state / "config"
    config.write_text(f"Host there\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {getpass.getuser()}\n"
                      f"  IdentityFile {sshd.directory}/user\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
                      "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n")
    root = sshd.home / "root"
    spec = f"ssh:host=there,config={config},root={root}"
    refused = sandboxes.berth("create", "--provider", "ssh:host=no.such.host.invalid", "a")
    assert refused.returncode == 1 and "no.such.host.invalid" in refused.stderr and sandboxes.place_names() == []
    sandboxes.berth("create", "--provider", spec, "a", check=True, timeout=60)
    installed = sshd.home / ".local" / "bin" / "berthd"
    assert installed.read_bytes() == Path(sandboxes.env["BERTH_STATIC_BERTHD"]).read_bytes()
    out = sandboxes.berth("exec", "-w", "a", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (out.returncode, out.stdout, out.stderr) == (7, "out\n", "err\n")
    assert sandboxes.berth("exec", "-w", "a", "--", "sh", "-c", "kill -9 $$").returncode == 137
    before = installed.stat().st_ino
    sandboxes.berth("create", "--provider", spec, "b", check=True, timeout=60)
    assert installed.stat().st_ino == before
    rows = json.loads(sandboxes.berth("ls", "--json", check=True).stdout)
    assert [(row["name"], row["state"], row["provider"]["name"]) for row in rows] == \
        [("a", "running", "ssh"), ("b", "running", "ssh")]
    sandboxes.berth("rm", "a", check=True)
    assert sandboxes.place_names() == ["b.json"]
    sshd.stop()
    out = sandboxes.berth("rm", "b")
    assert out.returncode == 1 and "--force" in out.stderr and sandboxes.place_names() == ["b.json"]
    sandboxes.berth("rm", "-f", "b", check=True)
    assert sandboxes.place_names() == []
    end_service(root)


def end_service(root):
    """The one that was started there outlives its streams."""
    def holders():
        found = subprocess.run(["pgrep", "-f", f"berthd.*{root}"], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]
    for pid in holders():
        subprocess.run(["kill", str(pid)], check=False, stderr=subprocess.DEVNULL)
    wait_until(lambda: not holders(), 20, "the end of the service there")


@pytest.mark.parametrize("spec, words", [
    ("boat", "BOAT_API_KEY is not set"), ("opensandbox:server=http://127.0.0.1:1", "refused"), ("modal", "package")])
def test_what_is_not_reached_leaves_nothing(sandboxes, spec, words):
    """Nothing can have been made: there is nothing to be destroyed, and no line of a failure."""
    out = sandboxes.berth("create", "--provider", spec, "a", more={"PYTHONPATH": ""})
    assert out.returncode == 1 and words in out.stderr and "berth rm" not in out.stderr, out
    assert sandboxes.place_names() == []


@pytest.mark.timeout(120)
def test_modal(sandboxes):
    sandboxes.env["PYTHONPATH"] = str(STANDINS / "python")
    policy = sandboxes.state / "policy"
    policy.write_text(json.dumps({"network": "none", "limits": {"memory": "256M", "cpu": 0.5}}))
    sandboxes.berth("create", "--provider", "modal:image=python:3.12", "--policy", str(policy), "a", check=True,
                    timeout=60)
    box = sandboxes.boxes()[0]
    assert box["network"] is False and box["memory"] == [256, 256] and box["cpu"] == [0.5, 0.5]
    assert box["image"] == "python:3.12" and sandboxes.place("a")["sandbox"] == "sb-" + box["name"]
    out = sandboxes.berth("exec", "-w", "a", "-i", "--", "sh", "-c", "cat; exit 7", input="in\n")
    assert (out.returncode, out.stdout) == (7, "in\n")
    assert "there     ready" in sandboxes.berth("provider", "status", "a", check=True).stdout
    (sandboxes.places / "a.json").rename(sandboxes.state / "kept")
    assert sandboxes.berth("provider", "orphans", "--remove", "modal", check=True).stdout == f"sb-{box['name']}\n"
    assert sandboxes.boxes() == []
    (sandboxes.state / "kept").rename(sandboxes.places / "a.json")
    sandboxes.berth("rm", "a", check=True)
    assert sandboxes.place_names() == []


def test_openshell(sandboxes):
    sandboxes.env["PATH"] = f"{STANDINS}/openshell-ssh:{sandboxes.env['PATH']}"
    policy = sandboxes.state / "policy"
    policy.write_text(json.dumps({"limits": {"memory": "256M"}}))
    box = use(sandboxes, "openshell:gateway=lab", policy=str(policy))
    assert box["memory"] == "256Mi"
    # What its reaper goes by.
    labels = dict(label.split("=") for label in box["labels"])
    assert set(labels) == {"created-by", "created-at"} and labels["created-at"].isdigit()
    out = sandboxes.berth("create", "--provider", "openshell:gateway=other", "a", timeout=60)
    assert out.returncode == 1 and "gateway 'other' not found" in out.stderr and sandboxes.place_names() == []
    assert sandboxes.berth("provider", "orphans", "openshell:gateway=lab", check=True).stdout == ""


def test_islo(sandboxes):
    box = use(sandboxes, "islo:image=ubuntu")
    assert box["image"] == "ubuntu"
    assert sandboxes.berth("provider", "orphans", "islo").returncode == 1


@pytest.fixture
def opensandbox(sandboxes):
    service = opensandbox_standin.OpenSandbox()
    sandboxes.env["OPEN_SANDBOX_API_KEY"] = opensandbox_standin.KEY
    yield service
    service.stop()


def live(sandboxes, spec, *options):
    """A whole life in one sandbox, which a crash forgets and orphans finds; what the stand-in has of it."""
    sandboxes.berth("create", "--provider", spec, *options, "a", check=True, timeout=240)
    box = sandboxes.boxes()[0]
    out = sandboxes.berth("exec", "-w", "a", "-i", "--", "sh", "-c", "cat; exit 7", input="in\n", timeout=120)
    assert (out.returncode, out.stdout) == (7, "in\n")
    assert "there     ready" in sandboxes.berth("provider", "status", "a", check=True, timeout=60).stdout
    place = sandboxes.place("a")
    (sandboxes.places / "a.json").rename(sandboxes.state / "kept")
    found = sandboxes.berth("provider", "orphans", "--remove", spec, check=True, timeout=60).stdout
    assert found == place["sandbox"] + "\n" and sandboxes.boxes() == []
    (sandboxes.state / "kept").rename(sandboxes.places / "a.json")
    sandboxes.berth("rm", "a", check=True, timeout=120)
    assert sandboxes.place_names() == []
    return box


@pytest.mark.timeout(300)
def test_opensandbox(sandboxes, opensandbox):
    policy = sandboxes.state / "policy"
    policy.write_text(json.dumps({"limits": {"memory": "256M", "cpu": 0.5}}))
    spec = f"opensandbox:server={opensandbox.url},image=python:3.12,egress=deny,lifetime=0"
    request = live(sandboxes, spec, "--policy", str(policy))["request"]
    assert request["image"] == {"uri": "python:3.12"} and request["timeout"] is None
    assert request["resourceLimits"] == {"cpu": "0.5", "memory": "256Mi"}
    assert request["networkPolicy"] == {"defaultAction": "deny"}
    assert set(request["metadata"]) == {"created-by", "created-at", "berth-name"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_opensandbox_refuses(sandboxes, opensandbox):
    """What the server says is told, and nothing is left."""
    opensandbox.sidecar = False
    spec = f"opensandbox:server={opensandbox.url}"
    out = sandboxes.berth("create", "--provider", f"{spec},egress=deny", "a", timeout=120)
    assert out.returncode == 1 and "egress.image is not configured" in out.stderr
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []
    out = sandboxes.berth("provider", "orphans", spec, more={"OPEN_SANDBOX_API_KEY": "another"})
    assert out.returncode == 1 and "the API key is missing or wrong" in out.stderr


def opensandbox_words(opensandbox, *words):
    return [sys.executable, str(PROFILES / "opensandbox_sandbox.py"), "--server", opensandbox.url, *words]


def opensandbox_program(sandboxes, opensandbox, *words, **keywords):
    return subprocess.run(opensandbox_words(opensandbox, *words), check=False, timeout=120, env=sandboxes.env,
                          capture_output=True, **keywords)


def opensandbox_sandbox(sandboxes, opensandbox):
    out = opensandbox_program(sandboxes, opensandbox, "create", "--image", "x", "--lifetime", "60", "--cpu", "1",
                              "--memory", "1Gi", "--created-by", "me", "--created-at", "1", "berth-x-0")
    assert out.returncode == 0, out.stderr
    return out.stdout.decode().strip()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server_proxy", [pytest.param("no", marks=pytest.mark.long), "yes"])
def test_opensandbox_stream(sandboxes, opensandbox, server_proxy):
    """Bytes go through as they are, in both directions; a status comes back; and no shell is left."""
    sandbox = opensandbox_sandbox(sandboxes, opensandbox)
    data = bytes(range(256)) * 4096 + os.urandom(70000)
    # The input stays open, since its end would be the command's.
    with subprocess.Popen(opensandbox_words(opensandbox, "--server-proxy", server_proxy, "stream", sandbox, "sh", "-c",
                                            f"head -c {len(data)}; echo \"it's \\$x\" >&2; exit 7"), env=sandboxes.env,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        feeder = threading.Thread(target=process.stdin.write, args=(data,), daemon=True)
        feeder.start()
        out, err = process.stdout.read(), process.stderr.read()
        feeder.join(60)
        process.stdin.flush()
        assert (process.wait(60), out, err) == (7, data, b"it's $x\n")
    assert opensandbox.sessions == {}
    out = opensandbox_program(sandboxes, opensandbox, "stream", sandbox, "cat", input=b"")
    assert out.returncode == 0 and opensandbox.sessions == {}
    out = opensandbox_program(sandboxes, opensandbox, "stream", "0123", "cat", input=b"")
    assert out.returncode == 4 and b"0123 not found" in out.stderr
    assert opensandbox_program(sandboxes, opensandbox, "destroy", "berth-x-0").returncode == 0
    assert opensandbox_program(sandboxes, opensandbox, "destroy", "berth-x-0").returncode == 4
    assert sandboxes.boxes() == []


@pytest.fixture
def boat(sandboxes, harness):
    service = boat_standin.Boat(harness.new_path("boat"))
    sandboxes.env["BOAT_BASE_URL"] = service.url
    sandboxes.env["BOAT_API_KEY"] = boat_standin.KEY
    yield service
    service.stop()


@pytest.mark.timeout(300)
def test_boat(sandboxes, boat):
    box = live(sandboxes, "boat:type=large,lifetime=0")
    assert box["request"] == {"type": "large", "ttlSeconds": None, "noEnv": True}
    # A key that is one user's, and no sandbox's host key any more.
    kept = sandboxes.places.parent / "boat"
    assert os.listdir(kept) == ["key"] and (kept / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.long
@pytest.mark.timeout(300)
def test_boat_refuses(sandboxes, boat):
    """What Boat says is told; a machine with another host key is none of its; nothing is left of either."""
    sandboxes.misbehave("no-room")
    out = sandboxes.berth("create", "--provider", "boat", "a", timeout=120)
    assert out.returncode == 1 and "as many sandboxes as your plan allows" in out.stderr
    assert sandboxes.place_names() == []
    sandboxes.behave("no-room")
    boat.host_key = " ".join((boat.sshd.directory / "user.pub").read_text().split()[:2])
    out = sandboxes.berth("create", "--provider", "boat", "a", timeout=120)
    assert out.returncode == 1 and "Host key verification failed" in out.stderr
    assert sandboxes.place_names() == [] and sandboxes.boxes() == []


@pytest.mark.timeout(300)
@pytest.mark.long
def test_boat_lost_answer(sandboxes, boat):
    """One that was made, but that nobody heard of, is found by the request's key and destroyed."""
    sandboxes.misbehave("no-answer")
    out = sandboxes.berth("create", "--provider", "boat", "a", timeout=120)
    assert out.returncode == 1 and "Something went wrong" in out.stderr
    assert boat.made == 1 and sandboxes.boxes() == [] and sandboxes.place_names() == []
