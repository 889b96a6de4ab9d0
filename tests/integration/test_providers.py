"""Workspaces in sandboxes of their own: `berth create --provider` and all that follows, with a program that
does what a vendor's might do wrong. The vendors' own profiles: test_provider_profiles.py."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from lib.harness import wait_until
from lib.sandboxes import PLAIN, Sandboxes
from lib.standins import box as boxes_here


@pytest.fixture
def sandboxes(harness):
    s = Sandboxes(harness)
    yield s
    s.close()


def one(sandboxes):
    boxes = sandboxes.boxes()
    assert len(boxes) == 1, boxes
    return boxes[0]


def test_a_life(sandboxes):
    """Made, found by all commands, listed, removed."""
    sandboxes.profile()
    out = sandboxes.berth("create", "--provider", "plain:image=large", "--label", "team=a", "My thread/1", check=True)
    assert out.stdout == "My%20thread%2F1\n" and out.stderr == ""
    box = one(sandboxes)
    assert box["image"] == "large"
    assert box["name"].startswith("berth-my-thread-1-") and len(box["name"]) <= 63
    place = sandboxes.place("My%20thread%2F1")
    assert place["state"] == "ready" and place["sandbox"] == box["name"] and place["id"] == "My thread/1"
    assert place["created_by"] == box["owner"]
    assert "token" not in json.dumps(place)
    # Beside files of the workspace there, and with its own status.
    ran = sandboxes.berth("exec", "-w", "My thread/1", "--", "sh", "-c", "pwd; echo there > note; exit 7")
    assert ran.returncode == 7 and ran.stderr == ""
    out = sandboxes.berth("exec", "-w", "My thread/1", "--", "cat", "note", check=True)
    assert out.stdout == "there\n"
    assert sandboxes.berth("label", "My thread/1", check=True).stdout == "team=a\n"
    assert sandboxes.berth("policy", "-n", "My%20thread%2F1").stdout
    # Again is the same one.
    again = sandboxes.berth("create", "--provider", "plain", "My thread/1", check=True)
    assert again.stdout == "My%20thread%2F1\n" and len(sandboxes.boxes()) == 1
    assert sandboxes.berth("create", "My thread/1", check=True).stdout == "My%20thread%2F1\n"
    refused = sandboxes.berth("create", "-x", "--provider", "plain", "My thread/1")
    assert refused.returncode == 1 and "exists" in refused.stderr
    listed = sandboxes.berth("ls", check=True)
    assert listed.stdout.splitlines()[0].split() == ["NAME", "CREATED", "PROVIDER", "THREAD", "ID"]
    assert "plain" in listed.stdout and listed.stderr == ""
    row = json.loads(sandboxes.berth("ls", "--json", check=True).stdout)[0]
    assert row["provider"] == {"name": "plain", "sandbox": box["name"], "state": "ready"}
    assert row["labels"] == {"team": "a"} and row["state"] == "running"
    assert sandboxes.berth("ls", "-q", "--label", "team=b", check=True).stdout == ""
    status = sandboxes.berth("provider", "status", "My thread/1", check=True).stdout
    assert "there     ready" in status and box["name"] in status
    assert sandboxes.berth("provider", "orphans", "plain", check=True).stdout == ""
    sandboxes.berth("rm", "My thread/1", check=True)
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []
    missing = sandboxes.berth("rm", "My thread/1")
    assert missing.returncode == 1


def test_beside_a_service(sandboxes, service):
    """Workspaces of the service that is used anyway are listed with those in sandboxes, and whoever names
    a service means it."""
    sandboxes.profile()
    config = sandboxes.env["XDG_CONFIG_HOME"] + "/berth"
    os.makedirs(config)
    with open(config + "/berth.json", "w", encoding="utf-8") as file:
        json.dump({"client": {"url": service.url}}, file)
    sandboxes.berth("create", "--provider", "plain", "boxed", check=True)
    sandboxes.berth("create", "here", check=True)
    rows = [line.split() for line in sandboxes.berth("ls", check=True).stdout.splitlines()[1:]]
    assert [(row[0], row[3]) for row in rows] == [("boxed", "plain"), ("here", "-")]
    named = sandboxes.berth("--url", service.url, "ls", "-q", check=True)
    assert named.stdout == "here\n"
    assert sandboxes.berth("exec", "-w", "here", "--", "true").returncode == 0
    wrong = sandboxes.berth("--url", service.url, "exec", "-w", "boxed", "--", "true")
    assert wrong.returncode == 125
    wrong = sandboxes.berth("--url", service.url, "create", "--provider", "plain", "more")
    assert wrong.returncode == 2
    sandboxes.berth("rm", "boxed", "here", check=True)


def test_credentials_stay_here(sandboxes):
    """A token for the service that is used anyway is neither the sandbox's nor the vendor's."""
    sandboxes.profile(connect=["sh", "-c", "env > $STANDIN_STATE/env; exec plainbox exec $0 /usr/local/bin/berthd "
                               "--stdio", "{sandbox}"],
                      create=[{"run": ["sh", "-c", "env > $STANDIN_STATE/env-create; exec plainbox create --name $0 "
                                       "--owner o i", "{name}"]}])
    more = {"BERTH_TOKEN": "s3cret-of-another"}
    sandboxes.berth("create", "--provider", "plain", "a", check=True, more=more)
    assert "s3cret" not in (sandboxes.state / "env-create").read_text()
    assert sandboxes.berth("exec", "-w", "a", "--", "true", more=more).returncode == 0


def test_mount_of_one(sandboxes, harness, fuse_works):
    """`berth mount -w` finds it, and a token for another service goes neither there nor, from within the mount, with
    a command."""
    sandboxes.profile()
    sandboxes.berth("create", "--provider", "plain", "T/1", check=True)
    path = harness.new_path("mount")
    path.mkdir()
    more = {"BERTH_TOKEN": "s3cret-of-another"}
    sandboxes.berth("mount", "-w", "T/1", str(path), check=True, more=more)
    try:
        (path / "f").write_text("here")
        told = json.loads(os.getxattr(path, "user.berth.mount"))
        assert told["own_credentials"] is True
        for persist in (["--no-persist"], ["--persist", "1"]):
            out = sandboxes.berth(*persist, "exec", "--", "cat", "f", cwd=path, more=more)
            assert (out.returncode, out.stdout) == (0, "here"), out
    finally:
        sandboxes.berth("umount", str(path))
    sandboxes.berth("rm", "-f", "T/1", check=True)


def test_policy_is_held_or_refused(sandboxes):
    """What the vendor holds goes onto its command line, what the berthd inside holds goes there, all else is
    refused before anything is made."""
    sandboxes.profile()
    policy = sandboxes.state / "policy"
    for document, word in (({"limits": {"cpu": 1}}, "cpu"), ({"network": {"allow": ["a.b:443"]}}, None),
                           ({"filesystem": {"read": ["/etc"]}}, "filesystem"), ({"require": ["full"]}, "require"),
                           ({"limits": {"memory": "no"}}, "limits.memory"), ({"what": 1}, "what")):
        policy.write_text(json.dumps(document))
        out = sandboxes.berth("create", "--provider", "plain", "--policy", str(policy), f"x-{word}")
        if word:
            assert out.returncode == 1 and word in out.stderr, out
            assert sandboxes.boxes() == [] and sandboxes.place_names() == []
        else:
            assert one(sandboxes)["network"] is True
            sandboxes.berth("rm", "-f", f"x-{word}", check=True)
    sandboxes.berth("create", "--provider", "plain", "unasked", check=True)
    assert one(sandboxes)["network"] is False
    sandboxes.berth("rm", "-f", "unasked", check=True)
    policy.write_text(json.dumps({"network": "none", "limits": {"memory": "64M", "open_files": 77}}))
    sandboxes.berth("create", "--provider", "plain", "--policy", str(policy), "a", check=True)
    box = one(sandboxes)
    assert box["memory"] == 64 * 1024 * 1024 and box["network"] is False
    inside = json.loads(sandboxes.berth("policy", "--json", "a").stdout)
    assert inside["asked"]["limits"]["open_files"] == 77 and inside["asked"]["limits"]["memory"] is None


def test_policy_that_the_berthd_inside_cannot_hold(sandboxes):
    """It says so when the sandbox is made, and not at the first command; nothing is left."""
    refuse = str(sandboxes.harness.build / "tests/tools/refuse")
    put = [{"run": ["plainbox", "put", "{sandbox}", f"/usr/local/bin/{name}"], "stdin": source}
           for name, source in (("refuse", refuse), ("berthd", "{berthd}"))]
    sandboxes.profile(install=put, connect=[
        "plainbox", "exec", "{sandbox}", "/usr/local/bin/refuse", "clone3=38", "unshare=1", "clone&0x40000000=1", "--",
        "/usr/local/bin/berthd", "--stdio"])
    policy = sandboxes.state / "policy"
    policy.write_text(json.dumps({"network": {"allow": ["a.b:443"]}}))
    out = sandboxes.berth("create", "--provider", "plain", "--policy", str(policy), "a")
    assert out.returncode == 1 and "cannot hold its policy" in out.stderr and "network" in out.stderr, out
    assert out.stdout == "" and sandboxes.boxes() == [] and sandboxes.place_names() == []


@pytest.mark.parametrize("verb, words", [("create", "quota is used up"), ("put", "quota is used up")])
def test_a_step_fails(sandboxes, verb, words):
    """Nothing is left, and the vendor's words are told without what drives terminals."""
    sandboxes.profile()
    sandboxes.misbehave(f"fail-{verb}")
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and words in out.stderr and "exit status 3" in out.stderr
    assert "\x1b" not in out.stderr and out.stdout == ""
    assert ("destroyed" in out.stderr) == (verb == "put")
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []


