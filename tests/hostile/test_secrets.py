"""Files of the machine's settings that root alone may read: a service of root's runs commands as root, and they
see no more of /etc than everybody may. The service has an /etc of its own here, which is changed under it."""

import os
import shutil

import pytest

from lib.attacks import LEVELS, NOTHING
from lib.exec_client import WORKSPACE

pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(os.geteuid() != 0, reason="only root has secrets of root's")]

SECRET = "secret of the machine\n"

# A file system of that kind with a copy of /etc, then the program.
ETC = {
    "tmpfs": 'cp -a /etc/. "$0/upper" && mount -t tmpfs etc /etc && cp -a "$0/upper/." /etc && exec "$@"',
    # One that maps nobody.
    "overlay": 'mount -t tmpfs none "$0" && mkdir "$0/upper" "$0/work" &&'
               ' mount -t overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" etc /etc && exec "$@"',
}


class Machine:
    def __init__(self, harness, kind, setting):
        self.harness = harness
        place = harness.new_path("etc")
        (place / "upper").mkdir(parents=True)
        if setting.mechanisms:
            harness.env["BERTH_WITHOUT"] = ",".join(setting.mechanisms)
        self.service = harness.start_service(
            wrapper=["unshare", "--mount", "--propagation", "private", "sh", "-c", ETC[kind], place])
        self.etc = f"/proc/{self.service.pid}/root/etc"
        self.write("only-root")
        os.mkdir(f"{self.etc}/only-roots", 0o700)
        self.write("only-roots/file", mode=0o644)
        policy = "{" + ", ".join(f'"{field}": "host"' for field in setting.policy) + "}"
        harness.run_berth("create", "--policy", "-", WORKSPACE, input=policy, check=True)
        shutil.copy(harness.program("attack"), self.service.root / "workspaces" / WORKSPACE / "tree")

    def write(self, name, mode=0o600):
        """By another file that takes its place, as programs do that change passwords."""
        with open(f"{self.etc}/{name}.new", "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(SECRET)
        os.rename(f"{self.etc}/{name}.new", f"{self.etc}/{name}")

    def read(self, *names):
        lines = "".join(f"{name} read /etc/{name}\n" for name in names)
        result = self.harness.run_berth("exec", "-w", WORKSPACE, "-i", "--", "./attack", input=lines, check=True)
        return [line.split()[1] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("level", LEVELS)
def test_what_root_alone_may_read(harness, level):
    machine = Machine(harness, "tmpfs", LEVELS[level])
    names = ("only-root", "only-roots/file", "shadow", "gshadow")
    assert machine.read(*names) == ["EACCES"] * 4
    for name in names:
        machine.write(name)
    # Neither are they there, nor is the workspace fenced.
    assert machine.read(*names) == ["EACCES"] * 4


def test_secrets_are_there_without_what_hides_them(harness):
    machine = Machine(harness, "tmpfs", NOTHING)
    machine.write("shadow")
    assert machine.read("only-root", "only-roots/file", "shadow") == ["through"] * 3


def test_the_list_of_secrets(harness):
    """Where files cannot be made nobody's: those that are known are empty."""
    machine = Machine(harness, "overlay", LEVELS["full"])
    assert machine.read("shadow", "gshadow") == ["nothing"] * 2


def test_what_everybody_may_read_is_there(harness):
    machine = Machine(harness, "tmpfs", LEVELS["no-userns"])
    for name in ("for-all", "ssh/for-all"):
        machine.write(name, mode=0o644)
    assert machine.read("for-all", "ssh/for-all") == ["through", "EACCES"]
