"""What integration tests stand on: private directories, daemons whose logs are captured and
judged, mounts that are always taken down, and bounded waiting.

Everything a test starts belongs to its Harness (fixture `harness`), which ends it in reverse
order whatever happened, and afterwards checks that no mount and no process was left behind.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from lib.background import (START_TIMEOUT, STOP_TIMEOUT, SUSPICIOUS, Process, describe_process, is_alive, memory_of,
                            started_by, wait_until)
from lib.failure import HarnessError
from lib.mounts import abort_mount, find_mount, force_unmount, held_elsewhere, mounts_below

REPOSITORY = Path(__file__).resolve().parents[2]

RUN_TIMEOUT = 30

BINARIES = {
    "berthd": "execsvc/server/berthd",
    "berthd-static": "execsvc/server/berthd-static",
    "berth": "execsvc/cli/berth",
    "berthfs": "fs/berthfs",
    "mount.fuse.berth": "fs/mount.fuse.berth",
    "relay": "tests/tools/relay",
    "link-attack": "tests/tools/link-attack",
    "attack": "tests/hostile/attacks/attack",
    "gain": "tests/hostile/attacks/gain",
}


def is_serving(pid):
    """Whether this process is a service: not a keeper that its starter is about to let go, and not
    the gateway."""
    try:
        return os.getsid(pid) != pid and Path(f"/proc/{pid}/comm").read_text() != "berthd-gateway\n"
    except OSError:
        return False


def _children():
    """Processes that this one has started and not reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


VERBS = ["read", "write", "exec", "admin"]


def grant_line(secret=None, workspaces=("*",), verbs=VERBS, **others):
    """A line of an access file; secret: a token."""
    if secret is not None:
        others["token"] = "sha256:" + hashlib.sha256(secret.encode()).hexdigest()
    return json.dumps({"workspaces": list(workspaces), "verbs": list(verbs), **others})