def test_neither_made_nor_destroyed(sandboxes):
    """Both failures are told, and `berth rm` tries again."""
    sandboxes.profile()
    sandboxes.misbehave("fail-put")
    sandboxes.misbehave("fail-destroy")
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "put" in out.stderr and "could not be destroyed" in out.stderr
    box = one(sandboxes)
    assert sandboxes.place("a")["state"] == "failed"
    assert "plain (failed)" in sandboxes.berth("ls").stdout
    out = sandboxes.berth("exec", "-w", "a", "--", "true")
    assert out.returncode == 125 and "not ready" in out.stderr
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "berth rm" in out.stderr
    out = sandboxes.berth("rm", "a")
    assert out.returncode == 1 and box["name"] in out.stderr
    assert sandboxes.place("a")["state"] == "removing"
    sandboxes.behave("fail-destroy")
    sandboxes.berth("rm", "a", check=True)
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []


def test_what_it_was_made_with_is_used_again(sandboxes, tmp_path):
    """Whatever the environment says later: which engine a sandbox is in is its workspace's, not the shell's."""
    image = {"default": "", "default_from": ["cat", str(sandboxes.state / "current")], "help": "the image",
             "pattern": "^[a-z]*$"}
    sandboxes.profile(bound_to={"environment": ["STANDIN_STATE", "NOT_SET"], "secrets": ["PLAIN_KEY"]},
                      parameters={"image": image})
    (sandboxes.state / "current").write_text("\nof-today!\n")
    refused = sandboxes.berth("create", "--provider", "plain", "a")
    assert refused.returncode == 1 and "image" in refused.stderr and sandboxes.place_names() == []
    (sandboxes.state / "current").write_text("\ntoday\nother\n")
    made = {"PLAIN_KEY": "the first secret"}
    sandboxes.berth("create", "--provider", "plain", "a", check=True, more=made)
    place = sandboxes.place("a")
    assert place["parameters"]["image"] == "today" == one(sandboxes)["image"]
    assert place["environment"] == {"STANDIN_STATE": str(sandboxes.state), "NOT_SET": None}
    assert list(place["secrets"]) == ["PLAIN_KEY"] and "first" not in json.dumps(place)
    (sandboxes.state / "current").write_text("tomorrow\n")
    other = {"STANDIN_STATE": str(tmp_path), "NOT_SET": "1"}
    assert sandboxes.berth("exec", "-w", "a", "--", "true", more=other).returncode == 0
    told = sandboxes.berth("provider", "status", "a", check=True, more=other).stdout
    assert "there     ready" in told and "image=today" in told and "NOT_SET is not set" in told
    assert "PLAIN_KEY is not what" in told
    # One that is gone is not forgotten for another account, and never without a word.
    box = one(sandboxes)
    boxes_here.destroy(box["name"])
    kept = sandboxes.berth("rm", "a", more={"PLAIN_KEY": "another"})
    assert kept.returncode == 1 and "PLAIN_KEY" in kept.stderr and sandboxes.place("a")["state"] == "ready"
    gone = sandboxes.berth("rm", "a", check=True, more=made)
    assert box["name"] in gone.stderr and "image=today" in gone.stderr and sandboxes.place_names() == []


