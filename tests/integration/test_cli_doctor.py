"""berth doctor: each thing that a new user gets wrong is found, named, and explained."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from lib import harness as parts
from lib.rawfuse import RawMount


def diagnose(run_berth, *words, problems=(), **keywords):
    """Runs doctor and compares its problems with patterns: each one problem, and no other."""
    result = run_berth(*words, "doctor", **keywords)
    assert result.stderr == "", result.stderr
    lines = result.stdout.splitlines()
    found = [line for line in lines if line.startswith("problem")]
    # Mounts of other tests that run at the same time are of this machine, too.
    found = [line for line in found if not re.match(r"problem +the mount at ", line)
             or any("the mount at" in pattern for pattern in problems)]
    for pattern in problems:
        assert any(re.search(pattern, line) for line in found), result.stdout
    assert len(found) == len(problems), result.stdout
    if problems:
        assert result.returncode == 1
    return result.stdout


def advice_for(text, pattern):
    lines = text.splitlines()
    number = next(number for number, line in enumerate(lines) if re.search(pattern, line))
    return lines[number + 1]


# --- a machine that is well --------------------------------------------------------------------

def test_all_is_well(run_berth, service, mount):
    text = diagnose(run_berth)
    assert "ok       /dev/fuse can be opened" in text
    assert f"service: {service.url} (from BERTH_URL)" in text
    assert "the service answers: berthd" in text
    assert f"the service's root {service.root} has " in text
    assert f"the mount at {mount.path} is connected" in text
    assert re.search(r"Linux \S+ with .*openat2", text)


def test_over_tls(run_berth, start_service):
    service = start_service(tls=True)
    text = diagnose(run_berth, url=service.tls_url, service=service)
    assert f"bearer token: from {service.token_file}" in text
    assert f"the CA {service.harness.certificates.ca} is valid until" in text


# --- the way to the service --------------------------------------------------------------------

def test_no_service(run_berth, harness):
    text = diagnose(run_berth, problems=["there is no socket .*/run/berth/berthd.sock"])
    assert "`berthd`" in advice_for(text, "there is no socket")
    assert "(from the default)" in text


def test_socket_that_nobody_listens_on(run_berth, harness):
    path = harness.short / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    diagnose(run_berth, "--url", f"unix:{path}", problems=[f"nobody listens on the socket {path}"])


def test_a_service_that_is_stopped(run_berth, harness, service):
    os.kill(service.pid, signal.SIGSTOP)
    try:
        text = diagnose(run_berth, problems=[f"the service on the socket {service.socket} does not answer"])
    finally:
        os.kill(service.pid, signal.SIGCONT)
    assert "stopped" in advice_for(text, "does not answer") and "firewall" not in text


def test_socket_that_is_none(run_berth, harness):
    path = harness.short / "file"
    path.write_text("")
    diagnose(run_berth, "--url", f"unix:{path}", problems=["is not a socket"])


def test_something_else_listens(run_berth, harness):
    path = harness.short / "other.sock"
    other = harness.start("other", "/usr/bin/python3", "-c", "if True:\n"
                          "  import socket, sys\n"
                          "  s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
                          "  print('up', flush=True)\n"
                          "  while True:\n"
                          "    c, _ = s.accept()\n"
                          "    if c.recv(4096): c.sendall(b'220 mail\\r\\n')\n"
                          "    c.close()\n", path)
    other.expected_status = (-15,)
    other.wait_for_line("up")
    text = diagnose(run_berth, "--url", f"unix:{path}", problems=[f"{path}.* not HTTP"])
    assert "is that the port of berthd" in advice_for(text, "^problem")


def test_tcp_port_that_nobody_listens_on(run_berth):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = diagnose(run_berth, "--url", f"http://127.0.0.1:{port}", problems=[str(port)])
    assert "is berthd running there" in advice_for(text, f"problem .*{port}")


def test_wrong_token(run_berth, harness, start_service):
    service = start_service(http=True)
    env = {**harness.env, "BERTH_URL": service.http_url, "BERTH_TOKEN": "wrong"}
    text = diagnose(run_berth, env=env, problems=["token"])
    assert "bearer token: from BERTH_TOKEN" in text and "wrong" not in text.replace("wrong.", "")


def test_missing_authority(run_berth, harness, start_service):
    service = start_service(tls=True)
    env = {**harness.env, "BERTH_URL": service.tls_url, "BERTH_TOKEN": service.token}
    text = diagnose(run_berth, env=env, problems=["certificate|CA"])
    assert "--ca-file" in advice_for(text, "^problem")


def test_command_that_is_none(run_berth):
    text = diagnose(run_berth, "--url", "exec:exit 7", problems=["status 7"])
    assert "berthd --stdio" in advice_for(text, "^problem")


# --- settings ----------------------------------------------------------------------------------

def test_the_directory_of_contents(run_berth, harness, service):
    cache = Path(harness.env["XDG_CACHE_HOME"]) / "berth"
    cache.mkdir(parents=True)
    cache.chmod(0o700)
    assert f"contents of files are kept in {cache}" in diagnose(run_berth)
    cache.chmod(0o750)
    text = diagnose(run_berth)
    assert re.search(f"warning +{cache}: .*mode 0700", text), text
    assert "mounts keep no contents" in advice_for(text, f"warning +{cache}")


def test_unknown_key_of_the_configuration(run_berth, harness):
    path = harness.new_path("berth.json")
    path.write_text('{"client": {"ulr": "unix:/x"}}')
    diagnose(run_berth, "--config", path, problems=[f"{path}.*ulr"])


def test_token_file_that_others_can_read(run_berth, harness, start_service):
    service = start_service(http=True)
    token_file = harness.token_file(service.token, mode=0o644)
    diagnose(run_berth, "--url", service.http_url, "--token-file", token_file,
             problems=[f"settings: .*{token_file}"])


@pytest.mark.parametrize("option", ["--token-file", "--config"])
def test_files_that_are_missing(run_berth, service, option):
    diagnose(run_berth, option, "/nowhere/file", problems=["settings: .*/nowhere/file"])


def test_missing_authority_file(run_berth, service):
    diagnose(run_berth, "--ca-file", "/nowhere/ca.pem", problems=["the CA /nowhere/ca.pem cannot be read"])


def test_authority_file_without_a_certificate(run_berth, harness, service):
    path = harness.new_path("ca.pem")
    path.write_text("nothing\n")
    diagnose(run_berth, "--ca-file", path, problems=["no certificate in PEM form"])


def test_expired_client_certificate(run_berth, certificates, service):
    pem, key = certificates.pair("expired")
    text = diagnose(run_berth, "--cert-file", pem, "--key-file", key,
                    problems=["client certificate .* has expired on 2020-02-01"])
    assert f"the key {key} fits" in text


def test_key_of_another_certificate(run_berth, certificates, service):
    pem, _ = certificates.pair("client")
    _, key = certificates.pair("other_client")
    diagnose(run_berth, "--cert-file", pem, "--key-file", key, problems=["does not fit"])


def test_key_without_a_certificate(run_berth, certificates, service):
    _, key = certificates.pair("client")
    diagnose(run_berth, "--key-file", key, problems=["key without a certificate.*--cert-file"])


def test_key_with_a_pass_phrase_asks_nobody(run_berth, harness, certificates, service):
    pem, key = certificates.pair("client")
    locked = harness.new_path("locked.key")
    harness.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked],
                check=True)
    locked.chmod(0o600)
    diagnose(run_berth, "--cert-file", pem, "--key-file", locked, problems=["cannot be understood"])


def test_key_that_others_can_read_is_a_warning(run_berth, harness, certificates, service):
    pem, key = certificates.pair("client")
    copy = harness.new_path("open.key")
    copy.write_bytes(key.read_bytes())
    copy.chmod(0o644)
    text = diagnose(run_berth, "--cert-file", pem, "--key-file", copy)
    assert f"warning  the key {copy} can be read by others" in text


def test_where_the_url_comes_from(run_berth, harness, service):
    """A configuration file that says nothing of it is not its source."""
    path = harness.new_path("berth.json")
    path.write_text('{"client": {"connect_timeout": 5}}')
    problem = ["there is no socket .*/run/berth/berthd.sock"]
    assert "(from the default)" in diagnose(run_berth, "--config", path, problems=problem,
                                            env=harness.env)
    path.write_text(json.dumps({"client": {"url": service.url}}))
    text = diagnose(run_berth, "--config", path, env=harness.env)
    assert f"service: {service.url} (from the configuration file)" in text


# --- the user's environment ----------------------------------------------------------------------

@pytest.mark.parametrize("home", [None, "", "relative"])
def test_without_a_home(run_berth, service, home):
    env = {name: value for name, value in service.client_env().items() if name != "HOME"}
    if home is not None:
        env["HOME"] = home
    text = diagnose(run_berth, env=env)
    assert "warning  HOME" in text


def test_home_that_does_not_exist(run_berth, service):
    diagnose(run_berth, env={**service.client_env(), "HOME": "/nowhere"})


def test_runtime_directory_that_is_gone(run_berth, harness, service):
    env = {**service.client_env(), "XDG_RUNTIME_DIR": "/nowhere/run"}
    diagnose(run_berth, env=env, problems=["XDG_RUNTIME_DIR is /nowhere/run: No such file"])


def test_runtime_directory_that_others_can_enter(run_berth, harness, service):
    path = harness.new_path("run")
    path.mkdir(mode=0o755)
    env = {**service.client_env(), "XDG_RUNTIME_DIR": str(path)}
    diagnose(run_berth, env=env, problems=["not private"])


def test_runtime_directory_that_is_not_set(run_berth, service):
    env = {name: value for name, value in service.client_env().items() if name != "XDG_RUNTIME_DIR"}
    text = diagnose(run_berth, env=env)
    if os.geteuid() == 0:
        assert "the runtime directory is /run/berth" in text
    else:
        assert "warning  XDG_RUNTIME_DIR is not set" in text


def test_berthfs_that_is_missing(harness, service, run_berth):
    alone = harness.new_path("alone")
    alone.mkdir()
    (alone / "berth").write_bytes(open(harness.program("berth"), "rb").read())
    (alone / "berth").chmod(0o755)
    env = {**service.client_env(), "PATH": "/usr/bin:/bin"}
    result = harness.run([alone / "berth", "doctor"], env=env)
    assert result.returncode == 1 and "berthfs, which mounts, is not found" in result.stdout
    (alone / "berthfs").write_text("#!/bin/sh\necho berthfs 0.0.1\n")
    (alone / "berthfs").chmod(0o755)
    result = harness.run([alone / "berth", "doctor"], env=env)
    assert "berthfs says berthfs 0.0.1" in result.stdout


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change what others see")


def as_nobody(harness, script, env):
    """In a mount namespace of its own, as a user without rights; berth copied to where it can
    be run."""
    place = harness.short / "bin"
    place.mkdir(exist_ok=True)
    harness.short.chmod(0o755)
    (place / "berth").write_bytes(open(harness.program("berth"), "rb").read())
    (place / "berth").chmod(0o755)
    command = f"{script}; exec setpriv --reuid=65534 --regid=65534 --clear-groups {place}/berth doctor"
    return harness.run(["unshare", "-m", "sh", "-c", command],
                       env={**env, "HOME": "/", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}).stdout


@needs_root
def test_what_a_user_without_rights_sees(harness, service, fuse_works):
    """Positive control of the tests below, and: the socket of another user."""
    text = as_nobody(harness, ":", service.client_env())
    assert re.search("ok +/dev/fuse can be opened", text)
    assert re.search("ok +/.*/fusermount3 is set-uid root", text)
    assert re.search("problem +XDG_RUNTIME_DIR is .* not private|XDG_RUNTIME_DIR", text)
    assert re.search(f"problem +the socket {service.socket} belongs to uid 0", text), text


@needs_root
@pytest.mark.parametrize("script, pattern, advice", [
    ("mount -t tmpfs none /dev", "/dev/fuse is missing", "--device /dev/fuse"),
    ("touch $B/empty; mount --bind $B/empty /dev/fuse; chmod 600 /dev/fuse",
     "/dev/fuse may not be opened by this user", "0666"),
    ("mount --bind /bin/true /usr/bin/fusermount3", "not set-uid root", "reinstall fuse3"),
    ("mount --bind /usr/bin /usr/bin; mount -o remount,bind,nosuid /usr/bin",
     "set-uid has no effect", "nosuid"),
])
def test_fuse_that_cannot_be_used(harness, service, script, pattern, advice):
    script = "mount --make-rprivate /; " + script.replace("$B", str(harness.short))
    text = as_nobody(harness, script, service.client_env())
    assert re.search(f"problem +.*{pattern}", text), text
    assert advice in advice_for(text, pattern)


# --- mounts --------------------------------------------------------------------------------------

def test_dead_mount(run_berth, harness, service, fuse_works):
    mount = RawMount(harness.new_path("dead"), answer="{}", source=service.client_env()["BERTH_URL"])
    try:
        mount.die()
        text = run_berth("doctor").stdout
        line = f"the mount at {mount.point} is dead"
        assert re.search(f'problem +{line} .*"Transport endpoint is not connected"', text), text
        assert f"berth umount {mount.point}" in advice_for(text, line)
    finally:
        mount.close()


def test_mount_that_lost_its_service(run_berth, service, mount):
    service.stop()

    def lost():
        text = run_berth("doctor").stdout
        return re.search(f"problem +the mount at {mount.path} has lost its connection", text)

    parts.wait_until(lost, 15, "a lost connection in doctor's words", 0.2)


def test_mount_of_a_workspace_that_was_removed(run_berth, service, start_mount):
    run_berth("create", "gone", check=True)
    mount = start_mount(service, workspace="gone")
    run_berth("rm", "gone", check=True)
    text = run_berth("doctor").stdout
    line = f"problem +the mount at {mount.path} shows a workspace that has been removed"
    assert f"berth umount {mount.path}" in advice_for(text, line)


@needs_root
def test_mount_that_cannot_be_asked(run_berth, harness, service, fuse_works):
    """Nothing is known of it, so nothing is said to be well."""
    mount = RawMount(harness.new_path("foreign"), answer="{}", user=65534)
    try:
        text = run_berth("doctor").stdout
        assert re.search(f"note +the mount at {mount.point} was made by another user", text), text
    finally:
        mount.close()
    mount = RawMount(harness.new_path("nonsense"), answer="[]", source=service.client_env()["BERTH_URL"])
    try:
        text = run_berth("doctor").stdout
        assert re.search(f"problem +the mount at {mount.point} is not of this berthfs", text), text
    finally:
        mount.close()


@needs_root
@pytest.mark.parametrize("there", [True, False])
def test_the_helper_of_mount(harness, service, fuse_works, there):
    sbin = harness.new_path("sbin")
    sbin.mkdir()
    if there:
        (sbin / "mount.fuse.berth").symlink_to(harness.program("berthfs"))
    text = harness.run(["unshare", "-m", "--propagation", "private", "sh", "-c",
                        f"mount --bind {sbin} /sbin && exec berth doctor"],
                       env={**service.client_env(),
                            "PATH": f"{harness.env['PATH']}:/usr/bin:/bin"}).stdout
    word = "ok" if there else "note"
    assert re.search(f"^{word} +/sbin/mount.fuse.berth is ", text, re.MULTILINE), text


@needs_root
def test_what_was_not_seen_to_be_well_is_a_note(harness, service, fuse_works):
    text = as_nobody(harness, "mount --bind /dev/null /etc/fuse.conf",
                     service.client_env())
    assert re.search("^note +mounts are for you alone", text, re.MULTILINE), text
    assert re.search("^(note +the clock says .*nothing|ok +the clock says .*is synchronised)", text,
                     re.MULTILINE), text


def test_names_chosen_by_others_do_not_reach_the_terminal(run_berth, harness, service, fuse_works):
    mount = RawMount(harness.new_path("bad\x1b[31m\nproblem  forged"), answer="{}")
    try:
        mount.die()
        text = run_berth("doctor").stdout
        assert "\x1b" not in text and "bad\\x1b[31m\\x0aproblem  forged" in text
        assert not re.search("^problem  forged", text, re.MULTILINE)
        status = json.loads(run_berth("status", "--json").stdout)
        assert str(mount.point) in [row["mountpoint"] for row in status["mounts"]]
    finally:
        mount.close()
