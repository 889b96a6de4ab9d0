"""Which workspace a directory is in: mounts seen in unusual ways, dead, silent and lying ones."""

import json
import os
import signal
import subprocess
import time

import pytest

from lib import mounts
from lib.joined import configure, join, set_default, until_state  # noqa: F401, fixtures
from lib.rawfuse import HOLD, RawMount

# What a command that is not found in time may take beyond the driver's own time-out.
SLACK = 8

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount like this")


@pytest.fixture
def raw_mount(harness, fuse_works):
    made = []

    def make(**keywords):
        made.append(RawMount(harness.new_path("raw"), **keywords))
        return made[-1]

    yield make
    for mount in made:
        mount.close()


def where(harness, cwd, *words, **keywords):
    return harness.run(["berth", "exec", "--path", "remote", *words, "--", "pwd"], cwd=cwd, **keywords)


def shown(result, service, name):
    """The workspace's directory that pwd printed, relative to its root."""
    assert result.returncode == 0, result
    tree = f"{service.root}/workspaces/{name}/tree"
    line = result.stdout.removesuffix("\n")
    assert line == tree or line.startswith(tree + "/"), line
    return line[len(tree):]


@pytest.mark.parametrize("directory", ["", "d", "d/e", "d/with blank\t\n\\040", "d/caf\u00e9", "d/ (deleted)"])
def test_directories(harness, run_berth, service, mount, directory):
    run_berth("create", "a/b", check=True)
    path = mount.path / "a%2Fb" / directory
    path.mkdir(parents=True, exist_ok=True)
    result = harness.run(["berth", "exec", "--path", "remote", "--", "sh", "-c", "printf %s \"$PWD\""], cwd=path)
    assert shown(result, service, "a%2Fb").lstrip("/") == directory


def test_mountpoint_with_an_awkward_name(harness, run_berth, service, start_mount):
    run_berth("create", "demo", check=True)
    point = harness.new_path("with blank\t,\\040 and\nline")
    start_mount(service, path=point)
    assert shown(where(harness, point / "demo"), service, "demo") == ""


def test_one_workspace(harness, run_berth, service, fuse_works):
    thread_id = b"\xff/one\n"
    run_berth("create", thread_id, check=True)
    point = harness.new_path("one")
    point.mkdir()
    run_berth("mount", "-w", thread_id, point, check=True)
    (point / "d").mkdir()
    assert shown(where(harness, point / "d"), service, "%FF%2Fone%0A") == "/d"
    assert shown(where(harness, point), service, "%FF%2Fone%0A") == ""
    run_berth("umount", point, check=True)


def test_root_of_all_workspaces(harness, service, mount):
    result = where(harness, mount.path)
    assert result.returncode == 125 and "shows all workspaces" in result.stderr


def test_outside_of_any_mount(harness, service):
    result = where(harness, harness.directory)
    assert result.returncode == 125 and "not in a Berth mount" in result.stderr and "-w" in result.stderr


@needs_root
def test_bind_mounts(harness, run_berth, service, mount):
    run_berth("create", "demo", check=True)
    (mount.path / "demo" / "d" / "e").mkdir(parents=True)
    for part, there, rest in (("demo", "d", "/d"), ("demo/d", "e", "/d/e"), ("", "demo/d", "/d")):
        point = harness.new_path("bound")
        point.mkdir()
        subprocess.run(["mount", "--bind", mount.path / part, point], check=True, timeout=20)
        try:
            assert shown(where(harness, point / there), service, "demo") == rest
        finally:
            subprocess.run(["umount", point], check=True, timeout=20)


@needs_root
def test_working_directory_that_was_removed(harness, run_berth, service, mount):
    run_berth("create", "demo", check=True)
    path = mount.path / "demo" / "d"
    path.mkdir()
    script = f"cd {path} && rmdir {path} && exec berth exec -- pwd"
    result = harness.run(["sh", "-c", script])
    assert result.returncode == 125 and "has been removed" in result.stderr