def test_engine_that_was_meant_is_destroyed_in(sandboxes, tmp_path):
    sandboxes.profile(bound_to={"environment": ["STANDIN_STATE"]})
    sandboxes.berth("create", "--provider", "plain", "a", check=True)
    assert sandboxes.berth("rm", "a", check=True, more={"STANDIN_STATE": str(tmp_path)}).stderr == ""
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []


def test_one_that_cannot_be_reached_is_forgotten(sandboxes):
    """What was never made leaves no line, and what may have been made is taken off the list when it is asked for."""
    sandboxes.profile(unreached={"text": ["quota is used up"]})
    sandboxes.misbehave("fail-create")
    sandboxes.misbehave("fail-destroy")
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "quota" in out.stderr and "rm" not in out.stderr
    assert sandboxes.place_names() == [] and [call[0] for call in sandboxes.calls()] == ["create"]
    sandboxes.behave("fail-create")
    sandboxes.misbehave("fail-put")
    assert sandboxes.berth("create", "--provider", "plain", "a").returncode == 1
    assert sandboxes.berth("rm", "-f", "a").returncode == 1
    name = one(sandboxes)["name"]
    out = sandboxes.berth("rm", "--forget", "a", check=True)
    assert name in out.stderr and "berth provider orphans plain" in out.stderr and sandboxes.place_names() == []
    assert one(sandboxes)["name"] == name
    out = sandboxes.berth("rm", "--forget", "a")
    assert out.returncode == 1 and "none has" in out.stderr


