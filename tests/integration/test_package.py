"""Debian packages of what was built, installed on a machine that systemd runs, used there, and removed."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from lib.booted import Booted
from lib.harness import REPOSITORY, wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.unsanitised, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def packages(build_dir, tmp_path_factory):
    """Of this build; or those in BERTH_PACKAGES, to try them themselves."""
    if "BERTH_PACKAGES" in os.environ:
        return {path.name.split("_")[0]: path for path in Path(os.environ["BERTH_PACKAGES"]).glob("*.deb")
                if "-dbgsym_" not in path.name}
    options = json.loads(subprocess.run(["meson", "introspect", "--buildoptions", build_dir], check=True,
                                        capture_output=True, timeout=60).stdout)
    prefix = next(option["value"] for option in options if option["name"] == "prefix")
    if prefix != "/usr":
        pytest.skip("packages are made of a build with --prefix=/usr, as contrib/check makes")
    output = tmp_path_factory.mktemp("packages")
    env = {**os.environ, "DEB_BUILD_OPTIONS": "noautodbgsym nostrip parallel=2"}
    subprocess.run([REPOSITORY / "contrib/build-deb", "--output", output, "--built", build_dir], check=True, env=env,
                   timeout=240, stdin=subprocess.DEVNULL)
    found = {path.name.split("_")[0]: path for path in output.glob("*.deb")}
    assert set(found) == {"berth", "berthd", "berthd-static"}
    return found


# As in docs/install.md.
ACCESS = """install -d /etc/berth && install -d -o berth -g berth -m 700 /etc/berth/access
echo '{"service": {"access_file": "/etc/berth/access/grants"}}' > /etc/berth/berth.json
runuser -u berth -- berth token create --user root -w '*' --verb read
systemctl restart berthd.service
"""


@pytest.fixture
def machine(harness, packages):
    booted = Booted(harness)
    for path in packages.values():
        (booted.root / "tmp" / path.name).write_bytes(path.read_bytes())
    booted.call("sh", "-c", "dpkg -i /tmp/*.deb", check=True, timeout=240)
    return booted


def files_of(booted):
    """Names that have to do with Berth, of what was written and is there."""
    return set(booted.call("find", "/mnt/written", "/run", "-iname", "*berth*", "-not", "-type", "c").stdout.splitlines())


def state(booted, unit):
    text = booted.call("systemctl", "show", "-p", "ActiveState", "-p", "SubState", "-p", "MainPID", "-p", "Result",
                       unit, check=True).stdout
    return dict(line.split("=", 1) for line in text.splitlines())


def check_units(machine):
    call = machine.call
    for where in ("system", "user"):
        for name in ("berthd.socket", "berthd.service", "berthd-keeper.socket", "berthd-keeper.service"):
            path = f"/usr/lib/systemd/{where}/{name}"
            result = call("env", "XDG_RUNTIME_DIR=/tmp", "systemd-analyze", f"--{where}", "verify", path)
            assert (result.returncode, result.stderr) == (0, ""), result
    for name in ("berthd", "berthd-keeper"):
        (exposure,) = re.findall(rf"Overall exposure level for {name}.service: ([\d.]+)",
                                 call("systemd-analyze", "security", "--no-pager", f"{name}.service").stdout)
        assert float(exposure) < 5, name


def test_installed_used_and_removed(machine):
    """In one machine, since to boot it and to install there costs most."""
    call = machine.call
    assert state(machine, "berthd.socket")["ActiveState"] == "active"
    service = state(machine, "berthd.service")
    assert service["ActiveState"] == "active", call("journalctl", "-u", "berthd", "--no-pager").stdout
    main = service["MainPID"]
    assert call("berth", "create", "w", check=True).stdout == "w\n"
    # What its user cannot read is not hidden by mounts, which would go when /etc/shadow is replaced.
    call("berth", "exec", "-w", "w", "--id", "before", "--detach", "--", "sleep", "300", check=True)
    call("useradd", "--groups", "berth", "ada", check=True)
    assert call("berth", "exec", "-w", "w", "--", "cat", "/etc/shadow").stderr == "cat: /etc/shadow: Permission denied\n"
    call("berth", "kill", "-w", "w", "before", check=True)

    # Commands run as the service's user, in namespaces, with what the unit leaves them.
    result = call("berth", "exec", "-w", "w", "--", "sh", "-c", "id -un; ls /dev/null; exit 7")
    assert (result.returncode, result.stdout) == (7, "berth\n/dev/null\n"), result
    policy = call("berth", "policy", "w", check=True).stdout
    assert re.search(r"^require +- +the machine's level is full$", policy, re.MULTILINE), policy
    assert re.search(r"^filesystem +own +own, by mount-namespace and landlock$", policy, re.MULTILINE), policy
    assert re.search(r"^network +none +none, by net-namespace$", policy, re.MULTILINE), policy
    assert "missing      cgroup:" not in policy

    # They are of a unit of their own, whose cgroup has no process itself, so that it can hand down controllers.
    keeper = state(machine, "berthd-keeper.service")
    assert keeper["ActiveState"] == "active"
    assert call("grep", "^0::", f"/proc/{keeper['MainPID']}/cgroup").stdout == "0::/system.slice/berthd-keeper.service/keeper\n"
    assert call("cat", "/sys/fs/cgroup/system.slice/berthd-keeper.service/cgroup.procs").stdout == ""

    # A restart loses no command; its clients wait for the new one.
    call("berth", "exec", "-w", "w", "--id", "long", "--detach", "--", "sleep", "300", check=True)
    call("systemctl", "restart", "berthd.service", check=True)
    assert state(machine, "berthd.service")["MainPID"] not in (main, "0")
    assert "long" in call("berth", "ps", "-w", "w", check=True).stdout
    call("systemctl", "reload", "berthd.service", check=True)

    # So does an upgrade.
    main = state(machine, "berthd.service")["MainPID"]
    call("sh", "-c", "dpkg -i /tmp/berthd_*.deb", check=True, timeout=240)
    assert state(machine, "berthd.service")["MainPID"] not in (main, "0")
    assert "long" in call("berth", "ps", "-w", "w", check=True).stdout

    # Started by its socket alone.
    call("berth", "kill", "-w", "w", "long", check=True)
    call("systemctl", "stop", "berthd.service")
    assert state(machine, "berthd.service")["ActiveState"] == "inactive"
    assert "w" in call("berth", "ls", check=True).stdout
    assert state(machine, "berthd.service")["ActiveState"] == "active"

    # Who is not in the group does not come near it; who is, as far as the access file says.
    url = ("berth", "--url", "unix:/run/berth/berthd.sock", "ls")
    assert "permission denied" in call(*url, uid=65534).stderr
    call("sh", "-ec", ACCESS, check=True)
    as_ada = ("runuser", "-u", "ada", "--")
    assert call(*as_ada, *url).returncode == 1
    call("runuser", "-u", "berth", "--", "berth", "token", "create", "--user", "ada", "-w", "*", "--verb", "read", check=True)
    assert "w" in call(*as_ada, *url, check=True).stdout
    assert call(*as_ada, *url[:3], "create", "x").returncode == 1

    # mount(8) finds its helper; root's own mounts have their place beside the machine's socket.
    (machine.root / "mnt/agents").mkdir()
    (machine.root / "etc/fstab").write_text(
        "none /mnt/agents fuse.berth noauto,_netdev,url=unix:/run/berth/berthd.sock 0 0\n")
    call("mount", "/mnt/agents", check=True)
    call("sh", "-c", "echo hello > /mnt/agents/w/note", check=True)
    result = call("sh", "-c", "cd /mnt/agents/w && exec berth exec -- cat note")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result
    call("umount", "/mnt/agents", check=True)

    # Removed, with nothing left that runs; purged, with nothing left at all.
    call("dpkg", "--remove", "berth", "berthd", "berthd-static", check=True, timeout=240)
    wait_until(lambda: not call("pgrep", "-x", "berthd").stdout, 20, "the end of all of it")
    assert call("ls", "/var/lib/berth/workspaces").stdout == "w\n", "what was made with it is kept"
    call("dpkg", "--purge", "berth", "berthd", "berthd-static", check=True, timeout=240)
    call("rm", "-r", "/etc/berth", check=True)  # the administrator's own
    assert files_of(machine) == set()

    # Again, for a user that is there already, by who keeps his files to himself. What the administrator has added to a
    # unit and mounted below the service's directory stays.
    drop_in = machine.root / "etc/systemd/system/berthd-keeper.service.d/tasks.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nTasksMax=77\n")
    call("sh", "-c", "umask 077; dpkg -i /tmp/*.deb", check=True, timeout=240)
    call("berth", "create", "again", check=True)
    assert call("berth", "exec", "-w", "again", "--", "id", "-un").stdout == "berth\n"
    assert "TasksMax=77" in call("systemctl", "show", "berthd-keeper.service").stdout
    for path in ("/usr/bin/berthd", "/usr/lib/systemd/system/berthd.service", "/run/berth"):
        assert call("runuser", "-u", "nobody", "--", "ls", "-ld", path).returncode == 0
    check_units(machine)  # man(1), which is asked for what they name, leaves pages behind
    call("mkdir", "-p", "/var/lib/berth/mounted", check=True)
    call("mount", "-t", "tmpfs", "none", "/var/lib/berth/mounted", check=True)
    call("touch", "/var/lib/berth/mounted/precious", check=True)
    call("dpkg", "--purge", "berth", "berthd", "berthd-static", check=True, timeout=240)
    assert call("ls", "/var/lib/berth/mounted").stdout == "precious\n"
    assert not (machine.root / "var/lib/berth/workspaces").exists() and drop_in.exists()