def test_mount_that_was_taken_down_lazily(harness, run_berth, service, mount):
    run_berth("create", "demo", check=True)
    script = f"cd {mount.path}/demo && berth umount -l {mount.path} && exec berth exec -- pwd"
    result = harness.run(["sh", "-c", script])
    assert result.returncode == 125 and "taken down" in result.stderr
    mount.popen.wait(20)


def test_the_mounts_service_is_used_unless_another_is_named(harness, run_berth, start_service, start_mount):
    one, two = start_service(), start_service()
    for service in (one, two):
        run_berth("create", "demo", service=service, check=True)
    path = start_mount(one).path / "demo"
    assert shown(where(harness, path), one, "demo") == ""
    other = {**harness.env, "BERTH_URL": two.url}
    assert shown(where(harness, path, env=other), two, "demo") == ""
    named = harness.run(["berth", "--url", two.url, "exec", "--path", "remote", "--", "pwd"], cwd=path)
    assert shown(named, two, "demo") == ""
    config = {**harness.env, "XDG_CONFIG_HOME": str(harness.directory)}
    (harness.directory / "berth").mkdir()
    (harness.directory / "berth" / "berth.json").write_text(json.dumps({"client": {"url": two.url}}))
    assert shown(where(harness, path, env=config), one, "demo") == ""


def test_settings_of_the_mount_are_used(harness, run_berth, start_service, start_mount):
    """Token and CA come from the mount, though the caller's environment has none."""
    service = start_service(tls=True)
    run_berth("create", "demo", check=True)
    mount = start_mount(service, url=service.tls_url, env=service.client_env(service.tls_url))
    assert shown(where(harness, mount.path / "demo"), service, "demo") == ""
    wrong = {**harness.env, "BERTH_TOKEN_FILE": "/nowhere", "BERTH_CA_FILE": "/nowhere"}
    assert shown(where(harness, mount.path / "demo", env=wrong), service, "demo") == ""


# --- dead and silent mounts ------------------------------------------------------------------

def state_of(run_berth, point):
    result = run_berth("status", "--json")
    row = next(row for row in json.loads(result.stdout)["mounts"] if row["mountpoint"] == str(point))
    return result.returncode, row["state"], row.get("error", "")