def test_unknown_outcome_is_no_success(sandboxes):
    """A program that hangs after it has made one: it is ended, told, and what it made is destroyed."""
    sandboxes.profile(create=[{**PLAIN["create"][0], "timeout": 2}])
    sandboxes.misbehave("hang-after-create")
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "did not end within 2 s" in out.stderr and "orphans" in out.stderr
    assert out.stdout == "" and sandboxes.boxes() == [] and sandboxes.place_names() == []


def start_create(sandboxes, *words):
    return subprocess.Popen([sandboxes.harness.program("berth"), "create", "--provider", "plain", *words],
                            env=sandboxes.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_while_it_makes_one(sandboxes):
    """Whatever it was killed at is remembered, and destroyed by `berth rm`."""
    sandboxes.profile()
    sandboxes.misbehave("hang-after-create")
    maker = start_create(sandboxes, "a")
    wait_until(sandboxes.boxes, 20, "a sandbox")
    assert sandboxes.place("a")["state"] == "creating"
    busy = sandboxes.berth("rm", "a")
    assert busy.returncode == 1 and "another process" in busy.stderr
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=20)
    sandboxes.behave("hang-after-create")
    assert "plain (creating)" in sandboxes.berth("ls").stdout
    # It ends with its maker: nothing goes on being made.
    wait_until(lambda: not [pid for pid in os.listdir("/proc") if pid.isdigit() and is_plainbox(pid)], 10, "its end")
    sandboxes.berth("rm", "a", check=True)
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []


