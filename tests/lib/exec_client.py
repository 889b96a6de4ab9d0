"""Exec over the wire, for tests: it can ask for what `berth exec` would never ask for, and read as
slowly as it likes. Blocking, one connection, any number of calls."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from lib.berthwire import CallError, Closed, Connection, decode_list

WORKSPACE = "work"  # the one that the tests of exec use

STDIN, MERGE, PTY, DETACH, KEEP = 1, 2, 4, 8, 16
ATTACH_OUTPUT, ATTACH_INPUT, ATTACH_FOLLOW, ATTACH_HOLD = 1, 2, 4, 8
ATTACH_NOW = 2**64 - 1

VERDICTS = {1: "exited", 2: "signaled", 3: "timed_out", 4: "oom_killed", 5: "killed",
            6: "not_started", 7: "unknown", 8: "running"}
STAGES = {0: None, 1: "request", 2: "workspace", 3: "pipes", 4: "fork", 5: "setup", 6: "confine",
          7: "cwd", 8: "execve", 9: "attest"}


def to_bytes(value):
    return value.encode() if isinstance(value, str) else value


@dataclass
class Call:
    tag: int
    started: bool = False
    pid: int = 0
    id: bytes = b""
    attached: bool = False   # it was there already
    input: int = 0           # bytes of input that the service had received
    at: dict = field(default_factory=lambda: {1: 0, 2: 0})  # offsets of what comes next
    gaps: int = 0            # bytes that were left out
    output: dict = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    answer: object = None            # the fields of a reply that is no verdict, or a CallError
    verdict: SimpleNamespace = None  # the fields of EXEC_EXIT, verdict and stage by name


class ExecClient:
    def __init__(self, path, window=1 << 20, timeout=30):
        self.connection = Connection.unix(path, timeout)
        self.calls = {}
        self.granting = True
        self.connection.upgrade()
        self.connection.hello(window=window)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def start(self, workspace, argv, flags=0, env=(), cwd="", timeout_ms=0, exec_id="", rows=0,
              columns=0, mount_path="", max_output=0, linger_ms=0,
              memory_max=0, processes_max=0):
        call = Call(self.connection.request(
            "EXEC", flags=flags, max_output=max_output, linger_ms=linger_ms, memory_max=memory_max,
            processes_max=processes_max, workspace_flags=0, rows=rows, columns=columns,
            timeout_ms=timeout_ms, workspace=to_bytes(workspace), id=to_bytes(exec_id),
            cwd=to_bytes(cwd), mount_path=to_bytes(mount_path),
            argv=[to_bytes(word) for word in argv], env=[to_bytes(word) for word in env]))
        self.calls[call.tag] = call
        return call

    def attach(self, workspace, exec_id, flags=ATTACH_OUTPUT | ATTACH_FOLLOW | ATTACH_HOLD,
               from_stdout=0, from_stderr=0):
        call = Call(self.connection.request(
            "EXEC_ATTACH", flags=flags, from_stdout=from_stdout, from_stderr=from_stderr,
            workspace=to_bytes(workspace), id=to_bytes(exec_id)))
        call.at = {1: from_stdout, 2: from_stderr}
        self.calls[call.tag] = call
        return call

    def ask(self, name, /, **fields):
        """A request with an ordinary reply, whose fields are returned; CallError."""
        call = Call(self.connection.request(name, **fields))
        self.calls[call.tag] = call
        while call.answer is None:
            self.step()
        if isinstance(call.answer, CallError):
            raise call.answer
        return call.answer

    def list(self, workspace="", exec_id="", after=0, count=0):
        fields = self.ask("EXEC_LIST", workspace=to_bytes(workspace), id=to_bytes(exec_id),
                          after=after, count=count)
        return [SimpleNamespace(**{**element, "verdict": VERDICTS[element["verdict"]]})
                for element in decode_list("EXEC_COMMAND", fields["items"])]

    def kill(self, workspace, exec_id, signal=0, grace_ms=2000, by=""):
        return self.ask("EXEC_KILL", workspace=to_bytes(workspace), id=to_bytes(exec_id),
                        signal=signal, grace_ms=grace_ms, by=to_bytes(by))

    def forget(self, workspace, exec_id):
        self.connection.send("EXEC_FORGET", 0, workspace=to_bytes(workspace), id=to_bytes(exec_id))

    def leave(self, call):
        self.connection.send("CANCEL", call.tag, flags=1)

    def input(self, call, offset, value, end=False):
        self.connection.send("EXEC_INPUT", call.tag, end=int(end), offset=offset,
                             data=to_bytes(value))

    def signal(self, call, number):
        self.connection.send("EXEC_SIGNAL", call.tag, signal=number)

    def resize(self, call, rows, columns):
        self.connection.send("EXEC_RESIZE", call.tag, rows=rows, columns=columns)

    def cancel(self, call):
        self.connection.send("CANCEL", call.tag, flags=0)

    def grant(self, call, size):
        self.connection.send("GRANT", call.tag, bytes=size)

    def step(self):
        """Takes one message. CallError: a call was refused; Closed: the service is gone."""
        frame = self.connection.receive()
        if frame is None:
            raise Closed("the service closed the connection")
        call = self.calls.get(frame.tag)
        if frame.name == "EXEC_STARTED":
            call.started, call.pid, call.id = True, frame["pid"], frame["id"]
            call.attached, call.input = bool(frame["attached"]), frame["input"]
        elif frame.name == "EXEC_OUTPUT":
            item = frame.fields
            assert call.started and call.verdict is None
            assert item["offset"] >= call.at[item["stream"]]
            call.gaps += item["offset"] - call.at[item["stream"]]
            call.at[item["stream"]] = item["offset"] + len(item["data"])
            call.output[item["stream"]] += item["data"]
            if self.granting:
                self.grant(call, len(frame.payload))
        elif frame.name == "EXEC_EXIT":
            verdict = SimpleNamespace(**frame.fields)
            verdict.verdict, verdict.stage = VERDICTS[verdict.verdict], STAGES[verdict.stage]
            verdict.text = verdict.text.decode(errors="replace")
            call.verdict = verdict
            del self.calls[frame.tag]
        elif frame.name == "ERROR":
            self.calls.pop(frame.tag, None)
            error = CallError(frame["error"], frame["text"])
            if call is None:
                raise error
            call.answer = error
        elif call is not None and frame.name in ("EXEC_COMMANDS", "EXEC_KILLED"):
            call.answer = frame.fields
            del self.calls[frame.tag]

    def wait_started(self, call):
        while not call.started and call.verdict is None and call.answer is None:
            self.step()
        return call

    def wait(self, call):
        self.wait_verdict(call)
        assert call.gaps == 0
        assert (call.at[1], call.at[2]) == (call.verdict.stdout_bytes, call.verdict.stderr_bytes)
        return call.verdict

    def wait_verdict(self, call):
        """Whatever of its output was left out. CallError: it was answered with one."""
        while call.verdict is None and call.answer is None:
            self.step()
        if call.verdict is None:
            raise call.answer
        return call.verdict

    def run(self, workspace, argv, **keywords):
        call = self.start(workspace, argv, **keywords)
        self.wait(call)
        return call
