"""A service in Python for a real driver: it greets and keeps the lease, and what it answers is for a
test to say."""

import errno
import os
import socket
import threading

from lib.berthwire import Closed, Connection


class PeerService:
    features = 0

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.url = f"unix:{path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def attr(self, ino, mode):
        return {"ino": ino, "generation": 1, "mode": mode, "nlink": 1, "size": 4096, "uid": os.getuid(),
                "gid": os.getgid(), "blksize": 4096}

    def answer(self, wire, got):
        """To be extended: what the test is about."""
        if got.name == "HELLO":
            wire.send("WELCOME", got.tag, version=1, max_payload=0x400000, max_calls=64, window=0x100000,
                      features=self.features, agent=b"peer")
        elif got.name == "PING":
            wire.send("PONG", got.tag, nonce=got["nonce"], lease=1)
        elif got.name == "STATFS":
            wire.send("STATFS_REPLY", got.tag)
        elif got.name not in ("FORGET", "RELEASE", "SEEN", "GRANT", "CANCEL", "GOODBYE"):
            wire.send("ERROR", got.tag, error=errno.EOPNOTSUPP, text=b"")

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[Connection.socket(sock, None)], daemon=True).start()

    def _serve(self, wire):
        try:
            while b"\r\n\r\n" not in wire.buffer:
                wire._fill()
            wire.buffer = wire.buffer.split(b"\r\n\r\n", 1)[1]
            wire.send_raw(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: berth/1\r\n\r\n")
            while True:
                self.answer(wire, wire.receive_new())
        except (Closed, OSError):
            wire.close()
