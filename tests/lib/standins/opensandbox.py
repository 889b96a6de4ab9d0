"""A stand-in for a server of OpenSandbox and for execd in each sandbox: of specs/sandbox-lifecycle.yml,
specs/execd-api.yaml and components/execd/PTY.md what contrib/providers/opensandbox_sandbox.py uses, and nothing else."""

import base64
import email.parser
import email.policy
import hashlib
import json
import os
import re
import signal
import threading
from urllib.parse import parse_qsl

from lib.standins import box
from lib.standins.service import Refused, Service, enter, only

KEY = "an-api-key"
ROUTE = "a-route"
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
CREATE = ["image", "snapshotId", "platform", "timeout", "resourceLimits", "env", "metadata", "entrypoint",
          "networkPolicy", "credentialProxy", "secureAccess", "volumes", "extensions"]


class OpenSandbox(Service):
    """sidecar: whether it could hold a policy of the network. sessions: execd's shells by ID."""

    def __init__(self, sidecar=True):
        self.sidecar = sidecar
        self.asked = {}  # how often for a sandbox
        self.sessions = {}
        super().__init__()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def act(self, handler):
        path = handler.path_only.strip("/").split("/")
        if path[0] == "sandboxes" and path[2:4] == ["port", "44772"]:
            if handler.headers.get("OpenSandbox-Route") != ROUTE:
                raise Refused(401, "UNAUTHORIZED", "no route")
            return self.execd(handler, path[1], path[4:])
        if handler.headers.get("OPEN-SANDBOX-API-KEY") != KEY:
            raise Refused(401, "UNAUTHORIZED", "the API key is missing or wrong")
        if path[:2] == ["v1", "proxied"] and path[3:4] == ["44772"]:
            return self.execd(handler, path[2], path[4:])
        if path[:2] != ["v1", "sandboxes"]:
            raise Refused(404, "NOT_FOUND", "no such path")
        return self.lifecycle(handler, path[2:])

    def lifecycle(self, handler, path):
        if path == []:
            if handler.command == "POST":
                return self.create(json.loads(handler.read_body()))
            return self.list(handler.query)
        about = self.find(path[0])
        if len(path) == 1 and handler.command == "GET":
            return 200, self.sandbox(about)
        if len(path) == 1 and handler.command == "DELETE":
            for session in [one for one in self.sessions.values() if one.box == about["name"]]:
                session.end()
            box.destroy(about["name"])
            return 204, None
        if path[1:] == ["endpoints", "44772"] and handler.command == "GET":
            if handler.query.get("use_server_proxy") == "true":
                return 200, {"endpoint": f"127.0.0.1:{self.port}/v1/proxied/{path[0]}/44772"}
            return 200, {"endpoint": f"127.0.0.1:{self.port}/sandboxes/{path[0]}/port/44772",
                         "headers": {"OpenSandbox-Route": ROUTE}}
        raise Refused(404, "NOT_FOUND", "no such path")

    def find(self, name):
        try:
            return box.find(name)
        except box.NoBox:
            raise Refused(404, "SANDBOX_NOT_FOUND", f"Sandbox {name} not found") from None

    def create(self, request):
        only(request, CREATE, ["image", "resourceLimits", "entrypoint"])
        only(request["image"], ["uri", "auth"], ["uri"])
        if request.get("timeout") is not None and request["timeout"] < 60:
            raise Refused(400, "INVALID_REQUEST", "timeout: at least 60")
        if not all(isinstance(value, str) for value in request["resourceLimits"].values()):
            raise Refused(400, "INVALID_REQUEST", "resourceLimits: texts")
        for value in request.get("metadata", {}).values():
            if not LABEL.fullmatch(value):
                raise Refused(400, "INVALID_METADATA", f"{value} is no label")
        if "networkPolicy" in request:
            only(request["networkPolicy"], ["defaultAction", "egress"])
            if not self.sidecar:
                raise Refused(400, "INVALID_REQUEST", "egress.image is not configured")
        name = os.urandom(16).hex()
        box.create(name, request=request)
        return 202, self.sandbox(box.find(name))

    def sandbox(self, about):
        """It is not running at once."""
        asked = self.asked[about["name"]] = self.asked.get(about["name"], 0) + 1
        return {"id": about["name"], "status": {"state": "Pending" if asked < 3 else "Running"},
                "metadata": about["request"].get("metadata", {}), "createdAt": "2026-01-01T00:00:00Z",
                "entrypoint": about["request"]["entrypoint"]}

    def list(self, query):
        wanted = dict(parse_qsl(query.get("metadata", ""), strict_parsing=True)) if query.get("metadata") else {}
        page, size = int(query.get("page", 1)), int(query.get("pageSize", 20))
        found = [about for about in box.boxes()
                 if wanted.items() <= about["request"].get("metadata", {}).items()]
        return 200, {"items": [self.sandbox(about) for about in found[(page - 1) * size:page * size]],
                     "pagination": {"page": page, "pageSize": size, "totalItems": len(found),
                                    "totalPages": -(-len(found) // size), "hasNextPage": page * size < len(found)}}

    def execd(self, handler, name, path):
        self.find(name)
        if path == ["pty"] and handler.command == "POST":
            only(json.loads(handler.read_body() or b"{}"), ["cwd"])
            session = Session(self, name)
            self.sessions[session.id] = session
            return 201, {"session_id": session.id}
        if path == ["files", "upload"] and handler.command == "POST":
            return self.upload(handler, name)
        if path[:1] == ["pty"] and len(path) > 1:
            if path[1] not in self.sessions:
                raise Refused(404, "CONTEXT_NOT_FOUND", f"pty session {path[1]} not found")
            session = self.sessions[path[1]]
            if path[2:] == ["ws"] and handler.command == "GET":
                return lambda: session.serve(handler)
            if path[2:] == [] and handler.command == "DELETE":
                session.end()
                return 200, None
        raise Refused(404, "NOT_FOUND", "no such path")

    def upload(self, handler, name):
        head = f"Content-Type: {handler.headers['Content-Type']}\r\n\r\n".encode()
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + handler.read_body())
        # Both are files of the form: each has a file name.
        parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()
                 if part.get_filename()}
        if set(parts) != {"metadata", "file"}:
            raise Refused(400, "INVALID_FILE", "metadata or file is missing")
        about = json.loads(parts["metadata"].get_payload(decode=True))
        only(about, ["path", "owner", "group", "mode"], ["path"])
        temporary = box.STATE / f"upload-{os.urandom(8).hex()}"
        temporary.write_bytes(parts["file"].get_payload(decode=True))
        temporary.chmod(int(str(about.get("mode", 644)), 8))
        box.put(name, temporary, about["path"])
        temporary.unlink()
        return 200, None


class Session:
    """A shell of execd's, which begins with the first WebSocket and outlives it."""

    def __init__(self, service, name):
        self.service, self.box, self.id = service, name, os.urandom(16).hex()
        self.process = None

    def end(self):
        self.service.sessions.pop(self.id, None)
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def serve(self, handler):
        """RFC 6455, one connection."""
        fields = {name: handler.headers.get(name, "") for name in
                  ("Upgrade", "Connection", "Sec-WebSocket-Version", "Sec-WebSocket-Key")}
        if fields["Upgrade"].lower() != "websocket" or fields["Sec-WebSocket-Version"] != "13":
            raise Refused(400, "BAD_REQUEST", "no handshake")
        if handler.query != {"pty": "0"}:
            raise Refused(400, "BAD_REQUEST", "a stand-in has no terminals")
        accept = hashlib.sha1((fields["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        handler.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"),
                            ("Sec-WebSocket-Accept", base64.b64encode(accept).decode())):
            handler.send_header(name, value)
        handler.end_headers()
        self.process = enter(self.box, ["bash", "--norc", "--noprofile"])
        lock = threading.Lock()

        def send(kind, data, final=0x80):
            size = len(data)
            head = bytes([final | kind]) + (bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
                                            if size < 65536 else b"\x7f" + size.to_bytes(8, "big"))
            with lock:
                handler.wfile.write(head + data)
                handler.wfile.flush()

        send(2, b"\x03" + bytes(8) + b"what was before")
        send(1, json.dumps({"type": "connected", "session_id": self.id, "mode": "pipe"}).encode())
        send(9, b"are you there")
        pumps = [threading.Thread(target=self.pump, args=(pipe, channel, send), daemon=True)
                 for pipe, channel in ((self.process.stdout, 1), (self.process.stderr, 2))]
        for thread in pumps:
            thread.start()
        threading.Thread(target=self.watch, args=(pumps, send), daemon=True).start()
        self.read(handler.rfile, send)

    @staticmethod
    def pump(pipe, channel, send):
        try:
            while data := pipe.read1(32768):
                # In two frames: a message may be in several.
                send(2, bytes([channel]) + data[:1], 0)
                send(0, data[1:])
        except (OSError, ValueError):
            pass  # nobody listens any more

    def watch(self, pumps, send):
        for thread in pumps:
            thread.join()
        try:
            send(1, json.dumps({"type": "exit", "exit_code": self.process.wait()}).encode())
            send(8, (1000).to_bytes(2, "big") + b"process exited")
        except (OSError, ValueError):
            pass

    def read(self, file, send):
        while len(head := file.read(2)) == 2:
            assert head[0] & 0xf0 == 0x80 and head[1] & 0x80, "a client's frames are whole here, and masked"
            size = head[1] & 0x7f
            if size > 125:
                size = int.from_bytes(file.read(2 if size == 126 else 8), "big")
            mask = file.read(4)
            masked = file.read(size)
            masks = (mask * (size // 4 + 1))[:size]
            data = (int.from_bytes(masked, "big") ^ int.from_bytes(masks, "big")).to_bytes(size, "big")
            if head[0] & 0x0f == 10:
                assert data == b"are you there"
            elif head[0] & 0x0f == 1:
                assert json.loads(data) == {"type": "ping"}
                send(1, b'{"type":"pong"}')
            elif head[0] & 0x0f == 2:
                assert data[:1] == b"\x00"
                try:
                    self.process.stdin.write(data[1:])
                    self.process.stdin.flush()
                except BrokenPipeError:
                    pass  # it ends, and that will be told
            else:
                return
