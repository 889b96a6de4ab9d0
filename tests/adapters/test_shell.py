"""The recipe for any framework, contrib/adapters/shell, in a POSIX shell."""

import json
import shlex

import pytest

from lib.harness import REPOSITORY

pytestmark = pytest.mark.release

RECIPE = REPOSITORY / "contrib/adapters/shell/berth-sandbox.sh"


@pytest.fixture
def shell(harness, service):
    def shell(line, *words, status=0, **keywords):
        script = f". {shlex.quote(str(RECIPE))}\n{line}\n"
        done = harness.run(["dash", "-euc", script, "test", *words], env=service.client_env(), **keywords)
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done.stdout
    return shell


def test_a_life(shell):
    name = "T/2024:x $(id) '\""
    assert shell('sandbox_create "$1" none --ttl 1h --label a=b', name) == name + "\n"
    shell('sandbox_create "$1" none', name, status=1)
    assert shell('sandbox_get_or_create "$1"', name) == name + "\n"
    assert json.loads(shell('berth policy --json "$1"', name))["asked"]["network"] == "none"
    shell('sandbox_run "$1" 20 "exit 7"', name, status=7)
    assert shell('sandbox_run "$1" 20 \'echo "$X" $1 "$HOME" | head -c 3\' -e "X=a b"', name) == "a b"
    shell('sandbox_run "$1" 1 "sleep 100 & setsid sleep 100"', name, status=124)
    told = json.loads(shell('sandbox_run "$1" 20 "echo out; echo err >&2" --json', name))
    assert (told["verdict"], told["stdout"], told["stderr"]) == ("exited", "out\n", "err\n")
    data = bytes(range(256)) * 5000
    for path in ("a b/c\nd/-x", "/tmp/$(id)/y"):
        shell('sandbox_write "$1" "$2"', name, path, input=data, text=False)
        assert shell('sandbox_read "$1" "$2"', name, path, text=False) == data
    shell('sandbox_read "$1" "a b/c\nd/-x" 100', name, status=69)
    shell('sandbox_run "$1" 20 "mkfifo fifo"; for path in none . fifo; do sandbox_read "$1" $path || echo $?; done > statuses; '
          'test "$(tr "\\n" " " < statuses)" = "66 67 68 "', name)
    shell('echo x | sandbox_write "$1" fifo', name, status=68)
    listed = shell('sandbox_list "$1"; sandbox_list "$1" "a b"', name, text=False)
    assert sorted(listed.split(b"\0")[:-1]) == [b"d a b", b"d c\nd", b"p fifo"]
    shell('sandbox_destroy "$1"; sandbox_destroy "$1"', name)
    shell('sandbox_run "$1" 20 true', name, status=125)


def test_what_cannot_be_held_is_not_made(shell, harness):
    for network in ("", "nowhere", 'x", "y:1', "a:1 b:2", "256.1.1.1:x"):
        shell('sandbox_create a "$1"; exit 9', network, status=2 if not network or '"' in network or " " in network else 1)
    assert shell("berth ls -q") == ""


def test_a_machine_that_cannot(harness):
    harness.env["BERTH_WITHOUT"] = "net-namespace,seccomp"
    service = harness.start_service()
    done = harness.run(["dash", "-c", f". {RECIPE}; sandbox_create a none"], env=service.client_env())
    assert done.returncode == 1 and done.stderr
    assert harness.run_berth("ls", "-q").stdout == ""