def is_plainbox(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"plainbox\0create" in file.read()
    except OSError:
        return False


def test_interrupted(sandboxes):
    """^C destroys what there is."""
    sandboxes.profile()
    sandboxes.misbehave("hang-after-create")
    maker = start_create(sandboxes, "a", "b")
    wait_until(sandboxes.boxes, 20, "a sandbox")
    maker.send_signal(signal.SIGINT)
    _, errors = maker.communicate(timeout=20)
    assert maker.returncode == 1 and "interrupted" in errors
    assert "`berth provider orphans plain` finds it" in errors
    assert sandboxes.boxes() == [] and sandboxes.place_names() == []


def test_interrupted_while_the_workspace_is_made(sandboxes, tmp_path):
    """The sandbox stays, and that is said. Of a provider that lists none nobody is sent to look for orphans."""
    mark = tmp_path / "connects"
    sandboxes.profile(connect=["sh", "-c", f"touch {mark}; exec cat >/dev/null"], list=None)
    maker = start_create(sandboxes, "a")
    wait_until(mark.exists, 20, "the connection")
    maker.send_signal(signal.SIGINT)
    _, errors = maker.communicate(timeout=20)
    name = one(sandboxes)["name"]
    assert maker.returncode == -signal.SIGINT and errors.endswith(
        f"berth: create: a: interrupted; what has been made of its sandbox ({name}) stays: `berth rm a` destroys it\n")
    sandboxes.berth("rm", "a", check=True)
    assert sandboxes.boxes() == []
    sandboxes.misbehave("hang-after-create")
    maker = start_create(sandboxes, "a")
    wait_until(sandboxes.boxes, 20, "a sandbox")
    maker.send_signal(signal.SIGINT)
    _, errors = maker.communicate(timeout=20)
    assert maker.returncode == 1 and "orphans" not in errors and "the provider's own program" in errors
    assert sandboxes.boxes() == []


def test_one_of_two_makes_it(sandboxes):
    """Two that make the same workspace at the same time make one sandbox."""
    sandboxes.profile()
    makers = [start_create(sandboxes, "a") for _ in range(3)]
    codes = []
    for maker in makers:
        maker.communicate(timeout=30)
        codes.append(maker.returncode)
    assert 0 in codes and len(sandboxes.boxes()) == 1
    assert sandboxes.place("a")["state"] == "ready"


def test_output_without_end(sandboxes):
    """Neither memory nor the terminal is the vendor's."""
    sandboxes.profile(create=[{**PLAIN["create"][0], "timeout": 2}])
    sandboxes.misbehave("flood-create")
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "\x1b" not in out.stderr and len(out.stderr) < 2000


def test_captured_name(sandboxes):
    """What a vendor says that it has made goes onto command lines: one plain word, or it is refused."""
    create = {**PLAIN["create"][0], "capture": "sandbox"}
    sandboxes.profile(create=[create], install=[], connect=["false", "{sandbox}"],
                      destroy=[{"run": ["plainbox", "destroy", "{name}"]}])
    bad = ("", "a b\n", "-rf\n", "a\nb\n", "x" * 300, "a\x1b[2J\n", "$(id)\n", "x\0y\n", "../../x\n", "a/../x\n", "/x\n",
           "a//x", "a/\n", "a/-x\n")
    for text, good in [("box-1\n", True), ("pod/a_1.b:c@d\n", True)] + [(text, False) for text in bad]:
        sandboxes.misbehave("say", text)
        out = sandboxes.berth("create", "--provider", "plain", "a")
        assert out.returncode == 1 and "\x1b" not in out.stderr
        assert ("no name of a sandbox" in out.stderr) != good, (text, out.stderr)
        assert sandboxes.boxes() == []


@pytest.mark.parametrize("given, word", [("note=-rf", "option"), ("note=a\nb", "control"), ("image=A", "form"),
                                         ("note=" + "x" * 5000, "bytes"), ("nope=1", "parameter"),
                                         ("note", "KEY=VALUE"), ("note=\udcff", "UTF-8"), ("=x", "KEY=VALUE")])
def test_parameters_are_refused(sandboxes, given, word):
    sandboxes.profile()
    out = sandboxes.berth("create", "--provider", "plain", "--provider-option", given, "a")
    assert out.returncode == 1 and word in out.stderr, out.stderr
    assert sandboxes.calls() == [] and sandboxes.place_names() == []


def test_orphans(sandboxes):
    """What has no place here is found and destroyed; what belongs to others is not seen."""
    sandboxes.profile()
    sandboxes.berth("create", "--provider", "plain", "a", "b", check=True)
    kept = sandboxes.place("b")["sandbox"]
    lost = sandboxes.place("a")["sandbox"]
    os.unlink(sandboxes.places / "a.json")
    others = {**sandboxes.env, "XDG_STATE_HOME": str(sandboxes.state / "other")}
    sandboxes.harness.run_berth("create", "--provider", "plain", "a", env=others, check=True)
    assert json.loads(sandboxes.berth("provider", "orphans", "--json", "plain", check=True).stdout) == [lost]
    assert len(sandboxes.boxes()) == 3
    assert sandboxes.berth("provider", "orphans", "--remove", "plain", check=True).stdout == lost + "\n"
    names = [box["name"] for box in sandboxes.boxes()]
    assert kept in names and lost not in names and len(names) == 2
    sandboxes.misbehave("fail-list")
    out = sandboxes.berth("provider", "orphans", "--remove", "plain")
    assert out.returncode == 1 and len(sandboxes.boxes()) == 2


@pytest.mark.matrix
@pytest.mark.parametrize("damage", ["writable", "later", "key", "cut"])
def test_orphans_are_not_guessed(sandboxes, damage):
    """While the file of one workspace cannot be read, its sandbox could be taken for an orphan: none is."""
    sandboxes.profile()
    sandboxes.berth("create", "--provider", "plain", "a", "b", check=True)
    os.unlink(sandboxes.places / "b.json")
    path = sandboxes.places / "a.json"
    document = json.loads(path.read_text())
    if damage == "writable":
        path.chmod(0o664)
    elif damage == "later":
        path.write_text(json.dumps({**document, "version": 2}))
    elif damage == "key":
        path.write_text(json.dumps({**document, "future": 1}))
    else:
        path.write_text(path.read_text()[:-20])
    for more in ([], ["--remove"]):
        out = sandboxes.berth("provider", "orphans", *more, "plain")
        assert out.returncode == 1 and "a.json" in out.stderr and out.stdout == "", out
        assert len(sandboxes.boxes()) == 2
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    sandboxes.berth("provider", "orphans", "--remove", "plain", check=True)
    assert one(sandboxes)["name"] == document["sandbox"]


def test_orphans_of_another_profile(sandboxes):
    """Two profiles for one system: what one has made is no orphan of the other's."""
    sandboxes.profile()
    sandboxes.profile(name="other")
    sandboxes.berth("create", "--provider", "plain", "a", check=True)
    assert sandboxes.berth("provider", "orphans", "--remove", "other", check=True).stdout == ""
    assert len(sandboxes.boxes()) == 1


CAPTURING = {"create": [{**PLAIN["create"][0], "capture": "sandbox"}]}


def test_orphans_while_one_is_made(sandboxes):
    """A sandbox whose name its maker is still to be told is no orphan; of one that was killed before, `berth rm`
    says that it may be there."""
    sandboxes.profile(**CAPTURING)
    sandboxes.misbehave("own-name")
    sandboxes.misbehave("hang-after-create")
    maker = start_create(sandboxes, "a")
    wait_until(sandboxes.boxes, 20, "a sandbox")
    name = one(sandboxes)["name"]
    out = sandboxes.berth("provider", "orphans", "plain")
    assert out.returncode == 0 and out.stdout == name + "\n" and "being made" in out.stderr
    out = sandboxes.berth("provider", "orphans", "--remove", "plain")
    assert out.returncode == 1 and "nothing was destroyed" in out.stderr and len(sandboxes.boxes()) == 1
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=20)
    out = sandboxes.berth("rm", "a")
    assert out.returncode == 1 and name in out.stderr and "berth provider orphans plain" in out.stderr
    assert sandboxes.place_names() == [] and len(sandboxes.boxes()) == 1
    sandboxes.berth("provider", "orphans", "--remove", "plain", check=True)
    assert sandboxes.boxes() == []
    # One that was not made at all is removed without a word.
    sandboxes.misbehave("hang-create")
    maker = start_create(sandboxes, "b")
    wait_until(sandboxes.place_names, 20, "a place")
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=20)
    assert sandboxes.berth("rm", "b", check=True).stderr == ""


