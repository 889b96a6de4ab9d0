"""A service that breaks the rules when a session goes on on another connection. The driver gives the session
up, and whoever waits hears of it."""

import os
import threading

import pytest

from lib.berthwire import CONSTANTS, frame, message
from lib.harness import wait_until
from hostile.test_lying_service import LyingService

RESUME = CONSTANTS["WIRE_FEATURE_RESUME"]
WELCOME = {"version": 1, "max_payload": 0x400000, "max_calls": 64, "window": 0x100000, "features": RESUME, "agent": b"liar"}


class RelapsingService(LyingService):
    """Loses the connection at the first GETATTR; then goes on with `welcome` (a function of what it
    had received), and says nothing more. The third connection is an ordinary one."""

    def __init__(self, path, welcome):
        self.welcome, self.hellos, self.first = welcome, [], None
        super().__init__(path)

    def answer(self, wire, got):
        if got.name == "HELLO":
            self.hellos.append(got["key"])
            if got["key"] and len(self.hellos) == 2:
                wire.send_raw(self.welcome(got.tag, self.first.received))
                self.silent = wire
            else:
                self.first = self.first or wire
                wire.send("WELCOME", got.tag, key=b"k" * 16, **WELCOME)
        elif wire is getattr(self, "silent", None):
            pass
        elif got.name == "GETATTR" and len(self.hellos) == 1:
            wire.close()
        else:
            super().answer(wire, got)


def goes_on(tag, received, behind=b""):
    return message("WELCOME", tag, **WELCOME, resumed=1, received=received) + behind


CASES = {
    "garbage": lambda tag, received: goes_on(tag, received, frame(0xffff, 0)),
    "a reply to nothing": lambda tag, received: goes_on(tag, received, message("OK", 1000)),
    "a hello": lambda tag, received: goes_on(tag, received, message("WELCOME", 1, **WELCOME)),
    "received what was not sent": lambda tag, received: goes_on(tag, received + (1 << 20)),
    "received nothing": lambda tag, received: goes_on(tag, 0, message("GOODBYE", 0, error=0, text=b"")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_service_that_goes_on_wrongly(harness, fuse_works, start_mount, case):
    service = RelapsingService(harness.short / "liar.sock", CASES[case])
    mount = start_mount(url=service.url, env=harness.env, options=["cache=no", "timeout=10"])
    answers = []
    thread = threading.Thread(target=lambda: answers.append(os.stat(mount.path / "demo" / "d")), daemon=True)
    thread.start()
    wait_until(lambda: len(service.hellos) >= 3, what="another session", timeout=30)
    thread.join(30)
    assert answers and not thread.is_alive()
    assert service.hellos[1] == b"k" * 16
    assert mount.stats()["resumes"] <= 1
    service.listener.close()
