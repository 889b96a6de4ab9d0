"""A stand-in for Boat: of its documented HTTP interface (openapi/boat-v1.yaml) what contrib/providers/boat_sandbox.py
uses, and nothing else. The ssh of its sandboxes is a real sshd's, whose every key leads into one of them."""

import getpass
import json
import re
import shlex
import sys
from pathlib import Path

from lib.sshd import Sshd
from lib.standins import box
from lib.standins.service import Refused, Service, only

KEY = "boat_a-key"
PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+( [^\s]*)?")


class Boat(Service):
    """directory: for the sshd. host_key: what it says of it."""

    def __init__(self, directory):
        self.sshd = Sshd(directory, settings="PermitUserEnvironment no\n")
        self.sshd.directory.joinpath("authorized").write_text("")
        self.host_key = " ".join((self.sshd.directory / "host.pub").read_text().split()[:2])
        self.asked = {}
        self.by_key = {}  # Idempotency-Key: request, box
        self.made = 0
        super().__init__()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/api/v1"

    def error(self, refused):
        about = {"code": refused.code, "message": refused.message, "status": refused.status}
        return {"ok": False, "type": "sandbox.error", "requestId": "req_1", "error": about, **about}

    def act(self, handler):
        if handler.headers.get("Authorization") != f"Bearer {KEY}":
            raise Refused(401, "unauthorized", "The API key is not valid.")
        path = handler.path_only.strip("/").split("/")
        if path[:3] != ["api", "v1", "sandboxes"]:
            raise Refused(404, "not_found", "no such path")
        path, verb = path[3:], handler.command
        if not path:
            return self.create(handler) if verb == "POST" else self.list(handler.query)
        try:
            about = box.find(path[0])
        except box.NoBox:
            raise Refused(404, "not_found", "Sandbox not found.") from None
        if path[1:] == ["sshkey"] and verb == "POST":
            return self.let_in(about["name"], json.loads(handler.read_body()))
        if len(path) == 1 and verb == "GET":
            return 200, {"ok": True, "type": "sandbox.info", "sandbox": self.sandbox(about)}
        if len(path) == 1 and verb == "PATCH":
            request = json.loads(handler.read_body())
            only(request, ["name", "subdomain", "ttlSeconds"])
            box.note(about["name"], {"name": request["name"][:120]})
            return 200, {"ok": True, "type": "sandbox.info", "sandbox": self.sandbox(about)}
        if len(path) == 1 and verb == "DELETE":
            if handler.headers.get("X-Ascii-Confirm-Delete") != about["name"]:
                raise Refused(409, "delete_confirmation_required", "The header must have the sandbox's id.")
            box.destroy(about["name"])
            return 202, {"ok": True, "type": "sandbox.deleting", "operation": {"status": "pending"}}
        raise Refused(404, "not_found", "no such path")

    def create(self, handler):
        request = json.loads(handler.read_body())
        only(request, ["env", "environment", "from", "noEnv", "org", "setupScript", "teamId", "ttlSeconds", "type"])
        if request.get("type") not in ("small", "default", "large"):
            raise Refused(400, "invalid_type", "type: small, default or large")
        if box.misbehave("no-room"):
            raise Refused(429, "limit_reached", "You have as many sandboxes as your plan allows.")
        key = handler.headers.get("Idempotency-Key")
        known = self.by_key.get(key)
        if known and known[0] != request:
            raise Refused(409, "idempotency_key_reused", "The key was used with another body.")
        if not known:
            self.made += 1
            name = f"bx_{self.made:08}"
            box.create(name, request=request)
            known = self.by_key[key] = request, name
            if box.misbehave("no-answer"):
                raise Refused(500, "internal", "Something went wrong.")
        return 202, {"ok": True, "type": "sandbox.created", "status": "provisioning",
                     "ttlSeconds": request["ttlSeconds"], "sandbox": self.sandbox(box.find(known[1]))}

    def sandbox(self, about):
        """It is not ready at once."""
        asked = self.asked[about["name"]] = self.asked.get(about["name"], 0) + 1
        return {"id": about["name"], "name": box.notes(about["name"]).get("name", "Boat 2026-01-01 12:00"),
                "state": "provisioning" if asked < 3 else "ready", "desktopAvailable": False,
                "snapshotAvailable": False}

    def list(self, query):
        only(query, ["limit", "cursor", "sort"])
        found = box.boxes()
        # Pages of one, so that all of them are asked for.
        first = int(query.get("cursor", 0))
        more = first + 1 < len(found)
        return 200, {"ok": True, "type": "sandbox.list",
                     "sandboxes": [self.sandbox(one) for one in found[first:first + 1]],
                     "pageInfo": {"hasMore": more, "limit": 1, "nextCursor": str(first + 1) if more else None}}

    def let_in(self, name, request):
        only(request, ["key"], ["key"])
        if not PUBLIC_KEY.fullmatch(request["key"]):
            raise Refused(400, "invalid_key", "The key is not a public key.")
        script = ("import os, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
                  "from lib.standins import box; box.STATE = Path(sys.argv[2]); "
                  "box.execute(sys.argv[3], ['sh', '-c', 'cd /root && ' + os.environ['SSH_ORIGINAL_COMMAND']])")
        command = shlex.join([sys.executable, "-c", script, str(Path(__file__).resolve().parents[2]), str(box.STATE),
                              name])
        quoted = command.replace("\\", "\\\\").replace('"', '\\"')
        (self.sshd.directory / "authorized").write_text(f'command="{quoted}",restrict {request["key"]}\n')
        return 200, {"ok": True, "type": "ssh.key", "success": True, "hostKey": self.host_key, "machineIp": None,
                     "sshEndpoint": f"127.0.0.1:{self.sshd.port}", "sshUser": getpass.getuser()}

    def stop(self):
        super().stop()
        self.sshd.stop()