def test_garbled_name_is_told(sandboxes):
    """What cannot have been destroyed is not said to have been."""
    sandboxes.profile(**CAPTURING)
    sandboxes.misbehave("own-name")
    sandboxes.misbehave("say", "two words\n")
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "orphans plain" in out.stderr and "was destroyed" not in out.stderr
    assert len(sandboxes.boxes()) == 1


def test_copied_state_is_another_owner(sandboxes):
    """A copy of the state directory (a clone, a backup that was restored) owns nothing that is made elsewhere."""
    sandboxes.profile()
    sandboxes.berth("create", "--provider", "plain", "a", check=True)
    copy = sandboxes.state / "copy"
    shutil.copytree(sandboxes.places.parents[1], copy)
    sandboxes.berth("create", "--provider", "plain", "b", check=True)
    out = sandboxes.berth("provider", "orphans", "--remove", "plain", check=True, more={"XDG_STATE_HOME": str(copy)})
    assert out.stdout == "" and len(sandboxes.boxes()) == 2
    # The original is as before.
    os.unlink(sandboxes.places / "b.json")
    lost = sandboxes.berth("provider", "orphans", "plain", check=True).stdout.split()
    assert len(lost) == 1 and lost[0].startswith("berth-b-")


def test_rm_obeys_the_service(sandboxes):
    """A workspace in which a command runs is not removed without --force; a sandbox that is gone already is."""
    sandboxes.profile()
    sandboxes.berth("create", "--provider", "plain", "a", check=True)
    sandboxes.berth("exec", "-w", "a", "--detach", "--", "sleep", "100", check=True)
    out = sandboxes.berth("rm", "a")
    assert out.returncode == 1 and len(sandboxes.boxes()) == 1
    assert sandboxes.place("a")["state"] == "ready"
    sandboxes.berth("rm", "-f", "a", check=True)
    assert sandboxes.boxes() == []
    sandboxes.berth("create", "--provider", "plain", "a", check=True)
    boxes_here.destroy(one(sandboxes)["name"])
    assert "there     gone" in sandboxes.berth("provider", "status", "a").stdout
    rows = json.loads(sandboxes.berth("ls", "--json").stdout)
    assert rows[0]["state"] == "unreachable"
    sandboxes.berth("rm", "a", check=True)
    assert sandboxes.place_names() == []


def many(sandboxes, count, url):
    """Places of sandboxes that nobody made."""
    sandboxes.places.mkdir(mode=0o700, parents=True)
    for number in range(count):
        document = {"version": 1, "id": f"w{number}", "provider": "plain", "sandbox": f"berth-w{number}",
                    "name": f"berth-w{number}", "parameters": {}, "url": url, "state": "ready", "created": 1,
                    "created_by": "me"}
        path = sandboxes.places / f"w{number}.json"
        path.write_text(json.dumps(document))
        path.chmod(0o600)


@pytest.mark.long
def test_places_by_the_hundred(sandboxes):
    """Each is a line, and each is asked, 16 at once."""
    sandboxes.profile()
    log = sandboxes.state / "asked"
    many(sandboxes, 200, f"exec:echo >> {log}; exit 1")
    names = sandboxes.berth("ls", "-q", check=True).stdout.split()
    assert sorted(names) == sorted(f"w{number}" for number in range(200)) and not log.exists()
    rows = json.loads(sandboxes.berth("ls", "--json", check=True).stdout)
    assert [row["state"] for row in rows] == ["unreachable"] * 200
    # All of them, on a machine that has the time.
    assert 16 < len(log.read_text()) <= 200


@pytest.mark.long
def test_hundreds_that_hang_are_listed(sandboxes):
    many(sandboxes, 200, "exec:exec sleep 60")
    start = time.monotonic()
    rows = json.loads(sandboxes.berth("ls", "--json", check=True, timeout=60).stdout)
    assert [row["state"] for row in rows] == ["unreachable"] * 200 and 14 < time.monotonic() - start < 30


@pytest.mark.long
def test_one_that_hangs_is_listed(sandboxes):
    sandboxes.profile()
    sandboxes.berth("create", "--provider", "plain", "a", "b", check=True)
    sandboxes.misbehave("hang-exec")
    start = time.monotonic()
    rows = json.loads(sandboxes.berth("ls", "--json").stdout)
    assert [row["state"] for row in rows] == ["unreachable"] * 2 and time.monotonic() - start < 12
    start = time.monotonic()
    assert sandboxes.berth("ls", "-q").stdout == "a\nb\n" and time.monotonic() - start < 4


