"""What `ninja install` puts where: programs that users run are in their PATH."""

import json
import os
import subprocess

import pytest


@pytest.fixture(scope="module")
def prefix(build_dir, tmp_path_factory):
    """The prefix within a staging directory that everything was installed into."""
    stage = tmp_path_factory.mktemp("stage")
    subprocess.run(["meson", "install", "--no-rebuild", "--quiet", "-C", build_dir,
                    "--destdir", stage], check=True, timeout=120)
    options = json.loads(subprocess.run(["meson", "introspect", "--buildoptions", build_dir],
                                        check=True, capture_output=True, timeout=60).stdout)
    (place,) = (option["value"] for option in options if option["name"] == "prefix")
    return stage / place.lstrip("/")


@pytest.mark.timeout(240)
def test_programs(prefix, binaries):
    assert {"berth", "berthd", "berthfs"} <= set(os.listdir(prefix / "bin"))
    static = {"berthd-static"} if "berthd-static" in binaries else set()
    assert set(os.listdir(prefix / "libexec" / "berth")) == {"berth-network"} | static, "nobody types its name"
    assert os.listdir(prefix / "sbin") == ["mount.fuse.berth"], "mount(8) alone looks there"


@pytest.mark.timeout(240)
def test_a_moved_prefix(prefix, build_dir):
    """What is left to berth-network is found from berth itself; where it is not, its path is named."""
    words = [prefix / "bin" / "berth", "--url", "http://127.0.0.1:1", "ls"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "berth-network" not in result.stderr
    program = prefix / "libexec" / "berth" / "berth-network"
    program.rename(f"{program}.away")
    try:
        result = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert "/libexec/berth/berth-network" in result.stderr
    finally:
        program.with_name(program.name + ".away").rename(program)


@pytest.mark.timeout(240)
def test_manual_pages(prefix):
    manual = prefix / "share" / "man"
    for page in ("man1/berth.1", "man5/berth.json.5", "man7/berth-visibility.7", "man8/berthd.8",
                 "man8/berthfs.8"):
        assert (manual / page).read_text().startswith('.\\"'), page
    alias = manual / "man8" / "mount.fuse.berth.8"
    assert alias.resolve() == (manual / "man8" / "berthfs.8").resolve()