def shell_inside(harness, directory):
    """A shell that has entered the directory, and runs berth exec there after a line of input.
    It must be in before the mount goes bad: entering asks the driver."""
    script = f"cd {directory} && echo in && read line && exec berth exec -- pwd"
    inside = subprocess.Popen(["sh", "-c", script], env=harness.env, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert inside.stdout.readline() == "in\n"
    return inside


def test_dead_mount(harness, run_berth, service, raw_mount):
    mount = raw_mount(answer="{}", source=service.client_env()["BERTH_URL"])
    inside = shell_inside(harness, mount.point)
    try:
        mount.die()
        _, err = inside.communicate("go\n", 30)
    finally:
        inside.kill()
        inside.communicate()
    assert inside.returncode == 125 and "is dead" in err and f"berth umount {mount.point}" in err
    status, state, error = state_of(run_berth, mount.point)
    assert (status, state) == (0, "dead") and "berth umount" in error
    doctor = run_berth("doctor")
    assert doctor.returncode == 1 and "Transport endpoint is not connected" in doctor.stdout
    run_berth("umount", mount.point, check=True)
    assert not mounts.find_mount(mount.point)


def test_dead_mount_by_relative_words(harness, run_berth, service, raw_mount):
    mount = raw_mount(answer="{}")
    mount.die()
    run_berth("umount", f"{mount.point.name}/", cwd=mount.point.parent, check=True)
    assert not mounts.find_mount(mount.point)


def test_mount_whose_driver_is_stopped(harness, run_berth, service, mount):
    """Nobody waits longer than the driver's own time-out."""
    run_berth("create", "demo", check=True)
    inside = shell_inside(harness, mount.path / "demo")
    mount.signal(signal.SIGSTOP)
    try:
        before = time.monotonic()
        _, err = inside.communicate("go\n", 40)
        assert time.monotonic() - before < 10 + SLACK
        assert inside.returncode == 125 and "does not answer" in err
        before = time.monotonic()
        assert state_of(run_berth, mount.path)[:2] == (0, "silent")
        doctor = run_berth("doctor")
        assert time.monotonic() - before < 2 * 3 + SLACK
        assert doctor.returncode == 1 and "does not answer" in doctor.stdout
    finally:
        inside.kill()
        inside.communicate()
        mount.signal(signal.SIGCONT)


def test_umount_of_a_path_in_a_stopped_mount(harness, run_berth, service, mount):
    run_berth("create", "demo", check=True)
    mount.signal(signal.SIGSTOP)
    try:
        before = time.monotonic()
        result = run_berth("umount", mount.path / "demo", timeout=50)
        assert time.monotonic() - before < 10 + SLACK
        assert result.returncode == 1 and "does not answer" in result.stderr
        run_berth("umount", "-l", mount.path, check=True)
    finally:
        mount.signal(signal.SIGCONT)
    mount.popen.wait(20)


@pytest.mark.parametrize("answer", [None, HOLD.decode()])
def test_output_ends_though_a_driver_keeps_a_child(harness, run_berth, service, raw_mount, answer):
    """A child stuck in the mount, until that ends, holds none of our descriptors: pipelines end."""
    mount = raw_mount(answer=answer)
    result = harness.run(["sh", "-c", "berth status | cat"], env=service.client_env(), timeout=60)
    assert "silent" in result.stdout
    if answer:
        assert "user.berth.mount" in mount.asked
    mount.close()


# --- mounts that lie -------------------------------------------------------------------------

@needs_root
@pytest.mark.parametrize("user, trusted", [(0, True), (65534, False)])
def test_a_mount_of_another_user_is_not_trusted(harness, run_berth, raw_mount, user, trusted):
    """What a mount says names a command to run. Anybody can make one that says anything."""
    marker = harness.directory / "ran"
    answer = json.dumps({"url": f"exec:touch {marker}; false", "workspace": "demo", "stats": {}})
    mount = raw_mount(answer=answer, user=user)
    result = where(harness, mount.point)
    assert result.returncode == 125
    assert marker.exists() == trusted
    assert ("user.berth.mount" in mount.asked) == trusted
    if not trusted:
        assert "another user" in result.stderr and "65534" in result.stderr
        assert state_of(run_berth, mount.point)[1] == "foreign"


@pytest.mark.parametrize("answer", [
    "", "[]", "{", '{"url": 5}', '{"workspace": "x"}', '{"url": "unix:/x", "workspace": "a\\u0000b"}',
    '{"url": "unix:/x", "workspace_hex": "00"}', '{"url": "unix:/x", "workspace_hex": "zz"}',
    '{"url": "' + "x" * 60000 + '", "workspace": "y"}'])
def test_a_mount_that_answers_nonsense(harness, raw_mount, answer):
    mount = raw_mount(answer=answer)
    result = where(harness, mount.point)
    assert result.returncode == 125 and result.stderr.startswith("berth: exec: "), result


@pytest.mark.parametrize("change", ["mv d/x d/y", "rm -r d/x"])
@pytest.mark.parametrize("again", ["mkdir -p d/x/below", "true"])
def test_a_directory_above_it_was_moved_by_others(harness, run_berth, service, mount, change, again):
    """A command does not run in another directory that has the old path now."""
    run_berth("create", "demo", check=True)
    below = mount.path / "demo" / "d" / "x" / "below"
    below.mkdir(parents=True)
    descriptor = os.open(below, os.O_RDONLY | os.O_DIRECTORY)
    try:
        there = f"/proc/{os.getpid()}/fd/{descriptor}"
        inside = harness.program("berth")
        run_berth("exec", "-w", "demo", "--", "sh", "-c", f"{change} && {again}", check=True)
        os.path.exists(below)
        result = subprocess.run([inside, "exec", "--", "touch", "made"], env=service.client_env(), cwd=there,
                                capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(descriptor)
    assert result.returncode == 125 and result.stderr.startswith("berth: exec: the working directory ")
    assert not list((service.root / "workspaces/demo/tree").rglob("made"))


# --- where the mount that we stood in does not tell its service any more ---------------------

CHANGING = ["rm w", "rm -f w", "exec -w w -- true", "snapshot create w", "stop w", "label w a=b", "create new", "ls -q",
            "export w out.tar", "ps -w w", "policy w"]


def killed(run_berth, one, mount):
    mount.kill()


def taken_down(run_berth, one, mount):
    run_berth("umount", "-l", mount.path, check=True)


def removed(run_berth, one, mount):
    run_berth("rm", "demo", service=one, check=True)


def unreachable(run_berth, one, mount):
    one.kill()
    until_state(mount, "one", "disconnected")


@pytest.mark.parametrize("lose", [killed, taken_down, removed, unreachable])
def test_no_other_service_is_meant(harness, run_berth, start_service, start_mount, configure, join, lose):  # noqa: F811
    one, two = start_service(), start_service()
    for service in (one, two):
        run_berth("create", "demo", "w", service=service, check=True)
    configure(one=one, two=two)
    set_default(harness, two)
    mount = join(services="one:two", options=["timeout=1"]) if lose is unreachable else start_mount(one)
    if lose is unreachable:
        until_state(mount, "one", "connected")
    place = next(mount.path.glob("demo@one" if lose is unreachable else "demo"))
    inside = subprocess.Popen(["sh", "-c", f"cd {place} && echo in && read line && " + "".join(
        f"berth {words}; echo $?; " for words in CHANGING)], env=harness.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    assert inside.stdout.readline() == "in\n"
    before = run_berth("ls", "--json", service=two, check=True).stdout
    lose(run_berth, one, mount)
    out, err = inside.communicate("go\n", 60)
    assert all(word in ("1", "125") for word in out.split()) and len(out.split()) == len(CHANGING), (out, err)
    # A member's own service may still be known, and then is what is not reached.
    assert err.count("name a service (--service, --url)") + err.count("nobody listens on the socket") == len(CHANGING), err
    assert "-w ID" not in err
    assert json.loads(run_berth("ls", "--json", service=two, check=True).stdout) == json.loads(before)
    assert json.loads(run_berth("snapshot", "ls", "--json", service=two, check=True).stdout) == []


def test_in_what_is_mounted_inside_a_workspace(harness, run_berth, start_service, start_mount, configure):  # noqa: F811
    """It is no part of the workspace; who stands there means no other service's for all that."""
    one, two = start_service(), start_service()
    for service in (one, two):
        run_berth("create", "demo", "w", service=service, check=True)
    configure(one=one, two=two)
    set_default(harness, two)
    over = start_mount(one).path / "demo" / "over"
    over.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", over], check=True, timeout=20)
    try:
        assert "inside the Berth mount at" in where(harness, over).stderr
        for words in CHANGING:
            done = harness.run(["sh", "-c", f"cd {over} && berth {words}"])
            assert done.returncode in (1, 125) and "inside the Berth mount at" in done.stderr, (words, done)
        assert sorted(run_berth("ls", "-q", service=two, check=True).stdout.split()) == ["demo", "w"]
    finally:
        subprocess.run(["umount", over], check=True, timeout=20)


def test_a_removed_directory_of_no_mount(harness, run_berth, service, configure):  # noqa: F811
    run_berth("create", "w", check=True)
    configure()
    set_default(harness, service)
    gone = harness.new_path("gone")
    gone.mkdir()
    assert harness.run(["sh", "-c", f"cd {gone} && rmdir {gone} && exec berth ls -q"], check=True).stdout == "w\n"