def test_connection_is_held(sandboxes):
    """A second command costs no new program of the vendor's."""
    sandboxes.profile()
    more = {"BERTH_PERSIST": "5"}
    sandboxes.berth("create", "--provider", "plain", "a", check=True, more=more)
    sandboxes.berth("exec", "-w", "a", "--", "true", check=True, more=more)
    before = len(sandboxes.calls())
    for _ in range(3):
        sandboxes.berth("exec", "-w", "a", "--", "true", check=True, more=more)
    assert len(sandboxes.calls()) == before
    sandboxes.berth("rm", "a", check=True, more=more)
    sandboxes.berth("connection", "stop", "--all", check=False)


def test_snapshots_over_a_held_connection(sandboxes):
    sandboxes.profile()
    more = {"BERTH_PERSIST": "5"}
    sandboxes.berth("create", "--provider", "plain", "a", check=True, more=more)
    sandboxes.berth("exec", "-w", "a", "--", "touch", "kept", check=True, more=more)
    before = len(sandboxes.calls())
    assert sandboxes.berth("snapshot", "create", "a", "s1", check=True, more=more).stdout == "s1\n"
    assert sandboxes.berth("snapshot", "ls", "-q", "a", check=True, more=more).stdout == "s1\n"
    sandboxes.berth("visibility", "a", "--add", "*.o", check=True, more=more)
    sandboxes.berth("exec", "-w", "a", "--", "rm", "kept", check=True, more=more)
    sandboxes.berth("snapshot", "restore", "a", "s1", check=True, more=more)
    sandboxes.berth("exec", "-w", "a", "--", "test", "-e", "kept", check=True, more=more)
    assert len(sandboxes.calls()) == before
    sandboxes.berth("rm", "a", check=True, more=more)
    sandboxes.berth("connection", "stop", "--all", check=False)


def test_commands_without_a_workspace(sandboxes):
    """What names no workspace finds those of providers that are connected, and starts no program of theirs."""
    sandboxes.profile()
    more = {"BERTH_PERSIST": "60"}

    def berth(*words, **keywords):
        return sandboxes.berth(*words, more=more, **keywords)
    berth("create", "--provider", "plain", "a", check=True)
    started = berth("exec", "-w", "a", "--detach", "--", "sh", "-c", "echo said; exec sleep 100", check=True)
    command = started.stdout.strip()
    before = len(sandboxes.calls())
    assert berth("ps", "-q", check=True).stdout == command + "\n"
    wait_until(lambda: berth("logs", command, check=True).stdout == "said\n", 10, "its output")
    assert f"{command}: " in berth("kill", command, check=True).stdout
    assert berth("wait", command).returncode == 143
    berth("snapshot", "create", "a", "s1", check=True)
    assert berth("snapshot", "ls", "-q", check=True).stdout == "s1\n"
    berth("snapshot", "rm", "-w", "a", "s1", check=True)
    assert berth("snapshot", "ls", "-q", check=True).stdout == ""
    for words in (["fork", "a", "b"], ["create", "--fork", "a", "b"]):
        out = berth(*words)
        assert out.returncode == 1 and "berth export a" in out.stderr, out
    assert len(sandboxes.calls()) == before
    berth("connection", "stop", "--all", check=True)
    out = berth("kill", command)
    assert out.returncode == 1 and "no such command" in out.stderr and "1 workspace is" in out.stderr
    assert berth("ps", "-q", check=True).stdout == "" and len(sandboxes.calls()) == before
    berth("rm", "-f", "a", check=True)
    berth("connection", "stop", "--all")


def test_files_from_an_archive(sandboxes, tmp_path):
    sandboxes.profile()
    (tmp_path / "f").write_text("content\n")
    archive = tmp_path / "a.tar"
    subprocess.run(["tar", "-cf", archive, "-C", tmp_path, "f"], check=True, timeout=20)
    sandboxes.berth("create", "--provider", "plain", "--from", str(archive), "a", check=True)
    assert sandboxes.berth("exec", "-w", "a", "--", "cat", "f", check=True).stdout == "content\n"
    out = sandboxes.berth("export", "a", str(tmp_path / "out.tar"), check=True)
    assert "f" in subprocess.run(["tar", "-tf", tmp_path / "out.tar"], check=True, timeout=20, capture_output=True,
                                 text=True).stdout
    sandboxes.berth("rm", "a", check=True)


