"""Fixtures and looks of tests about joined mounts: import them by name."""

import json
import os
import time

import pytest

from lib import harness as parts

SOON = 2.6  # seconds: JOIN_ANSWER_MS, and what a busy machine takes


@pytest.fixture
def configure(harness):
    """configure(NAME=service or URL, …): the file that all programs of the test read."""
    def go(**services):
        directory = harness.directory / "home" / "config" / "berth"
        directory.mkdir(parents=True, exist_ok=True)
        urls = {name: getattr(service, "url", service) for name, service in services.items()}
        (directory / "berth.json").write_text(json.dumps(
            {"client": {"services": {name: {"url": url} for name, url in urls.items()}}}))
        return ":".join(urls)
    return go


@pytest.fixture
def join(harness, fuse_works, configure):
    """join(NAME=service, …, options=[…]): a mount of these."""
    def go(options=(), services=None, **members):
        names = configure(**members) if members else ""
        path = harness.new_path("joined")
        path.mkdir()
        argv = [harness.program("berthfs"), path, "-f", "-o", f"services={services or names}"]
        for option in options:
            argv += ["-o", option]
        return parts.Mount(harness, argv, path, harness.env)
    return go


@pytest.fixture
def berth(harness):
    def go(*words, **keywords):
        return harness.run([harness.program("berth"), *words], env=harness.env, **keywords)
    return go


def set_default(harness, service):
    path = harness.directory / "home" / "config" / "berth" / "berth.json"
    told = json.loads(path.read_text())
    told["client"]["url"] = service.url
    path.write_text(json.dumps(told))


def members(mount):
    told = json.loads(os.getxattr(mount.path, "user.berth.mount"))
    return {member["name"]: member for member in told["members"]}


def until_state(mount, name, state, timeout=15):
    parts.wait_until(lambda: members(mount)[name]["state"] == state, timeout, f"{name} {state}")


def within(seconds, function, *arguments):
    begun = time.monotonic()
    result = function(*arguments)
    took = time.monotonic() - begun
    assert took < seconds, f"took {took:.2f} s"
    return result
