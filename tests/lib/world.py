"""A small internet in network namespaces, for tests of what commands can reach: servers at public
and at private addresses, a name server that lies on request, the machine that the service runs on,
and workspaces that have a loopback and nothing else.

    world      198.51.100.10 …        servers, the name server at .53
       |       veth, 192.0.2.0/24
    machine    192.0.2.2, 127.0.0.1   where the proxy runs
    workspaces 127.0.0.1
"""

import ctypes
import http.server
import os
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from pathlib import Path

from lib.failure import HarnessError

CLONE_NEWNET = 0x40000000
SERVERS = ["198.51.100.10", "198.51.100.11", "203.0.113.5", "198.51.100.53", "10.9.9.9",
           "169.254.169.254", "2001:db8::10", "fd00::10"]
NAME_SERVER = "198.51.100.53"
MACHINE = "192.0.2.2"
MACHINE_ALSO = "192.0.2.3"  # from which it would not choose to talk

libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace, kept by a process of ours."""

    def __init__(self):
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"],
                                        stdin=subprocess.DEVNULL, start_new_session=True)
        ours = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + 20
        while os.readlink(f"{self.path}") == ours:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise HarnessError("no network namespace")
            time.sleep(0.005)
        self.ip("link", "set", "lo", "up")

    @property
    def path(self):
        return f"/proc/{self.process.pid}/ns/net"

    def command(self, *argv):
        return ["nsenter", f"--net={self.path}", "--", *argv]

    def ip(self, *words):
        result = subprocess.run(self.command("ip", *words), capture_output=True, text=True, timeout=20,
                                check=False)
        if result.returncode != 0:
            raise HarnessError(f"ip {words}: {result.stderr}")

    def run(self, function):
        """function() in a thread that is in here; what it makes stays in here."""
        result = []

        def body():
            try:
                with open(self.path, "rb") as namespace:
                    if libc.setns(namespace.fileno(), CLONE_NEWNET) < 0:
                        raise OSError(ctypes.get_errno(), "setns")
                result.append(function())
            except BaseException as error:  # pylint: disable=broad-except
                result.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(20)
        if not result or isinstance(result[0], BaseException):
            raise HarnessError("in a namespace") from (result[0] if result else None)
        return result[0]

    def listen(self, address, port, backlog=512):
        def make():
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(backlog)
            return listener
        return self.run(make)

    def connect(self, address, port):
        return self.run(lambda: socket.create_connection((address, port), 20))

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


class Handler(http.server.BaseHTTPRequestHandler):
    """Says where it is and what it was asked."""

    protocol_version = "HTTP/1.1"

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Close", str(self.close_connection))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self._answer(f"{self.server.name} {self.path} {self.headers['Host']}\n".encode())

    do_HEAD = do_GET

    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self._answer(body)

    def log_message(self, *arguments):
        pass


class Files(http.server.SimpleHTTPRequestHandler):
    """A directory."""

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    """On a socket that was made somewhere else."""

    daemon_threads = True

    def __init__(self, listener, handler, tls=None, name=""):
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket = context.wrap_socket(listener, server_side=True,
                                              do_handshake_on_connect=False)
        self.name = name
        self.seen = []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def handle_error(self, request, client_address):
        pass

    def close(self):
        self.shutdown()
        self.server_close()


class NameServer:
    """names: for each name the answers to one question after the other, each a list of addresses;
    the last one stays. silent: names that get no answer. asked: all names that were asked for."""

    def __init__(self, sock):
        self.socket = sock
        self.names = {}
        self.silent = set()
        self.asked = []
        self.given = {}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            try:
                packet, peer = self.socket.recvfrom(2048)
            except OSError:
                return
            answer = self._answer(packet) if len(packet) > 12 else None
            if answer:
                self.socket.sendto(answer, peer)

    def _answer(self, packet):
        labels, at = [], 12
        while packet[at]:
            labels.append(packet[at + 1:at + 1 + packet[at]].decode("latin-1"))
            at += 1 + packet[at]
        kind = struct.unpack_from(">H", packet, at + 1)[0]
        question = packet[12:at + 5]
        name = ".".join(labels).lower()
        self.asked.append((name, {1: "A", 28: "AAAA"}.get(kind, kind)))
        if name in self.silent:
            return None
        turns = self.names.get(name)
        records = []
        if turns is not None:
            turn = self.given.get((name, kind), 0)
            self.given[name, kind] = turn + 1
            for address in turns[min(turn, len(turns) - 1)]:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                if kind == (28 if family == socket.AF_INET6 else 1):
                    records.append(socket.inet_pton(family, address))
        code = 3 if turns is None else 0
        header = packet[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, len(records), 0, 0)
        body = b"".join(struct.pack(">HHHIH", 0xc00c, kind, 1, 0, len(data)) + data
                        for data in records)
        return header + question + body

    def close(self):
        self.socket.close()


class World:
    def __init__(self, directory):
        self.owned = []
        self.servers_by_name = {}
        self.machine = self.own(Namespace())
        self.servers = self.own(Namespace())
        servers = self.servers.process.pid
        self.machine.ip("link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns",
                        str(servers))
        self.servers.ip("addr", "add", "192.0.2.1/24", "dev", "down0")
        self.servers.ip("addr", "add", "2001:db8:1::1/64", "dev", "down0", "nodad")
        for address in SERVERS:
            self.servers.ip("addr", "add", address, "dev", "down0",
                            *(["nodad"] if ":" in address else []))
        self.servers.ip("link", "set", "down0", "up")
        # A new namespace forwards where the machine does: what nobody has would be unreachable, not silent.
        self.servers.run(lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("0", encoding="ascii"))
        for address in (MACHINE, MACHINE_ALSO):
            self.machine.ip("addr", "add", f"{address}/24", "dev", "up0")
        self.machine.ip("addr", "add", "2001:db8:1::2/64", "dev", "up0", "nodad")
        self.machine.ip("link", "set", "up0", "up")
        self.machine.ip("route", "add", "default", "via", "192.0.2.1")
        self.machine.ip("-6", "route", "add", "default", "via", "2001:db8:1::1")
        self.dns = self.own(NameServer(self.servers.run(self._name_server_socket)))
        self.hosts = directory / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n::1 localhost\n")
        self.resolv_conf = directory / "resolv.conf"
        self.resolv_conf.write_text(f"nameserver {NAME_SERVER}\noptions timeout:5 attempts:1\n")

    @staticmethod
    def _name_server_socket():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((NAME_SERVER, 53))
        return sock

    def own(self, thing):
        self.owned.append(thing)
        return thing

    def serve(self, address, port, handler=Handler, tls=None, where=None):
        """A server at an address of the world, or of `where`."""
        listener = (where or self.servers).listen(address, port)
        server = self.own(Server(listener, handler, tls, f"{address}:{port}"))
        self.servers_by_name[server.name] = server
        return server

    def on_machine(self, *argv):
        """A command line that runs a program on the machine, with its hosts and name server."""
        script = ('mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && '
                  'exec "$@"')
        return self.machine.command("unshare", "--mount", "bash", "-c", script, "bash", self.hosts,
                                    self.resolv_conf, *argv)

    def close(self):
        for thing in reversed(self.owned):
            thing.close()