BROKEN = [
    ({"extra": 1}, "unknown key extra"), ({"profile": 2}, "profile: must be 1"), ({"name": "plain", "tried": "no"}, "tried"),
    ({"connect": []}, "connect: must begin"), ({"connect": ["x", "{nope}"]}, "{nope} is neither"),
    ({"connect": ["{image}"]}, "must begin with the program"), ({"connect": ["x", "a\nb"]}, "control characters"),
    ({"connect": ["x", ["y", ["z"]]]}, "connect[1][1]"), ({"connect": "here"}, '"default"'),
    ({"create": [{"run": ["x"], "timeout": 0}]}, "timeout"), ({"create": [{"run": ["x"], "shell": "y"}]}, "unknown key shell"),
    ({"destroy": [{"run": ["x"], "capture": "sandbox"}]}, "capture"), ({"gone": {}}, "says anything"),
    ({"gone": {"status": [0]}}, "exit status"), ({"status": {"run": ["x"], "states": {"a": "odd"}}}, "a state is"),
    ({"policy": {"color": []}}, "unknown field color"), ({"policy": {"inside": ["color"]}}, "unknown field color"),
    ({"parameters": {"name": {"help": "x"}}}, "means something else"), ({"parameters": {"a": {}}}, "help"),
    ({"parameters": {"a": {"help": "x", "pattern": "["}}}, "expression"),
    ({"parameters": {"a": {"help": "x", "pattern": "^b$", "default": "c"}}}, "does not match"),
    ({"unreached": {}}, "says anything"), ({"bound_to": {"environment": ["a b"]}}, "no name of a variable"),
    ({"bound_to": {"secrets": ["LD_PRELOAD"]}}, "no name of a variable"), ({"bound_to": {"to": []}}, "unknown key to"),
    ({"parameters": {"a": {"help": "x", "default_from": ["y"]}}}, 'whose "default" is ""'),
    ({"parameters": {"a": {"help": "x", "default": "", "default_from": ["y", "{image}"]}}}, "{image}"),
    ({"summary": ""}, "summary"), ({"create": [{"run": ["x", "{value}"]}]}, "{value} is neither"),
]


def test_profiles_are_checked(sandboxes):
    for changes, words in BROKEN:
        sandboxes.profile(**changes)
        out = sandboxes.berth("provider", "show", "plain")
        assert out.returncode == 1 and words in out.stderr, (changes, out.stderr)
    path = sandboxes.profiles / "plain.json"
    for text, words in (("{", "not valid JSON"), ("[]", "must be an object"), (" " * 200000, "larger than"),
                        ('{"a":1,"a":2}', "not valid JSON")):
        path.write_text(text)
        out = sandboxes.berth("provider", "show", "plain")
        assert out.returncode == 1 and words in out.stderr, out.stderr
    sandboxes.profile()
    path.chmod(0o666)
    out = sandboxes.berth("provider", "show", "plain")
    assert out.returncode == 1 and "nobody else can write" in out.stderr
    listed = sandboxes.berth("provider", "ls", check=True).stdout
    assert "nobody else can write" in listed and "ssh" in listed
    path.chmod(0o644)
    assert json.loads(sandboxes.berth("provider", "show", "plain", check=True).stdout)["name"] == "plain"
    checked = sandboxes.berth("provider", "check", "plain:image=tiny", check=True).stdout
    assert "not tried against the real one" in checked and "memory               vendor" in checked
    assert "network none         vendor, inside" in checked and "cpu                  refused" in checked
    assert "tiny" in checked


def test_check_asks_and_lists(sandboxes):
    sandboxes.profile()
    out = sandboxes.berth("provider", "check", "plain", check=True).stdout
    assert "it answers" in out and "image" in out and "the image (small)" in out
    sandboxes.misbehave("fail-list")
    out = sandboxes.berth("provider", "check", "plain")
    assert out.returncode == 1 and "quota is used up" in out.stderr
    out = sandboxes.berth("provider", "check", "ssh")
    assert out.returncode == 1 and "identity" in out.stdout and "(needed)" in out.stdout
    # What is there cannot be known while the machine does not answer.
    out = sandboxes.berth("create", "--provider", "ssh:host=127.0.0.1,port=1", "a",
                          more={"BERTH_STATIC_BERTHD": "/nonexistent"})
    assert out.returncode == 1 and "refused" in out.stderr and "static berthd" not in out.stderr


def test_what_is_missing_is_named(sandboxes):
    sandboxes.profile(needs=["no-such-program"])
    out = sandboxes.berth("create", "--provider", "plain", "a")
    assert out.returncode == 1 and "no-such-program" in out.stderr and "not installed" in out.stderr
    sandboxes.profile()
    out = sandboxes.berth("create", "--provider", "plain", "a", more={"BERTH_STATIC_BERTHD": "/nonexistent"})
    assert out.returncode == 1 and "static berthd" in out.stderr
    out = sandboxes.berth("create", "--provider", "nope", "a")
    assert out.returncode == 1 and "there are: " in out.stderr and "plain" in out.stderr
    assert sandboxes.calls() == [] and sandboxes.place_names() == []
