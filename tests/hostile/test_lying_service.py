"""A service that lies to the driver about links and where directories are: what the mount lets be
followed is the driver's to say, not the service's."""

import errno
import os
import stat

import pytest

from lib.peer_service import PeerService

LINK, DIRECTORY = 7, 5


class LyingService(PeerService):
    """Answers every look-up with the same directory, every look-up of "l…" with the same link, and
    the link's text is whatever `text` is. With link_roots, workspaces are links too."""

    def __init__(self, path, link_roots=False):
        self.text, self.link_roots = b"x", link_roots
        super().__init__(path)

    def attr(self, link):
        kind = stat.S_IFLNK | 0o777 if link else stat.S_IFDIR | 0o755
        return {**super().attr(LINK if link else DIRECTORY, kind), "nlink": 2}

    def answer(self, wire, got):
        if got.name == "WORKSPACE_OPEN":
            wire.send("WORKSPACE_ROOT", got.tag, node=1, attr=self.attr(self.link_roots), slot=1,
                      thread_id=got["key"], name=got["key"])
        elif got.name == "LOOKUP":
            link = got["name"].startswith(b"l")
            wire.send("ENTRY", got.tag, node=2 if link else 1, attr=self.attr(link))
        elif got.name == "GETATTR":
            wire.send("ATTRS", got.tag, attr=self.attr(got["node"] == 2 or self.link_roots))
        elif got.name == "READLINK":
            wire.send("DATA", got.tag, data=self.text)
        else:
            super().answer(wire, got)


@pytest.fixture
def lying(harness, fuse_works, start_mount):
    services = []

    def start(**how):
        services.append(LyingService(harness.short / "liar.sock", **how))
        return services[0], start_mount(url=services[0].url, env=harness.env).path
    yield start
    for service in services:
        service.close()


def fails_with(number, call, *arguments, **keywords):
    with pytest.raises(OSError) as caught:
        call(*arguments, **keywords)
    assert caught.value.errno == number


def test_one_link_in_one_directory_at_every_depth(lying):
    service, point = lying()
    paths = [point / "demo" / "/".join(["d"] * depth) / "link" for depth in range(6)]
    for ups in range(1, 8):
        service.text = b"../" * ups + b"d"
        # From the deepest on, so that what is known of one depth could be taken for another.
        for depth in reversed(range(6)):
            if ups <= depth:
                assert os.readlink(paths[depth]) == os.fsdecode(service.text)
            else:
                fails_with(errno.EACCES, os.readlink, paths[depth])
                fails_with(errno.EACCES, os.stat, paths[depth])
    held = os.open(paths[4].parent, os.O_PATH)
    assert os.stat(paths[0].parent).st_ino == os.fstat(held).st_ino == DIRECTORY
    service.text = b"../../../../d"
    assert os.stat("link", dir_fd=held).st_ino == DIRECTORY
    os.close(held)


@pytest.mark.parametrize("text", [b"/etc/shadow", b"/usr/../etc/shadow", b"d/../../../etc", b"/", b"..", b"/workspace"])
def test_texts_that_lead_out(lying, text):
    service, point = lying()
    service.text = text
    fails_with(errno.EACCES, os.readlink, point / "demo/link")
    fails_with(errno.EACCES, open, point / "demo/link")
    assert os.getxattr(point / "demo/link", "system.berth.symlink", follow_symlinks=False) == text


@pytest.mark.parametrize("text", [b"", b"a\0b", b"x" * 4096, b"/usr\0/../etc/shadow"])
def test_texts_that_no_link_has(lying, text):
    service, point = lying()
    service.text = text
    fails_with(errno.EIO, os.readlink, point / "demo/link")


@pytest.mark.parametrize("text", [b"x", b"other", b"..", b"/usr/bin/env"])
def test_a_workspace_that_is_a_link_leads_nowhere(lying, text):
    service, point = lying(link_roots=True)
    service.text = text
    fails_with(errno.EACCES, os.readlink, point / "demo")
    fails_with(errno.EACCES, os.listdir, point / "demo")
