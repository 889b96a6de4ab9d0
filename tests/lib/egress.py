"""The proxy of commands as a process of its own, told what to do as the keeper tells it."""

import json
import os
import re
import socket

from lib.harness import STOP_TIMEOUT, Process, wait_until
from lib.world import Namespace

PORT = 3128


class Egress(Process):
    """berthd --egress on the world's machine."""

    def __init__(self, harness, world, limits=""):
        self.world = world
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.old_log = harness.new_path("egress-old.log")
        number = theirs.fileno()
        script = f'exec 3<&{number} {number}<&- 4<>"$1"; shift; exec "$@"'
        argv = world.on_machine("bash", "-c", script, "bash", self.old_log,
                                harness.program("berthd"), "--egress", limits)
        # The search for leaks reads /proc, which this process may not.
        super().__init__(harness, "egress", argv, pass_fds=(number,),
                         env={**harness.env, "ASAN_OPTIONS": "detect_leaks=0"})
        theirs.close()
        self.ids = 0

    def send(self, message, fds=()):
        socket.send_fds(self.control, [json.dumps(message).encode()], fds)

    def open(self, listener, allow, name="w"):
        """Serves a workspace on a listening socket; returns its number."""
        self.ids += 1
        self.send({"kind": "open", "id": self.ids, "name": name, "allow": allow},
                  [listener.fileno()])
        return self.ids

    def change(self, number, allow):
        self.send({"kind": "change", "id": number, "allow": allow})

    def close_workspace(self, number):
        self.send({"kind": "close", "id": number})

    def decisions(self, **wanted):
        """Those of the log that have these fields."""
        found = [json.loads(text) for text in re.findall(r"^berth-egress: egress (\{.*\})$", self.log,
                                                         re.MULTILINE)]
        return [one for one in found
                if all(one.get(name) == value for name, value in wanted.items())]

    def wait_for_decision(self, **wanted):
        return wait_until(lambda: self.decisions(**wanted), what=f"decision {wanted}")[0]

    def close(self):
        self.control.close()
        self.popen.wait(STOP_TIMEOUT)  # with its keeper
        super().close()


class Workspace:
    """A network namespace with a loopback, and what a command in it is given."""

    name, argv, log, killed = "workspace", (), "", False

    def __init__(self, harness, egress, allow, name="w"):
        self.harness = harness
        self.egress = egress
        self.namespace = Namespace()
        self.pid = self.namespace.process.pid
        harness.own(self)
        self.listener = self.namespace.listen("127.0.0.1", PORT)
        self.number = egress.open(self.listener, allow, name)
        proxy = f"http://127.0.0.1:{PORT}"
        self.env = {**harness.env}
        for variable in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE",
                         "NODE_EXTRA_CA_CERTS", "npm_config_cafile"):
            self.env[variable] = str(harness.certificates.ca)
        for variable in ("http_proxy", "https_proxy", "all_proxy"):
            self.env[variable] = self.env[variable.upper()] = proxy
        self.env["no_proxy"] = self.env["NO_PROXY"] = "localhost,127.0.0.1,::1"

    def run(self, *argv, **keywords):
        return self.harness.run(self.namespace.command(*argv), env=self.env, **keywords)

    def curl(self, *words, **keywords):
        return self.run("curl", "-sS", "--max-time", "20", *words, **keywords)

    def status(self, *words):
        """Of the answer to CONNECT, or to the request, and what curl says."""
        result = self.curl("-o", "/dev/null", "-w", "%{http_connect} %{http_code}", *words)
        connect, code = result.stdout.split()
        return int(connect) or int(code)

    def connect(self):
        """A connection to the proxy."""
        return self.namespace.connect("127.0.0.1", PORT)

    def ask(self, text, more=b""):
        """What the proxy answers to these bytes, until it closes."""
        with self.connect() as sock:
            sock.sendall((text if isinstance(text, bytes) else text.encode()) + more)
            return read_all(sock)

    def running(self):
        return False

    def close(self):
        self.listener.close()
        self.namespace.close()


def read_all(sock):
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_head(sock):
    """An answer's header, byte by byte, and no more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, head
        head += byte
    return head.decode()


def descriptors_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
