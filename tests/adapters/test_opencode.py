"""opencode's sandbox module: contrib/adapters/opencode, compiled strictly and tried with node against a real service.
What is tried is in opencode/suite.mjs."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lib.harness import REPOSITORY

pytestmark = pytest.mark.release

ADAPTER = REPOSITORY / "contrib/adapters/opencode"
SUITE = Path(__file__).parent / "opencode/suite.mjs"


@pytest.fixture(scope="session")
def compiled():
    """The adapter as the compiler makes it, once for a build directory and what it is made of."""
    sources = [ADAPTER / name for name in ("package.json", "package-lock.json", "tsconfig.json")]
    sources += sorted((ADAPTER / "src").glob("*.ts"))
    name = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    directory = Path(os.environ["BERTH_BUILD"]) / f"adapters-opencode-{name}"
    directory.mkdir(exist_ok=True)
    with open(directory / "lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            for path in sources:
                target = directory / path.relative_to(ADAPTER)
                target.parent.mkdir(exist_ok=True)
                shutil.copy(path, target)
            for command in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
                            ["node_modules/.bin/tsc", "-p", "."]):
                done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
            (directory / "complete").touch()
    return directory / "dist"


def run_suite(harness, compiled, only, url, service, tests, **environment):
    env = {**service.client_env(url), "DIST": str(compiled), "ONLY": only, "NODE_NO_WARNINGS": "1", **environment}
    done = harness.run(["node", "--test-reporter=tap", SUITE], env=env, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {tests}\n" in done.stdout and "# fail 0\n" in done.stdout, done.stdout


@pytest.mark.matrix
@pytest.mark.timeout(360)
@pytest.mark.parametrize("group, tests", [("life", 2), ("exec", 1), ("output", 1), ("timeout", 1), ("files", 1),
                                          ("snapshots", 1), ("sessions", 1), ("policy", 1)])
def test_the_contract(harness, service, compiled, group, tests):
    run_suite(harness, compiled, group, service.url, service, tests)


@pytest.mark.timeout(360)
def test_services_that_drip(harness, compiled):
    done = harness.run(["node", SUITE.with_name("liars.mjs")], env={**os.environ, "DIST": str(compiled)}, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(360)
@pytest.mark.parametrize("way", [pytest.param("https", marks=pytest.mark.long), "exec"])
def test_other_ways(harness, compiled, way):
    service = harness.start_service(tls=way == "https")
    url = service.tls_url if way == "https" else f"exec:{harness.program('berthd')} --stdio --root {service.root}"
    run_suite(harness, compiled, "exec" if way == "https" else "sessions", url, service, 1)


@pytest.mark.timeout(360)
def test_a_machine_that_cannot(harness, compiled):
    harness.env["BERTH_WITHOUT"] = "net-namespace,seccomp"
    service = harness.start_service()
    run_suite(harness, compiled, "unable", service.url, service, 1)


@pytest.mark.timeout(360)
def test_a_worktree(harness, service, compiled):
    repository = harness.new_path("repository")
    repository.mkdir()
    run_suite(harness, compiled, "worktree", service.url, service, 1, REPOSITORY=str(repository),
              BERTH=harness.program("berth"))


@pytest.mark.timeout(360)
def test_lost_connections(harness, service, compiled):
    relay = harness.start_relay(service)
    run_suite(harness, compiled, "relayed", relay.url, service, 2, RELAY=relay.control, DIRECT=service.url,
              KEEPER=str(service.root / "exec/.lock"))
