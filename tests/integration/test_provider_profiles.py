"""The profiles that Berth comes with: ssh with a real sshd, local with the service itself, and others with
stand-ins that follow the vendor's documented command line. Docker, Podman and Kubernetes: test_engines.py and
test_kubernetes.py."""

import getpass
import json
import subprocess
from pathlib import Path

import pytest

from lib.harness import wait_until
from lib.sandboxes import PROFILES, STANDINS, Sandboxes
from lib.sshd import Sshd

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