class Service(Process):
    """A running berthd. url: its unix socket; tls_url, http_url: when asked for; urls: all."""

    def __init__(self, harness, argv, root, listeners, token_file, tls, env=None, access_file=None):
        super().__init__(harness, "berthd", argv, env=env)
        self.root = Path(root)
        self.token_file = token_file
        self.access_file = access_file
        self.token = next((line for line in Path(token_file).read_text().splitlines()
                           if line and not line.startswith("#")), None) if token_file else None
        self.tls = tls
        self.expected_crashes = 0
        self.restart_arguments = (root, listeners, token_file, tls, env, access_file)
        # The service always listens in its root too, for --stdio; that is not one of ours.
        self.root_socket = self.root / "berthd.sock"
        own = re.escape(f"unix:{self.root_socket}")
        found = self.wait_for_line(rf"berthd: listening on (?!{own}$)(\S+)", len(listeners))
        self.urls = [match.group(1) for match in found]

    @property
    def pid(self):
        """Of the process that serves, which the one that was started (the starter) has started."""
        return next((pid for pid in started_by(self.popen.pid) if is_serving(pid)), self.popen.pid)

    def signal(self, number):
        """To the starter; one that stops it or lets it go on to what serves."""
        if number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(self.pid, number)
        else:
            super().signal(number)

    def kill(self):
        serving = self.pid
        super().kill()
        # One that has crashed may have been followed by another a moment ago.
        wait_until(lambda: not is_alive(serving) and not self._accepts(), STOP_TIMEOUT, "the end of what serves")

    def _accepts(self):
        for url in self.urls:
            if url.startswith("unix:"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    try:
                        probe.connect(url.removeprefix("unix:"))
                        return True
                    except (ConnectionRefusedError, FileNotFoundError):
                        pass
        return False

    def _url(self, scheme):
        return next((url for url in self.urls if url.startswith(scheme)), None)

    @property
    def url(self):
        return self._url("unix:") or self.urls[0]

    @property
    def socket(self):
        url = self._url("unix:")
        return url[len("unix:"):] if url else None

    @property
    def tls_url(self):
        # The certificate names localhost; the listener's line shows the address it is bound to.
        url = self._url("https:")
        return re.sub(r"//.*:", "//localhost:", url) if url else None

    @property
    def http_url(self):
        return self._url("http:")

    def client_env(self, url=None):
        """Environment with which berth and berthfs reach this service over url."""
        url = url or self.url
        env = {**self.harness.env, "BERTH_URL": url}
        if not url.startswith("unix:") and self.token_file:
            env["BERTH_TOKEN_FILE"] = str(self.token_file)
        if url.startswith("https:") and self.tls:
            env["BERTH_CA_FILE"] = str(self.harness.certificates.ca)
        return env

    def restart(self):
        """Another berthd with the same root and addresses, after this one has ended."""
        self.stop()
        root, _, token_file, tls, env, access_file = self.restart_arguments
        return self.harness.start_service(
            root=root, listen=self.urls, token_file=token_file, access_file=access_file, env=env,
            certificate=tls[0] if tls else "server", client_ca=bool(tls and tls[1]))


    def keeper(self):
        """The process that keeps this root's commands, or None."""
        try:
            pid = int((self.root / "exec" / ".lock").read_text())
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        words = line.split(b"\0")
        own = b"--keeper" in words or b"--keep-commands" in words and bytes(self.root) in words
        return Keeper(self, pid) if own else None

    def close(self):
        try:
            super().close()
            if self.log.count("it is started again") != self.expected_crashes:
                raise HarnessError(f"the service has crashed:\n{self.log}")
        finally:
            keeper = self.keeper()
            if keeper:
                keeper.stop()
        with contextlib.suppress(OSError):
            log = (self.root / "exec" / ".log").read_text(errors="replace")
            found = SUSPICIOUS.search(log)
            if found:
                raise HarnessError(f"the keeper of commands wrote {found.group(0)!r}:\n{log}")


class Keeper:
    """The process that keeps a service's commands, and outlives it."""

    def __init__(self, service, pid):
        self.service, self.pid = service, pid

    def running(self):
        current = self.service.keeper()
        return current is not None and current.pid == self.pid

    def memory(self):
        return memory_of(self.pid)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self):
        """Ends it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not self.running(), STOP_TIMEOUT, "the keeper's end")

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        try:
            wait_until(lambda: not self.running(), STOP_TIMEOUT, "the keeper's end")
        except TimeoutError:
            state = describe_process(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            raise HarnessError(f"the keeper of commands did not end on TERM:\n{state}") from None


class Mount(Process):
    """A running berthfs -f. path: the mountpoint."""

    def __init__(self, harness, argv, path, env):
        self.path = Path(path)
        super().__init__(harness, "berthfs", argv, env=env)
        try:
            self._wait()
        except TimeoutError as error:
            raise HarnessError(f"{error}\n{self.log}\n{describe_process(self.pid)}") from error

    def _wait(self):
        def mounted():
            if not self.running():
                raise HarnessError(
                    f"berthfs ended with status {self.popen.returncode}:\n{self.log}")
            row = find_mount(self.path)
            return row if row and row["type"].startswith("fuse") else None

        self.row = wait_until(mounted, START_TIMEOUT, f"mount at {self.path}")
        os.stat(self.path)

    def unmount(self):
        """The clean way; berthfs then ends with status 0. A program that was killed while it
        waited for the driver may use the mount for a moment longer."""
        deadline = time.monotonic() + 5
        while find_mount(self.path):
            result = subprocess.run(["fusermount3", "-u", str(self.path)], capture_output=True,
                                    timeout=STOP_TIMEOUT, check=False)
            if result.returncode == 0:
                break
            if b"busy" not in result.stderr or time.monotonic() > deadline:
                raise HarnessError(f"fusermount3 -u: {result.stderr.decode()}")
            time.sleep(0.05)
        for timeout in (2, STOP_TIMEOUT):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout)
                return
            if held_elsewhere(self.row):
                abort_mount(self.row)

    def close(self):
        error = None
        try:
            if self.running() and not self.killed:
                self.unmount()
        except HarnessError as caught:
            error = caught
        stuck = self.running() and not self.killed
        state = describe_process(self.pid) if stuck else ""
        left = force_unmount(self.path)
        if stuck:
            self.kill()
            raise HarnessError(
                f"{error or 'berthfs did not end after unmounting'}:\n{state}\n{self.log}")
        super().close()
        if error:
            raise error
        if left and not self.killed:
            raise HarnessError(f"berthfs ended and left its mount at {self.path}:\n{self.log}")

    def stats(self):
        """The driver's own counters (xattr user.berth.mount of the root)."""
        return json.loads(os.getxattr(self.path, "user.berth.mount"))["stats"]


