"""What the stand-ins for vendors' HTTP services share."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit


class Refused(Exception):
    """An error that is answered."""

    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def only(document, allowed, required=()):
    """A request has documented fields and those that it must have."""
    if not isinstance(document, dict) or set(document) - set(allowed) or set(required) - set(document):
        raise Refused(400, "INVALID_REQUEST", f"fields: {sorted(document)}")


def enter(name, words):
    """A process in a box, with pipes; of a session of its own."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); from lib.standins import box; " \
             "from pathlib import Path; box.STATE = Path(sys.argv[2]); box.execute(sys.argv[3], sys.argv[4:])"
    from lib.standins import box  # pylint: disable=import-outside-toplevel
    return subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).resolve().parents[2]), str(box.STATE), name, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass

    def read_body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, document=None):
        data = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        parts = urlsplit(self.path)
        self.path_only, self.query = parts.path, dict(parse_qsl(parts.query))
        service = self.server.service
        service.requests.append((self.command, parts.path))
        try:
            with service.lock:
                result = service.act(self)
            if callable(result):  # a stream, which takes the connection
                self.close_connection = True
                result()
            elif result is not None:
                self.answer(*result)
        except Refused as refused:
            self.answer(refused.status, service.error(refused))
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any


class Service:
    """port: where it listens, on loopback. requests: what it was asked, (method, path)."""

    def __init__(self):
        self.lock = threading.RLock()
        self.requests = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.service = self
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def act(self, handler):
        """Answers a request: (status, document), or a function that takes the connection over."""
        raise NotImplementedError

    def error(self, refused):
        """What is answered then."""
        return {"code": refused.code, "message": refused.message}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)