class Relay(Process):
    """tests/tools/relay between a client and a service. url: where clients connect."""

    def __init__(self, harness, argv, target, control):
        super().__init__(harness, "relay", argv)
        self.control = str(control)
        address = self.wait_for_line(r"relay: listening on (\S+)")[0].group(1)
        self.address = address
        if address.startswith("unix:"):
            self.url = address
        else:
            host, port = address[len("tcp:"):].rsplit(":", 1)
            self.host, self.port = host, int(port)
            scheme = target.split(":", 1)[0]
            self.url = f"https://localhost:{port}" if scheme == "https" else f"{scheme}://{host}:{port}"

    def command(self, *words):
        """Sends one command; returns its answer without the newline. Raises on refusal."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(RUN_TIMEOUT)
            connection.connect(self.control)
            connection.sendall((" ".join(str(word) for word in words) + "\n").encode())
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        text = answer.decode().rstrip("\n")
        if text.startswith("error") or not text:
            raise HarnessError(f"relay {words}: {text or 'no answer'}")
        return text

    def delay(self, milliseconds):
        """One-way delay in each direction."""
        self.command("delay", milliseconds)

    def bandwidth(self, bytes_per_second):
        """Limit in each direction; 0: none."""
        self.command("bandwidth", bytes_per_second)

    def cut(self):
        self.command("cut")

    def stall(self):
        self.command("stall")

    def resume(self):
        self.command("resume")

    def half_open(self):
        self.command("half-open")

    def lose(self):
        """The service sees the end of the connections, of which the clients hear nothing."""
        self.command("lose")

    def cut_after(self, size):
        """Cuts a connection when so many bytes more have passed, at that byte."""
        self.command("cut-after", size)

    def refuse(self, on=True):
        self.command("refuse", "on" if on else "off")

    def reset_stats(self):
        self.command("reset")

    def stats(self):
        return json.loads(self.command("stats"))


# --- the harness ---------------------------------------------------------------------------

def find_binaries(build):
    """Maps names to the programs of a build directory that exist."""
    return {name: Path(build) / path for name, path in BINARIES.items()
            if (Path(build) / path).exists()}


class Harness:
    """Owns everything one test starts."""

    def __init__(self, directory, build, certificates, time_limit, leaks=True):
        """leaks: with AddressSanitizer, programs look for leaks at their end."""
        self.directory = Path(directory)
        self.build = Path(build)
        self.binaries = find_binaries(build)
        self._certificates = certificates
        # Unix socket addresses are at most 107 bytes; pytest's directories can be longer.
        self.short = Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
        self.owned = []
        self.services = []
        self.counter = 0
        self.env = self._environment(leaks)
        self.report = []
        self._closed = threading.Event()
        self._watchdog = threading.Timer(time_limit, self._free_the_stuck) if time_limit else None
        if self._watchdog:
            self._watchdog.daemon = True
            self._watchdog.start()

    def _environment(self, leaks):
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("BERTH_", "XDG_", "GIT_"))
               and name.lower() not in ("https_proxy", "http_proxy", "all_proxy", "no_proxy")}
        if "BERTH_WITHOUT" in os.environ:  # mechanisms that the services of this run do without
            env["BERTH_WITHOUT"] = os.environ["BERTH_WITHOUT"]
        home, runtime = self.directory / "home", self.short / "run"
        for path in (home, runtime):
            path.mkdir(mode=0o700)
        path = [str(program.parent) for program in self.binaries.values()]
        env.update({
            "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"), "XDG_CACHE_HOME": str(home / "cache"),
            "PATH": ":".join([*dict.fromkeys(path), env.get("PATH", "/usr/bin:/bin")]),
            "LC_ALL": "C.UTF-8", "TZ": "UTC",
            "ASAN_OPTIONS": f"detect_leaks={int(leaks)}:detect_stack_use_after_return=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1",
            "GIT_CONFIG_GLOBAL": str(home / "gitconfig"), "GIT_CONFIG_SYSTEM": "/dev/null",
        })
        (home / "gitconfig").write_text(
            "[user]\nname = Test\nemail = test@example.org\n[init]\ndefaultBranch = main\n"
            "[safe]\ndirectory = *\n")
        return env

    @property
    def certificates(self):
        return self._certificates()

    def program(self, name):
        if name not in self.binaries:
            raise HarnessError(f"{self.build / BINARIES[name]} is missing: build it first")
        return str(self.binaries[name])

    def new_path(self, name):
        """A path that does not exist, in the test's own directory."""
        self.counter += 1
        return self.directory / f"{self.counter:02}-{name}"

    def own(self, thing):
        self.owned.append(thing)
        return thing

    # -- starting things --

    def start(self, name, *argv, **keywords):
        """Any program in the background, owned by the test."""
        return Process(self, name, argv, **keywords)

    def token_file(self, *tokens, mode=0o600):
        path = self.new_path("tokens")
        path.write_text("# tokens of this test\n" + "".join(f"{token}\n" for token in tokens))
        path.chmod(mode)
        return path

    def access_file(self, *grants, mode=0o600):
        """Grants as lines of an access file; one with "secret" gets that token's hash."""
        path = self.new_path("access")
        path.write_text("# grants of this test\n" + "".join(f"{grant_line(**grant)}\n" for grant in grants))
        path.chmod(mode)
        return path

    def start_service(self, unix=True, tls=False, http=False, root=None, listen=None, args=(),
                      token_file=None, certificate="server", client_ca=False, env=None, wrapper=(),
                      access_file=None):
        """Starts berthd and waits until it listens.

        unix, tls, http: which listeners, on private addresses; listen: instead, these URLs.
        tls and http let in who has a token of a token file (one with a fresh token unless given;
        with client_ca or access_file none unless given). access_file: instead, who may do what.
        certificate: a name of Certificates. client_ca: mTLS.
        wrapper: a command that executes berthd at its end.
        """
        root = Path(root or self.new_path("root"))
        if listen is None:
            listen = []
            if unix:
                self.counter += 1
                listen.append(f"unix:{self.short}/d{self.counter}.sock")
            if tls:
                listen.append("https://127.0.0.1:0")
            if http:
                listen.append("http://127.0.0.1:0")
        listen = [str(url) for url in listen]
        secure = any(url.startswith("https:") for url in listen)
        remote = secure or any(url.startswith("http:") for url in listen)
        if remote and token_file is None and not client_ca and not access_file:
            token_file = self.token_file("token-" + os.urandom(12).hex())
        if token_file and not access_file:
            tokens = [line for line in Path(token_file).read_text().splitlines() if line and line[0] != "#"]
            access_file = self.access_file(*({"id": f"t{i}", "secret": t} for i, t in enumerate(tokens)))
        argv = [*wrapper, self.program("berthd"), "--root", root, "--log-level", "debug"]
        for url in listen:
            argv += ["--listen", url]
        if access_file:
            argv += ["--access-file", access_file]
        if secure:
            pem, key = self.certificates.pair(certificate)
            argv += ["--tls-cert", pem, "--tls-key", key]
            if client_ca:
                argv += ["--tls-client-ca", self.certificates.ca]
        service = Service(self, [*argv, *args], root, listen, token_file,
                          (certificate, client_ca) if secure else None, env=env,
                          access_file=access_file)
        self.services.append(service)
        return service

    def start_mount(self, service=None, url=None, path=None, workspace=None, options=(), args=(),
                    env=None):
        """Starts berthfs -f on a private directory and waits until it is usable. Without
        workspace the mount shows all workspaces. options: for -o; args: others."""
        if service is None and (url is None or env is None):
            service = self.services[-1]
        url = url or service.url
        path = Path(path or self.new_path("mnt"))
        path.mkdir(exist_ok=True)
        argv = [self.program("berthfs"), url, path, "-f"]
        if workspace is not None:
            argv += ["-w", workspace]
        for option in [options] if isinstance(options, str) else options:
            argv += ["-o", option]
        return Mount(self, [*argv, *args], path, env or service.client_env(url))

    def start_relay(self, target, listen=None, delay=0, bandwidth=0, raw=None):
        """Starts the relay in front of target: a Service, a URL, or unix:PATH or tcp:HOST:PORT.
        delay: one way, in milliseconds; bandwidth: bytes per second and direction, 0: none."""
        url = target.url if isinstance(target, Service) else str(target)
        match = re.fullmatch(r"(?:https?://|tcp:)(.+):(\d+)/?", url)
        connect = f"tcp:{match.group(1)}:{match.group(2)}" if match else url
        self.counter += 1
        if listen is None:
            listen = "tcp:127.0.0.1:0" if match else f"unix:{self.short}/r{self.counter}.sock"
        if raw is None:
            raw = not url.startswith(("unix:", "http:"))
        control = self.short / f"c{self.counter}.sock"
        argv = [self.program("relay"), "--listen", listen, "--connect", connect,
                "--control", control, "--delay", delay, "--bandwidth", bandwidth]
        if raw:
            argv.append("--raw")
        return Relay(self, argv, url, control)

    # -- running programs to their end --

    def run(self, argv, env=None, cwd=None, input=None, timeout=RUN_TIMEOUT, check=False, text=True,
            **keywords):
        """Runs a program, at most timeout seconds; then it is killed and the test fails.
        text: output as str, with bytes that are not UTF-8 kept as surrogates."""
        argv = [os.fspath(word) if isinstance(word, (bytes, os.PathLike)) else str(word)
                for word in argv]
        style = {"encoding": "utf-8", "errors": "surrogateescape"} if text else {}
        if input is None and "stdin" not in keywords:
            keywords["stdin"] = subprocess.DEVNULL
        process = subprocess.Popen(
            argv, env=env or self.env, cwd=cwd or self.directory, start_new_session=True,
            stdin=keywords.pop("stdin", subprocess.PIPE),
            stdout=keywords.pop("stdout", subprocess.PIPE),
            stderr=keywords.pop("stderr", subprocess.PIPE), **style, **keywords)
        try:
            out, err = process.communicate(input, timeout)
        except BaseException as error:
            state = describe_process(process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            try:
                process.communicate(timeout=2)
            except subprocess.TimeoutExpired:
                self.abort_mounts()
                process.communicate(timeout=STOP_TIMEOUT)
            if isinstance(error, subprocess.TimeoutExpired):
                raise HarnessError(f"{argv}: not within {timeout} s\n{state}") from None
            raise
        result = subprocess.CompletedProcess(argv, process.returncode, out, err)
        shown = (out or ("" if text else b"")) + (err or ("" if text else b""))
        shown = shown if text else shown.decode(errors="replace")
        found = re.search(r"(Address|Leak|Thread|UndefinedBehavior)Sanitizer|runtime error:", shown)
        if found:
            raise HarnessError(f"{argv} wrote {found.group(0)!r}:\n{shown}")
        if check and process.returncode != 0:
            raise HarnessError(f"{argv} ended with status {process.returncode}:\n{shown}")
        return result

    def run_berth(self, *args, service=None, url=None, env=None, **keywords):
        """Runs berth against the last service started (or service, or url)."""
        if env is None:
            service = service or (self.services[-1] if self.services else None)
            env = service.client_env(url) if service else {**self.env, **({"BERTH_URL": url} if url else {})}
        return self.run([self.program("berth"), *args], env=env, **keywords)

    # -- when things go wrong --

    def abort_mounts(self):
        for row in mounts_below(self.directory) + mounts_below(self.short):
            if row["type"].startswith("fuse"):
                abort_mount(row)

    def state(self):
        """Logs and states of all that was started, for a failure report."""
        lines = list(self.report)
        for thing in self.owned:
            log = thing.log
            lines.append(f"--- {thing.name} {thing.pid}: {' '.join(thing.argv)}")
            lines.append(log if len(log) < 20000 else f"{log[:4000]}\n[…]\n{log[-16000:]}")
            if thing.running():
                lines.append(describe_process(thing.pid))
        return "\n".join(lines)

    def _free_the_stuck(self):
        # The test's time is over. Its signal does not reach a thread that waits inside the kernel
        # for a driver's answer, so take the mounts away; the call then fails and the test ends.
        self.report.append("time limit: states before the mounts were aborted\n" + self.state())
        self.abort_mounts()
        # A clean-up that waits for a child, in the test's own code, would wait for ever: the
        # signal comes once.
        if not self._closed.wait(STOP_TIMEOUT):
            for pid in _children():
                self.report.append(f"time limit: killed {pid}\n{describe_process(pid)}")
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _leftovers(self):
        prefixes = (str(self.directory) + "/", str(self.short) + "/")
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                place = os.readlink(entry / "cwd") + "/"
                if place.startswith(prefixes):
                    # Empty in the middle of an execve; what has ended has no cwd.
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append((int(entry.name), line.decode(errors="replace")))
        return found

    def holders(self):
        """Processes that hold a connection for later commands (berth connection)."""
        found = []
        for path in (self.short / "run/berth/control").glob("*[0-9a-f]"):
            if path.is_socket() and "-" not in path.name:
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                    s.connect(str(path))
                    credentials = s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    found.append(int.from_bytes(credentials[:4], "little"))
        return found

    def _stop_holders(self):
        """They are no process of ours, and stay behind by intent."""
        if not self.holders():
            return
        with contextlib.suppress(HarnessError):
            self.run([self.program("berth"), "connection", "stop", "--all"])
        try:
            wait_until(lambda: not self.holders(), 5)
        except TimeoutError:
            left = self.holders()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise HarnessError(f"connection holders do not end: {left}") from None

    def close(self):
        """Ends everything, newest first; raises the first problem after all is down."""
        problems = []
        try:
            self._stop_holders()
        except BaseException as error:
            problems.append(error)
        crashed = any(thing.killed for thing in self.owned)
        for thing in reversed(self.owned):
            try:
                thing.close()
            except BaseException as error:  # a time-out's exception must not stop the clean-up
                problems.append(error)
                if thing.running():
                    self.abort_mounts()
                    with contextlib.suppress(BaseException):
                        thing.kill()
        self._closed.set()
        if self._watchdog:
            self._watchdog.cancel()
        for directory in (self.directory, self.short):
            if force_unmount(directory):
                problems.append(HarnessError(f"a mount was left below {directory}"))
        # A killed program that had looked at a mount of another test, which never answers, ends
        # with that mount.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self._leftovers(), 20)
        left = self._leftovers()
        for pid, _ in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if left and not crashed:
            problems.append(HarnessError(f"processes were left behind: {left}"))
        shutil.rmtree(self.short, ignore_errors=True)
        if problems:
            raise problems[0]
